"""Only what a query needs is fetched and decoded; counts come from what the archive knows."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from strandline.spark_lake import count, scan
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.query import pruning
from strandline.storage.model import AbortedTransaction
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.columns import columns as record_columns
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
)

MIB = 1 << 20


@pytest.fixture
def archive(archive: ArchiveBuilder) -> ArchiveBuilder:
    """Topic `t`: three segments of 400 records in four chunks of 1 MiB each; a second apart."""
    archive.add_topic("t")
    for start in (0, 400, 800):
        records = make_records(400, base_offset=start, value_bytes=10 * 1024)
        archive.add_segment("t", make_batches(records))
    return archive


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What was read of logs and metas: name and length of every range."""
    seen: list[tuple[str, int]] = []
    get = ObjectReader.get

    def counted(self: ObjectReader, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if end is not None:
            seen.append((key.rsplit(".", 1)[-1], end - start))
        return get(self, key, start=start, end=end)

    monkeypatch.setattr(ObjectReader, "get", counted)
    return seen


def test_a_query_for_offsets_and_times_copies_no_value_bytes(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    room: list[int] = []

    class NotedOutput(record_columns._BinaryOutput):
        def __init__(self, rows_max: int, bytes_max: int, *, used: bool) -> None:
            super().__init__(rows_max, bytes_max, used=used)
            room.append(self.content.size)

    monkeypatch.setattr(record_columns, "_BinaryOutput", NotedOutput)
    table = scan(archive.url, "t", columns=["offset", "timestamp"]).read_all()
    assert table.num_rows == 1200
    assert sum(room) == 0
    scan(archive.url, "t", columns=["value"]).read_all()
    assert sum(room) > 8 * MIB


def test_whole_segments_are_counted_from_the_manifest(
    archive: ArchiveBuilder, bytes_read: list[tuple[str, int]]
) -> None:
    assert count(archive.url, "t") == 1200
    assert count(archive.url, "t", filters=[("offset", ">=", 400)]) == 800
    assert bytes_read == []


def test_whole_chunks_are_counted_from_the_statistics(
    archive: ArchiveBuilder, bytes_read: list[tuple[str, int]]
) -> None:
    moment = dt.datetime.fromtimestamp(START_MS / 1000, dt.UTC) + dt.timedelta(seconds=450)
    assert count(archive.url, "t", filters=[("timestamp", ">=", moment)]) == 750
    logs = [size for kind, size in bytes_read if kind == "log"]
    assert len(logs) == 1
    assert sum(logs) < 1.5 * MIB


def test_chunks_without_a_wanted_time_cost_a_count_no_request(
    archive: ArchiveBuilder,
    bytes_read: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many segments it is the counter that looks into the statistics, not the planner."""
    monkeypatch.setattr(pruning, "PLANNED_METAS_MAX", 0)
    moment = dt.datetime.fromtimestamp(START_MS / 1000, dt.UTC) + dt.timedelta(seconds=750)
    assert count(archive.url, "t", filters=[("timestamp", ">=", moment)]) == 450
    # Statistics of the segment on the border, and once more for its chunk that is read.
    assert len([size for kind, size in bytes_read if kind == "meta"]) == 2
    assert len([size for kind, size in bytes_read if kind == "log"]) == 1


@pytest.mark.parametrize(
    "filters",
    [
        [("offset", ">", 57), ("offset", "<", 1111)],
        [("timestamp", "<", START_MS + 777_777)],
        [("key", "==", "key-901")],
        [("value", "==", b"")],
    ],
)
@pytest.mark.parametrize("split_bytes", [MIB, 64 * MIB])
def test_a_count_is_what_a_scan_gives(
    archive: ArchiveBuilder, filters: list[tuple[str, str, object]], split_bytes: int
) -> None:
    options = {"splitBytes": split_bytes}
    rows = scan(archive.url, "t", filters=filters, options=options).read_all().num_rows
    assert count(archive.url, "t", filters=filters, options=options) == rows > 0


def test_control_records_and_aborted_ones_are_not_counted(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")

    def batch(first: int, records: int, *, control: bool = False) -> bytes:
        return encode_batch(
            [
                Record(offset=offset, timestamp_ms=START_MS, key=bytes(4), value=b"v")
                for offset in range(first, first + records)
            ],
            producer_id=7,
            producer_epoch=0,
            transactional=True,
            control=control,
        )

    archive.add_segment(
        "t",
        [batch(0, 3), batch(3, 1, control=True), batch(4, 2), batch(6, 1, control=True)],
        aborted=[AbortedTransaction(7, 4, 6, 7)],
    )
    assert count(archive.url, "t") == 3
    assert count(archive.url, "t", options={"isolationLevel": "read_uncommitted"}) == 5
