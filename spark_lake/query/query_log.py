"""Log lines of queries: one for each, where a user of Spark can find it.

    scan planned    Spark: what its tasks will read, of how much, when the plan is made; a
                    micro-batch of a stream is a query, too
    scan read       `scan`: what was read, of how much, at its end
    rows counted    `count`: the same
    split read      each task, at level DEBUG

and one line, at level WARNING, while `scan` or `count` waits for a store that does not answer.

Spark's driver does not learn what a Python source's tasks read. But plans are deterministic, and
tasks read the plan, except what a LIMIT saves and tasks prune by themselves.

The text repeats the fields, because the logging of a notebook or a job prints messages only.

A Python source is planned and read in Spark's Python workers, whose logging has no setup and is at
level WARNING. With `spark.sql.pyspark.worker.logging.enabled` Spark collects what workers log into
`spark.tvf.python_worker_logs()`, with the fields of a line in its column `context`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

from strandline.spark_lake.archive.objects import ReadStatistics
from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.plan.splits import WINDOW_BYTES, Split
from strandline.storage.remote.silence import TOLD_AFTER_S, SilenceWatch

log = logging.getLogger("strandline.spark_lake")

# Set by Spark in workers whose logs it collects.
_COLLECTED = "PYSPARK_SPARK_SESSION_UUID"


def log_event(event: str, fields: Mapping[str, str | int], *, level: int = logging.INFO) -> None:
    """Logs one line: the constant `event`, followed by the `fields`."""
    if _COLLECTED in os.environ and log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    context = {name: str(value) for name, value in fields.items()}
    text = "; ".join(f"{name}={value}" for name, value in context.items())
    log.log(level, "%s: %s", event, text, extra={"fields": dict(fields), "context": context})


def telling_of_silence(url: str) -> SilenceWatch:
    """Logs, while it is entered, that the archive does not answer; once for each silence."""
    return SilenceWatch(_log_silence, of=url)


def _log_silence(place: str) -> None:
    log.warning("%s has not answered for %.0f s, still waiting", place, TOLD_AFTER_S)


def plan_fields(plan: ScanPlan, planning: ReadStatistics) -> dict[str, str | int]:
    """Segments, chunks, bytes and requests: planned of total."""
    return {
        "plan": str(plan),
        "requests_planned": (planned := planned_requests(plan.splits)),
        "requests_total": max(planned, all_requests(plan)),
        "planning_requests": planning.request_count,
        "planning_bytes": planning.bytes_read,
    }


def read_fields(
    plan: ScanPlan, rows: int, read: ReadStatistics, *, planning: ReadStatistics
) -> dict[str, str | int]:
    """Returns the fields of a query that has ended; `read` and the totals include its planning."""
    return {
        "rows": rows,
        "plan": str(plan),
        "requests": read.request_count,
        "requests_total": max(read.request_count, planning.request_count + all_requests(plan)),
        "bytes_read": read.bytes_read,
    }


def planned_requests(splits: Sequence[Split]) -> int:
    """Number of ranged GETs of the tasks, for logs and for statistics that are still needed."""
    requests = 0
    for split in splits:
        for piece in split.slices:
            if piece.ranges is None:
                requests += -(-piece.size_bytes // WINDOW_BYTES) + (not piece.is_whole)
                continue
            end = -1
            for part in piece.ranges:
                # Adjacent chunks take one request, up to a window.
                requests += part.start_position != end or (
                    part.start_position // WINDOW_BYTES != (part.end_position - 1) // WINDOW_BYTES
                )
                end = part.end_position
    return requests


def all_requests(plan: ScanPlan) -> int:
    """Number of GETs of whole windows to read everything; an upper bound for sealed pages.

    A query for separate chunks may need more requests, for fewer bytes.
    """
    if plan.bytes_planned == plan.bytes_total:
        # The plan of a full read knows the cuts within segments.
        return planned_requests(plan.splits)
    return sum(one.windows_total for one in plan.partitions)
