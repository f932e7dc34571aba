"""Certificates, keys and lists of revoked certificates in PEM (RFC 7468)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass

from strandline.storage.errors import InvalidConfig

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----(.*?)-----END \1-----", re.DOTALL)
_LINE_LENGTH = 64
CERTIFICATE, CRL = "CERTIFICATE", "X509 CRL"


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its label, and its text in lines."""

    label: str
    text: str

    @property
    def is_key(self) -> bool:
        return self.label.endswith("PRIVATE KEY")

    @property
    def is_encrypted(self) -> bool:
        return self.label.startswith("ENCRYPTED") or "Proc-Type:" in self.text

    def __repr__(self) -> str:
        return f"<Block {self.label}>"  # without a key


def blocks(text: str) -> Iterator[Block]:
    """Yields the blocks of a text; what is between them is a comment.

    The lines of a block may be joined, as in a value of a properties file.
    """
    for match in _BLOCK.finditer(text):
        label, body = match.groups()
        if ":" not in body:  # else a key of OpenSSL's old format, with headers
            letters = "".join(body.split())
            starts = range(0, len(letters), _LINE_LENGTH)
            body = "\n".join(["", *(letters[at : at + _LINE_LENGTH] for at in starts), ""])
        yield Block(label, f"-----BEGIN {label}-----{body}-----END {label}-----\n")


def certificates(text: str, origin: str) -> tuple[bytes, ...]:
    """Returns the certificates of a text in DER. Raises InvalidConfig, naming the origin."""
    return contents(CERTIFICATE, text, origin)


def contents(label: str, text: str, origin: str) -> tuple[bytes, ...]:
    """Returns what blocks with the label hold, in DER. Raises InvalidConfig."""
    found = []
    for block in blocks(text):
        if block.label == label:
            body = "".join(block.text.splitlines()[1:-1])
            try:
                found.append(base64.b64decode(body, validate=True))
            except binascii.Error as error:
                raise InvalidConfig(f"{origin}: a block is no base64: {error}") from None
    return tuple(found)


def as_pem(label: str, encoded: bytes) -> str:
    """Returns bytes in DER as a block."""
    lines = base64.encodebytes(encoded).decode("ascii").replace("\n", "")
    return next(blocks(f"-----BEGIN {label}-----{lines}-----END {label}-----")).text
