"""Pieces of the open segment are the end of the archive, in batch queries and in streams."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import pytest

from strandline.spark_lake import count, scan
from strandline.spark_lake.archive import open_segment as open_segment_module
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.jvm.engine import divided
from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.spark.stream import StrandlineStreamReader, StreamDataLost
from strandline.storage.errors import ObjectCorrupt, ObjectNotFound, TierUnavailable
from strandline.storage.model import AbortedTransaction
from strandline.storage.records.batch.record import Record, encode_batch, with_crc
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
    read_offsets,
)
from tests.unit.spark_lake.stream_steps import opened, through_json

Json = dict[str, Any]


@pytest.fixture
def archive(archive: ArchiveBuilder) -> ArchiveBuilder:
    """Topic `t`: 100 archived records, and pieces with 30 and 10 more."""
    archive.add_topic("t")
    archive.add_segment("t", plain(0, 100))
    archive.add_piece("t", plain(100, 30))
    archive.add_piece("t", plain(130, 10))
    return archive


def plain(start: int, count: int) -> list[bytes]:
    return make_batches(make_records(count, base_offset=start, headers=True))


def test_pieces_are_parted_from_the_segments_of_their_split(archive: ArchiveBuilder) -> None:
    """Only tasks in Python read pieces, and they should read nothing else instead of the JVM."""
    query = make_query(archive.url, "t")
    reader = query.open()
    plan = query.plan(reader)
    (whole,) = plan.splits
    inside, others = divided(plan, reader)
    assert [[piece.is_open for piece in split.slices] for split in inside] == [[False]]
    assert [[piece.is_open for piece in split.slices] for split in others] == [[True, True]]
    assert inside[0].slices + others[0].slices == whole.slices
    rows = [
        offset
        for split in (*inside, *others)
        for batch in query.read(split, reader)
        for offset in batch.column("offset").to_pylist()
    ]
    assert rows == list(range(140))


def written(start: int, count: int, *, producer: int) -> bytes:
    """Records of a transaction."""
    records = [
        Record(offset=start + n, timestamp_ms=START_MS, key=None, value=b"x") for n in range(count)
    ]
    return encode_batch(records, producer_id=producer, producer_epoch=0, transactional=True)


def marker(offset: int, *, producer: int, commit: bool) -> bytes:
    """How a transaction ended."""
    key = struct.pack(">hh", 0, 1 if commit else 0)
    return encode_batch(
        [Record(offset=offset, timestamp_ms=START_MS, key=key, value=bytes(6))],
        producer_id=producer,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


def control(offset: int, *keys: bytes | None, codec: int = 0) -> bytes:
    """A control batch of producer 7 with these keys, as no broker writes it."""
    records = [
        Record(offset=offset + n, timestamp_ms=START_MS, key=key, value=bytes(6))
        for n, key in enumerate(keys)
    ]
    made = bytearray(
        encode_batch(records, producer_id=7, producer_epoch=0, transactional=True, control=True)
    )
    made[22] |= codec
    return bytes(with_crc(made))


def planned(archive: ArchiveBuilder, **options: str | int | bool) -> tuple[Query, ScanPlan]:
    query = make_query(archive.url, "t", columns=["offset"], options=options)
    return query, query.plan(query.open())


def offsets(archive: ArchiveBuilder, **options: str | int | bool) -> list[int]:
    return read_offsets(*planned(archive, **options))


# --- batch queries ----------------------------------------------------------------------------


def test_pieces_are_read_behind_the_segments_and_left_out_when_asked(
    archive: ArchiveBuilder,
) -> None:
    options = {"includeHeaders": True}
    table = scan(archive.url, "t", options=options).read_all()
    rows = table.to_pylist()
    made = make_records(140, headers=True)
    made = [*made[:100], *make_records(30, base_offset=100, headers=True)]
    made += make_records(10, base_offset=130, headers=True)
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (one.offset, one.key, one.value) for one in made
    ]
    assert offsets(archive, includeOpenSegment=False) == list(range(100))
    assert count(archive.url, "t") == 140
    assert count(archive.url, "t", options={"includeOpenSegment": False}) == 100


def test_a_topic_with_nothing_but_an_open_segment_has_rows(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    archive.add_piece("t", plain(0, 20))
    assert offsets(archive) == list(range(20))
    archive.move_log_start("t", 15)
    assert offsets(archive) == list(range(15, 20))
    assert offsets(archive, includeOpenSegment=False) == []


def test_filters_and_bounds_are_exact_in_pieces(archive: ArchiveBuilder) -> None:
    def found(*filters: tuple[str, str, object], **options: str) -> list[int]:
        reader = scan(
            archive.url, "t", columns=["offset"], filters=list(filters), options=dict(options)
        )
        return [int(n) for n in reader.read_all().column("offset").to_pylist()]

    assert found(("offset", ">=", 95), ("offset", "<", 105)) == list(range(95, 105))
    at_ms = START_MS + 125_000
    assert found(("timestamp", ">=", at_ms), ("timestamp", "<", at_ms + 9_000)) == list(
        range(125, 134)
    )
    assert found(startingTimestamp=str(at_ms)) == list(range(125, 140))
    assert found(("key", "==", "key-131")) == [131]
    few = {"maxRecordsPerPartition": "7", "endingOffsets": '{"t": {"0": 137}}'}
    assert found(**few) == list(range(137))


def test_pieces_are_never_cut_however_small_splits_are(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    records = make_records(300, value_bytes=12_000)
    archive.add_segment("t", make_batches(records[:100]))
    archive.add_piece("t", make_batches(records[100:300]))
    query, plan = planned(archive, splitBytes=1024 * 1024)
    pieces = [piece for split in plan.splits for piece in split.slices if piece.is_open]
    assert [piece.is_whole for piece in pieces] == [True]
    assert plan.pieces_planned == 1
    assert read_offsets(query, plan) == list(range(300))


def test_pieces_behind_a_gap_wait_for_it_to_be_closed(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    archive.add_segment("t", plain(0, 50))
    archive.add_piece("t", plain(80, 20))
    assert offsets(archive) == list(range(50))
    # What is missing in between was deleted: nobody may read it.
    archive.move_log_start("t", 85)
    assert offsets(archive) == list(range(85, 100))


@pytest.mark.parametrize("is_told", [True, False])
def test_a_reader_of_committed_records_sees_no_aborted_and_no_undecided_ones(
    tmp_path: Path, is_told: bool
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    archive.add_segment(
        "t", [written(0, 3, producer=7)], aborted=[AbortedTransaction(7, 0, 12, 12)]
    )
    first = [
        written(3, 2, producer=7),  # aborted at 12, begun in the archive
        written(5, 2, producer=8),  # committed at 8
        encode_batch([Record(offset=7, timestamp_ms=START_MS, key=None, value=b"plain")]),
        marker(8, producer=8, commit=True),
        written(9, 3, producer=8),  # aborted at 16
    ]
    archive.add_piece("t", first, is_told=is_told)
    assert offsets(archive) == []
    second = [
        marker(12, producer=7, commit=False),
        encode_batch([Record(offset=13, timestamp_ms=START_MS, key=None, value=b"plain")]),
        written(14, 2, producer=7),  # undecided
        marker(16, producer=8, commit=False),
        encode_batch([Record(offset=17, timestamp_ms=START_MS, key=None, value=b"plain")]),
    ]
    archive.add_piece("t", second, is_told=is_told)
    assert offsets(archive) == [5, 6, 7, 13]
    assert count(archive.url, "t") == 4
    everything = [n for n in range(18) if n not in (8, 12, 16)]
    assert offsets(archive, isolationLevel="read_uncommitted") == everything
    archive.add_piece("t", [marker(18, producer=7, commit=True)], is_told=is_told)
    assert offsets(archive) == [5, 6, 7, 13, 14, 15, 17]


@pytest.mark.parametrize(
    "odd",
    [
        control(3, None),
        control(3, b"\0\0"),
        control(3, b"\0\0\0\1", codec=7),
        control(3, b"\0\0\0\1", codec=1),
    ],
    ids=["no key", "short key", "unknown codec", "not compressed"],
)
def test_a_control_batch_that_is_none_is_damage_of_its_piece(tmp_path: Path, odd: bytes) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    part = archive.add_piece("t", [written(0, 3, producer=7), odd])
    with pytest.raises(ObjectCorrupt, match=part.key):
        offsets(archive)


def test_a_control_record_of_another_kind_ends_no_transaction(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    archive.add_piece("t", [written(0, 3, producer=7), control(3, b"\0\0\0\2")])
    assert offsets(archive) == []
    # Of several records in a control batch the first one counts, as for the broker.
    archive.add_piece("t", [control(4, b"\0\0\0\1", b"\0\0\0\0")])
    assert offsets(archive) == [0, 1, 2]


def test_pieces_that_nobody_counted_are_counted_by_reading_them(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    archive.add_piece("t", plain(0, 20), is_told=False)
    assert offsets(archive) == list(range(20))
    assert count(archive.url, "t") == 20


def test_a_plain_piece_costs_the_planner_no_request(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    get = ObjectReader.get

    def noted(self: ObjectReader, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if end is not None:
            asked.append(key)
        return get(self, key, start=start, end=end)

    monkeypatch.setattr(ObjectReader, "get", noted)
    planned(archive)
    assert asked == []


# --- pieces that go meanwhile -----------------------------------------------------------------


def lose(archive: ArchiveBuilder) -> None:
    """The objects of all pieces, as after the grace time."""
    found = list(archive.path.rglob("*.tail"))
    assert found
    for path in found:
        path.unlink()


def test_a_piece_whose_segment_was_archived_meanwhile_is_read_from_the_segment(
    archive: ArchiveBuilder,
) -> None:
    query, plan = planned(archive)
    archive.add_segment("t", plain(100, 60))
    lose(archive)
    archive.seal_page("t", 2)
    assert read_offsets(query, plan) == list(range(140))
    assert offsets(archive) == list(range(160))


def test_a_piece_that_a_larger_one_swallowed_meanwhile_is_read_from_that(
    archive: ArchiveBuilder,
) -> None:
    query, plan = planned(archive)
    lose(archive)
    manifest = archive.manifest("t")
    archive.save(dataclasses.replace(manifest, tail=(), revision=manifest.revision + 1))
    archive.add_piece("t", plain(100, 50))
    assert read_offsets(query, plan) == list(range(140))
    assert offsets(archive) == list(range(150))


def test_a_piece_that_is_gone_for_good_is_an_error_not_fewer_rows(archive: ArchiveBuilder) -> None:
    query, plan = planned(archive)
    lose(archive)
    with pytest.raises(ObjectNotFound, match=r"\.tail.*run the query again"):
        read_offsets(query, plan)
    # What came in its place was deleted by retention before it was read.
    archive.add_segment("t", plain(100, 60))
    archive.move_log_start("t", 120)
    with pytest.raises(ObjectNotFound, match=r"\.tail.*run the query again"):
        read_offsets(query, plan)


def test_a_piece_that_goes_while_it_is_planned_is_planned_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    batches = [written(0, 3, producer=7), marker(3, producer=7, commit=True)]
    archive.add_piece("t", batches)
    content = open_segment_module._content
    looks: list[str] = []

    def gone(reader: ObjectReader, part: Any) -> bytes | bytearray:
        looks.append(part.key)
        lose(archive)
        archive.add_segment("t", batches)
        return content(reader, part)

    monkeypatch.setattr(open_segment_module, "_content", gone)
    assert offsets(archive) == [0, 1, 2]
    assert len(looks) == 1


@pytest.mark.parametrize("is_told", [True, False])
def test_a_damaged_piece_is_named(tmp_path: Path, is_told: bool) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    part = archive.add_piece("t", plain(0, 20), is_told=is_told)
    path = archive.object_path(part.key)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ObjectCorrupt, match=rf"{part.key}.*(startingOffsets|includeOpenSegment)"):
        offsets(archive)
    path.write_bytes(content[:-5])
    with pytest.raises(ObjectCorrupt, match=part.key):
        offsets(archive)


# --- streams ----------------------------------------------------------------------------------


def rows(reader: StrandlineStreamReader, start: Json, end: Json) -> list[int]:
    return [
        row["offset"]
        for one in reader.partitions(start, end)
        for batch in reader.read(one)
        for row in batch.to_pylist()
    ]


def end_of(reader: StrandlineStreamReader, start: Json) -> Json:
    return through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))


def test_a_stream_gives_records_of_pieces_once_though_their_segment_is_archived_later(
    archive: ArchiveBuilder,
) -> None:
    reader = opened(archive)
    begin = through_json(reader.initialOffset())
    first = end_of(reader, begin)
    assert rows(reader, begin, first) == list(range(140))
    archive.add_piece("t", plain(140, 10))
    second = end_of(reader, first)
    assert rows(reader, first, second) == list(range(140, 150))
    archive.add_segment("t", plain(100, 60))
    lose(archive)
    third = end_of(reader, second)
    assert rows(reader, second, third) == list(range(150, 160))
    # A batch that is repeated has the same rows, though they lie elsewhere now.
    assert rows(reader, first, second) == list(range(140, 150))
    assert rows(reader, begin, first) == list(range(140))


def test_a_stream_waits_for_what_is_undecided(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    archive.add_piece("t", [*plain(0, 10), written(10, 2, producer=7), *plain(12, 10)])
    reader = opened(archive)
    begin = through_json(reader.initialOffset())
    first = end_of(reader, begin)
    assert rows(reader, begin, first) == list(range(10))
    assert end_of(reader, first) == first
    archive.add_piece("t", [marker(22, producer=7, commit=False)])
    second = end_of(reader, first)
    assert rows(reader, first, second) == list(range(12, 22))


def test_a_stream_waits_while_a_segment_it_has_read_is_on_its_way_to_the_archive(
    archive: ArchiveBuilder,
) -> None:
    reader = opened(archive)
    begin = through_json(reader.initialOffset())
    first = end_of(reader, begin)
    # Its pieces are gone and it is not archived yet; a piece behind it is there.
    manifest = archive.manifest("t")
    archive.save(dataclasses.replace(manifest, tail=(), revision=manifest.revision + 1))
    archive.add_piece("t", plain(160, 10))
    assert end_of(reader, first) == first
    with pytest.raises(TierUnavailable, match=r"100 to 140 .* repeated.*start the query again"):
        rows(reader, begin, first)
    archive.add_segment("t", plain(100, 60))
    second = end_of(reader, first)
    assert rows(reader, begin, first) == list(range(140))
    assert rows(reader, first, second) == list(range(140, 170))


def test_a_stream_that_reads_no_pieces_any_more_waits_for_the_archive(
    archive: ArchiveBuilder,
) -> None:
    first = end_of(opened(archive), through_json(opened(archive).initialOffset()))
    reader = opened(archive, includeOpenSegment="false")
    assert end_of(reader, first) == first
    archive.add_segment("t", plain(100, 60))
    assert rows(reader, first, end_of(reader, first)) == list(range(140, 160))


def test_an_archive_that_went_back_is_still_a_loss(archive: ArchiveBuilder) -> None:
    reader = opened(archive)
    first = end_of(reader, through_json(reader.initialOffset()))
    manifest = archive.manifest("t")
    archive.save(dataclasses.replace(manifest, tail=()))
    with pytest.raises(StreamDataLost, match="stands at offset 140, the archive ends at 100"):
        end_of(reader, first)
