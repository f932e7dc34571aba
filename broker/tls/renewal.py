"""What a listener serves with, and what may take its place while it serves.

Everything is loaded whole before it is used. A renewed certificate is refused if it has expired, or
if it has another name than the present one (`ssl.allow.dn.changes`, `ssl.allow.san.changes`), as in
Kafka's SslFactory: clients that check the name would not come in by it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from strandline.broker.tls import pem
from strandline.broker.tls.certificate import Certificate, list_ends_s, parse_certificate
from strandline.broker.tls.config import TlsConfig
from strandline.broker.tls.context import server_context
from strandline.broker.tls.der import MalformedDer
from strandline.broker.tls.mapping_rules import MappingRules
from strandline.broker.tls.stores import Stores, files_of, read_stores
from strandline.storage.errors import InvalidConfig

# Of each file: device, number, size, time of change; None while it cannot be looked at.
Signature: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedContext:
    """The settings of a listener, and all that was made of them."""

    settings: TlsConfig
    context: ssl.SSLContext
    rules: MappingRules
    # The broker's own.
    certificate: Certificate
    # When the first of each kind ends, in seconds since 1970: own, trusted, crl.
    ends_s: Mapping[str, float]

    def __repr__(self) -> str:
        return f"<LoadedContext {self.certificate.subject}>"


def load(settings: TlsConfig) -> LoadedContext:
    """Reads all files of a listener. Raises InvalidConfig."""
    stores = read_stores(settings)
    context = server_context(settings, stores)
    assert stores.own is not None
    try:
        certificate = parse_certificate(stores.own.chain[0])
    except MalformedDer as error:
        raise InvalidConfig(f"ssl.keystore: a certificate that cannot be read: {error}") from None
    return LoadedContext(
        settings=settings,
        context=context,
        rules=MappingRules(settings.principal_mapping_rules),
        certificate=certificate,
        ends_s=_ends_s(stores, certificate),
    )


def _ends_s(stores: Stores, own: Certificate) -> Mapping[str, float]:
    ends = {"own": [own.valid_until_s], "trusted": [], "crl": []}
    for encoded in stores.trusted:
        with suppress(MalformedDer):
            ends["trusted"].append(parse_certificate(encoded).valid_until_s)
    for encoded in pem.contents(pem.CRL, stores.revoked or "", "strandline.ssl.crl.location"):
        with suppress(MalformedDer):
            due_s = list_ends_s(encoded)
            if due_s is not None:
                ends["crl"].append(due_s)
    return {kind: min(times) for kind, times in ends.items() if times}


def check_renewal(present: LoadedContext, renewed: LoadedContext, now_s: float) -> None:
    """Raises InvalidConfig if the renewed certificate may not take the place of the present one."""
    before, after = present.certificate, renewed.certificate
    if before == after:
        return
    if after.valid_until_s <= now_s:
        ended = datetime.fromtimestamp(after.valid_until_s, UTC)
        raise InvalidConfig(f"the renewed certificate has expired, {ended:%Y-%m-%d %H:%M} UTC")
    if after.valid_from_s > now_s:
        begins = datetime.fromtimestamp(after.valid_from_s, UTC)
        raise InvalidConfig(
            f"the renewed certificate is not valid yet, from {begins:%Y-%m-%d %H:%M} UTC on"
        )
    settings = renewed.settings
    if not settings.allows_dn_changes and _canonical(before.subject) != _canonical(after.subject):
        raise InvalidConfig(
            f"the renewed certificate is that of {after.subject!r}, and the present one that of"
            f" {before.subject!r}; ssl.allow.dn.changes=true would allow it"
        )
    if not settings.allows_san_changes and not after.alternative_names >= before.alternative_names:
        raise InvalidConfig(
            "the renewed certificate lacks alternative names of the present one;"
            " ssl.allow.san.changes=true would allow it"
        )


def _canonical(name: str) -> str:
    return " ".join(name.casefold().split())


def signature_of(settings: TlsConfig) -> Signature:
    """Looks at the files, through links: Kubernetes renews by another folder behind one."""
    return tuple(_signature(path) for path in files_of(settings))


def _signature(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except (OSError, ValueError):  # the latter for a NUL in its name
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
