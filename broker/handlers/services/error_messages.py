"""Truncates error messages to a length that fits an answer.

Messages quote what a client sent: a topic name, a property and its value. A string of the protocol
has at most 32,767 bytes, which one quoted string may fill, and a readable message is far shorter.
"""

from __future__ import annotations

MESSAGE_CHARACTERS_MAX = 1000
_CUT = "..."


def clipped(message: str | None) -> str | None:
    """Truncates the message to MESSAGE_CHARACTERS_MAX."""
    if message is None or len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    return message[: MESSAGE_CHARACTERS_MAX - len(_CUT)] + _CUT
