"""What one pass over a segment finds, and what it refuses."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import crc32c
import pytest

from strandline.storage.clock import ManualClock
from strandline.storage.errors import CorruptRecords, DiskError
from strandline.storage.model import EpochStart, TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import Record, encode_batch, iter_records, with_crc
from strandline.storage.records.compression import Codec
from strandline.storage.tiering.copy import inspector as inspector_module
from strandline.storage.tiering.copy.inspection import (
    SegmentFacts,
    chunk_bytes,
    inspect_segment,
)
from strandline.storage.tiering.copy.inspector import (
    IDLE_S,
    InspectionFailed,
    InspectionRequest,
    SegmentInspector,
)
from strandline.storage.tiering.copy.segment_walk import AdaptiveWalk, Walk, plain_walk

# Of a child on a loaded machine, which starts in a second on another one.
PATIENCE_S = 120.0
BASE_MS = 1_700_000_000_000
MIB = 1024 * 1024


def batch(
    base_offset: int,
    timestamps_ms: list[int],
    *,
    codec: Codec = Codec.NONE,
    leader_epoch: int = 0,
    value_bytes: int = 10,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    control: bool = False,
) -> bytes:
    return encode_batch(
        [
            Record(
                offset=base_offset + index,
                timestamp_ms=timestamp_ms,
                key=None,
                value=random.Random(base_offset + index).randbytes(value_bytes),
            )
            for index, timestamp_ms in enumerate(timestamps_ms)
        ],
        codec=codec,
        leader_epoch=leader_epoch,
        timestamp_type=timestamp_type,
        control=control,
    )


def inspect(path: Path, content: bytes, base_offset: int, end_offset: int) -> SegmentFacts:
    path.write_bytes(content)
    return inspect_segment(path, base_offset=base_offset, end_offset=end_offset)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.log"


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


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("seed", range(3))
def test_both_walks_agree_with_reading_every_record(path: Path, codec: Codec, seed: int) -> None:
    choice = random.Random(seed)
    content, offset = b"", 0
    for _ in range(20):
        timestamps_ms = [choice.randrange(2**42) for _ in range(choice.randrange(1, 30))]
        content += batch(offset, timestamps_ms, codec=codec, value_bytes=choice.randrange(200))
        offset += len(timestamps_ms)
    facts = inspect(path, content, 0, offset)
    timestamps_ms = [
        record.timestamp_ms
        for found in walk(content)
        for record in iter_records(content, found.header, found.position)
    ]
    assert facts.bounds == (min(timestamps_ms), max(timestamps_ms))
    assert facts.record_count == len(timestamps_ms)


@pytest.mark.slow
def test_the_kernel_finds_the_same_facts_as_the_plain_walk(path: Path) -> None:
    content = batch(0, [BASE_MS + 5, BASE_MS - 700], codec=Codec.ZSTD)
    content += batch(2, [BASE_MS + 1], timestamp_type=TimestampType.LOG_APPEND_TIME)
    plain = inspect(path, content, 0, 3)
    kernel = inspect_segment(
        path, base_offset=0, end_offset=3, walk=AdaptiveWalk(plain_records_max=0)
    )
    assert plain == kernel


def test_the_keys_of_a_segment_are_found_with_and_without_the_kernel(path: Path) -> None:
    records = [
        Record(offset=n, timestamp_ms=BASE_MS, key=None if n % 3 else b"key-%d" % n, value=b"v")
        for n in range(300)
    ]
    batches = [
        encode_batch(records[start : start + 50], codec=codec)
        for start, codec in zip(range(0, 300, 50), [*Codec, Codec.NONE], strict=True)
    ]
    path.write_bytes(b"".join(batches))
    plain = inspect_segment(path, base_offset=0, end_offset=300)
    compiled = inspect_segment(
        path, base_offset=0, end_offset=300, walk=AdaptiveWalk(plain_records_max=0)
    )
    both = inspect_segment(
        path, base_offset=0, end_offset=300, walk=AdaptiveWalk(plain_records_max=120)
    )
    assert plain == compiled == both
    assert plain.key_filter is not None
    assert plain.key_filter.record_count == 100
    assert all(plain.key_filter.may_have(b"key-%d" % n) for n in range(0, 300, 3))
    assert not plain.key_filter.may_have(b"key-1")


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


@pytest.mark.parametrize("walk", [plain_walk, AdaptiveWalk(plain_records_max=0)])
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


# --- the child process ------------------------------------------------------------------------


@pytest.mark.slow
def test_the_child_process_answers_facts_and_errors_and_ends_when_idle(path: Path) -> None:
    clock = ManualClock()
    inspector = SegmentInspector(clock)
    try:
        content = batch(0, [BASE_MS], codec=Codec.GZIP)
        path.write_bytes(content)
        request = InspectionRequest(path=path, base_offset=0, end_offset=1)
        expected = inspect_segment(path, base_offset=0, end_offset=1)
        assert inspector.inspect(request, timeout_s=PATIENCE_S) == expected
        path.write_bytes(content[:-1])
        with pytest.raises(CorruptRecords):
            inspector.inspect(request, timeout_s=PATIENCE_S)
        path.write_bytes(content)
        assert inspector.inspect(request, timeout_s=PATIENCE_S) == expected
        inspector.close_if_idle()
        assert "pid" in repr(inspector)
        clock.advance_ms(int(IDLE_S * 1000))
        inspector.close_if_idle()
        assert "pid" not in repr(inspector)
    finally:
        inspector.close()


@pytest.mark.slow
def test_a_child_that_is_too_slow_is_killed_and_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspector = SegmentInspector(ManualClock())
    path.write_bytes(batch(0, [BASE_MS]))
    request = InspectionRequest(path=path, base_offset=0, end_offset=1)
    try:
        with pytest.raises(InspectionFailed, match="longer than 0 s"):
            inspector.inspect(request, timeout_s=0)
        assert inspector.inspect(request, timeout_s=PATIENCE_S).record_count == 1
    finally:
        inspector.close()


@pytest.mark.slow
def test_a_child_that_dies_is_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inspector = SegmentInspector(ManualClock())
    path.write_bytes(batch(0, [BASE_MS]))
    request = InspectionRequest(path=path, base_offset=0, end_offset=1)
    try:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(InspectionFailed, match="died with status 1"):
            inspector.inspect(request, timeout_s=PATIENCE_S)
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(InspectionFailed, match="cannot start"):
            inspector.inspect(request, timeout_s=PATIENCE_S)
        monkeypatch.undo()
        assert inspector.inspect(request, timeout_s=PATIENCE_S).record_count == 1
    finally:
        inspector.close()


@pytest.mark.slow
def test_closing_does_not_wait_for_an_inspection(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspector = SegmentInspector(ManualClock())
    path.write_bytes(batch(0, [BASE_MS]))
    request = InspectionRequest(path=path, base_offset=0, end_offset=1)
    # A child that never answers.
    monkeypatch.setattr(
        inspector_module, "CHILD_PROGRAM", f"import time; time.sleep({2 * PATIENCE_S})"
    )
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(inspector.inspect, request, timeout_s=PATIENCE_S)
        while "pid" not in repr(inspector):
            assert not running.done(), running.exception()
        inspector.close()
        with pytest.raises(InspectionFailed, match="ended by SIGKILL"):
            running.result(timeout=PATIENCE_S)
    with pytest.raises(InspectionFailed, match="stops"):
        inspector.inspect(request, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("seed", range(4))
def test_the_compiled_walk_finds_what_the_plain_one_does_whatever_the_batches_are(
    path: Path, seed: int
) -> None:
    """Codecs, old messages, control batches, LogAppendTime and nonsense in one segment."""
    choice = random.Random(seed)
    content, offset = b"", 0
    for _ in range(60):
        count = choice.randrange(1, 40)
        made = encode_batch(
            [
                Record(
                    offset=offset + index,
                    timestamp_ms=choice.randrange(2**42),
                    key=choice.choice([None, b"", b"key-%d" % choice.randrange(1000)]),
                    value=choice.randbytes(choice.choice([0, 3, 70, 300])),
                )
                for index in range(count)
            ],
            codec=choice.choice([Codec.NONE, Codec.NONE, *Codec]),
            leader_epoch=offset // 500,
            timestamp_type=choice.choice(list(TimestampType)),
        )
        if seed % 2 and choice.random() < 0.1:
            # A true CRC over records that cannot be read.
            made = bytes(with_crc(bytearray(made[:-4] + b"\xff\xff\xff\xff")))
        content += made
        offset += count
    path.write_bytes(content)
    found = [
        inspect_segment(path, base_offset=0, end_offset=offset, walk=walk)
        for walk in (
            plain_walk,
            AdaptiveWalk(plain_records_max=0),
            AdaptiveWalk(plain_records_max=300),
        )
    ]
    assert found[0] == found[1] == found[2]
    assert (found[0].key_filter is None) == bool(found[0].unreadable_batch_count)
