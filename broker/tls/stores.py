"""Keystores and truststores: what `ssl.keystore.*` and `ssl.truststore.*` lead to, as bytes.

A file is read once, so a key and its chain are always of one version of it, whoever replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from strandline.broker.tls import pem
from strandline.broker.tls.config import JKS, PEM, PKCS12, TlsConfig
from strandline.storage.errors import InvalidConfig
from strandline.storage.files import read_named

# A list of revoked certificates may have a hundred thousand entries.
FILE_BYTES_MAX = 16 * 1024 * 1024
_MAGIC_OF_JKS = bytes.fromhex("feedfeed")
_MAGIC_OF_JCEKS = bytes.fromhex("cececece")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStore:
    """A key in PEM and its certificates in DER, the key's own first."""

    key: str
    password: str | None
    chain: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"<KeyStore of {len(self.chain)} certificates>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """All that a context is made of; `revoked` are lists in PEM."""

    own: KeyStore | None
    trusted: tuple[bytes, ...]
    revoked: str | None


def read_stores(config: TlsConfig) -> Stores:
    """Reads all files that the configuration names. Raises InvalidConfig."""
    return Stores(
        own=_read_own(config), trusted=_read_trusted(config), revoked=_read_revoked(config)
    )


def files_of(config: TlsConfig) -> tuple[Path, ...]:
    """Returns the files that `read_stores` reads."""
    names = (config.keystore_location, config.truststore_location, config.crl_location)
    return tuple(Path(name) for name in names if name is not None)


def _read_own(config: TlsConfig) -> KeyStore | None:
    key, chain, location = config.keystore_key, config.keystore_chain, config.keystore_location
    if key is not None or chain is not None:
        if config.keystore_type != PEM:
            raise InvalidConfig(
                f"ssl.keystore.type={config.keystore_type}: expected PEM with ssl.keystore.key and"
                " ssl.keystore.certificate.chain"
            )
        if location is not None:
            raise InvalidConfig(
                "ssl.keystore.location: expected either a file, or ssl.keystore.key and"
                " ssl.keystore.certificate.chain"
            )
        if key is None or chain is None:
            raise InvalidConfig(
                "ssl.keystore.key and ssl.keystore.certificate.chain: expected both"
            )
        return _own_of_pem(config, f"{key}\n{chain}", "ssl.keystore.certificate.chain")
    if location is None:
        return None
    content = _read("ssl.keystore.location", location)
    if _format("ssl.keystore", config.keystore_type, location, content) == PEM:
        if config.keystore_password is not None:
            raise InvalidConfig(
                "ssl.keystore.password: a file in PEM has none; the password of its key is"
                " ssl.key.password"
            )
        text = content.decode("utf-8", "replace")
        return _own_of_pem(config, text, f"ssl.keystore.location={location}")
    pkcs12 = _pkcs12("ssl.keystore", location)
    found_key, found_chain = pkcs12.read_own(
        content, config.keystore_password, f"ssl.keystore.location={location}"
    )
    return KeyStore(key=found_key, password=None, chain=found_chain)


def _own_of_pem(config: TlsConfig, text: str, origin: str) -> KeyStore:
    keys = [block for block in pem.blocks(text) if block.is_key]
    chain = pem.certificates(text, origin)
    if len(keys) != 1:
        raise InvalidConfig(f"{origin}: expected one private key in PEM, found {len(keys)}")
    if not chain:
        raise InvalidConfig(f"{origin}: expected certificates in PEM, found none")
    if keys[0].is_encrypted and config.key_password is None:
        raise InvalidConfig(f"{origin}: the key is encrypted; expected its ssl.key.password")
    return KeyStore(key=keys[0].text, password=config.key_password, chain=chain)


def _read_trusted(config: TlsConfig) -> tuple[bytes, ...]:
    text, location = config.truststore_certificates, config.truststore_location
    if text is not None:
        if config.truststore_type != PEM or location is not None:
            raise InvalidConfig(
                "ssl.truststore.certificates: expected ssl.truststore.type=PEM and no"
                " ssl.truststore.location with it"
            )
        origin = "ssl.truststore.certificates"
        found = pem.certificates(text, origin)
    elif location is None:
        return ()
    else:
        origin = f"ssl.truststore.location={location}"
        content = _read("ssl.truststore.location", location)
        password = config.truststore_password
        if _format("ssl.truststore", config.truststore_type, location, content) == PEM:
            if password is not None:
                raise InvalidConfig("ssl.truststore.password: a file in PEM has none")
            found = pem.certificates(content.decode("utf-8", "replace"), origin)
        else:
            pkcs12 = _pkcs12("ssl.truststore", location)
            found = pkcs12.read_trusted(content, password, origin)
    if not found:
        raise InvalidConfig(f"{origin}: expected certificates, found none")
    return found


def _read_revoked(config: TlsConfig) -> str | None:
    location = config.crl_location
    if location is None:
        return None
    text = _read("strandline.ssl.crl.location", location).decode("utf-8", "replace")
    found = _lists(pem.blocks(text))
    if not found:
        raise InvalidConfig(
            f"strandline.ssl.crl.location={location}: expected a list of revoked certificates in"
            " PEM (X509 CRL), found none"
        )
    return found


def _lists(found: Iterable[pem.Block]) -> str:
    return "".join(block.text for block in found if block.label == pem.CRL)


def _read(key: str, location: str) -> bytes:
    try:
        return read_named(location, FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidConfig(f"{key}={location}: cannot be read: {error.strerror}") from error


def _format(prefix: str, stated: str, location: str, content: bytes) -> str:
    """Returns PEM or PKCS12. Raises InvalidConfig for another format, or another than stated."""
    if stated not in (PEM, PKCS12, JKS):
        raise InvalidConfig(f"{prefix}.type={stated}: expected PEM or PKCS12")
    if stated == PEM:
        return PEM
    if content.startswith((_MAGIC_OF_JKS, _MAGIC_OF_JCEKS)):
        raise InvalidConfig(
            f"{prefix}.location={location}: a keystore of Java alone, which is not read. Convert it"
            f" with `keytool -importkeystore -srckeystore {location} -destkeystore"
            f" {Path(location).with_suffix('.p12')} -deststoretype PKCS12`, and set"
            f" {prefix}.type=PKCS12"
        )
    if b"-----BEGIN " in content:
        raise InvalidConfig(f"{prefix}.location={location}: it is PEM; set {prefix}.type=PEM")
    return PKCS12


def _pkcs12(prefix: str, location: str) -> ModuleType:
    try:
        from strandline.broker.tls import pkcs12
    except ImportError:
        raise InvalidConfig(
            f"{prefix}.location={location}: PKCS12 needs `pip install cryptography`. Or write"
            f" it as PEM with `openssl pkcs12 -in {location} -noenc -out"
            f" {Path(location).with_suffix('.pem')}`, and set {prefix}.type=PEM"
        ) from None
    return pkcs12
