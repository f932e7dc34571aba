"""What a monitoring system is told: where the figures of this broker come from, and by what door.

`telemetry/` counts and prints and knows no configuration; this module opens it for a broker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from strandline.broker.config.listeners import CannotListen, Listener
from strandline.broker.telemetry.collector import Collector
from strandline.broker.telemetry.http_server import MetricsServer, Readiness
from strandline.broker.telemetry.sources import Sources
from strandline.storage.remote.object_store.interface import ObjectStore

__all__ = ["Sources", "serve_metrics", "store_requests"]

log = logging.getLogger(__name__)


async def serve_metrics(listener: Listener, sources: Sources, unready: Readiness) -> MetricsServer:
    """Serves /metrics, /healthz and /readyz there. Raises CannotListen."""
    server = MetricsServer(Collector(sources).page, unready)
    try:
        port = await server.listen(listener.host, listener.port)
    except OSError as error:
        raise CannotListen(f"cannot listen at {listener}: {error.strerror}") from error
    log.info(
        "metrics are served",
        extra={"fields": {"host": listener.host or "0.0.0.0", "port": port}},
    )
    return server


def store_requests(store: ObjectStore | None) -> tuple[Mapping[str, int], int] | None:
    """What was asked of S3 so far, and how many attempts failed; None for other stores."""
    if store is None or not store.url.startswith("s3"):
        return None
    # Loaded with the store: a broker without S3 never loads an SDK.
    from strandline.storage.remote.s3.store import S3Store

    if not isinstance(store, S3Store):
        return None
    found = store.statistics()
    return found.requests, found.failed_attempt_count
