"""What one pass over a segment finds, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import crc32c
import pytest

from strandline.storage.errors import CorruptRecords, DiskError
from strandline.storage.model import EpochStart, TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.record import with_crc
from strandline.storage.records.compression import Codec
from strandline.storage.tiering.copy.inspection import (
    chunk_bytes,
    inspect_segment,
)
from strandline.storage.tiering.copy.segment_walk import AdaptiveWalk, Walk
from tests.unit.storage.tiering.copy.inspected import BASE_MS, batch, inspect

MIB = 1024 * 1024


@pytest.mark.parametrize("codec", list(Codec))
def test_the_smallest_timestamp_is_found_inside_compressed_batches(
    path: Path, codec: Codec
) -> None:
    content = batch(0, [BASE_MS + 5, BASE_MS - 700, BASE_MS + 9], codec=codec)
    facts = inspect(path, content, 0, 3)
    assert facts.bounds == (BASE_MS - 700, BASE_MS + 9)
    assert (facts.record_count, facts.batch_count) == (3, 1)
    assert facts.crc32c == crc32c.crc32c(content)
    assert facts.size_bytes == len(content)


def test_log_append_time_counts_for_every_record(path: Path) -> None:
    content = batch(
        0, [1, 2, BASE_MS], timestamp_type=TimestampType.LOG_APPEND_TIME, codec=Codec.LZ4
    )
    assert inspect(path, content, 0, 3).bounds == (BASE_MS, BASE_MS)


def test_chunks_are_as_large_as_the_segment_makes_them() -> None:
    assert chunk_bytes(1) == chunk_bytes(16 * MIB) == 64 * 1024
    assert chunk_bytes(64 * MIB) == 256 * 1024
    assert chunk_bytes(256 * MIB) == chunk_bytes(1024 * MIB) == MIB


@pytest.mark.parametrize("value_bytes", [5_000, 100_000])
def test_chunks_are_cut_at_batch_borders_and_cover_the_segment(
    path: Path, value_bytes: int
) -> None:
    content, offset, positions = b"", 0, []
    while len(content) < 3 * MIB:
        positions.append(len(content))
        content += batch(offset, [BASE_MS + offset, BASE_MS + offset + 1], value_bytes=value_bytes)
        offset += 2
    facts = inspect(path, content, 0, offset)
    assert facts.chunks[0].position == 0
    assert all(chunk.position in positions for chunk in facts.chunks)
    assert sum(chunk.record_count for chunk in facts.chunks) == facts.record_count == offset
    assert len(facts.chunks) >= 3
    for chunk, following in zip(facts.chunks, facts.chunks[1:], strict=False):
        size_bytes = following.position - chunk.position
        assert 0 <= size_bytes - chunk_bytes(len(content)) < 2 * value_bytes + 1000
        assert chunk.bounds.max_ms == BASE_MS + following.base_offset - 1
        assert chunk.bounds.min_ms == BASE_MS + chunk.base_offset


def test_leader_epochs_are_those_of_the_batches(path: Path) -> None:
    content = batch(10, [BASE_MS], leader_epoch=3) + batch(11, [BASE_MS], leader_epoch=3)
    content += batch(12, [BASE_MS], leader_epoch=5)
    facts = inspect(path, content, 10, 13)
    assert facts.leader_epochs == (EpochStart(3, 10), EpochStart(5, 12))


def test_control_batches_are_counted(path: Path) -> None:
    content = batch(0, [BASE_MS]) + batch(1, [BASE_MS], control=True)
    assert inspect(path, content, 0, 2).control_batch_count == 1


@pytest.mark.parametrize("position", [20, 70, -1])
def test_one_flipped_bit_is_refused(path: Path, position: int) -> None:
    content = bytearray(batch(0, [BASE_MS, BASE_MS + 1]) + batch(2, [BASE_MS]))
    content[position] ^= 1
    with pytest.raises(CorruptRecords):
        inspect(path, bytes(content), 0, 3)


def test_records_that_cannot_be_read_do_not_keep_a_segment_out_of_the_archive(path: Path) -> None:
    nonsense = bytearray(batch(0, [BASE_MS, BASE_MS + 5], codec=Codec.ZSTD))
    nonsense[batch_format.HEADER_BYTES :] = b"\xff" * (len(nonsense) - batch_format.HEADER_BYTES)
    content = bytes(with_crc(nonsense)) + batch(2, [BASE_MS + 9])
    facts = inspect(path, content, 0, 3)
    assert facts.unreadable_batch_count == 1
    assert facts.record_count == 3
    assert facts.bounds == (BASE_MS, BASE_MS + 9)
    # Half a filter would deny keys that are there.
    assert facts.key_filter is None


@pytest.mark.parametrize("walk", [AdaptiveWalk(), AdaptiveWalk(plain_records_max=0)])
@pytest.mark.parametrize(
    "delta",
    [
        pytest.param(b"\xff" * 9 + b"\x7f", id="a delta of 70 bits"),
        pytest.param(b"\xfe" + b"\xff" * 8 + b"\x01", id="base and delta together"),
    ],
)
def test_a_time_of_more_than_64_bits_is_no_time_in_either_walk(
    path: Path, delta: bytes, walk: Walk
) -> None:
    record = b"\x00" + delta + b"\x00\x01\x01\x00"
    odd = bytearray(batch(0, [BASE_MS])[: batch_format.HEADER_BYTES])
    odd += bytes([2 * len(record)]) + record
    odd[8:12] = (len(odd) - 12).to_bytes(4, "big")
    path.write_bytes(bytes(with_crc(odd)) + batch(1, [BASE_MS + 9]))
    facts = inspect_segment(path, base_offset=0, end_offset=2, walk=walk)
    assert facts.unreadable_batch_count == 1
    assert facts.bounds == (BASE_MS, BASE_MS + 9)


@pytest.mark.parametrize("cut", [1, 60, 75])
def test_a_torn_tail_is_refused(path: Path, cut: int) -> None:
    content = batch(0, [BASE_MS]) + batch(1, [BASE_MS])
    with pytest.raises(CorruptRecords):
        inspect(path, content[:-cut], 0, 2)


def test_other_offsets_than_promised_are_refused(path: Path) -> None:
    content = batch(0, [BASE_MS]) + batch(1, [BASE_MS])
    with pytest.raises(CorruptRecords, match="records end at 2"):
        inspect(path, content, 0, 3)
    with pytest.raises(CorruptRecords, match="follows"):
        inspect(path, content, 1, 2)
    with pytest.raises(CorruptRecords, match="follows"):
        inspect(path, content + batch(0, [BASE_MS]), 0, 2)


def test_an_empty_or_missing_file_is_refused(path: Path) -> None:
    with pytest.raises(CorruptRecords, match="empty"):
        inspect(path, b"", 0, 1)
    path.unlink()
    with pytest.raises(DiskError):
        inspect_segment(path, base_offset=0, end_offset=1)
