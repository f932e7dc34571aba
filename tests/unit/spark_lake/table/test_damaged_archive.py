"""Damaged segments: an error that can be acted upon, or rows of the second table, each once."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from strandline.broker.cli import main
from strandline.spark_lake.table.run import TableRun
from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.errors import ObjectCorrupt
from strandline.storage.model import AbortedTransaction
from strandline.storage.records.batch.batch import HEADER_BYTES
from strandline.storage.records.batch.record import Record, encode_batch, with_crc
from strandline.storage.remote.manifest.entries import SegmentEntry
from tests.support.heavy import all_but, first
from tests.unit.spark_lake.archive.damaged import damage
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
from tests.unit.spark_lake.table.rig import NoProgress, make_run
from tests.unit.spark_lake.table.test_delta import DELTA

pytestmark = pytest.mark.slow

SCHEMA = "id BIGINT"
REJECT = {"on_error": "reject"}
BATCH = 10
COUNT = 80
TABLE_POINTS = [point for point in CRASH_POINTS if point.startswith("table.")]


class Segment:
    """One segment of partition 1 of topic `orders`, of eight batches and four chunks."""

    def __init__(self, folder: Path, *, step: int = 1) -> None:
        """With a `step`, compaction has left one record of so many offsets."""
        self.archive = ArchiveBuilder(folder)
        self.archive.add_topic("orders", partitions=2)
        self.batches = make_batches(
            [
                Record(
                    offset=offset,
                    timestamp_ms=START_MS,
                    key=b"k%d" % (offset % 7),
                    value=json.dumps({"id": offset}).encode(),
                )
                for offset in range(0, COUNT * step, step)
            ],
            per_batch=BATCH,
        )
        self.chunk_bytes = 2 * len(self.batches[0])
        self.entry: SegmentEntry = self.archive.add_segment(
            "orders", self.batches, partition=1, chunk_bytes=self.chunk_bytes
        )

    def start(self, number: int) -> int:
        """Where a batch begins."""
        return sum(map(len, self.batches[:number]))

    def damage(self, change: Callable[[bytearray], object]) -> None:
        damage(self.archive, self.entry.log_key, change)

    def flip(self, position: int) -> None:
        self.damage(lambda content: content.__setitem__(position, content[position] ^ 1))

    def sync(self, **more: Any) -> TableRun:
        run = make_run(self.archive, SCHEMA, **more)
        run.sync(NoProgress())
        return run


def offsets_of(run: TableRun) -> tuple[list[int], list[int]]:
    """Of the rows of both tables, whose values are right."""
    assert run.store.load() is not None
    assert run.rejected.load() is not None
    stores: list[Any] = [run.store, run.rejected]
    if run.store.name.startswith("file:"):
        frames = [pl.read_delta(one.name.removeprefix("file://")) for one in stores]
    else:
        frames = [pl.DataFrame(one.loaded.scan().to_arrow()) for one in stores]
    rows = frames[0]
    assert rows["_offset"].to_list() == rows["id"].to_list()
    assert set(rows["_topic_partition"]) | set(frames[1]["_topic_partition"]) <= {1}
    first, second = (sorted(one["_offset"].to_list()) for one in frames)
    return first, second


def others(lost: range) -> list[int]:
    return [offset for offset in range(COUNT) if offset not in lost]


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return Segment(tmp_path / "archive")


@pytest.mark.parametrize("table_format", [{}, DELTA])
def test_a_batch_with_a_wrong_crc_is_told_with_what_can_be_done_or_rejected(
    segment: Segment, table_format: dict[str, Any]
) -> None:
    segment.flip(segment.start(4) - 1)
    with pytest.raises(ObjectCorrupt) as told:
        segment.sync(**table_format)
    said = str(told.value)
    assert segment.entry.log_key in said
    assert "batch at offset 30" in said
    assert "it has the offsets 0 to 79 of orders partition 1" in said
    for remedy in ("archive verify", "a version of the bucket", "--on-error reject"):
        assert remedy in said
    run = make_run(segment.archive, SCHEMA, **REJECT, **table_format)
    report = run.sync(NoProgress())
    assert (report.rows, report.rejected_rows) == (70, 10)
    assert offsets_of(run) == (others(range(30, 40)), list(range(30, 40)))
    assert segment.sync(**REJECT, **table_format).sync(NoProgress()).commits == 0
    for deep in (False, True):
        found = run.check(deep=deep)
        assert found.findings == []
        assert [one.rejected_rows for one in found.partitions if one.partition == 1] == [10]


def test_a_rejected_batch_has_its_place_and_the_reason_and_nothing_else(segment: Segment) -> None:
    segment.flip(segment.start(4) - 1)
    run = segment.sync(**REJECT)
    assert run.rejected.load() is not None
    rejected: Any = run.rejected
    for row in rejected.loaded.scan().to_arrow().to_pylist():
        reason = row["_reason"]
        assert "the batch with the offsets 30 to 39 has a wrong CRC" in reason
        start, end = segment.start(3), segment.start(4)
        assert f"bytes {start} to {end} of {segment.archive.url}/" in reason
        assert segment.entry.log_key in reason
        assert row["_topic_id"] == str(segment.archive.topics["orders"].info.topic_id)
        for column in ("_timestamp", "_key", "_value"):
            assert row[column] is None


def test_the_command_tells_damage_in_one_line_and_counts_what_it_rejects(
    segment: Segment, capsys: pytest.CaptureFixture[str]
) -> None:
    segment.flip(segment.start(4) - 1)
    given = ["--remote", segment.archive.url, "--topic", "orders", "--table", "lake.orders"]
    assert main(["table", "sync", *given]) == 1
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert "--on-error reject" in said
    assert main(["table", "sync", *given, "--on-error", "reject"]) == 0
    said = capsys.readouterr().out
    assert "70 rows in 2 files" in said
    assert "10 rows rejected" in said
    assert main(["table", "check", *given, "--deep"]) == 0


@pytest.mark.parametrize(
    "point", all_but(["table.before-commit", "table.after-commit"], TABLE_POINTS)
)
def test_after_a_death_at_any_step_each_record_is_in_one_table(
    segment: Segment, point: str
) -> None:
    segment.flip(segment.start(4) - 1)
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        segment.sync(**REJECT)
    assert offsets_of(segment.sync(**REJECT)) == (others(range(30, 40)), list(range(30, 40)))


def _length(content: bytearray, segment: Segment) -> None:
    content[segment.start(4) + 11] ^= 0x40


def _base_offset(content: bytearray, segment: Segment) -> None:
    content[segment.start(4) + 7] += 3


def _leader_epoch(content: bytearray, segment: Segment) -> None:
    content[segment.start(4) + 15] ^= 1


@pytest.mark.parametrize("change", [_length, _base_offset, _leader_epoch])
def test_of_a_chunk_whose_headers_cannot_be_trusted_all_is_rejected(
    segment: Segment, change: Callable[[bytearray, Segment], None]
) -> None:
    segment.damage(lambda content: change(content, segment))
    with pytest.raises(ObjectCorrupt, match="--on-error reject"):
        segment.sync()
    run = segment.sync(**REJECT)
    assert offsets_of(run) == (others(range(40, 60)), list(range(40, 60)))
    assert run.check(deep=True).findings == []


def test_of_an_object_that_was_cut_what_is_there_becomes_rows(segment: Segment) -> None:
    segment.damage(lambda content: content.__delitem__(slice(segment.start(7) + 5, None)))
    run = segment.sync(**REJECT)
    assert offsets_of(run) == (list(range(60)), list(range(60, 80)))
    assert run.check(deep=True).findings == []


def test_no_row_comes_from_another_segment_under_the_right_name(
    segment: Segment, tmp_path: Path
) -> None:
    """Its batches are whole, and their offsets fit."""
    other = Segment(tmp_path / "other")
    other.batches = [one.replace(b'"id"', b'"no"') for one in other.batches]
    log = b"".join(bytes(with_crc(bytearray(one))) for one in other.batches)
    segment.damage(lambda content: content.__setitem__(slice(None), log))
    run = make_run(segment.archive, SCHEMA, **REJECT)
    assert run.sync(NoProgress()).rejected_rows == COUNT
    # And one of its batches is damaged, too.
    segment.flip(segment.start(4) - 1)
    assert offsets_of(run) == ([], list(range(COUNT)))


def test_of_a_compacted_batch_as_many_rows_are_rejected_as_it_had_records(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "archive", step=3)
    segment.flip(segment.start(4) - 1)
    run = segment.sync(**REJECT)
    left, lost = offsets_of(run)
    # Which of the 28 offsets had them is lost, too.
    assert (len(left), lost) == (70, list(range(90, 100)))
    assert run.check(deep=True).findings == []


def test_beside_a_damaged_batch_aborted_records_and_markers_stay_left_out(
    tmp_path: Path,
) -> None:
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("orders")

    def batch(first: int, count: int, *, control: bool = False) -> bytes:
        records = [
            Record(offset=first + n, timestamp_ms=START_MS, key=b"\0\0\0\1", value=b"{}")
            for n in range(count)
        ]
        return encode_batch(
            records,
            producer_id=7,
            producer_epoch=0,
            base_sequence=-1 if control else first,
            transactional=True,
            control=control,
        )

    batches = [
        batch(0, 5),
        batch(5, 1, control=True),
        batch(6, 5),
        batch(11, 5),
        batch(16, 1, control=True),
    ]
    aborted = [AbortedTransaction(7, 0, 5, 6)]
    entry = archive.add_segment("orders", batches, aborted=aborted)
    last = sum(map(len, batches[:4])) - 1
    damage(archive, entry.log_key, lambda content: content.__setitem__(last, content[last] ^ 1))
    run = make_run(archive, SCHEMA, **REJECT)
    report = run.sync(NoProgress())
    assert (report.rows, report.rejected_rows) == (5, 5)
    assert run.check(deep=True).findings == []


def test_an_upsert_goes_on_without_the_damaged_batch(segment: Segment) -> None:
    segment.flip(segment.start(8) - 1)
    upsert = {**REJECT, "mode": "upsert"}
    run = segment.sync(**upsert)
    left, lost = offsets_of(run)
    assert (left, lost) == (list(range(63, 70)), list(range(70, 80)))
    assert run.check(deep=True).findings == []


def test_a_batch_that_does_not_decode_is_rejected_alone(tmp_path: Path) -> None:
    """Its checksums are right: this is what its producer wrote."""
    segment = Segment(tmp_path / "archive")
    bad = bytearray(segment.batches[3])
    # The length of a key, beyond its record.
    bad[HEADER_BYTES + 4] = 0x7E
    segment.batches[3] = bytes(with_crc(bad))
    segment.archive.archived_so("orders", segment.entry, b"".join(segment.batches), partition=1)
    with pytest.raises(ObjectCorrupt, match=r"its producer wrote.*--on-error reject"):
        segment.sync()
    run = segment.sync(**REJECT)
    assert offsets_of(run) == (others(range(30, 40)), list(range(30, 40)))
    assert run.check(deep=True).findings == []


@pytest.mark.parametrize("seed", first(4, range(20)))
def test_wherever_a_bit_is_flipped_each_record_is_in_one_table_and_its_value_is_right(
    tmp_path: Path, seed: int
) -> None:
    source = random.Random(seed)
    segment = Segment(tmp_path / "archive")
    for _ in range(source.choice((1, 1, 3))):
        segment.flip(source.randrange(segment.entry.size_bytes))
    run = segment.sync(**REJECT)
    left, lost = offsets_of(run)
    assert sorted(left + lost) == list(range(COUNT))
    # Of two chunks at most, or of three.
    assert 0 < len(lost) <= 60
    assert run.check(deep=True).findings == []


def test_damage_that_comes_after_the_sync_is_told_by_a_deep_check(segment: Segment) -> None:
    run = segment.sync(**REJECT)
    segment.flip(segment.start(4) - 1)
    assert run.check().findings == []
    with pytest.raises(ObjectCorrupt, match="batch at offset 30"):
        run.check(deep=True)


def test_a_damaged_meta_is_told_with_the_command_that_makes_it_anew(segment: Segment) -> None:
    segment.flip(segment.start(4) - 1)
    damage(segment.archive, segment.entry.meta_key, lambda content: content.__setitem__(9, 77))
    with pytest.raises(ObjectCorrupt, match="archive verify --repair"):
        segment.sync(**REJECT)
