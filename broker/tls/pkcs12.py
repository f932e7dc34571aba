"""Keystores and truststores in PKCS#12, read by the library `cryptography`."""

from __future__ import annotations

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from strandline.storage.errors import InvalidConfig


def read_own(content: bytes, password: str | None, origin: str) -> tuple[str, tuple[bytes, ...]]:
    """Returns the key in PEM, and its chain in DER. Raises InvalidConfig, naming the origin."""
    found = _load(content, password, origin)
    if found.key is None or found.cert is None:
        raise InvalidConfig(f"{origin}: expected a private key with its certificate, found none")
    key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificates = [found.cert, *found.additional_certs]
    return key.decode("ascii"), tuple(
        one.certificate.public_bytes(Encoding.DER) for one in certificates
    )


def read_trusted(content: bytes, password: str | None, origin: str) -> tuple[bytes, ...]:
    """Returns all certificates in DER. Raises InvalidConfig, naming the origin."""
    found = _load(content, password, origin)
    certificates = [*([found.cert] if found.cert else []), *found.additional_certs]
    return tuple(one.certificate.public_bytes(Encoding.DER) for one in certificates)


def _load(content: bytes, password: str | None, origin: str) -> pkcs12.PKCS12KeyAndCertificates:
    try:
        return pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError as error:
        raise InvalidConfig(
            f"{origin}: cannot be read as PKCS12: is its password right? ({error})"
        ) from None
