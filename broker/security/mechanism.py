"""The interface of SASL mechanisms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class AuthenticationFailed(Exception):
    """Authentication failed; text and user are for the broker's log, the client gets less detail.

    `user` is the name that the client gave; empty if it gave none.
    """

    def __init__(self, reason: str, user: str = "") -> None:
        super().__init__(reason)
        self.user = user


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The answer to a client's message; `user` is set once the client is authenticated."""

    answer: bytes
    user: str | None = None


class Exchange(Protocol):
    """The server's half of one authentication exchange."""

    def step(self, message: bytes) -> Step:
        """Handles a client's message. Raises AuthenticationFailed."""
        ...
