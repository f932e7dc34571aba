"""The client's half of SASL, for connections from one broker to another.

    first()                 what the client sends first
    step(server's answer)   what it sends next; None once it is in

A server that does not know the password cannot end a SCRAM exchange: its last answer has to prove
it. The frames around these messages are SaslHandshake and SaslAuthenticate.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Protocol

from strandline.broker.security.mechanism import AuthenticationFailed
from strandline.broker.security.scram import DIGESTS, ITERATIONS_MIN
from strandline.storage.clock import Clock

# A hostile server must not keep a client busy: this many take 50 ms.
CLIENT_ITERATIONS_MAX = 100_000
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<count>[0-9]{1,9})(?:,.*)?"
)


class ClientExchange(Protocol):
    """The client's half of one authentication exchange."""

    def first(self) -> bytes: ...

    def step(self, answer: bytes) -> bytes | None:
        """Handles a server's answer. Raises AuthenticationFailed."""
        ...


class NoToken(Exception):
    """There is no token now; says why, and never what was sent."""


class Tokens(Protocol):
    """Gives tokens to threads."""

    def read(self, clock: Clock) -> str:
        """Returns a token; blocks. Raises NoToken."""
        ...


class PlainClient:
    """Logs in by PLAIN."""

    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password

    def first(self) -> bytes:
        return f"\0{self._user}\0{self._password}".encode()

    def step(self, answer: bytes) -> bytes | None:
        if answer:
            raise AuthenticationFailed("the server's answer is malformed", self._user)
        return None


class OAuthClient:
    """Logs in by a token."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._refusal = ""

    def first(self) -> bytes:
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def step(self, answer: bytes) -> bytes | None:
        """After a refusal the exchange ends with one more message, which the server refuses."""
        if self._refusal:
            raise AuthenticationFailed(f"the server refuses the token: {self._refusal}")
        self._refusal = answer.decode("utf-8", "replace")
        return b"\x01" if answer else None


class ScramClient:
    """Logs in by SCRAM (RFC 5802)."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        """`nonce` is random, of letters and digits, and used once."""
        self._digest = DIGESTS[mechanism]
        self._user = user
        self._password = password
        self._nonce = nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def step(self, answer: bytes) -> bytes | None:
        text = answer.decode("utf-8", "replace")
        if self._signature:
            self._check_server(text)
            return None
        return self._final(text)

    def _failed(self, reason: str) -> AuthenticationFailed:
        return AuthenticationFailed(reason, self._user)

    def _final(self, text: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(text)
        if match is None or not match["nonce"].startswith(self._nonce):
            raise self._failed("the server's answer is malformed")
        if match["nonce"] == self._nonce:
            raise self._failed("the server adds nothing to the nonce")
        count = int(match["count"])
        if not ITERATIONS_MIN <= count <= CLIENT_ITERATIONS_MAX:
            raise self._failed(f"the server asks for {count} iterations")
        try:
            salt = base64.b64decode(match["salt"], validate=True)
        except binascii.Error:
            raise self._failed("the server's answer is malformed") from None
        salted = hashlib.pbkdf2_hmac(self._digest, self._password.encode(), salt, count)
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        stored_key = hashlib.new(self._digest, client_key).digest()
        bare = f"c=biws,r={match['nonce']}"
        signed = f"{self._bare},{text},{bare}".encode()
        signature = hmac.digest(stored_key, signed, self._digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._digest)
        self._signature = hmac.digest(server_key, signed, self._digest)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def _check_server(self, text: str) -> None:
        expected = f"v={base64.b64encode(self._signature).decode()}"
        if text.startswith("e="):
            raise self._failed(f"the server refuses the login: {text[2:]}")
        if not hmac.compare_digest(text.encode(), expected.encode()):
            raise self._failed("the server does not know the password")
