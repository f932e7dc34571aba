"""A plan of a Fetch that asks for nothing."""

from __future__ import annotations

from strandline.broker.handlers.fetch_plan import FetchPlan
from strandline.storage.model import Isolation

HOURS_MS = 10 * 3_600_000


def plan_of_nothing() -> FetchPlan:
    return FetchPlan(
        version=12,
        correlation_id=1,
        user="",
        client_id="",
        started_s=0.0,
        wanted=(),
        session=None,
        incremental=False,
        isolation=Isolation.READ_UNCOMMITTED,
        bytes_max=1 << 20,
        min_bytes=1,
        wait_ms_max=HOURS_MS,
    )
