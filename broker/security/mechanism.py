"""The interface of SASL mechanisms."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

# What a client is told. It does not say whether the user or the password is wrong.
INVALID_CREDENTIALS = "Authentication failed: Invalid username or password"


class AuthenticationFailed(Exception):
    """Authentication failed; text and user are for the broker's log, the client gets less detail.

    `user` is the name that the client gave; empty if it gave none. `told` is the client's text.
    """

    def __init__(self, reason: str, user: str = "", *, told: str = INVALID_CREDENTIALS) -> None:
        super().__init__(reason)
        self.user = user
        self.told = told


class NotYet(Exception):
    """A message that cannot be judged yet: the same step is to be tried again after `ready`."""

    def __init__(self, ready: Awaitable[object]) -> None:
        super().__init__()
        self.ready = ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The answer to a client's message; `user` is set once the client is authenticated.

    `expires_ms` is the time of the credential's end, in ms since 1970; None if it has none.
    """

    answer: bytes
    user: str | None = None
    expires_ms: int | None = None


class Exchange(Protocol):
    """The server's half of one authentication exchange."""

    def step(self, message: bytes) -> Step:
        """Handles a client's message. Raises AuthenticationFailed, or NotYet."""
        ...
