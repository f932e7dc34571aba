"""Host names, as the system's resolver takes them."""

from __future__ import annotations


def is_host_name(text: str) -> bool:
    """Whether a resolver takes it: no label is empty or has more than 63 characters.

    `getaddrinfo` encodes it in the same manner, and raises UnicodeError, which is no OSError.
    """
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return True
