"""What a client must not append: each kind is refused by its own error and changes nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import (
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    RecordsRejected,
    UnsupportedCodec,
)
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.records.batch.record import Record
from tests.support.old_formats import CODECS, message_set
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    assert_dense,
    batch,
    fill,
    marker,
    open_log,
    patched,
    read_bytes,
)


def flipped(records: memoryview, position: int) -> memoryview:
    """The batch with one bit turned and its CRC left alone."""
    records[position] ^= 0x10
    return records


def written(records: memoryview, position: int, layout: str, value: int) -> memoryview:
    """The batch with one field outside the CRC overwritten."""
    struct.pack_into(layout, records, position, value)
    return records


BATCH_BYTES = len(batch(3))
BAD_BATCHES: dict[str, tuple[Callable[[], memoryview], type[RecordsRejected], int]] = {
    "nothing": (lambda: memoryview(bytearray()), InvalidRecords, 87),
    "eleven bytes": (lambda: batch(3)[:11], InvalidRecords, 87),
    "header cut": (lambda: batch(3)[:60], InvalidRecords, 87),
    "last byte missing": (lambda: batch(3)[:-1], InvalidRecords, 87),
    "corrupt crc": (lambda: flipped(batch(3), 17), CorruptRecords, 2),
    "corrupt record": (lambda: flipped(batch(3), 70), CorruptRecords, 2),
    "corrupt attributes": (lambda: flipped(batch(3), 22), CorruptRecords, 2),
    "magic 0": (lambda: written(batch(3), 16, ">b", 0), InvalidRecords, 87),
    "magic 1": (lambda: written(batch(3), 16, ">b", 1), InvalidRecords, 87),
    "magic 3": (lambda: written(batch(3), 16, ">b", 3), CorruptRecords, 2),
    "magic negative": (lambda: written(batch(3), 16, ">b", -1), CorruptRecords, 2),
    "length negative": (lambda: written(batch(3), 8, ">i", -1), CorruptRecords, 2),
    "length zero": (lambda: written(batch(3), 8, ">i", 0), CorruptRecords, 2),
    "length below a header": (lambda: written(batch(3), 8, ">i", 48), CorruptRecords, 2),
    "length too long": (lambda: written(batch(3), 8, ">i", BATCH_BYTES), InvalidRecords, 87),
    "length beyond all": (lambda: written(batch(3), 8, ">i", 2**31 - 1), InvalidRecords, 87),
    "two batches": (
        lambda: memoryview(bytearray(bytes(batch(3)) + bytes(batch(3)))),
        InvalidRecords,
        87,
    ),
    "spare byte": (lambda: memoryview(bytearray(bytes(batch(3)) + b"x")), InvalidRecords, 87),
    "count too high": (lambda: patched(batch(3), 57, ">i", 4), InvalidRecords, 87),
    "count zero": (lambda: patched(batch(3), 57, ">i", 0), InvalidRecords, 87),
    "count negative": (lambda: patched(batch(3), 57, ">i", -1), InvalidRecords, 87),
    "count huge": (lambda: patched(batch(3), 57, ">i", 2**31 - 1), InvalidRecords, 87),
    "offset delta too high": (lambda: patched(batch(3), 23, ">i", 3), InvalidRecords, 87),
    "offset delta negative": (lambda: patched(batch(3), 23, ">i", -1), InvalidRecords, 87),
    "nothing in it": (lambda: patched(batch(3), 57, ">i", 0), InvalidRecords, 87),
    "codec 5": (lambda: patched(batch(3), 21, ">h", 5), UnsupportedCodec, 76),
    "codec 6": (lambda: patched(batch(3), 21, ">h", 6), UnsupportedCodec, 76),
    "codec 7": (lambda: patched(batch(3), 21, ">h", 7), UnsupportedCodec, 76),
    "control bit": (lambda: patched(batch(3), 21, ">h", 0x20), InvalidRecords, 87),
    "marker": (lambda: marker(MarkerType.COMMIT, producer_id=1), InvalidRecords, 87),
    "the broker's time": (lambda: patched(batch(3), 21, ">h", 0x08), InvalidTimestamp, 32),
    "too far ahead": (lambda: batch(timestamps_ms=[NOW_MS + 3_600_001]), InvalidTimestamp, 32),
    "producer without sequence": (lambda: batch(producer_id=1), InvalidRecords, 87),
    "transaction of nobody": (lambda: batch(transactional=True), InvalidRecords, 87),
}


@pytest.mark.parametrize("kind", BAD_BATCHES)
def test_bad_batches_are_refused_by_their_own_error_and_change_nothing(
    tmp_path: Path, kind: str
) -> None:
    make, error_type, kafka_code = BAD_BATCHES[kind]
    log = open_log(tmp_path)
    fill(log, 2)
    before = read_bytes(log)
    with pytest.raises(RecordsRejected) as raised:
        append(log, make())
    assert type(raised.value) is error_type
    assert raised.value.kafka_code == kafka_code
    assert read_bytes(log) == before
    assert log.end_offset == 20
    assert not log.producers.entries
    fill(log, 1)
    assert_dense(log)


def test_a_batch_beyond_max_message_bytes_is_too_large_even_with_a_wrong_crc(
    tmp_path: Path,
) -> None:
    records = batch(1, value_bytes=5000)
    log = open_log(tmp_path, config=LogConfig(max_message_bytes=len(records) - 1))
    with pytest.raises(MessageTooLarge) as raised:
        append(log, flipped(records, 80))
    assert raised.value.kafka_code == 10
    log.update_config(LogConfig(max_message_bytes=len(records)))
    append(log, batch(1, value_bytes=5000))


def test_a_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=4000))
    with pytest.raises(RecordListTooLarge) as raised:
        append(log, batch(1, value_bytes=5000))
    assert raised.value.kafka_code == 18


def test_records_older_than_the_limit_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(message_timestamp_before_max_ms=1000))
    append(log, batch(timestamps_ms=[NOW_MS, NOW_MS - 1000]))
    with pytest.raises(InvalidTimestamp):
        append(log, batch(timestamps_ms=[NOW_MS, NOW_MS - 1001, NOW_MS]))
    assert log.end_offset == 2


def test_batches_without_a_timestamp_are_taken(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(message_timestamp_before_max_ms=1000))
    append(log, batch(timestamps_ms=[-1]))
    assert log.end_offset == 1


def test_replicated_batches_are_all_checked_before_the_first_is_written(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader")
    fill(leader, 3)
    content = bytearray(read_bytes(leader))
    content[-1] ^= 1
    follower = open_log(tmp_path / "follower")
    with pytest.raises(CorruptRecords):
        follower.append(memoryview(content), leader_epoch=0, origin=AppendOrigin.REPLICATION)
    assert follower.end_offset == 0
    content[-1] ^= 1
    follower.append(memoryview(content), leader_epoch=0, origin=AppendOrigin.REPLICATION)
    with pytest.raises(InvalidRecords):
        follower.append(memoryview(content), leader_epoch=0, origin=AppendOrigin.REPLICATION)
    assert follower.end_offset == 30


def old_record(offset: int) -> Record:
    return Record(offset=offset, timestamp_ms=NOW_MS, key=b"k", value=b"v" * 50)


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_replicated_messages_of_old_formats_stay_as_they_are(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """A leader has them from before Kafka 0.11, and batches of today behind them."""
    old = message_set([old_record(offset) for offset in range(4)], magic=magic, codec=CODECS[codec])
    content = old + bytes(patched(batch(3), 0, ">q", 4))
    follower = open_log(tmp_path / "follower")
    # An answer may end within a message.
    follower.append_as_follower(memoryview(bytearray(old[:-1])), leader_epoch=2)
    begun = follower.end_offset
    assert begun == (0 if codec != "none" else 3)
    rest = content[len(read_bytes(follower)) :]
    follower.append_as_follower(memoryview(bytearray(rest)), leader_epoch=2)
    assert (read_bytes(follower), follower.end_offset) == (content, 7)
    with pytest.raises(InvalidRecords):
        follower.append_as_follower(memoryview(bytearray(old)), leader_epoch=2)
    follower.close()
    assert open_log(tmp_path / "follower", clean_shutdown=False).end_offset == 7


def test_a_damaged_replicated_message_of_an_old_format_is_refused(tmp_path: Path) -> None:
    content = bytearray(message_set([old_record(0)], magic=1))
    content[-1] ^= 1
    with pytest.raises(CorruptRecords):
        open_log(tmp_path).append_as_follower(memoryview(content), leader_epoch=0)
