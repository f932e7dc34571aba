"""Batches of a segment, and the inspection of them."""

from __future__ import annotations

import random
from pathlib import Path

from strandline.storage.model import TimestampType
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.compression import Codec
from strandline.storage.tiering.copy.inspection import SegmentFacts, inspect_segment

BASE_MS = 1_700_000_000_000


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
