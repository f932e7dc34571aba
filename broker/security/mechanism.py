"""The interface of SASL mechanisms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class AuthenticationFailed(Exception):
    """Authentication failed; the text is for the broker's log, the client gets less detail."""


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
