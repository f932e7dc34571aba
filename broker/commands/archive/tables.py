"""`strandline archive ls` and `archive show`: list partitions and segments, one row per line.

A terminal gets the columns that fit into its width; a pipe gets all of them, so that `grep` and
`awk` work on them. `--json` is for programs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from strandline.broker.commands.progress import Working
from strandline.broker.tools.client.printing import Json, utc_text
from strandline.broker.tools.client.tables import Column, RowPrinter, print_table, widest
from strandline.storage.errors import UnknownTopic
from strandline.storage.local.formats.checkpoint import encode_id
from strandline.storage.model import TimestampMs, TopicIdPartition
from strandline.storage.plurals import counted, human_bytes
from strandline.storage.remote.keys import topic_folder
from strandline.storage.remote.manifest.cluster_info import load_cluster_info
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.verification import Verification, load_verifications
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.audit.listing import (
    ArchivedPartition,
    list_partitions,
    list_segments,
)

NOTHING_FOUND = 1
WHERE_IT_IS = "--remote is the strandline.remote.url of the broker, with its prefix"
TIME_WIDTH = len("2013-01-01 10:00:00")
# The part of a segment's key after topic and partition: ids, offset, epoch, unique part.
KEY_WIDTH = 100


def print_partitions(store: ObjectStore, *, topic: str | None, as_json: bool = False) -> int:
    """Prints one row per partition; returns the exit code. Raises StrandlineError."""
    with Working("reading manifests"):
        rows = list_partitions(store, topic=topic)
    if not rows:
        return _nothing(store, topic)
    code = NOTHING_FOUND if any(row.problem for row in rows) else 0
    if as_json:
        _print_json_rows(_partition_json(row) for row in rows)
        return code
    print_table(f"archive {store.url}", _PARTITION_COLUMNS, [_partition_cells(row) for row in rows])
    total_bytes = sum(row.size_bytes for row in rows)
    segments = sum(row.segment_count for row in rows)
    print(
        f"{counted(len(rows), 'partition')}, {counted(segments, 'segment')},"
        f" {human_bytes(total_bytes)}"
    )
    deleting = sum(row.deleting_count for row in rows)
    if deleting:
        deleting_bytes = sum(row.deleting_bytes for row in rows)
        print(
            f"not in these sizes: {counted(deleting, 'marked segment')}"
            f" ({human_bytes(deleting_bytes)}), to be deleted; `archive usage` counts them"
        )
    print(_verified_text(load_verifications(store).values()))
    return code


def _verified_text(runs: Iterable[Verification]) -> str:
    """Tells when the segments themselves were looked at, and how."""
    told = [
        f"{run.depth} {human_time(run.finished_ms)}"
        f" ({counted(run.finding_count, 'finding') if run.finding_count else 'whole'})"
        for run in sorted(runs, key=lambda run: -run.finished_ms)
    ]
    return f"manifests alone were read; last `archive verify`: {', '.join(told) or 'never'}"


_PARTITION_COLUMNS = (
    "topic",
    "partition",
    Column(name="segments", is_right=True),
    Column(name="size", is_right=True),
    Column(name="log start", is_right=True, rank=1),
    "end",
    Column(name="first record", rank=2),
    "last record",
    "state",
)


def _partition_cells(row: ArchivedPartition) -> list[object]:
    return [
        row.partition.topic,
        row.partition.partition,
        f"{row.segment_count:,}",
        human_bytes(row.size_bytes),
        row.log_start_offset,
        row.end_offset,
        human_time(row.min_timestamp_ms),
        human_time(row.max_timestamp_ms),
        _state(row),
    ]


def _partition_json(row: ArchivedPartition) -> Json:
    return {
        "topic": row.partition.topic,
        "topic_id": encode_id(row.partition.topic_id),
        # Its name in the bucket has the id as a UUID.
        "folder": topic_folder(row.partition.topic, row.partition.topic_id),
        "partition": row.partition.partition,
        "segments": row.segment_count,
        "size_bytes": row.size_bytes,
        "log_start_offset": row.log_start_offset,
        "end_offset": row.end_offset,
        "min_timestamp_ms": row.min_timestamp_ms,
        "max_timestamp_ms": row.max_timestamp_ms,
        "deleting": row.deleting_count,
        "deleting_bytes": row.deleting_bytes,
        "topic_deleted_ms": row.topic_deleted_ms,
        "problem": row.problem,
    }


def print_segments(
    store: ObjectStore, *, topic: str | None, partition: int | None = None, as_json: bool = False
) -> int:
    """Prints each segment as it is read; returns the exit code. Raises StrandlineError."""
    with Working("reading manifests"):
        rows = list_partitions(store, topic=topic)
    partitions = [row for row in rows if partition in (None, row.partition.partition)]
    if rows and not partitions:
        of = f"topic {topic!r}" if topic else "any topic"
        raise UnknownTopic(f"no partition {partition} of {of} is archived at {store.url}")
    if not any(row.segment_count or row.problem for row in partitions):
        return _nothing(store, topic)
    segments = list_segments(store, topic=topic, partition=partition)
    if as_json:
        _print_json_rows(_segment_json(*row) for row in segments)
        return 0
    offset_digits = widest(row.end_offset for row in partitions)
    name_width = widest(row.partition for row in partitions)
    printer = RowPrinter(
        f"segments {store.url}",
        [
            Column(name="partition", width=name_width),
            Column(name="base offset", width=offset_digits, is_right=True),
            Column(name="end offset", width=offset_digits, is_right=True, rank=3),
            Column(name="records", width=len("100,000,000"), is_right=True),
            Column(name="size", width=len("1023.9 MiB"), is_right=True),
            Column(name="first record", width=TIME_WIDTH),
            Column(name="last record", width=TIME_WIDTH, rank=2),
            Column(name="uploaded", width=TIME_WIDTH, rank=4),
            Column(name="crc32c", width=8, rank=5),
            # A key has a hundred characters and more; the last column needs no width.
            Column(name="object", width=len("topics/") + name_width + KEY_WIDTH, rank=6),
        ],
    )
    count = size_bytes = 0
    for name, segment in segments:
        printer.row(_segment_cells(name, segment))
        count += 1
        size_bytes += segment.size_bytes
    print(f"\n{counted(count, 'segment')}, {human_bytes(size_bytes)}")
    return 0


def _segment_cells(partition: TopicIdPartition, entry: SegmentEntry) -> list[str]:
    return [
        str(partition),
        str(entry.base_offset),
        str(entry.end_offset),
        f"{entry.record_count:,}",
        human_bytes(entry.size_bytes),
        human_time(entry.min_timestamp_ms),
        human_time(entry.max_timestamp_ms),
        human_time(entry.uploaded_ms),
        f"{entry.log_crc32c:08x}",
        entry.log_key,
    ]


def _segment_json(partition: TopicIdPartition, entry: SegmentEntry) -> Json:
    return {
        "topic": partition.topic,
        "topic_id": encode_id(partition.topic_id),
        "partition": partition.partition,
        "base_offset": entry.base_offset,
        "end_offset": entry.end_offset,
        "records": entry.record_count,
        "size_bytes": entry.size_bytes,
        "min_timestamp_ms": entry.min_timestamp_ms,
        "max_timestamp_ms": entry.max_timestamp_ms,
        "uploaded_ms": entry.uploaded_ms,
        "has_transactions": entry.has_transactions,
        "crc32c": f"{entry.log_crc32c:08x}",
        "log_key": entry.log_key,
        "meta_key": entry.meta_key,
    }


def _print_json_rows(rows: Iterable[Json]) -> None:
    """Writes one JSON document with a row per line, as the rows come."""
    separator = "[\n"
    for row in rows:
        sys.stdout.write(separator + json.dumps(row, ensure_ascii=False))
        separator = ",\n"
    sys.stdout.write("\n]\n" if separator == ",\n" else "[]\n")


def _state(row: ArchivedPartition) -> str:
    if row.problem:
        return row.problem
    if row.topic_deleted_ms is not None:
        return "topic deleted, being purged"
    return f"{row.deleting_count} being deleted" if row.deleting_count else "manifest ok"


def _nothing(store: ObjectStore, topic: str | None) -> int:
    """Explains an empty result: no archive at this place, or one without this topic yet."""
    why = WHERE_IT_IS
    if load_cluster_info(store) is not None:
        why = (
            "a topic needs remote.storage.enable=true, and its segments are copied once they are"
            " closed (segment.bytes, segment.ms)"
        )
    if topic:
        what = (
            f"no topic {topic!r} is archived at {store.url}: {why}; without --topic all are listed"
        )
    else:
        what = f"nothing is archived at {store.url}: {why}"
    print(f"strandline: {what}", file=sys.stderr)
    return NOTHING_FOUND


def human_time(timestamp_ms: TimestampMs | None) -> str:
    """Formats `2013-01-01 10:00:00` in UTC; a dash for none."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "-"
    return utc_text(timestamp_ms).partition(".")[0]
