"""Both walks over a segment, plain and compiled, find the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from strandline.storage.model import TimestampType
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import Record, encode_batch, iter_records, with_crc
from strandline.storage.records.compression import Codec
from strandline.storage.tiering.copy.inspection import (
    inspect_segment,
)
from strandline.storage.tiering.copy.segment_walk import AdaptiveWalk
from tests.unit.storage.tiering.copy.inspected import BASE_MS, batch, inspect


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
            AdaptiveWalk(),
            AdaptiveWalk(plain_records_max=0),
            AdaptiveWalk(plain_records_max=300),
        )
    ]
    assert found[0] == found[1] == found[2]
    assert (found[0].key_filter is None) == bool(found[0].unreadable_batch_count)
