"""`strandline archive ls` and `archive show`: what a bucket holds, as tables.

On a terminal the tables are drawn to its width; into a pipe they are written wide and plain, one
row per line, so that `grep` and `awk` work on them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from strandline.storage.model import TimestampMs
from strandline.storage.remote.object_store import ObjectStore, open_store
from strandline.storage.tiering.archive import (
    ArchivedPartition,
    ArchivedSegment,
    list_partitions,
    list_segments,
)

# Wide enough for a segment row with its key; only used when nobody draws to a terminal.
PIPE_WIDTH = 400
NOTHING_FOUND = 1
WHERE_IT_IS = "--remote is the strandline.remote.url of the broker, with its prefix"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def print_partitions(
    url: str, *, endpoint_url: str | None, region: str | None, topic: str | None
) -> int:
    """One row per partition; the exit code. Raises StrandlineError."""
    store = open_store(url, endpoint_url=endpoint_url, region=region)
    with _working("reading manifests"):
        rows = list_partitions(store, topic=topic)
    if not rows:
        return _nothing(store, topic)
    table = make_table(f"archive {url}")
    for name in ("topic", "partition", "segments", "size", "log start", "end"):
        table.add_column(name, justify="left" if name == "topic" else "right")
    for name in ("first record", "last record", "state"):
        table.add_column(name)
    for row in rows:
        table.add_row(
            row.partition.topic,
            str(row.partition.partition),
            f"{row.segment_count:,}",
            human_bytes(row.size_bytes),
            str(row.log_start_offset),
            str(row.end_offset),
            human_time(row.min_timestamp_ms),
            human_time(row.max_timestamp_ms),
            _state(row),
        )
    make_console().print(table)
    total_bytes = sum(row.size_bytes for row in rows)
    segments = sum(row.segment_count for row in rows)
    make_console().print(
        f"{len(rows)} partitions, {segments:,} segments, {human_bytes(total_bytes)}",
        highlight=False,
    )
    return NOTHING_FOUND if any(row.problem for row in rows) else 0


def print_segments(
    url: str, *, endpoint_url: str | None, region: str | None, topic: str | None
) -> int:
    """One row per segment; the exit code. Raises StrandlineError."""
    store = open_store(url, endpoint_url=endpoint_url, region=region)
    with _working("reading manifests"):
        topics = sorted({row.partition.topic for row in list_partitions(store, topic=topic)})
        rows = [row for name in topics for row in list_segments(store, topic=name)]
    if not rows:
        return _nothing(store, topic)
    make_console().print(_segment_table(url, rows))
    return 0


def _segment_table(url: str, rows: Iterable[ArchivedSegment]) -> Table:
    table = make_table(f"segments {url}")
    for name in ("partition", "base offset", "end offset", "records", "size"):
        table.add_column(name, justify="left" if name == "partition" else "right")
    for name in ("first record", "last record", "uploaded", "crc32c", "object"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(
            str(row.partition),
            str(row.base_offset),
            str(row.end_offset),
            f"{row.record_count:,}",
            human_bytes(row.size_bytes),
            human_time(row.min_timestamp_ms),
            human_time(row.max_timestamp_ms),
            human_time(row.uploaded_ms),
            f"{row.log_crc32c:08x}",
            row.log_key,
        )
    return table


def _state(row: ArchivedPartition) -> str:
    if row.problem:
        return row.problem
    if row.topic_deleted_ms is not None:
        return "topic deleted, being purged"
    return f"{row.deleting_count} being deleted" if row.deleting_count else "ok"


def _nothing(store: ObjectStore, topic: str | None) -> int:
    if topic:
        what = f"no topic {topic!r} is archived at {store.url}; without --topic all are listed"
    else:
        what = f"nothing is archived at {store.url}: {WHERE_IT_IS}"
    print(f"strandline: {what}", file=sys.stderr)
    return NOTHING_FOUND


def _working(what: str) -> Progress:
    """Something that moves while the bucket answers; on standard error, so pipes stay clean.

    Nothing at all where nobody looks: into a file it would write empty lines.
    """
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    progress.add_task(what, total=None)
    return progress


def make_console() -> Console:
    """Draws to the terminal, or wide and plain into a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def make_table(title: str) -> Table:
    """An empty table in the style of the house."""
    return Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")


def human_bytes(size_bytes: int) -> str:
    """`1.5 MiB`."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError(size_bytes)


def human_time(timestamp_ms: TimestampMs | None) -> str:
    """`2013-01-01 10:00:00` in UTC; a dash for none."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (OverflowError, ValueError):
        return f"{timestamp_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S")
