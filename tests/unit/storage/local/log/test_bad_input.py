"""What a client must not append: each kind is refused by its own error and changes nothing."""

from __future__ import annotations

import gc
import os
import resource
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import (
    CorruptRecords,
    DiskError,
    InvalidRecords,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    RecordsRejected,
    UnsupportedCodec,
)
from strandline.storage.files import OpenFile
from strandline.storage.local.formats.producer_state import MarkerType
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.local.segment import segment as segment_module
from strandline.storage.model import Buffer
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


# --- the disk fails ------------------------------------------------------------------------------


class TearingFile(OpenFile):
    """A file on a disk that is full: half of a write gets through, then there is an error."""

    __slots__ = ("full", "truncatable")

    def __init__(self, path: Path) -> None:
        super().__init__(path, writable=True)
        self.full = True
        self.truncatable = True

    def append(self, data: Buffer) -> None:
        if not self.full:
            super().append(data)
            return
        super().append(memoryview(data)[: len(data) // 2])
        raise DiskError("no space left on device")

    def truncate(self, size_bytes: int) -> None:
        if not self.truncatable:
            raise DiskError("read-only file system")
        super().truncate(size_bytes)


def tear_writes(log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> TearingFile:
    """The file that the active segment writes to from now on."""
    tearing = TearingFile(log.active_segment.log_path)
    monkeypatch.setattr(segment_module, "OpenFile", lambda path, writable: tearing)
    log.active_segment.give_up_file()
    return tearing


def test_half_a_write_on_a_full_disk_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    fill(log, 2)
    tearing = tear_writes(log, monkeypatch)
    with pytest.raises(DiskError):
        append(log, batch(10, producer_id=1, producer_epoch=0, base_sequence=0))
    assert log.end_offset == 20
    assert not log.producers.entries
    tearing.full = False
    fill(log, 2)
    assert_dense(log)
    assert log.size_bytes == log.active_segment.log_path.stat().st_size


def test_a_log_that_cannot_be_put_right_refuses_everything_until_it_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    fill(log, 2)
    tearing = tear_writes(log, monkeypatch)
    tearing.truncatable = False
    with pytest.raises(DiskError):
        append(log, batch(10))
    tearing.full = False
    with pytest.raises(DiskError, match="stopped"):
        append(log, batch(10))
    with pytest.raises(DiskError):
        log.roll()
    with pytest.raises(DiskError):
        log.close()
    monkeypatch.undo()
    assert_dense(log_after := open_log(tmp_path, clean_shutdown=False))
    assert log_after.end_offset == 20


def test_an_index_that_cannot_be_written_does_not_fail_appends_and_is_whole_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=0))
    real_append = OpenFile.append

    def refuse_indexes(file: OpenFile, data: Buffer) -> None:
        if file.path.suffix != ".log":
            raise DiskError("no space left on device")
        real_append(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(OpenFile, "append", refuse_indexes)
        fill(log, 600, record_count=1)
    log.roll()
    sealed = log.segments[0]
    assert sealed.index_path.stat().st_size == 8 * 599
    assert_dense(log)


def test_a_roll_that_fails_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    fill(log, 3)

    def refuse(*_: object, **__: object) -> None:
        raise DiskError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", refuse)
        with pytest.raises(DiskError):
            log.roll()
    fill(log, 3)
    log.roll()
    fill(log, 3)
    assert [segment.base_offset for segment in log.segments] == [0, 60]
    assert_dense(log)


@contextmanager
def one_descriptor_left() -> Iterator[None]:
    """This process may open one file more. None is closed meanwhile: what other tests left to the
    collector would be room for a second one.
    """
    gc.collect()
    gc.disable()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        gc.enable()


def test_a_roll_that_fails_half_way_is_no_end_of_the_segment_for_the_next_start(
    tmp_path: Path,
) -> None:
    """A descriptor for the new log is left and none for its index; a smaller batch still fits."""
    config = LogConfig(segment_bytes=4000)
    log = open_log(tmp_path, config=config)
    fill(log, 5)
    with one_descriptor_left(), pytest.raises(DiskError, match=r"\.index: Too many open files"):
        append(log, batch(20, value_bytes=100))
    fill(log, 1, record_count=3)
    fill(log, 5)
    assert [segment.base_offset for segment in log.segments] == [0, 53]
    again = open_log(tmp_path, config=config, clean_shutdown=False)
    assert again.recovery_report.problems == []
    assert again.end_offset == 103
    assert_dense(again)
