"""SASL/PLAIN (RFC 4616): name and password in one message, as plain text.

[authorisation id] NUL user NUL password
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from strandline.broker.security.mechanism import AuthenticationFailed, Step


class PlainExchange:
    """The server's half of one SASL/PLAIN exchange."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        """`passwords` are by user."""
        self._passwords = passwords

    def step(self, message: bytes) -> Step:
        """Checks the password. Raises AuthenticationFailed."""
        try:
            parts = message.decode("utf-8").split("\0")
        except UnicodeDecodeError:
            raise AuthenticationFailed("the message is not UTF-8") from None
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise AuthenticationFailed("the message is malformed")
        authzid, user, password = parts
        expected = self._passwords.get(user)
        # Compared also for an unknown user, so that the timing reveals nothing.
        is_right = hmac.compare_digest(password.encode(), (expected or "").encode())
        if expected is None or not is_right:
            raise AuthenticationFailed("no such user, or a wrong password", user)
        if authzid and authzid != user:
            raise AuthenticationFailed("one user cannot log in as another", user)
        return Step(answer=b"", user=user)
