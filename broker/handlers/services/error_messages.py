"""Error messages that fit into an answer.

Messages quote what a client sent: a topic name, a property and its value. A string of the protocol
ends at 32,767 bytes, which one quoted string may fill, and a reader's patience ends before that.
"""

from __future__ import annotations

MESSAGE_CHARACTERS_MAX = 1000
_CUT = "..."


def clipped(message: str | None) -> str | None:
    """The message, cut to MESSAGE_CHARACTERS_MAX."""
    if message is None or len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    return message[: MESSAGE_CHARACTERS_MAX - len(_CUT)] + _CUT
