"""Fetches of one partition or of nothing, and a handler with next to nothing around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.sections import FetchConfig
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.plan import FetchPlan
from strandline.broker.handlers.fetch.sessions import FetchSessionCache
from strandline.broker.handlers.services.services import Services
from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import RequestHeader
from strandline.broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.telemetry.requests import RequestTraffic
from strandline.storage.clock import SystemClock
from strandline.storage.model import Isolation, Offset
from tests.unit.storage.local.builders import TOPIC_ID

HOURS_MS = 10 * 3_600_000


def plan_of_nothing(version: int = 12) -> FetchPlan:
    return FetchPlan(
        header=RequestHeader(ApiKey.FETCH, version, 1, "", 0),
        started_s=0.0,
        wanted=(),
        session=None,
        incremental=False,
        isolation=Isolation.READ_UNCOMMITTED,
        bytes_max=1 << 20,
        min_bytes=1,
        wait_ms_max=HOURS_MS,
    )


def services_over(replicas: object = None) -> Services:
    """Next to nothing around a handler: no sessions, quotas and archive."""
    clock = SystemClock()
    found = SimpleNamespace(
        replicas=replicas,
        config=BrokerConfig(fetch=FetchConfig(bytes_max=10**6)),
        quotas=SimpleNamespace(is_active=False),
        traffic=RequestTraffic(),
        clock=clock,
        cold_pace=SimpleNamespace(),
        records=None,
        metadata=None,
        authorizer=None,
    )
    return cast("Services", found)


def handler_over(replicas: object = None) -> FetchHandler:
    """Made within a running loop."""
    return FetchHandler(services_over(replicas), cast("FetchSessionCache", None))


def fetch_of_one(
    version: int, offset: Offset = 77, *, rack: str = "", epoch: int = -1, **changes: object
) -> FetchRequest:
    """From one partition of `topic`."""
    wanted = FetchPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        partition_max_bytes=1 << 20,
    )
    named = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "topic"}
    fields: dict[str, object] = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 22,
        "topics": [FetchTopic(partitions=[wanted], **named)],  # type: ignore[arg-type]
        "rack_id": rack,
    }
    return FetchRequest(**(fields | changes))  # type: ignore[arg-type]


def body_of(version: int, request: FetchRequest) -> memoryview:
    return memoryview(codec.join(codec.encode(request, version)))
