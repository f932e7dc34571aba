"""A log that is whole in itself and of the right shape, and another's: never its rows.

Records of one size make segments of several partitions the same to the byte in everything that a
batch says of itself: positions, offsets, numbers of records. Only checksums tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import crc32c
import pytest

from strandline.spark_lake import count, scan
from strandline.spark_lake.archive.segments import LogReader, SegmentMeta, chunk_ranges, joined
from strandline.spark_lake.plan import planner
from strandline.spark_lake.query import pruning
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.storage.errors import ObjectCorrupt
from strandline.storage.records.batch.record import Record
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import Section, SegmentStatistics
from tests.unit.spark_lake.archive.swapped_logs import RECORDS, swapped
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small segments are pruned and cut as large ones are."""
    monkeypatch.setattr(pruning, "PRUNED_SEGMENT_BYTES_MIN", 1)
    monkeypatch.setattr(planner, "SPLIT_BYTES_MIN", 500)


def everything(url: str, **how: Any) -> Any:
    return scan(url, "t", **how).read_all()


@pytest.mark.parametrize("ask", [everything, lambda url, **how: count(url, "t", **how)])
@pytest.mark.parametrize(
    "how",
    [
        {"filters": [("offset", "==", 77)]},
        {"filters": [("timestamp", ">", START_MS + 9500), ("timestamp", "<", START_MS + 70_500)]},
        {"filters": [("key", "==", b"0"), ("offset", ">", 350)]},
        {"options": {"startingTimestamp": START_MS + 200_500}},
        {"options": {"maxRecordsPerPartition": 100}, "filters": [("partition", "!=", 2)]},
    ],
    ids=str,
)
def test_a_log_of_the_same_shape_is_refused_though_a_part_of_it_is_read(
    tmp_path: Path, ask: Callable[..., Any], how: dict[str, Any]
) -> None:
    archive = ArchiveBuilder(tmp_path)
    entries = swapped(archive)
    with pytest.raises(ObjectCorrupt, match="checksum of the") as caught:
        ask(archive.url, **how)
    assert any(entry.log_key in str(caught.value) for entry in entries)


def test_not_one_row_of_it_is_shown_to_who_wants_a_few(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    swapped(archive)
    for filters in ([], [("offset", "<", 20)]):
        with pytest.raises(ObjectCorrupt, match="checksum of the"):
            scan(archive.url, "t", filters=filters).read_next_batch()


@pytest.mark.parametrize("window_bytes", [3_000, 8_000, 20_000, 1 << 20])
def test_the_first_chunk_that_is_another_log_s_is_named_wherever_windows_end(
    tmp_path: Path, window_bytes: int
) -> None:
    archive = ArchiveBuilder(tmp_path)
    (entry, other) = swapped(archive)
    reader = make_query(archive.url, "t").open()
    chunks = chunk_ranges(entry, SegmentMeta(reader, entry).statistics())
    (whole,) = joined(chunks)
    path = archive.object_path(entry.log_key)
    theirs, ours = path.read_bytes(), archive.object_path(other.log_key).read_bytes()

    def record_count() -> int:
        log = LogReader(reader, entry, ahead=None, window_bytes=window_bytes)
        return sum(
            header.record_count for block in log.blocks(whole) for _, header in block.batches
        )

    path.write_bytes(ours)
    assert record_count() == RECORDS
    for chunk in (chunks[0], chunks[3], chunks[-1]):
        border = chunk.start_position
        path.write_bytes(ours[:border] + theirs[border:])
        with pytest.raises(ObjectCorrupt, match=f"from byte {border}: checksum of the chunk"):
            record_count()


def test_a_segment_without_checksums_of_chunks_is_read(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    records = [
        Record(offset=n, timestamp_ms=START_MS + n, key=None, value=bytes(200)) for n in range(400)
    ]
    entry = archive.add_segment("t", make_batches(records), chunk_bytes=8000)
    path = archive.object_path(entry.meta_key)
    sections: dict[Section, Any] = {**segment_meta.decode(path.read_bytes())}
    statistics = SegmentStatistics.decode(sections[Section.STATISTICS])
    assert statistics.has_checksums
    sections[Section.STATISTICS] = statistics.without_checksums().encode()
    assert b"checksums" not in sections[Section.STATISTICS]
    content = segment_meta.encode(sections)
    path.write_bytes(content)
    changed = replace(entry, meta_size_bytes=len(content), meta_crc32c=crc32c.crc32c(content))
    archive.save(replace(archive.manifest("t"), segments=(changed,)))
    found = scan(archive.url, "t", filters=[("offset", ">=", 390)]).read_all()
    assert found.column("offset").to_pylist() == list(range(390, 400))
