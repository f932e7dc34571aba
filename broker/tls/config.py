"""The keys of TLS, as Kafka names them; each may be set for one listener, `listener.name.X.ssl...`.

PEM       a file with the key and its chain, or both as texts (KIP-651)
PKCS12    a file with a password
JKS       Kafka's default: a file in PKCS12, as Java's; one in JKS is refused
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.storage.config.definition import BOOLEAN, LIST, PASSWORD, STRING, key

NONE, REQUESTED, REQUIRED = "none", "requested", "required"
TLS_1_2, TLS_1_3 = "TLSv1.2", "TLSv1.3"
PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"
_TYPES = "PEM, PKCS12, or JKS: the last one is Java's default, and here means a file in PKCS12 too."

_upper: Callable[[str], str] = str.upper


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Settings of TLS, of all listeners or of one."""

    keystore_type: str = key(
        "ssl.keystore.type", STRING, JKS, f"Format of the broker's key: {_TYPES}", convert=_upper
    )
    keystore_location: str | None = key(
        "ssl.keystore.location",
        STRING,
        None,
        "File with the broker's key and its chain of certificates.",
    )
    keystore_password: str | None = key(
        "ssl.keystore.password", PASSWORD, None, "Password of the keystore; PEM has none."
    )
    key_password: str | None = key(
        "ssl.key.password", PASSWORD, None, "Password of the key itself, if it is encrypted."
    )
    keystore_key: str | None = key(
        "ssl.keystore.key",
        PASSWORD,
        None,
        "The broker's key as text, in PEM and PKCS#8; with ssl.keystore.certificate.chain.",
    )
    keystore_chain: str | None = key(
        "ssl.keystore.certificate.chain",
        PASSWORD,
        None,
        "The broker's certificate and those that it was issued by, as text in PEM, the broker's"
        " first.",
    )
    truststore_type: str = key(
        "ssl.truststore.type", STRING, JKS, f"Format of the truststore: {_TYPES}", convert=_upper
    )
    truststore_location: str | None = key(
        "ssl.truststore.location",
        STRING,
        None,
        "File with the authorities whose certificates clients may have.",
    )
    truststore_password: str | None = key(
        "ssl.truststore.password", PASSWORD, None, "Password of the truststore; PEM has none."
    )
    truststore_certificates: str | None = key(
        "ssl.truststore.certificates", PASSWORD, None, "These authorities as text, in PEM."
    )
    client_auth: str = key(
        "ssl.client.auth",
        STRING,
        NONE,
        "Whether clients show a certificate: required, requested, or none. SASL_SSL listeners take"
        " it only from listener.name.<name>.ssl.client.auth, as in Kafka.",
        choices=(REQUIRED, REQUESTED, NONE),
    )
    enabled_protocols: tuple[str, ...] = key(
        "ssl.enabled.protocols",
        LIST,
        f"{TLS_1_2},{TLS_1_3}",
        "Versions of TLS that clients may use.",
        choices=(TLS_1_2, TLS_1_3),
    )
    protocol: str = key(
        "ssl.protocol",
        STRING,
        TLS_1_3,
        "Java's name of an implementation. Without effect: ssl.enabled.protocols decides.",
        choices=("TLS", TLS_1_2, TLS_1_3),
    )
    cipher_suites: tuple[str, ...] = key(
        "ssl.cipher.suites",
        LIST,
        "",
        "Cipher suites by their IANA names; empty: OpenSSL's safe ones. Suites of TLS 1.3 cannot be"
        " chosen singly: name all three or none, which turns TLS 1.3 off.",
    )
    principal_mapping_rules: str = key(
        "ssl.principal.mapping.rules",
        STRING,
        "DEFAULT",
        "How the name of a client's certificate becomes its user: RULE:pattern/replacement/L, comma"
        " separated, the first that matches; DEFAULT is the whole name.",
    )
    allows_dn_changes: bool = key(
        "ssl.allow.dn.changes",
        BOOLEAN,
        False,
        "Whether a renewed certificate may have another distinguished name.",
    )
    allows_san_changes: bool = key(
        "ssl.allow.san.changes",
        BOOLEAN,
        False,
        "Whether a renewed certificate may lack alternative names that the present one has.",
    )
    crl_location: str | None = key(
        "strandline.ssl.crl.location",
        STRING,
        None,
        "File with lists of revoked certificates, in PEM. If it is set, each authority that issues"
        " certificates of clients needs a list in it that has not expired.",
    )
