"""Authorities and certificates, made as a test needs them."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
PASSWORD = "correct horse"


def name_of(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example, Inc."),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its key, and the chain up to its authority."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    chain: tuple[x509.Certificate, ...] = ()

    @property
    def chain_pem(self) -> str:
        return "".join(
            one.public_bytes(Encoding.PEM).decode() for one in (self.certificate, *self.chain)
        )

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    def key_pem(self, password: str | None = None) -> str:
        sealed = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed).decode()

    def write(self, path: Path, password: str | None = None) -> Path:
        """Key and chain in one file, as Kafka wants it."""
        path.write_text(self.key_pem(password) + self.chain_pem)
        return path

    def write_pkcs12(self, path: Path, password: str = PASSWORD) -> Path:
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"own",
                self.key,
                self.certificate,
                self.chain,
                BestAvailableEncryption(password.encode()),
            )
        )
        return path


class Authority:
    """An authority, which issues certificates and revokes them."""

    def __init__(self, common_name: str = "Authority", issuer: Authority | None = None) -> None:
        """Without an `issuer` it is a root."""
        key = ec.generate_private_key(ec.SECP256R1())
        self._key = key
        self._chain: tuple[x509.Certificate, ...] = ()
        self.certificate = _signed(
            name_of(common_name),
            key,
            name_of(common_name) if issuer is None else issuer.certificate.subject,
            key if issuer is None else issuer._key,
            valid_days=(-1, 3650),
            extensions=[
                (x509.BasicConstraints(ca=True, path_length=None), True),
                (x509.KeyUsage(False, False, False, False, False, True, True, False, False), True),
            ],
        )

        if issuer is not None:
            self._chain = (self.certificate, *issuer._chain)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def write(self, path: Path) -> Path:
        path.write_text(self.pem)
        return path

    def write_pkcs12(self, path: Path, password: str = PASSWORD) -> Path:
        path.write_bytes(
            pkcs12.serialize_java_truststore(
                [pkcs12.PKCS12Certificate(self.certificate, b"authority")],
                BestAvailableEncryption(password.encode()),
            )
        )
        return path

    def issue(
        self,
        common_name: str,
        *,
        name: x509.Name | None = None,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        valid_days: tuple[float, float] = (-1, 365),
    ) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        certificate = _signed(
            name or name_of(common_name),
            key,
            self.certificate.subject,
            self._key,
            valid_days=valid_days,
            extensions=[(x509.SubjectAlternativeName(names), False)] if names else [],
        )
        return Issued(key, certificate, self._chain)

    def revocations(
        self, *revoked: Issued | Authority, valid_days: tuple[float, float] = (-1, 30)
    ) -> str:
        """A list of revoked certificates, in PEM."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now + valid_days[0] * DAY)
            .next_update(now + valid_days[1] * DAY)
        )
        for one in revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(one.certificate.serial_number)
                .revocation_date(now - DAY)
                .build()
            )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()

    @staticmethod
    def context_of_files(authority: Path, own: Path | None) -> ssl.SSLContext:
        """Of a client that trusts the authority of a file, and shows the certificate of another."""
        context = ssl.create_default_context(cafile=authority)
        if own is not None:
            context.load_cert_chain(own)
        return context

    def client_context(self, own: Path | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority, and shows the certificate of the file."""
        context = ssl.create_default_context(cadata=self.pem)
        if own is not None:
            context.load_cert_chain(own)
        return context


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    valid_days: tuple[float, float],
    extensions: Iterable[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + valid_days[0] * DAY)
        .not_valid_after(now + valid_days[1] * DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False
        )
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, is_critical)
    return builder.sign(issuer_key, hashes.SHA256())
