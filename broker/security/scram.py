"""SCRAM (RFC 5802): the server's half, and stored credentials.

    n,,n=user,r=<client nonce>               -> r=<both nonces>,s=<salt>,i=<iterations>
    c=biws,r=<both nonces>,p=<client proof>  -> v=<server signature>

A stored credential verifies a proof and cannot create one: salt, stored key, server key and
iterations, as one text in Kafka's form `salt=...,stored_key=...,server_key=...,iterations=...`.
Nothing slow is computed here: the client does the iterations.

A user that does not exist is answered as one that does, so that nobody can try out names: with a
salt that is the same for each attempt at this name, and with a failure after the proof (RFC 5802).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from strandline.broker.security.mechanism import AuthenticationFailed, Step

# Kafka's bounds: fewer are unsafe, more would keep a client busy for seconds.
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384

_NONCE = r"(?P<nonce>[!-+\--~]+)"
_BASE64 = "[A-Za-z0-9+/=]+"
_FIRST = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authzid>[^,]*))?,)(?P<bare>n=(?P<user>[^,]+),r={_NONCE}(?:,.*)?)"
)
_FINAL = re.compile(
    rf"(?P<bare>c=(?P<channel>{_BASE64}),r={_NONCE}(?:,.*)?),p=(?P<proof>{_BASE64})"
)

# Kafka's extension of a login by a delegation token.
_BY_TOKEN = "tokenauth=true"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The stored credential of a user for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of_salted(
        cls, salted_password: bytes, *, salt: bytes, iterations: int, digest: str
    ) -> ScramCredential:
        """Derives it from a password that a client salted with `iterations` of PBKDF2."""
        client_key = hmac.digest(salted_password, b"Client Key", digest)
        return cls(
            salt=salt,
            stored_key=hashlib.new(digest, client_key).digest(),
            server_key=hmac.digest(salted_password, b"Server Key", digest),
            iterations=iterations,
        )

    @classmethod
    def parse(cls, text: str) -> ScramCredential:
        """Parses the text of `str`. Raises ValueError for any other text."""
        fields = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        try:
            return cls(
                salt=base64.b64decode(fields["salt"], validate=True),
                stored_key=base64.b64decode(fields["stored_key"], validate=True),
                server_key=base64.b64decode(fields["server_key"], validate=True),
                iterations=int(fields["iterations"]),
            )
        except (KeyError, binascii.Error) as error:
            raise ValueError(f"no SCRAM credential: {error}") from error

    def __str__(self) -> str:
        parts = (
            ("salt", self.salt),
            ("stored_key", self.stored_key),
            ("server_key", self.server_key),
        )
        encoded = [f"{name}={base64.b64encode(value).decode()}" for name, value in parts]
        return ",".join([*encoded, f"iterations={self.iterations}"])

    def __repr__(self) -> str:
        return f"<ScramCredential iterations={self.iterations}>"


# As Kafka's own tools make them.
_MIMIC_SALT_BYTES = 26


def mimic_credential(user: str, like: ScramCredential | None, secret: bytes) -> ScramCredential:
    """Returns the credential to answer an unknown user with: nobody can prove to know its password.

    It is `like` a real one, if there is one. The same `secret` gives a name the same salt.
    """
    salt_bytes = _MIMIC_SALT_BYTES if like is None else len(like.salt)
    iterations = ITERATIONS_MIN if like is None else like.iterations
    seed = hmac.digest(secret, user.encode(), "sha512")
    # Salts of any length that a client has chosen for a real user.
    salt = (seed * (salt_bytes // len(seed) + 1))[:salt_bytes]
    return ScramCredential(salt=salt, stored_key=b"", server_key=b"", iterations=iterations)


# Hash by mechanism.
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

# Returns the credential of a user; that of `mimic_credential` for an unknown one.
FindCredential: TypeAlias = Callable[[str], ScramCredential]


class ScramExchange:
    """The server's half of one SCRAM exchange; `step` is called with each client message."""

    def __init__(self, digest: str, find: FindCredential, server_nonce: str) -> None:
        """`digest` is the name of a hash; `find` the source of credentials."""
        self._digest = digest
        self._find = find
        self._server_nonce = server_nonce
        self._user = ""
        self._nonce = ""
        self._gs2 = ""
        self._messages = ""
        self._credential: ScramCredential | None = None

    def step(self, message: bytes) -> Step:
        """Handles a client's message. Raises AuthenticationFailed."""
        try:
            text = message.decode("utf-8")
        except UnicodeDecodeError:
            raise self._failed("a message is not UTF-8") from None
        return self._first(text) if self._credential is None else self._final(text)

    def _failed(self, reason: str) -> AuthenticationFailed:
        return AuthenticationFailed(reason, self._user)

    def _first(self, text: str) -> Step:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise self._failed("the first message is malformed")
        self._user = match["user"].replace("=2C", ",").replace("=3D", "=")
        if _BY_TOKEN in match["bare"].split(","):
            raise self._failed("a login by a delegation token, of which there are none")
        if match["authzid"] not in (None, "", match["user"]):
            raise self._failed("one user cannot log in as another")
        credential = self._find(self._user)
        self._credential = credential
        self._gs2 = match["gs2"]
        self._nonce = match["nonce"] + self._server_nonce
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._messages = f"{match['bare']},{answer}"
        return Step(answer=answer.encode())

    def _final(self, text: str) -> Step:
        match = _FINAL.fullmatch(text)
        credential = self._credential
        assert credential is not None
        if match is None or match["nonce"] != self._nonce:
            raise self._failed("the final message is malformed")
        try:
            channel = base64.b64decode(match["channel"], validate=True)
            proof = base64.b64decode(match["proof"], validate=True)
        except binascii.Error:
            raise self._failed("the final message is malformed") from None
        if channel != self._gs2.encode():
            raise self._failed("the final message belongs to another login")
        signed = f"{self._messages},{match['bare']}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._digest)
        if len(proof) != len(signature):
            raise self._failed("the password is wrong")
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
        stored_key = hashlib.new(self._digest, client_key).digest()
        is_right = hmac.compare_digest(stored_key, credential.stored_key)
        if not credential.stored_key:
            raise self._failed("no such user, or none with a password of this mechanism")
        if not is_right:
            raise self._failed("the password is wrong")
        answer = base64.b64encode(hmac.digest(credential.server_key, signed, self._digest))
        return Step(answer=b"v=" + answer, user=self._user)
