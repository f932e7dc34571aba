"""Metrics of who comes and what they may do: TLS, rights, and the record."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.authorization.authorizer import Authorizer
from strandline.broker.security.acl import AclOperation, ResourceKind
from strandline.broker.telemetry.exposition import Sample
from strandline.broker.telemetry.families import Row, row_of, single
from strandline.broker.telemetry.sources import NodeSources, TlsSources


def access_rows(sources: NodeSources) -> Iterator[Row]:
    """Yields the families of what this node has of them."""
    if sources.tls is not None:
        yield from _tls_rows(sources.tls)
    if sources.authorizer is not None:
        yield from _rights_rows(sources.authorizer, len(sources.metadata.image.acls))
    if sources.lost_lines is not None:
        yield single("strandline_audit_lines_lost_total", sources.lost_lines())


def _tls_rows(tls: TlsSources) -> Iterator[Row]:
    yield row_of(
        "strandline_tls_handshakes_total",
        [Sample(count, labels) for labels, count in tls.done().items()],
    )
    yield row_of(
        "strandline_tls_handshake_failures_total",
        [Sample(count, labels) for labels, count in tls.failed().items()],
    )
    yield row_of(
        "strandline_tls_certificate_days_left",
        [Sample(days, labels) for labels, days in tls.days_left().items()],
    )


def _rights_rows(authorizer: Authorizer, acl_count: int) -> Iterator[Row]:
    denied = [
        Sample(count, (ResourceKind(kind).name, AclOperation(operation).name))
        for (kind, operation), count in authorizer.denied_counts.items()
    ]
    yield row_of("strandline_authorization_denied_total", denied)
    yield single("strandline_acls", acl_count)
