"""PLAIN as a server: who is let in, and what is refused."""

from __future__ import annotations

import pytest

from strandline.broker.security.mechanism import AuthenticationFailed
from strandline.broker.security.plain import PlainExchange


@pytest.mark.parametrize(
    ("message", "user"),
    [
        (b"\0alice\0secret", "alice"),
        (b"alice\0alice\0secret", "alice"),
        (b"bob\0alice\0secret", None),
        (b"\0alice\0wrong", None),
        (b"\0nobody\0secret", None),
        (b"\0nobody\0", None),
        (b"\0\0secret", None),
        (b"alice\0secret", None),
        (b"\0alice\0secret\0", None),
        (b"\xff\0alice\0secret", None),
        (b"", None),
    ],
)
def test_plain_knows_its_users(message: bytes, user: str | None) -> None:
    exchange = PlainExchange({"alice": "secret"})
    if user is None:
        with pytest.raises(AuthenticationFailed):
            exchange.step(message)
    else:
        assert exchange.step(message).user == user
