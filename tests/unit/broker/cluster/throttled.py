"""Throttles for tests, as Kafka's defaults have them unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable

from strandline.broker.cluster.in_sync.throttle import ReplicationThrottle
from strandline.storage.clock import Clock, SystemClock
from strandline.storage.config.definition import LONG_MAX


def throttle_of(
    replicas_property: str,
    bytes_max: Callable[[], int] = lambda: LONG_MAX,
    clock: Clock | None = None,
    *,
    node_id: int = 1,
    window_count: int = 11,
) -> ReplicationThrottle:
    return ReplicationThrottle(
        replicas_property,
        bytes_max,
        clock or SystemClock(),
        node_id=node_id,
        window_count=window_count,
        window_ms=1000,
    )
