"""Damaged and missing things: an error that names the object and the remedy, never wrong rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strandline.spark_lake import count, scan
from strandline.spark_lake.archive import objects
from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.storage.errors import (
    ObjectCorrupt,
    ObjectNotFound,
    StrandlineError,
)
from strandline.storage.records.batch.batch import HEADER_BYTES
from strandline.storage.records.batch.record import Record, encode_batch, with_crc
from strandline.storage.records.compression import Codec
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.segment.meta import TAIL_BYTES
from strandline.storage.system import crc32c
from tests.unit.spark_lake.archive.damaged import damage, read, refused
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
)

# --- segments --------------------------------------------------------------------------------


def test_a_missing_segment_in_the_middle_is_an_error_not_fewer_rows(
    archive: ArchiveBuilder, segment: SegmentEntry
) -> None:
    archive.object_path(segment.log_key).unlink()
    message = refused(archive, ObjectNotFound)
    assert f"{archive.url}/{segment.log_key}" in message
    assert "retention" in message
    last_offset = segment.end_offset - 1
    offsets = f"{segment.base_offset} to {last_offset}"
    assert message.endswith(f"it has the offsets {offsets} of t partition 0")
    assert read(archive, endingOffsets='{"t": {"0": 40}}') == 40


def test_a_corrupt_batch_is_named_and_nothing_of_its_window_is_given_out(
    archive: ArchiveBuilder, segment: SegmentEntry
) -> None:
    damage(archive, segment.log_key, lambda content: content.__setitem__(-5, content[-5] ^ 1))
    source = StrandlineDataSource({"path": archive.url, "subscribe": "t"})
    reader = source.reader(source.schema())
    batches = reader.read(reader.partitions()[0])
    assert next(batches).num_rows == 40
    with pytest.raises(ObjectCorrupt) as caught:
        next(batches)
    assert segment.log_key in str(caught.value)
    assert "CRC of batch at offset 70" in str(caught.value)
    assert "restore the object from a backup" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content.__delitem__(slice(-10, None)), "shorter than the manifest"),
        (lambda content: content.__setitem__(16, 3), "magic"),
        (lambda content: content.__setitem__(slice(8, 12), b"\x7f\xff\xff\xff"), "beyond its"),
        (lambda content: content.__setitem__(slice(8, 12), b"\x00\x00\x00\x00"), "length"),
    ],
    ids=["short", "magic", "huge batch", "tiny batch"],
)
def test_damaged_segments_are_refused(
    archive: ArchiveBuilder,
    segment: SegmentEntry,
    change: Callable[[bytearray], object],
    says: str,
) -> None:
    damage(archive, segment.log_key, change)
    message = refused(archive, ObjectCorrupt)
    assert segment.log_key in message
    assert says in message


@pytest.mark.parametrize(("place", "says"), [(0, "0 to 9"), (2, "80 to 89")])
def test_a_segment_of_other_offsets_under_the_right_name_is_refused(
    archive: ArchiveBuilder, segment: SegmentEntry, place: int, says: str
) -> None:
    manifest = archive.manifest("t")
    entries = list(manifest.segments)
    other = entries[place]
    entries[1] = replace(segment, size_bytes=other.size_bytes)
    archive.save(replace(manifest, segments=tuple(entries)))
    content = archive.object_path(other.log_key).read_bytes()
    archive.object_path(segment.log_key).write_bytes(content)
    message = refused(archive, ObjectCorrupt)
    assert f"offsets {says} lies where 40 to 79 belong" in message


def test_offsets_that_were_changed_are_found_though_no_batch_covers_them(
    archive: ArchiveBuilder,
) -> None:
    archive.add_topic("t")
    first, last = make_batches(make_records(4), per_batch=2)
    gap = encode_batch([Record(offset=9, timestamp_ms=0, key=None, value=None)])
    entry = archive.add_segment("t", [first, last, gap])
    damage(archive, entry.log_key, lambda content: content.__setitem__(len(first) + 7, 4))
    assert "checksum of the whole object" in refused(archive, ObjectCorrupt)


def test_fewer_records_than_were_archived_are_refused(
    archive: ArchiveBuilder, segment: SegmentEntry
) -> None:
    manifest = archive.manifest("t")
    entries = list(manifest.segments)
    entries[1] = replace(segment, record_count=41)
    archive.save(replace(manifest, segments=tuple(entries)))
    assert "holds 40 records up to byte" in refused(archive, ObjectCorrupt)


def test_bytes_damaged_on_the_way_are_read_once_more(
    archive: ArchiveBuilder, segment: SegmentEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    original = objects._open_file_system

    class Flaky:
        """Flips a bit of the first read of each log object."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner
            self.ls = inner.ls

        def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
            content = bytearray(self._inner.cat_file(path, start=start, end=end))
            if path.endswith(".log"):
                if path not in reads:
                    content[len(content) // 2] ^= 0x10
                reads.append(path)
            return bytes(content)

    monkeypatch.setattr(objects, "_open_file_system", lambda url, s3: Flaky(original(url, s3)))
    assert read(archive) == 120
    assert len(reads) == 6


def test_records_that_do_not_parse_under_a_right_crc_are_blamed_on_their_producer(
    archive: ArchiveBuilder,
) -> None:
    archive.add_topic("t")
    good = encode_batch([Record(offset=0, timestamp_ms=0, key=b"key", value=b"value")])
    archive.add_segment("t", [good])
    bad = bytearray(good)
    bad[HEADER_BYTES + 4] = 0x7E  # key length 63 in a record of 13 bytes
    (entry,) = archive.manifest("t").segments
    archive.archived_so("t", entry, bytes(with_crc(bad)))
    message = refused(archive, ObjectCorrupt)
    assert entry.log_key in message
    assert "record 0 of the batch at offset 0" in message
    assert "its producer wrote" in message


def test_compressed_bytes_that_do_not_decompress_are_refused(archive: ArchiveBuilder) -> None:
    archive.add_topic("t")
    good = encode_batch(make_records(10), codec=Codec.ZSTD)
    archive.add_segment("t", [good])
    (entry,) = archive.manifest("t").segments
    bad = bytearray(good)
    bad[HEADER_BYTES : HEADER_BYTES + 4] = b"nope"
    archive.archived_so("t", entry, bytes(with_crc(bad)))
    assert "zstd" in refused(archive, ObjectCorrupt)


def test_a_timestamp_that_spark_cannot_hold_is_an_error_not_another_time(
    archive: ArchiveBuilder,
) -> None:
    archive.add_topic("t")
    made = [Record(offset=n, timestamp_ms=n and 10**18, key=None, value=None) for n in range(2)]
    archive.add_segment("t", [encode_batch(made)])
    assert "offset 1 lies beyond what Spark can hold" in refused(archive, ObjectCorrupt)
    assert read(archive, endingOffsets='{"t": {"0": 1}}') == 1


# --- meta ------------------------------------------------------------------------------------


@pytest.fixture
def large_segment(archive: ArchiveBuilder) -> SegmentEntry:
    archive.add_topic("t")
    return archive.add_segment("t", make_batches(make_records(300, value_bytes=9000)))


SOME = {"startingOffsets": '{"t": {"0": 100}}'}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content.__setitem__(-1, 0), "no segment meta"),
        (lambda content: content.__setitem__(-9, 9), "version"),
        (
            lambda content: content.__setitem__(content.index(b"chunks"), 0),
            "statistics has a wrong",
        ),
        (lambda content: content.__setitem__(-25, content[-25] ^ 1), "directory"),
    ],
    ids=["magic", "version", "statistics", "directory"],
)
def test_a_damaged_meta_is_refused_when_it_is_needed(
    archive: ArchiveBuilder,
    large_segment: SegmentEntry,
    change: Callable[[bytearray], object],
    says: str,
) -> None:
    damage(archive, large_segment.meta_key, change)
    with pytest.raises(StrandlineError) as caught:
        read(archive, **SOME)
    assert large_segment.meta_key in str(caught.value)
    assert says in str(caught.value)
    assert read(archive) == 300


