"""Records of TLS 1.3 that no library writes (RFC 8446): requests for new keys, many at once."""

from __future__ import annotations

import hashlib
import hmac
import ssl
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

APPLICATION_DATA, HANDSHAKE = 23, 22
KEY_UPDATE_REQUESTED = bytes([24, 0, 0, 1, 1])


def keep_secrets(context: ssl.SSLContext, file: Path) -> None:
    """Lets the context's connections be continued by `Records`."""
    context.keylog_filename = str(file)


class Records:
    """The client's records of a connection whose handshake is done, by its secret in a file."""

    def __init__(self, tls: ssl.SSLObject, secrets: Path) -> None:
        suite = tls.cipher()
        assert suite is not None
        self._digest = "sha384" if suite[0].endswith("SHA384") else "sha256"
        self._key_bytes = suite[2] // 8
        lines = [line.split() for line in secrets.read_text().splitlines()]
        (secret,) = [line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
        self._secret = bytes.fromhex(secret)
        self._renew()

    def _renew(self) -> None:
        self._key = AESGCM(self._derived(b"key", self._key_bytes))
        self._nonce = int.from_bytes(self._derived(b"iv", 12), "big")
        self._count = 0

    def _derived(self, label: bytes, size: int) -> bytes:
        """HKDF-Expand-Label, of one block."""
        label = b"tls13 " + label
        asked = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0\1"
        return hmac.digest(self._secret, asked, self._digest)[:size]

    def record(self, content: bytes, kind: int = APPLICATION_DATA) -> bytes:
        head = b"\x17\x03\x03" + (len(content) + 17).to_bytes(2, "big")
        nonce = (self._nonce ^ self._count).to_bytes(12, "big")
        self._count += 1
        return head + self._key.encrypt(nonce, content + bytes([kind]), head)

    def key_update(self) -> bytes:
        sealed = self.record(KEY_UPDATE_REQUESTED, HANDSHAKE)
        size = hashlib.new(self._digest).digest_size
        self._secret = self._derived(b"traffic upd", size)
        self._renew()
        return sealed
