"""Logs and batches for the tests of the local tier."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import AppendInfo, AppendOrigin, LocalLog
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import (
    ATTRIBUTES_FIELD,
    CONTROL_BIT,
    CRC_START,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from strandline.storage.records.batch.marker import (
    MarkerType,
    TransactionMarker,
    encode_marker_batch,
)
from strandline.storage.records.batch.record import Record, encode_batch, with_crc
from strandline.storage.records.compression import Codec
from tests.support.lone_replica import append_alone
from tests.support.manual_clock import ManualClock

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("topic", 0)
TOPIC_ID = uuid.UUID("0f0e0d0c-0b0a-4908-8706-050403020100")


def open_log(
    directory: Path,
    *,
    clean_shutdown: bool = True,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    clock: Clock | None = None,
    config: LogConfig | None = None,
) -> LocalLog:
    directory.mkdir(exist_ok=True)
    opened = LocalLog.open(
        directory,
        topic_partition=PARTITION,
        topic_id=TOPIC_ID,
        config=config or LogConfig(),
        clock=clock or ManualClock(NOW_MS),
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        clean_shutdown=clean_shutdown,
    )
    opened.advance_high_watermark(opened.end_offset)
    return opened


def batch(
    record_count: int = 1,
    *,
    timestamps_ms: Sequence[int] | None = None,
    value_bytes: int = 10,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> memoryview:
    """A batch as a producer sends it, writable."""
    times = timestamps_ms or [NOW_MS + i for i in range(record_count)]
    records = [
        Record(offset=i, timestamp_ms=time, key=b"%d" % i, value=b"v" * value_bytes)
        for i, time in enumerate(times)
    ]
    return memoryview(
        bytearray(
            encode_batch(
                records,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                transactional=transactional,
            )
        )
    )


def marker(
    kind: MarkerType, *, producer_id: int, producer_epoch: int = 0, coordinator_epoch: int = 0
) -> memoryview:
    """A control batch as the transaction coordinator writes it."""
    batch = encode_marker_batch(
        TransactionMarker(kind, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        now_ms=NOW_MS,
    )
    return memoryview(bytearray(batch))


def patched(records: memoryview, position: int, layout: str, *values: int) -> memoryview:
    """The batch with some fields overwritten and its CRC true again."""
    content = bytearray(records)
    struct.pack_into(layout, content, position, *values)
    return memoryview(with_crc(content))


def append(log: LocalLog, records: memoryview, *, leader_epoch: int = 0) -> AppendInfo:
    return append_alone(log, records, leader_epoch=leader_epoch, origin=origin_of(records))


def origin_of(records: memoryview) -> AppendOrigin:
    """The origin of a client's batch; its transaction's coordinator has confirmed it."""
    if len(records) >= HEADER_BYTES:
        (attributes,) = ATTRIBUTES_FIELD.unpack_from(records, CRC_START)
        if attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) == TRANSACTIONAL_BIT:
            return AppendOrigin.VERIFIED
    return AppendOrigin.CLIENT


def append_marker(log: LocalLog, kind: MarkerType, *, producer_id: int) -> AppendInfo:
    ended = marker(kind, producer_id=producer_id)
    return append_alone(log, ended, leader_epoch=0, origin=AppendOrigin.COORDINATOR)


def fill(log: LocalLog, batch_count: int, *, record_count: int = 10, value_bytes: int = 50) -> None:
    """Appends batches whose timestamps grow by one ms per record."""
    for _ in range(batch_count):
        first_ms = NOW_MS + log.end_offset
        times = [first_ms + i for i in range(record_count)]
        append(log, batch(timestamps_ms=times, value_bytes=value_bytes))


def read_bytes(
    log: LocalLog, *, start_offset: int | None = None, bytes_max: int = 1 << 20
) -> bytes:
    """Everything from an offset to the end, read as a consumer would."""
    offset = log.start_offset if start_offset is None else start_offset
    parts = []
    while True:
        found = log.read(offset, bytes_max=bytes_max)
        if found.range is None:
            return b"".join(parts)
        content = found.range.read()
        assert len(content) == found.range.length
        assert found.next_offset > offset
        parts.append(content)
        offset = found.next_offset


def headers(content: bytes) -> Iterator[BatchHeader]:
    for found in walk(content):
        yield found.header


def offsets(log: LocalLog, *, bytes_max: int = 1 << 20) -> list[tuple[int, int]]:
    """(base, last) of every batch that a consumer gets from the local start on."""
    return [
        (header.base_offset, header.last_offset)
        for header in headers(read_bytes(log, bytes_max=bytes_max))
    ]


def assert_dense(log: LocalLog) -> None:
    """Offsets from start to end without gap or overlap, whatever the size of the reads."""
    expected = log.start_offset
    for base_offset, last_offset in offsets(log):
        assert base_offset == expected
        expected = last_offset + 1
    assert expected == log.end_offset


def log_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))
