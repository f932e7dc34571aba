"""What all mechanisms of SASL have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class AuthenticationFailed(Exception):
    """A client is not who it says; for our log. The client is told less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The answer to a message of the client; `user` is who it is, once that is known."""

    answer: bytes
    user: str | None = None


class Exchange(Protocol):
    """The server's half of one login."""

    def step(self, message: bytes) -> Step:
        """Raises AuthenticationFailed."""
        ...
