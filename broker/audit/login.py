"""A login, for the record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """One attempt to log in; `user` is empty if the client named none."""

    user: str
    mechanism: str
    listener: str
    address: str
    # Whether the client was logged in before, on the same connection.
    is_renewal: bool = False