def test_the_meta_of_another_segment_is_refused(
    archive: ArchiveBuilder, large_segment: SegmentEntry
) -> None:
    other = archive.add_segment(
        "t", make_batches(make_records(300, base_offset=300, value_bytes=9000))
    )
    content = archive.object_path(other.meta_key).read_bytes()
    archive.save(
        replace(
            archive.manifest("t"),
            segments=(
                replace(
                    large_segment,
                    meta_size_bytes=len(content),
                    meta_crc32c=crc32c.crc32c(content),
                ),
                other,
            ),
        )
    )
    archive.object_path(large_segment.meta_key).write_bytes(content)
    assert "do not fit the manifest" in refused(archive, ObjectCorrupt, **SOME)


@pytest.mark.slow
@pytest.mark.parametrize("keys_per_batch", [1, 200], ids=["fetched whole", "larger than a tail"])
def test_a_meta_that_is_whole_and_of_another_segment_is_refused(
    archive: ArchiveBuilder, keys_per_batch: int
) -> None:
    """Of another partition with the same offsets, as long and with as many records."""
    archive.add_topic("t", partitions=2)

    def batches(ends_at: int) -> list[bytes]:
        """In one partition time goes on, in the other it goes back."""
        return [
            encode_batch(
                [
                    Record(
                        offset=number * keys_per_batch + one,
                        timestamp_ms=START_MS + abs(ends_at - number),
                        key=b"%d %d" % (number, one),
                        value=None if one else bytes(9000),
                    )
                    for one in range(keys_per_batch)
                ]
            )
            for number in range(300)
        ]

    ours = archive.add_segment("t", batches(0), partition=0, chunk_bytes=1)
    other = archive.add_segment("t", batches(299), partition=1, chunk_bytes=1)
    content = archive.object_path(other.meta_key).read_bytes()
    assert (len(content) > TAIL_BYTES) == (keys_per_batch > 1)
    early = [("timestamp", "<", START_MS + 5)]
    how: dict[str, Any] = {"filters": early, "options": {"assign": {"t": [0]}}}
    assert count(archive.url, **how) == 5 * keys_per_batch
    archive.object_path(ours.meta_key).write_bytes(content)
    # In both cases only the object as a whole tells.
    archive.save(
        replace(archive.manifest("t"), segments=(replace(ours, meta_size_bytes=len(content)),))
    )
    for ask in (count, lambda *a, **k: scan(*a, **k).read_all()):
        with pytest.raises(ObjectCorrupt, match="checksum of the whole object") as caught:
            ask(archive.url, **how)
        assert ours.meta_key in str(caught.value)
