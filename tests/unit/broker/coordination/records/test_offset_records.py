"""What the coordinator wrote is what a loader reads, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.coordination.model.offset_messages import GroupRecord, OffsetRecord
from strandline.broker.coordination.records.offset_records import (
    LoadedMarker,
    LoadedRecord,
    TransactionalRecord,
    decode_records,
    encode_records,
)
from strandline.broker.coordination.records.replay_chunk import read_chunk
from strandline.broker.protocol.formats.offsets_topic import (
    GroupMember,
    GroupMetadataValue,
    OffsetCommitValue,
)
from strandline.storage.errors import CorruptFile
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.tiering.log.unified_log import UnifiedLog
from tests.unit.broker.coordination.group_trace import logged
from tests.unit.storage.local.builders import append, append_marker, open_log

COMMITTED = OffsetRecord(
    "g", "t", 3, OffsetCommitValue(offset=7, leader_epoch=2, metadata="note", committed_ms=1_000)
)
# Kafka's format has the one or the other: an epoch, or a time at which it expires.
EXPIRING = OffsetRecord(
    "g", "t", 4, OffsetCommitValue(offset=8, committed_ms=1_000, expires_ms=9_000)
)
MEMBER = GroupMember(
    member_id="m-1",
    group_instance_id="i",
    client_id="c",
    client_host="/h",
    rebalance_timeout_ms=60_000,
    session_timeout_ms=10_000,
    metadata=b"reads",
    assignment=b"has",
)
GROUP = GroupRecord(
    "g",
    GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol_name="range",
        leader="m-1",
        state_since_ms=1_000,
        members=(MEMBER,),
    ),
)
GONE = (OffsetRecord("g", "t", 3, None), GroupRecord("h", None))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UnifiedLog]:
    made = UnifiedLog(open_log(tmp_path / "t"))
    yield made
    made.local.close()


def loaded(log: UnifiedLog, offset: int = 0) -> list[LoadedRecord]:
    """Everything from there on."""
    records: list[LoadedRecord] = []
    while offset < log.end_offset:
        chunk = read_chunk(log, offset, log.end_offset, decode_records)
        records += chunk.records
        offset = chunk.next_offset
    return records


def test_what_was_written_is_read_as_it_was_meant(log: UnifiedLog) -> None:
    for records in ((COMMITTED, EXPIRING, GROUP), GONE):
        append(log.local, memoryview(encode_records(records, 1_000)))
    assert loaded(log) == [COMMITTED, EXPIRING, GROUP, *GONE]
    assert loaded(log, 3) == [*GONE]


def test_what_belongs_to_a_transaction_says_so_and_so_does_its_end(log: UnifiedLog) -> None:
    key, value = _entry(COMMITTED)
    append(log.local, _batch(key, value, producer_id=7))
    append_marker(log.local, MarkerType.ABORT, producer_id=7)
    assert loaded(log) == [
        TransactionalRecord(7, COMMITTED),
        LoadedMarker(7, MarkerType.ABORT),
    ]


def test_groups_that_are_not_served_are_passed_over_and_counted(log: UnifiedLog) -> None:
    # A key of a type that no release of Kafka has yet.
    append(log.local, _batch(b"\x7f\x00", b"anything"))
    append(log.local, memoryview(encode_records((COMMITTED,), 1_000)))
    assert loaded(log) == [COMMITTED]


def test_a_record_in_no_format_is_refused_with_its_offset(log: UnifiedLog) -> None:
    key, value = _entry(COMMITTED)
    append(log.local, _batch(key, value[:-1]))
    with pytest.raises(CorruptFile, match="topic-0: offset 0"):
        loaded(log)


def _entry(record: OffsetRecord) -> tuple[bytes, bytes]:
    ((key, value),) = logged((record,), 1_000)
    assert value is not None
    return key, value


def _batch(key: bytes, value: bytes, *, producer_id: int = -1) -> memoryview:
    is_transactional = producer_id >= 0
    made = encode_batch(
        [Record(offset=0, timestamp_ms=1, key=key, value=value)],
        producer_id=producer_id,
        producer_epoch=0 if is_transactional else -1,
        base_sequence=0 if is_transactional else -1,
        transactional=is_transactional,
    )
    return memoryview(bytearray(made))
