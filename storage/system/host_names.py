"""Host names, as the system's resolver takes them."""

from __future__ import annotations

LABEL_CHARACTERS_MAX = 63


def is_host_name(text: str) -> bool:
    """Whether a resolver takes it: no label is empty or too long; an empty text is every interface.

    `getaddrinfo` checks the same, and raises UnicodeError, which is no OSError.
    """
    if text.isascii():
        # The codec below takes milliseconds to load, and few brokers need it.
        *labels, last = text.split(".")
        return all(0 < len(label) <= LABEL_CHARACTERS_MAX for label in labels) and (
            len(last) <= LABEL_CHARACTERS_MAX
        )
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return True
