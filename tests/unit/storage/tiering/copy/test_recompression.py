"""Batches rewritten with zstd on their way into the archive: the same records, fewer bytes."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.crash_points import (
    COPY_AFTER_COMMIT,
    COPY_AFTER_LOG,
    COPY_AFTER_META,
    COPY_AFTER_REWRITE,
    COPY_BEFORE_COMMIT,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import CorruptRecords
from strandline.storage.model import TimestampType
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import (
    Header,
    Record,
    encode_batch,
    iter_records,
    with_crc,
)
from strandline.storage.records.compression import Codec
from strandline.storage.tiering.audit.scrub import Depth, Scrub
from strandline.storage.tiering.copy.recompression import (
    Recompression,
    nameless_file,
    recompress_segment,
)
from tests.unit.storage.tiering.harness import CONFIG, ID_PARTITION, Rig, asynchronous

REWRITING = replace(CONFIG, strandline_remote_compression_type="zstd")
RECORDS = 200  # of a few letters each: they become much smaller


def records(offset: int, count: int, *, compressible: bool = True) -> list[Record]:
    made = random.Random(offset)
    return [
        Record(
            offset=offset + index,
            timestamp_ms=1_700_000_000_000 + made.randrange(1000),
            key=b"key-%d" % (index % 5),
            value=b"abc" * 30 if compressible else made.randbytes(90),
            headers=(Header("h", b"x"),) if index % 2 else (),
        )
        for index in range(count)
    ]


def rewritten(tmp_path: Path, content: bytes) -> tuple[int, bytes]:
    source, target = tmp_path / "source.log", tmp_path / "target.log"
    source.write_bytes(content)
    done = recompress_segment(source, Recompression(path=target, level=3))
    assert done.source_size_bytes == len(content)
    return done.batch_count, target.read_bytes()


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.ZSTD])
@pytest.mark.parametrize("timestamp_type", TimestampType)
def test_only_codec_length_and_checksum_of_a_batch_change(
    tmp_path: Path, codec: Codec, timestamp_type: TimestampType
) -> None:
    content = encode_batch(
        records(70, 100),
        codec=codec,
        leader_epoch=5,
        timestamp_type=timestamp_type,
        producer_id=9,
        producer_epoch=2,
        base_sequence=11,
        transactional=True,
    )
    count, made = rewritten(tmp_path, content)
    (before,), (after,) = walk(content), walk(made)
    if codec is not Codec.NONE and not count:
        # Its own codec was better.
        assert made == content
        return
    assert count == 1
    assert after.header.codec == Codec.ZSTD
    assert (
        after.header._replace(
            batch_length=before.header.batch_length,
            crc=before.header.crc,
            attributes=before.header.attributes,
        )
        == before.header
    )
    assert after.header.attributes & ~7 == before.header.attributes & ~7
    assert [*iter_records(made, after.header)] == [*iter_records(content, before.header)]


@pytest.mark.parametrize(
    "content",
    [
        encode_batch(records(0, 50), codec=Codec.ZSTD),
        encode_batch(records(0, 1, compressible=False)),
        encode_batch(records(0, 1), control=True, transactional=True, producer_id=1),
        # A true CRC over records that do not decompress.
        bytes(with_crc(bytearray(encode_batch(records(0, 50), codec=Codec.GZIP)[:-9]) + bytes(9))),
    ],
    ids=["zstd", "random", "control", "nonsense"],
)
def test_what_would_gain_nothing_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    assert rewritten(tmp_path, content) == (0, content)


def test_a_damaged_batch_is_not_laundered(tmp_path: Path) -> None:
    content = bytearray(encode_batch(records(0, 50)))
    content[100] ^= 1
    with pytest.raises(CorruptRecords):
        rewritten(tmp_path, bytes(content))
    with pytest.raises(CorruptRecords):
        rewritten(tmp_path, encode_batch(records(0, 50))[:-1])


def test_the_file_of_a_rewritten_segment_is_in_no_folder(tmp_path: Path) -> None:
    with nameless_file(tmp_path) as path:
        path.write_bytes(b"abc")
        assert path.read_bytes() == b"abc"
        assert list(tmp_path.iterdir()) == []


async def read_records(rig: Rig) -> list[Record]:
    content = await rig.read_all(0)
    return [
        record
        for batch in walk(content)
        for record in iter_records(content, batch.header, batch.position)
    ]


def sent_records(rig: Rig) -> list[Record]:
    content = b"".join(rig.sent)
    return [
        record
        for batch in walk(content)
        for record in iter_records(content, batch.header, batch.position)
    ]


@asynchronous
async def test_a_reader_of_a_rewritten_segment_gets_the_same_records(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=REWRITING) as rig:
        rig.produce_segments(3, RECORDS)
        local_bytes = [segment.size_bytes for segment in rig.log.local.segments[:3]]
        rig.pass_ms(5000)
        await rig.settle()
        await rig.settle()
        assert rig.local_segments[0][0] == 3 * RECORDS, "read from the archive"
        manifest = rig.manifest
        assert manifest is not None
        assert [entry.recompressed_from_bytes for entry in manifest.segments] == local_bytes
        assert all(
            entry.size_bytes < entry.recompressed_from_bytes
            for entry in manifest.segments
            if entry.recompressed_from_bytes
        )
        assert await read_records(rig) == sent_records(rig)
        with ThreadPoolExecutor(2) as executor:
            for depth in Depth:
                assert Scrub(rig.store, executor, depth=depth).check(ID_PARTITION).findings == ()
        # Also after a restart, and where the disk is lost.
        await rig.lose_disk()
        assert await read_records(rig) == sent_records(rig)


@asynchronous
async def test_a_topic_that_does_not_ask_for_it_keeps_its_bytes(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2, RECORDS)
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.manifest is not None
        assert all(e.recompressed_from_bytes is None for e in rig.manifest.segments)
        assert b"recompressed" not in rig.manifest.encode()
        await rig.assert_everything_is_readable()


@pytest.mark.parametrize(
    "point",
    [COPY_AFTER_REWRITE, COPY_AFTER_LOG, COPY_AFTER_META, COPY_BEFORE_COMMIT, COPY_AFTER_COMMIT],
)
@asynchronous
async def test_a_crash_while_rewriting_loses_and_doubles_no_record(
    tmp_path: Path, point: str
) -> None:
    async with Rig(tmp_path, config=REWRITING) as rig:
        rig.produce_segments(2, RECORDS)
        rig.pass_ms(5000)
        with simulated_crash(point), pytest.raises(SimulatedCrash):
            await rig.settle()
        await rig.crash()
        await rig.settle()
        assert rig.archived == [(0, RECORDS), (RECORDS, 2 * RECORDS)]
        assert await read_records(rig) == sent_records(rig)
        # Nothing is left in the folder but the log's own files.
        assert {path.suffix for path in rig.folder.iterdir()} <= {
            ".log",
            ".index",
            ".timeindex",
            ".snapshot",
            ".deleted",
            "",
        }


@asynchronous
async def test_rewritten_segments_are_merged_as_others_are(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=REWRITING, merge_target_bytes=100_000) as rig:
        rig.produce_segments(20, RECORDS)
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.manifest is not None
        assert len(rig.manifest.segments) < 20
        merged = rig.manifest.segments[0]
        assert merged.recompressed_from_bytes is not None
        assert merged.size_bytes < merged.recompressed_from_bytes
        assert await read_records(rig) == sent_records(rig)
