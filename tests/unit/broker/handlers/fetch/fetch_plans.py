"""A plan of a Fetch that asks for nothing, and a handler with next to nothing around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.sections import FetchConfig
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.plan import FetchPlan
from strandline.broker.handlers.fetch.sessions import FetchSessionCache
from strandline.broker.handlers.services.services import Services
from strandline.broker.protocol.header import RequestHeader
from strandline.broker.protocol.schema.api import ApiKey
from strandline.storage.clock import SystemClock
from strandline.storage.model import Isolation

HOURS_MS = 10 * 3_600_000


def plan_of_nothing(version: int = 12) -> FetchPlan:
    return FetchPlan(
        header=RequestHeader(ApiKey.FETCH, version, 1, "", 0),
        replica_id=-1,
        started_s=0.0,
        wanted=(),
        session=None,
        incremental=False,
        isolation=Isolation.READ_UNCOMMITTED,
        bytes_max=1 << 20,
        min_bytes=1,
        wait_ms_max=HOURS_MS,
    )


def handler_over(replicas: object = None) -> FetchHandler:
    """A handler without sessions, quotas and archive; made within a running loop."""
    services = SimpleNamespace(
        replicas=replicas,
        config=BrokerConfig(fetch=FetchConfig(bytes_max=10**6)),
        quotas=SimpleNamespace(is_active=False),
        traffic=SimpleNamespace(
            apis={ApiKey.FETCH: SimpleNamespace(failed_answers=0)}, remote_fetches=None
        ),
        clock=SystemClock(),
        cold_pace=None,
        records=None,
    )
    return FetchHandler(cast("Services", services), cast("FetchSessionCache", None))
