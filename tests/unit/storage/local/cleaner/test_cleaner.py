"""What stays of a compacted log, and what of each batch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.errors import DiskError, OutOfResources
from strandline.storage.local.cleaner.cleaner import CHILD_DEATHS_MAX
from strandline.storage.local.cleaner.messages import CleaningRequest
from strandline.storage.local.cleaner.plan import CleanableFacts, LogFacts, plan_cleaning
from strandline.storage.local.cleaner.transactions import CleanedTransactions
from strandline.storage.local.segment.cleaned_segment import CleanedSegment
from strandline.storage.model import AbortedTransaction
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import (
    DELETE_HORIZON_BIT,
    MAX_TIMESTAMP_POSITION,
    BatchHeader,
    read_header,
)
from strandline.storage.records.batch.marker import MarkerType, TransactionMarker
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.compression import Codec
from strandline.storage.system.child_process import ChildFailed
from tests.support.old_formats import message_set
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    append_marker,
    batch,
    log_files,
    patched,
)
from tests.unit.storage.local.compaction import CODECS, CONFIG, CompactedLog

ENGINES = pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])


@ENGINES
@pytest.mark.parametrize("codec", CODECS)
def test_the_latest_record_of_each_key_stays_where_it_was(
    tmp_path: Path, compiled: bool, codec: Codec
) -> None:
    log = CompactedLog(tmp_path, compiled=compiled)
    log.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), codec=codec)
    log.append((b"c", b"1"), (b"b", b"2"), codec=codec)
    before = {record.offset: record for record in log.records()}
    log.seal_and_clean()
    assert [(r.offset, r.key, r.value) for r in log.records()] == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
    ]
    assert all(before[record.offset] == record for record in log.records())
    assert [(h.base_offset, h.last_offset, h.codec) for h in log.headers()] == [
        (0, 2, codec),
        (3, 4, codec),
    ]
    assert log.cleaned_offset == 5


@ENGINES
@pytest.mark.parametrize("codec", CODECS)
def test_a_max_timestamp_of_an_earlier_release_becomes_that_of_the_newest_record(
    tmp_path: Path, compiled: bool, codec: Codec
) -> None:
    """Those releases stored what a producer said."""
    log = CompactedLog(tmp_path, compiled=compiled)
    times_ms = [NOW_MS, NOW_MS + 5, NOW_MS + 1]
    for said_ms in (NOW_MS - 9, NOW_MS + 60_000, NOW_MS + 5):
        sent = encode_batch(
            [Record(offset=i, timestamp_ms=times_ms[i], key=b"%d of %d" % (i, said_ms), value=b"v")
             for i in range(3)], codec=codec)  # fmt: skip
        append(log.log, patched(memoryview(bytearray(sent)), MAX_TIMESTAMP_POSITION, ">q", said_ms))
    before = log.records()
    log.seal_and_clean()
    assert [header.max_timestamp_ms for header in log.headers()] == [NOW_MS + 5] * 3
    assert [header.codec for header in log.headers()] == [codec] * 3
    assert log.records() == before
    found = log.log.find_timestamp(NOW_MS + 2)
    assert found is not None
    assert found.offset == 1


@ENGINES
def test_a_tombstone_stays_until_its_horizon_and_then_goes(tmp_path: Path, compiled: bool) -> None:
    log = CompactedLog(tmp_path, compiled=compiled)
    log.append((b"a", b"1"))
    deleted_at = log.append((b"a", None), (b"b", b"1"))
    times = {record.offset: record.timestamp_ms for record in log.records()}
    log.seal_and_clean()
    assert log.table() == {b"a": None, b"b": b"1"}
    (header,) = log.headers()
    assert header.base_offset == deleted_at
    assert header.attributes & DELETE_HORIZON_BIT
    assert header.base_timestamp_ms == log.clock.now_ms() + CONFIG.delete_retention_ms
    assert {r.offset: r.timestamp_ms for r in log.records()} == {1: times[1], 2: times[2]}
    log.append((b"c", b"1"))
    log.clock.advance_ms(CONFIG.delete_retention_ms - 1)
    log.seal_and_clean()
    assert log.table() == {b"a": None, b"b": b"1", b"c": b"1"}
    log.append((b"d", b"1"))
    log.clock.advance_ms(1)
    log.seal_and_clean()
    assert log.table() == {b"b": b"1", b"c": b"1", b"d": b"1"}


@ENGINES
def test_records_of_an_aborted_transaction_go_and_displace_nothing(
    tmp_path: Path, compiled: bool
) -> None:
    log = CompactedLog(tmp_path, compiled=compiled)
    log.append((b"a", b"kept"))
    log.append((b"a", b"aborted"), producer_id=7, producer_epoch=0, base_sequence=0,
               transactional=True)  # fmt: skip
    append_marker(log.log, MarkerType.ABORT, producer_id=7)
    log.append((b"b", b"1"))
    log.seal_and_clean()
    assert [r.value for r in log.committed()] == [b"kept", b"1"]
    assert [r.value for r in log.records()] == [b"kept", b"1"]


@ENGINES
def test_markers_go_when_nothing_of_their_transaction_is_left(
    tmp_path: Path, compiled: bool
) -> None:
    log = CompactedLog(tmp_path, compiled=compiled)
    for number, kind in enumerate((MarkerType.COMMIT, MarkerType.ABORT)):
        log.append((b"k%d" % number, b"1"), producer_id=number, producer_epoch=0, base_sequence=0,
                   transactional=True)  # fmt: skip
        append_marker(log.log, kind, producer_id=number)
    # Their producers went on, and these keys have later values.
    for number in range(2):
        log.append((b"k%d" % number, b"2"), producer_id=number, producer_epoch=0, base_sequence=1)
    log.seal_and_clean()
    assert [h.is_control for h in log.headers()].count(True) == 2
    for _ in range(3):
        log.clock.advance_ms(CONFIG.delete_retention_ms)
        log.append((b"more", b"x"))
        log.seal_and_clean()
    assert [h.is_control for h in log.headers()].count(True) == 0
    assert log.log.aborted_transactions(0, log.log.end_offset) == []
    assert log.table() == {b"k0": b"2", b"k1": b"2", b"more": b"x"}


def test_an_abort_stays_known_while_archived_records_of_it_are_read_from_this_disk(
    tmp_path: Path,
) -> None:
    """The topic became compacted when these were archived: the cleaner leaves them as they are."""
    log = CompactedLog(tmp_path)
    log.append((b"a", b"kept"))
    log.append((b"a", b"aborted"), producer_id=7, producer_epoch=0, base_sequence=0,
               transactional=True)  # fmt: skip
    log.seal()
    archived_below = log.log.end_offset
    log.log.archived_below = lambda: archived_below
    append_marker(log.log, MarkerType.ABORT, producer_id=7)
    for number in range(3):
        log.append((b"b", b"%d" % number))
        log.seal_and_clean()
        assert [r.value for r in log.committed()] == [b"kept", b"%d" % number]
        log.clock.advance_ms(CONFIG.delete_retention_ms)


@ENGINES
def test_the_last_batch_of_a_producer_stays_as_a_header(tmp_path: Path, compiled: bool) -> None:
    log = CompactedLog(tmp_path, compiled=compiled)
    for sequence in range(3):
        log.append((b"a", b"%d" % sequence), producer_id=5, producer_epoch=2,
                   base_sequence=sequence)  # fmt: skip
    log.append((b"a", b"last"))
    log.seal_and_clean()
    assert [(h.base_offset, h.record_count, h.producer_id) for h in log.headers()] == [
        (2, 0, 5),
        (3, 1, -1),
    ]
    for snapshot in log.directory.glob("*.snapshot"):
        snapshot.unlink()
    log.kill_and_reopen()
    entry = log.log.producers.entries[5]
    assert (entry.epoch, entry.next_sequence) == (2, 3)


def test_batches_in_flight_are_known_after_a_restart_although_they_are_compacted(
    tmp_path: Path,
) -> None:
    """The last one is in a snapshot; the others may be sent again all the same."""
    log = CompactedLog(tmp_path)
    producer = {"producer_id": 5, "producer_epoch": 2}
    for sequence in range(4):
        log.append((b"a", b"%d" % sequence), **producer, base_sequence=sequence)
    log.seal()
    # As a clean start does.
    log.log.producers.load_snapshot(log.log.producers.encode_snapshot())
    log.append((b"a", b"last"))
    log.seal_and_clean()
    assert [header.base_offset for header in log.headers()] == [3, 4]
    again = [log.append((b"a", b""), **producer, base_sequence=sequence) for sequence in range(4)]
    assert again == [0, 1, 2, 3]


def test_the_last_offset_of_a_round_is_kept_by_an_empty_batch(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path)
    # Records without keys can only be there if the topic was not always compacted.
    log.log.update_config(replace(CONFIG, cleanup_policy=("delete",)))
    log.append((b"a", b"1"))
    log.append((None, b"no key"))
    log.log.update_config(CONFIG)
    log.seal_and_clean()
    assert [(h.base_offset, h.last_offset, h.record_count) for h in log.headers()] == [
        (0, 0, 1),
        (1, 1, 0),
    ]


@ENGINES
def test_what_does_not_fit_into_memory_is_done_in_further_passes(
    tmp_path: Path, compiled: bool
) -> None:
    log = CompactedLog(tmp_path, compiled=compiled)
    log.settings = type(log.settings)(dedupe_buffer_bytes=3000, load_factor=0.5)
    log._make_cleaner()
    for value in range(3):
        for number in range(200):
            log.append((b"k%03d" % number, b"%d" % value))
    log.seal()
    assert log.clean() > 1
    assert log.table() == {b"k%03d" % number: b"2" for number in range(200)}
    assert len(log.records()) == 200
    assert log.cleaned_offset == 600


@ENGINES
def test_a_damaged_batch_is_not_laundered_and_the_log_left_alone(
    tmp_path: Path, compiled: bool
) -> None:
    log = CompactedLog(tmp_path, compiled=compiled)
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.seal()
    path = log_files(log.directory)[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    log.clean()
    assert log.cleaner.uncleanable() == {log.log.topic_partition}
    assert log.cleaner.figures.uncleanable_partitions == 1
    assert path.read_bytes() == content
    assert not list(log.directory.glob("*.cleaned"))


@ENGINES
def test_records_that_nobody_can_read_are_kept(tmp_path: Path, compiled: bool) -> None:
    log = CompactedLog(tmp_path, compiled=compiled)
    log.log.update_config(replace(CONFIG, cleanup_policy=("delete",)))
    log.append((b"a", b"1"))
    log.log.append(patched(batch(2), 61, ">b", 127), leader_epoch=0)
    log.append((b"a", b"2"))
    log.log.update_config(CONFIG)
    log.seal_and_clean()
    assert [h.base_offset for h in log.headers()] == [1, 3]
    assert log.cleaner.uncleanable() == frozenset()


def test_messages_of_old_formats_are_compacted_and_become_batches(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path)
    # A folder as a Kafka before 0.11 left it.
    rows = [(b"a", b"old"), (b"b", b"old"), (b"a", b"new")]
    records = [Record(offset=i, timestamp_ms=i, key=k, value=v) for i, (k, v) in enumerate(rows)]
    for path in log_files(log.directory):
        path.write_bytes(message_set(records, magic=1))
    log.kill_and_reopen()
    log.append((b"b", b"newer"))
    log.seal_and_clean()
    assert [(r.offset, r.key, r.value) for r in log.records()] == [
        (2, b"a", b"new"),
        (3, b"b", b"newer"),
    ]
    assert {h.magic for h in log.headers()} == {2}


def test_open_transactions_and_unsynced_segments_are_not_touched(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path)
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.log.roll()
    assert log.clean() == 0, "not synced yet"
    log.seal()
    log.append((b"a", b"3"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.seal()
    assert log.clean() == 1
    assert [r.offset for r in log.records()] == [1, 2], "the open transaction does not count"
    append_marker(log.log, MarkerType.COMMIT, producer_id=7)
    log.seal()
    assert log.clean() == 1
    assert [r.offset for r in log.records()] == [2]


def test_retention_may_take_a_segment_while_it_is_cleaned(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path)
    for number in range(4):
        log.append((b"k%d" % (number % 2), b"v" * 1500))
        log.seal()
    begin = log.process.begin

    def begin_and_delete(request: CleaningRequest) -> None:
        begin(request)
        log.log.delete_segments(log.log.segments[:1])

    log.process.begin = begin_and_delete  # type: ignore[method-assign]
    assert asyncio.run(log.cleaner._clean_dirtiest(log.process))  # type: ignore[arg-type]
    assert log.log.start_offset == 1
    assert [r.offset for r in log.records()] == [1, 2, 3]
    assert not [p for p in log.directory.iterdir() if p.suffix in (".cleaned", ".swap")]


def test_retention_that_takes_a_segment_before_the_child_opens_it_is_no_fault_of_the_disk(
    tmp_path: Path,
) -> None:
    log = CompactedLog(tmp_path)
    for number in range(4):
        log.append((b"k%d" % (number % 2), b"v" * 1500))
        log.seal()
    begin = log.process.begin

    def delete_and_begin(request: CleaningRequest) -> None:
        log.log.log_start_offset = 1
        log.log.delete_segments(log.log.segments[:1])
        begin(request)

    log.process.begin = delete_and_begin  # type: ignore[method-assign]
    assert asyncio.run(log.cleaner._clean_dirtiest(log.process))  # type: ignore[arg-type]
    assert [r.offset for r in log.records()] == [1, 2, 3]
    log.process.begin = begin  # type: ignore[method-assign]
    assert log.clean() == 1, "again at once"
    assert [r.offset for r in log.records()] == [2, 3]


@pytest.mark.parametrize(
    "death",
    [ChildFailed("died"), OutOfResources("no thread"), RuntimeError("no thread"), MemoryError()],
)
def test_a_child_that_dies_is_tried_again_with_pauses_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: Exception
) -> None:
    """The machine may have had no memory for it; or it is the log, which kills it each time."""
    log = CompactedLog(tmp_path)
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.seal()

    def die(**_asked: object) -> None:
        raise death

    with monkeypatch.context() as patch:
        patch.setattr(log.process, "next", die)
        assert log.clean() == 1
        assert log.clean() == 0, "not at once"
    assert log.cleaner.uncleanable() == frozenset()
    log.clock.advance_ms(60_000)
    assert log.clean() == 1
    assert len(log.records()) == 1

    log.append((b"a", b"3"))
    log.seal()
    monkeypatch.setattr(log.process, "next", die)
    tried = 0
    for _ in range(60):
        tried += log.clean()
        log.clock.advance_ms(60_000)
    assert tried == CHILD_DEATHS_MAX
    assert log.cleaner.uncleanable() == {log.log.topic_partition}


def test_a_full_disk_is_tried_again_later_and_is_no_fault_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CompactedLog(tmp_path)
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.seal()

    def fail(*_: object, **__: object) -> None:
        raise DiskError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(CleanedSegment, "finish", fail)
        assert log.clean() == 1
    assert log.cleaner.uncleanable() == frozenset()
    assert not list(log.directory.glob("*.cleaned"))
    assert log.clean() == 0, "not at once"
    log.clock.advance_ms(60_000)
    assert log.clean() == 1
    assert len(log.records()) == 1


def test_a_transaction_that_is_named_longer_than_its_marker_is_kept_ends_where_that_was() -> None:
    aborted = [
        AbortedTransaction(producer_id=7, first_offset=2, last_offset=4, last_stable_offset=5),
        AbortedTransaction(producer_id=7, first_offset=9, last_offset=12, last_stable_offset=13),
    ]
    transactions = CleanedTransactions(aborted)
    abort = TransactionMarker(MarkerType.ABORT, 0)

    def header(offset: int) -> BatchHeader:
        record = Record(offset=offset, timestamp_ms=0, key=None, value=None)
        return read_header(encode_batch([record], producer_id=7, transactional=True))

    def is_aborted(offset: int) -> bool:
        return transactions.is_aborted_data(header(offset))

    # The marker at 4 went with an earlier cleaning.
    assert [is_aborted(offset) for offset in (2, 3, 6, 9, 11)] == [True, True, False, True, True]
    assert not transactions.is_marker_free(header(12), abort)
    assert transactions.take_retained() == aborted[1:]
    assert not is_aborted(14)


def test_what_is_copied_to_the_other_tier_is_cleaned_whatever_the_ratio(tmp_path: Path) -> None:
    """Only what is clean is copied: waiting for more of it would end the copying."""
    tiered = replace(CONFIG, min_cleanable_dirty_ratio=1.0, remote_storage_enable=True)
    plan = plan_cleaning(
        LogFacts(
            config=tiered,
            sealed=[CleanableFacts(base_offset=0, end_offset=10, size_bytes=100)],
            active_base_offset=10,
            end_offset=10,
            log_start_offset=0,
            last_stable_offset=10,
            durable_offset=10,
        ),
        cleaned_offset=None,
        now_ms=0,
    )
    assert plan.is_due(tiered)
    assert not plan.is_due(replace(tiered, remote_storage_enable=False))
    assert not plan.is_due(replace(tiered, remote_log_copy_disable=True))


def test_a_paused_log_is_left_alone(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path)
    log.append((b"a", b"1"))
    log.seal()
    with log.cleaner.paused(log.log.topic_partition):
        assert log.clean() == 0
    assert log.clean() == 1


def test_a_log_that_was_compacted_once_may_have_gaps_whatever_its_policy_is(
    tmp_path: Path,
) -> None:
    log = CompactedLog(tmp_path)
    for number in range(10):
        log.append((b"a", b"%d" % number))
    log.append((b"b", b"1"))
    log.seal_and_clean()
    log.append((b"c", b"1"))
    log.kill_and_reopen(config=replace(CONFIG, cleanup_policy=("delete",)))
    assert log.log.recovery_report.bytes_cut == 0
    assert log.log.recovery_report.segments_removed == 0
    assert [r.offset for r in log.records()] == [9, 10, 11]


def test_the_latest_record_is_found_behind_an_emptied_batch_of_a_later_time(
    tmp_path: Path,
) -> None:
    log = CompactedLog(tmp_path)
    log.append((b"b", b"1"))
    log.clock.advance_ms(1000)
    log.append((b"a", b"late"), producer_id=5, producer_epoch=0, base_sequence=0)
    log.clock.advance_ms(-500)
    log.append((b"a", b"early"))
    log.seal_and_clean()
    assert [h.record_count for h in log.headers()] == [1, 0, 1]
    found = log.log.max_timestamp()
    assert found is not None
    assert found.offset == 2
    assert log.log.find_timestamp(log.clock.now_ms() + 1) is None


def test_what_is_appended_behind_a_truncation_is_compacted_like_anything_new(
    tmp_path: Path,
) -> None:
    log = CompactedLog(tmp_path)
    log.append((b"a", b"1"))
    log.append((b"b", b"1"), (b"c", b"1"))
    log.seal_and_clean()
    assert log.cleaned_offset == 3
    # Inside of the second batch, which goes as a whole.
    log.log.truncate_to(2)
    assert log.cleaned_offset == log.log.cleaned_offset == 1
    log.append((b"a", b"2"), (b"d", b"1"))
    log.append((b"d", b"2"))
    log.kill_and_reopen()
    assert log.cleaned_offset == 1
    log.seal_and_clean()
    assert [(r.offset, r.value) for r in log.records()] == [(1, b"2"), (3, b"2")]


def test_files_that_wait_to_be_unlinked_go_by_the_delay_of_the_moment(tmp_path: Path) -> None:
    """Who needs the space lowers it."""
    log = CompactedLog(tmp_path, config=replace(CONFIG, file_delete_delay_ms=60_000))
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.seal_and_clean()
    log.clock.advance_ms(30_000)
    assert log.log.purge_deleted(log.clock.monotonic_s()) == 0
    log.log.update_config(replace(CONFIG, file_delete_delay_ms=30_000))
    assert log.log.purge_deleted(log.clock.monotonic_s()) > 0


def test_files_of_a_segment_that_is_cleaned_again_and_again_wait_their_whole_delay(
    tmp_path: Path,
) -> None:
    log = CompactedLog(tmp_path, config=replace(CONFIG, file_delete_delay_ms=60_000))
    for number in range(3):
        log.append((b"a", b"%d" % number))
        log.seal_and_clean()
        log.clock.advance_ms(25_000)
    # Swapped out 50 and 25 seconds ago, with three files each or more.
    waiting = {path.name for path in log.directory.glob("*.log*.deleted")}
    assert {"00000000000000000000.log.deleted", "00000000000000000000.log.2.deleted"} <= waiting
    log.log.purge_deleted(log.clock.monotonic_s())
    assert {path.name for path in log.directory.glob("*.log*.deleted")} == waiting
    log.clock.advance_ms(15_000)
    log.log.purge_deleted(log.clock.monotonic_s())
    left = {path.name for path in log.directory.glob("*.log*.deleted")}
    assert left < waiting
    assert left
    log.clock.advance_ms(60_000)
    log.log.purge_deleted(log.clock.monotonic_s())
    assert list(log.directory.glob("*.deleted")) == []


def test_a_reader_of_single_batches_comes_over_the_gap_at_the_end_of_a_segment(
    tmp_path: Path,
) -> None:
    log = CompactedLog(tmp_path, config=replace(CONFIG, segment_bytes=150))
    for keys in ((b"a", b"b"), (b"b", b"c")):
        for key in keys:
            log.append((key, b"1"))
        log.log.roll()
    log.seal_and_clean()
    assert [segment.end_offset for segment in log.log.segments] == [2, 4, 4]
    log.append((b"d", b"1"))
    offset, seen = 0, []
    while offset < log.log.end_offset:
        found = log.log.read(offset, bytes_max=1)
        assert found.range is not None, offset
        last = list(walk(found.range.read()))[-1].header
        # As a client goes on, which knows nothing of segments.
        offset = last.next_offset
        seen.append(last.base_offset)
    assert seen == [0, 2, 3, 4]
