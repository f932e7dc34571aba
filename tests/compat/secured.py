"""What brokers with TLS and logins need where others' suites run against them.

One authority signs everything, and the files lie in the folder of the broker; `FILES` names them as
the suites want them, in each encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from tests.support.certificates import PASSWORD, Authority

AUTHORITY, BROKER, CLIENT = "authority.pem", "broker.pem", "client.pem"


def plain_users(users: Mapping[str, str]) -> str:
    """The property `sasl.jaas.config` of PLAIN, for users and their passwords."""
    words = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {words};"


def tls_settings(folder: Path) -> dict[str, str]:
    """Writes the files, and says what a broker with them is told; clients may do without any."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority()
    authority.write(folder / AUTHORITY)
    (folder / "authority.der").write_bytes(authority.certificate.public_bytes(Encoding.DER))
    unused = Authority("Another")
    (folder / "authorities.pem").write_text(unused.pem + authority.pem)
    authority.issue("broker").write(folder / BROKER)
    client = authority.issue("client")
    client.write(folder / CLIENT)
    (folder / "client.crt").write_text(client.chain_pem + authority.pem)
    (folder / "client.key").write_text(client.key_pem(PASSWORD))
    (folder / "client.crt.der").write_bytes(client.der)
    (folder / "client.key.der").write_bytes(
        client.key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    (folder / "client.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"client",
            client.key,
            client.certificate,
            (authority.certificate,),
            BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / BROKER),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / AUTHORITY),
    }
