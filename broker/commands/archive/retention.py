"""`strandline archive retention`: forecasts what limits would delete, before they are set."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import itemgetter

from strandline.broker.commands.archive.tables import human_time
from strandline.broker.commands.progress import Working
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.printing import print_json, say
from strandline.broker.tools.client.tables import Column, print_table
from strandline.retention.forecast import Forecast, forecast
from strandline.retention.policy import RetentionLimits
from strandline.storage.clock import SystemClock
from strandline.storage.config.log_config import UNLIMITED
from strandline.storage.errors import InvalidConfig, StorageError, UnknownTopic
from strandline.storage.plurals import counted, human_bytes
from strandline.storage.remote.manifest.topic_info import TopicInfo, list_topics
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.audit.listing import list_partitions, list_segments


def print_retention(
    store: ObjectStore,
    topic: str,
    *,
    retention_ms: int | None,
    retention_bytes: int | None,
    as_json: bool,
) -> int:
    """Returns the exit code. None is the topic's own property. Raises StrandlineError."""
    store.check()
    infos = [info for info in list_topics(store, topic=topic) if not info.is_deleted]
    if not infos:
        raise UnknownTopic(f"no topic {topic!r} is archived at {store.url}")
    limits = _limits(infos[0], retention_ms, retention_bytes)
    with Working("reading manifests"):
        rows = _forecasts(store, topic, limits)
    if as_json:
        print_json([_document(row) for row in rows])
    else:
        _print_rows(store, topic, limits, rows)
    return 0


def _limits(
    info: TopicInfo, retention_ms: int | None, retention_bytes: int | None
) -> RetentionLimits:
    policy = info.properties.get("cleanup.policy", "delete")
    if "delete" not in policy:
        raise InvalidConfig(
            f"topic {info.topic!r} has cleanup.policy={policy}: no record goes because of its age"
            " or of the size of the log"
        )
    if retention_ms is None:
        own = info.properties.get("retention.ms")
        if own is None:
            raise WrongUse(
                f"topic {info.topic!r} sets no retention.ms: the broker's log.retention.ms holds,"
                " which the bucket does not know",
                remedy="say what to look at: --retention-ms 30d, or -1 for no limit",
            )
        retention_ms = int(own)
    if retention_bytes is None:
        retention_bytes = int(info.properties.get("retention.bytes", str(UNLIMITED)))
    return RetentionLimits(retention_ms=retention_ms, retention_bytes=retention_bytes)


def _forecasts(store: ObjectStore, topic: str, limits: RetentionLimits) -> list[Forecast]:
    now_ms = SystemClock().now_ms()
    rows = list_partitions(store, topic=topic)
    for row in rows:
        if row.problem:
            # A forecast without one partition would be taken for one of all.
            raise StorageError(f"{row.partition}: {row.problem}")
    alive = {row.partition: row for row in rows if row.topic_deleted_ms is None}
    by_partition = itertools.groupby(list_segments(store, topic=topic), key=itemgetter(0))
    return [
        forecast(
            partition,
            [entry for _, entry in segments],
            limits,
            now_ms=now_ms,
            log_start_offset=alive[partition].log_start_offset,
        )
        for partition, segments in by_partition
        if partition in alive
    ]


def _print_rows(
    store: ObjectStore, topic: str, limits: RetentionLimits, rows: Sequence[Forecast]
) -> None:
    given = f"retention.ms={limits.retention_ms}, retention.bytes={limits.retention_bytes}"
    columns = (
        "partition",
        Column(name="segments", is_right=True),
        Column(name="size", is_right=True),
        Column(name="of them go", is_right=True),
        Column(name="size", is_right=True),
        Column(name="log start", is_right=True, rank=1),
        "oldest left",
        Column(name="why", rank=2),
    )
    print_table(f"{topic} in {store.url} with {given}", columns, [_cells(row) for row in rows])
    count = sum(row.drop_count for row in rows)
    records = sum(row.drop_records for row in rows)
    size_bytes = sum(row.drop_bytes for row in rows)
    say(
        f"{counted(count, 'segment')}, {counted(records, 'record')}, {human_bytes(size_bytes)}"
        " would be deleted; nothing was"
    )


def _cells(row: Forecast) -> list[str]:
    return [
        f"{row.partition.topic}-{row.partition.partition}",
        f"{row.segment_count:,}",
        human_bytes(row.size_bytes),
        f"{row.drop_count:,}",
        human_bytes(row.drop_bytes),
        str(row.log_start_offset),
        human_time(row.oldest_left_ms),
        ", ".join(sorted(reason.value for reason in row.reasons)) or "-",
    ]


def _document(row: Forecast) -> dict[str, str | int | list[str] | None]:
    return {
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "segments": row.segment_count,
        "size_bytes": row.size_bytes,
        "deleted_segments": row.drop_count,
        "deleted_bytes": row.drop_bytes,
        "deleted_records": row.drop_records,
        "log_start_offset": row.log_start_offset,
        "oldest_left_ms": row.oldest_left_ms,
        "reasons": sorted(reason.name for reason in row.reasons),
    }
