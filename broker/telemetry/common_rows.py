"""Metrics that every process has: its requests, its connections, and itself."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping

from strandline import __version__
from strandline.broker.network.server import Server
from strandline.broker.protocol.schema.api import api_name
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.telemetry.exposition import Sample
from strandline.broker.telemetry.families import Row, row_of, single
from strandline.broker.telemetry.process import process_figures
from strandline.broker.telemetry.requests import QUANTILES, Durations, RequestTraffic


def request_rows(requests: RequestTraffic) -> Iterator[Row]:
    """Yields requests, errors, times and bytes, by API."""
    prefix = "kafka_network_requestmetrics_"
    apis = [(api_name(key), traffic) for key, traffic in requests.apis.items()]
    yield row_of(
        f"{prefix}requests_total",
        (
            Sample(count, (name, str(version)))
            for name, traffic in apis
            for version, count in traffic.versions()
        ),
    )
    yield row_of(
        f"{prefix}errors_total",
        (
            Sample(count, (name, _error_name(code)))
            for name, traffic in apis
            for code, count in traffic.codes()
            if count
        ),
    )
    asked = [(name, traffic) for name, traffic in apis if sum(traffic.by_version)]
    for suffix, durations in (
        ("totaltimems", [(name, t.total) for name, t in asked]),
        ("requestqueuetimems", [(name, t.queue) for name, t in asked]),
        ("localtimems", [(name, t.local) for name, t in asked]),
        ("remotetimems", [(name, t.remote) for name, t in asked if t.remote.count]),
    ):
        yield row_of(prefix + suffix, _times(durations))
    yield row_of(
        f"{prefix}throttletimems",
        _sums((name, t.throttle_s * 1000, t.throttled) for name, t in asked),
    )
    yield row_of(
        f"{prefix}requestbytes",
        _sums((name, t.request_bytes, sum(t.by_version)) for name, t in asked),
    )
    yield row_of(
        f"{prefix}responsebytes",
        _sums((name, t.response_bytes, t.total.count) for name, t in asked),
    )
    yield single("strandline_requests_refused_total", requests.refused_total)


def connection_rows(server: Server, failed_logins: Mapping[str, int]) -> Iterator[Row]:
    """Yields counts of connections by outcome, their memory, and failed logins by address."""
    connections = server.statistics()
    prefix = "kafka_server_socket_server_metrics_connection_"
    yield single(f"{prefix}count", connections.connections)
    yield single(f"{prefix}creation_total", connections.accepted_total)
    yield single("strandline_connections_refused_total", connections.refused_total)
    yield row_of(
        "strandline_connections_closed_total",
        [
            Sample(connections.closed_idle_total, ("idle",)),
            Sample(connections.closed_stalled_total, ("stalled",)),
            Sample(connections.closed_login_total, ("login",)),
            Sample(connections.closed_excess_total, ("excess",)),
        ],
    )
    yield single("strandline_connections_logging_in", connections.logins)
    yield single("strandline_connections_muted", connections.muted_connections)
    yield single("strandline_receive_buffer_bytes", connections.receive_buffer_bytes)
    yield row_of(
        "strandline_failed_logins_total",
        [Sample(count, (address,)) for address, count in failed_logins.items()],
    )


def process_rows(left_out: Mapping[str, int]) -> Iterator[Row]:
    """Yields figures of this process, and what its page leaves out."""
    for name, value in process_figures().items():
        yield single(name, value)
    yield row_of(
        "python_gc_collections_total",
        [
            Sample(found["collections"], (str(generation),))
            for generation, found in enumerate(gc.get_stats())
        ],
    )
    yield row_of("strandline_build_info", [Sample(1, (__version__,))])
    yield row_of(
        "strandline_metrics_left_out",
        [Sample(count, (what,)) for what, count in sorted(left_out.items())],
    )


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _times(rows: Iterable[tuple[str, Durations]]) -> Iterator[Sample]:
    for name, durations in rows:
        for quantile in QUANTILES:
            yield Sample(
                round(durations.quantile_s(quantile) * 1000, 6), (name,), quantile=quantile
            )
        yield Sample(durations.sum_s * 1000, (name,), "_sum")
        yield Sample(durations.count, (name,), "_count")


def _sums(rows: Iterable[tuple[str, float, int]]) -> Iterator[Sample]:
    for name, total, count in rows:
        yield Sample(total, (name,), "_sum")
        yield Sample(count, (name,), "_count")
