"""What the bucket has of the groups: the last of each key, whoever wrote it, and never too far."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from strandline.broker.coordination.archive.state_archive import (
    LedLog,
    LiveRecord,
    LiveRecords,
    PendingRecord,
    PendingRecords,
    StateArchive,
    clamped,
    clamped_pending,
    encode_live,
    read_group_state,
    write_group_state,
)
from strandline.broker.protocol.formats.offsets_topic import (
    OFFSETS_TOPIC,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_offset_commit,
    encode_key,
    encode_offset_commit,
)
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import AccessDenied, CorruptRecords, TierUnavailable
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.marker import MarkerType, TransactionMarker, encode_marker
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.remote.keys import GROUPS_PREFIX, TRANSACTIONS_PREFIX, state_key
from strandline.storage.remote.object_store.interface import IfMatches, StoredObject
from strandline.storage.tiering.log.exposure import Exposure
from strandline.storage.tiering.log.unified_log import UnifiedLog
from tests.support.lone_replica import append_alone
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import Fault, MemoryStore, Timing

PARTITION = TopicPartition(OFFSETS_TOPIC, 0)


def commit(group: str, offset: int, *, partition: int = 0) -> tuple[bytes, bytes]:
    key = encode_key(OffsetCommitKey(group=group, topic="t", partition=partition))
    value = OffsetCommitValue(offset=offset, committed_ms=1, topic_id=UUID(int=7))
    return key, encode_offset_commit(value)


def batch(
    offset: int, records: Sequence[tuple[bytes, bytes | None]], *, producer_id: int = -1
) -> bytes:
    return encode_batch(
        [
            Record(offset=offset + i, timestamp_ms=1, key=key, value=value)
            for i, (key, value) in enumerate(records)
        ],
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        transactional=producer_id >= 0,
    )


def marker(offset: int, producer_id: int, kind: MarkerType) -> bytes:
    key, value = encode_marker(TransactionMarker(kind, 0))
    return encode_batch(
        [Record(offset=offset, timestamp_ms=1, key=key, value=value)],
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


def open_log(folder: Path, number: int = 0) -> LocalLog:
    folder.mkdir(parents=True, exist_ok=True)
    return LocalLog.open(
        folder,
        topic_partition=TopicPartition(OFFSETS_TOPIC, number),
        topic_id=UUID(int=1),
        config=LogConfig(),
        clock=ManualClock(),
        recovery_point=0,
        log_start_offset=0,
        clean_shutdown=True,
    )


def test_only_the_last_record_of_a_key_lives_and_none_whose_last_is_a_tombstone() -> None:
    live = LiveRecords()
    (a, a1), (_, a2), (b, b1) = commit("a", 1), commit("a", 2), commit("b", 1)
    assert live.take(batch(0, [(a, a1), (b, b1)]) + batch(2, [(a, a2), (b, None)]), 0) == 4
    assert [(record.key, record.value) for record in live] == [(a, a2)]


def test_records_of_a_transaction_live_once_it_is_committed() -> None:
    (a, a1), (b, b1) = commit("a", 1), commit("b", 1)
    content = (
        batch(0, [(a, a1)], producer_id=5)
        + batch(1, [(b, b1)], producer_id=6)
        + marker(2, 5, MarkerType.COMMIT)
    )
    live = LiveRecords()
    live.take(content, 0)
    assert [record.key for record in live] == [a]
    live.take(marker(3, 6, MarkerType.ABORT), 3)
    assert len(live) == 1


def test_records_of_an_open_transaction_are_in_the_object_and_count_with_its_marker() -> None:
    (a, a1), (b, b1), (c, _) = commit("a", 1), commit("b", 1), commit("c", 1)
    before = LiveRecords()
    before.take(
        batch(0, [(a, a1)]) + batch(1, [(b, b1), (c, None)], producer_id=5) + batch(3, [(c, a1)]), 0
    )
    after = LiveRecords()
    end_offset = after.take(encode_live(before, before.pending), 0)
    assert [record.key for record in after] == [a, c]
    (pending,) = after.pending
    # The later record of c, outside of the transaction, has overtaken the tombstone.
    assert (pending.producer_id, pending.epoch, pending.records) == (5, 0, {b: (b1, 1, 2)})
    after.take(marker(end_offset, 5, MarkerType.COMMIT), end_offset)
    assert [record.key for record in after] == [a, c, b]


def test_the_later_of_two_records_in_transactions_wins_whichever_ends_first() -> None:
    (a, a1), (_, a2), (b, b1) = commit("a", 1), commit("a", 2), commit("b", 1)
    before = LiveRecords()
    before.take(
        batch(0, [(b, b1)], producer_id=6)
        + batch(1, [(a, a1)], producer_id=5)
        + batch(2, [(a, a2)], producer_id=6),
        0,
    )
    after = LiveRecords()
    offset = after.take(encode_live(before, before.pending), 0)
    for live, end_offset in ((before, 3), (after, offset)):
        live.take(marker(end_offset, 6, MarkerType.COMMIT), end_offset)
        live.take(marker(end_offset + 1, 5, MarkerType.COMMIT), end_offset + 1)
        assert {record.key: record.value for record in live} == {a: a2, b: b1}


def test_pending_offsets_above_the_restored_end_are_set_back_too() -> None:
    (a, a9), (b, _) = commit("a", 9), commit("b", 9)
    pending = PendingRecords(5, 0, {a: PendingRecord(a9, 1, 0), b: PendingRecord(None, 1, 1)})
    (kept,) = clamped_pending([pending], {TopicPartition("t", 0): 5}.get)
    value = kept.records[a].value
    assert value is not None
    assert decode_offset_commit(value).offset == 5
    assert kept.records[b] == (None, 1, 1)


def test_offsets_above_the_restored_end_are_set_back_to_it() -> None:
    (a, a9), (b, b9) = commit("a", 9), commit("b", 9, partition=1)
    records = [
        LiveRecord(key=a, value=a9, timestamp_ms=1),
        LiveRecord(key=b, value=b9, timestamp_ms=1),
        LiveRecord(key=b"\xff\xffunknown", value=b"x", timestamp_ms=1),
    ]
    kept = list(clamped(records, {TopicPartition("t", 0): 5}.get))
    assert decode_offset_commit(kept[0].value) == decode_offset_commit(a9).replaced(offset=5)
    assert kept[1:] == records[1:]


def test_what_is_restored_is_what_was_written(tmp_path: Path) -> None:
    records = [
        LiveRecord(key=commit(f"g{n}", n)[0], value=commit(f"g{n}", n)[1], timestamp_ms=n)
        for n in range(5000)
    ]
    store = MemoryStore()
    store.put(state_key(GROUPS_PREFIX, 0), encode_live(records))
    found = read_group_state(store, 0)
    assert found is not None
    assert list(found) == records
    local = open_log(tmp_path)
    write_group_state(local, found)
    assert local.end_offset == 5000
    assert read_group_state(store, 1) is None


def test_a_damaged_object_is_refused() -> None:
    key, value = commit("a", 1)
    content = encode_live([LiveRecord(key=key, value=value, timestamp_ms=1)])
    store = MemoryStore()
    for damaged in (content[:-1], content[:-2] + b"xx"):
        store.put(state_key(GROUPS_PREFIX, 0), damaged)
        with pytest.raises(CorruptRecords):
            read_group_state(store, 0)


def test_the_bucket_follows_the_log_and_an_unknown_outcome_is_looked_at(tmp_path: Path) -> None:
    async def run() -> None:
        store, local = MemoryStore(), open_log(tmp_path)
        unified_log = UnifiedLog(local)
        clock = ManualClock()
        with ThreadPoolExecutor(1) as executor:
            archive = StateArchive(
                store, lambda: [LedLog(unified_log, 0)], executor=executor, clock=clock
            )
            assert await archive.run_once() == 0, "nothing is written over nothing"
            for offset in (1, 2):
                records = memoryview(bytearray(batch(0, [commit("a", offset)])))
                append_alone(local, records, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
                store.add_fault(
                    Fault(operation="put", error=TierUnavailable, moment=Timing.AFTER, times=1)
                )
                assert await archive.run_once() == 0
                clock.advance_ms(60_000)
                assert await archive.run_once() == 1
                assert await archive.run_once() == 0
                found = read_group_state(store, 0)
                assert found is not None
                assert [decode_offset_commit(record.value).offset for record in found] == [offset]
            # Somebody else writes there: this broker is not the only one, and stops.
            store.put(state_key(GROUPS_PREFIX, 0), b"")
            clock.advance_ms(60_000)
            append_alone(
                local,
                memoryview(bytearray(batch(0, [commit("a", 3)]))),
                leader_epoch=0,
                origin=AppendOrigin.COORDINATOR,
            )
            assert await archive.run_once() == 0
            assert store.get(state_key(GROUPS_PREFIX, 0)) == b""

    asyncio.run(run())


class LatePuts(MemoryStore):
    """Does a request that a dead broker gave up right after the next look at the object."""

    late: bytes | None = None

    def get_object(self, key: str) -> StoredObject:
        found = super().get_object(key)
        if self.late is not None:
            content, self.late = self.late, None
            super().put(key, content, condition=IfMatches(found.info.etag))
        return found


class Leaders:
    """Two brokers with a log each, of which one leads, and then the other."""

    def __init__(self, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.store, self.clock = MemoryStore(), ManualClock()
        self.logs = [open_log(folder / f"{number}") for number in range(2)]
        self.epochs: list[int | None] = [1, None]
        self.archives = [
            StateArchive(
                self.store, partial(self._led, number), executor=executor, clock=self.clock
            )
            for number in range(2)
        ]

    def _led(self, number: int) -> list[LedLog]:
        epoch = self.epochs[number]
        return [] if epoch is None else [LedLog(UnifiedLog(self.logs[number]), epoch)]

    async def writes(self, number: int, offset: int) -> int:
        """A commit comes, and the broker writes; how many objects it has written."""
        append(self.logs[number], [commit("g", offset)])
        self.clock.advance_ms(600_000)
        return await self.archives[number].run_once()

    @property
    def committed(self) -> int:
        found = read_group_state(self.store, 0)
        assert found is not None
        (record,) = found
        return decode_offset_commit(record.value).offset


def test_a_higher_leader_epoch_ends_the_writer_before_it(tmp_path: Path) -> None:
    """It was stopped, and does not know that another broker leads."""

    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            world = Leaders(tmp_path, executor)
            assert await world.writes(0, 1) == 1
            world.epochs[1] = 2
            assert await world.writes(1, 7) == 1
            assert await world.writes(0, 2) == 0
            assert world.committed == 7
            # It writes nothing after a look at the object either.
            assert await world.writes(0, 3) == 0
            assert world.committed == 7
            # It is no second broker of its kind: what it leads later it writes.
            world.epochs = [3, None]
            assert await world.writes(0, 9) == 1

    asyncio.run(run())


def test_a_broker_that_leads_again_writes_over_the_leader_between(tmp_path: Path) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            world = Leaders(tmp_path, executor)
            assert await world.writes(0, 1) == 1
            world.epochs = [None, 2]
            assert await world.writes(1, 7) == 1
            world.epochs = [3, None]
            assert await world.writes(0, 9) == 1
            assert world.committed == 9
            found = read_group_state(world.store, 0)
            assert found is not None
            assert found.leader_epoch == 3

    asyncio.run(run())


def test_groups_whose_tombstones_were_compacted_away_unread_are_gone(tmp_path: Path) -> None:
    """As after a day in which the archive was away, or another's."""

    async def run() -> None:
        store, clock = MemoryStore(), ManualClock()
        log = open_log(tmp_path / "log")
        append(log, [commit("gone", 1)])
        with ThreadPoolExecutor(1) as executor:
            logs = [UnifiedLog(log)]
            archive = StateArchive(
                store, lambda: [LedLog(one, 0) for one in logs], executor=executor, clock=clock
            )
            assert await archive.run_once() == 1
            # Its tombstone was at offset 1.
            log.reset_to(2)
            logs[:] = [UnifiedLog(log)]
            append(log, [commit("later", 1)])
            clock.advance_ms(log.config.delete_retention_ms)
            assert await archive.run_once() == 1
        found = read_group_state(store, 0)
        assert found is not None
        assert [record.key for record in found] == [commit("later", 1)[0]]

    asyncio.run(run())


def test_a_partition_whose_upload_fails_waits_for_itself_alone(tmp_path: Path) -> None:
    """One with nothing to write reset the wait, and the age of the failure never grew."""

    async def run() -> None:
        store, clock = MemoryStore(), ManualClock()
        locals_ = [open_log(tmp_path / f"{number}", number) for number in range(3)]
        for local in locals_[:2]:
            append(local, [commit("g", 1)])
        denied = Fault(operation="put", key_pattern=r"0\.log$", error=AccessDenied, times=-1)
        store.add_fault(denied)
        with ThreadPoolExecutor(1) as executor:
            logs = [UnifiedLog(local) for local in locals_]
            archive = StateArchive(
                store, lambda: [LedLog(one, 0) for one in logs], executor=executor, clock=clock
            )
            for _ in range(100):
                await archive.run_once()
                clock.advance_ms(500)
            assert store.keys() == [state_key(GROUPS_PREFIX, 1)]
            assert denied.hit_count < 12
            (state,) = archive.failing
            assert state.subject == f"{OFFSETS_TOPIC}-0"
            assert state.failure is not None
            assert clock.monotonic_s() - state.failure.since_s > 40
            store.clear_faults()
            clock.advance_ms(40_000)
            await archive.run_once()
            assert archive.failing == []

    asyncio.run(run())


def test_what_a_log_lost_while_its_folder_was_offline_leaves_the_bucket(tmp_path: Path) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        store = MemoryStore()
        log = UnifiedLog(open_log(tmp_path / "log"))
        archive = StateArchive(
            store, lambda: [LedLog(log, 0)], executor=executor, clock=ManualClock()
        )

        async def archived(*groups: str) -> set[tuple[bytes, bytes]]:
            for group in groups:
                append(log.local, [commit(group, 5)])
            await archive.run_once()
            state = read_group_state(store, 0)
            return {(one.key, one.value) for one in state or ()}

        assert await archived("a", "b") == {commit("a", 5), commit("b", 5)}
        log.replace_local(open_log(tmp_path / "came-back"))
        assert await archived("a", "c") == {commit("a", 5), commit("c", 5)}

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(scenario(executor))


def test_a_late_write_of_a_dead_broker_does_not_stop_its_successor(tmp_path: Path) -> None:
    async def run() -> None:
        store, local, clock = LatePuts(), open_log(tmp_path), ManualClock()
        store.put(state_key(GROUPS_PREFIX, 0), batch(0, [commit("a", 1)]))
        with ThreadPoolExecutor(1) as executor:
            archive = StateArchive(
                store, lambda: [LedLog(UnifiedLog(local), 0)], executor=executor, clock=clock
            )
            store.late = batch(0, [commit("a", 2)])
            for offset in (3, 4):
                append_alone(
                    local,
                    memoryview(bytearray(batch(0, [commit("a", offset)]))),
                    leader_epoch=0,
                    origin=AppendOrigin.COORDINATOR,
                )
                await archive.run_once()
                clock.advance_ms(60_000)
                await archive.run_once()
                found = read_group_state(store, 0)
                assert found is not None
                assert [decode_offset_commit(record.value).offset for record in found] == [offset]

    asyncio.run(run())


def test_no_state_of_the_groups_comes_back_as_it_was(tmp_path: Path) -> None:
    """Else a write that was given up, and waits for what was there before, would be done."""

    async def run() -> None:
        store, local, clock = MemoryStore(), open_log(tmp_path), ManualClock()
        etags = []
        with ThreadPoolExecutor(1) as executor:
            archive = StateArchive(
                store, lambda: [LedLog(UnifiedLog(local), 0)], executor=executor, clock=clock
            )
            (key, value) = commit("a", 1)
            for records in ([(key, value)], [(key, None)]) * 3:
                append_alone(
                    local,
                    memoryview(bytearray(batch(0, records))),
                    leader_epoch=0,
                    origin=AppendOrigin.COORDINATOR,
                )
                assert await archive.run_once() == 1
                etags.append(store.head(state_key(GROUPS_PREFIX, 0)).etag)
                found = read_group_state(store, 0)
                assert found is not None
                assert [record.key for record in found] == [k for k, v in records if v is not None]
        assert len(set(etags)) == len(etags)

    asyncio.run(run())


@pytest.mark.parametrize("then", ["a commit", "a look"])
def test_what_was_deleted_of_the_groups_is_written_again(tmp_path: Path, then: str) -> None:
    """And not taken for what another broker did, who would have written."""

    async def run() -> None:
        store, local, clock = MemoryStore(), open_log(tmp_path), ManualClock()
        with ThreadPoolExecutor(1) as executor:
            archive = StateArchive(
                store, lambda: [LedLog(UnifiedLog(local), 0)], executor=executor, clock=clock
            )
            groups = [commit("a", 1)]
            append(local, groups)
            assert await archive.run_once() == 1
            await archive.check()
            assert archive.deleted_count == 0
            store.delete([state_key(GROUPS_PREFIX, 0)])
            if then == "a commit":
                groups.append(commit("b", 2))
                append(local, groups[1:])
            else:
                await archive.check()
                assert archive.deleted_count == 1
            for _ in range(2):
                await archive.run_once()
                clock.advance_ms(60_000)
            found = read_group_state(store, 0)
            assert found is not None
            assert [(record.key, record.value) for record in found] == groups
            # Another broker, who writes what this one wrote, still is one.
            other = StateArchive(
                store, lambda: [LedLog(UnifiedLog(local), 0)], executor=executor, clock=clock
            )
            assert await other.run_once() == 1
            append(local, [commit("c", 3)])
            assert await archive.run_once() == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("topic", "prefix"), [(OFFSETS_TOPIC, GROUPS_PREFIX), (TRANSACTION_TOPIC, TRANSACTIONS_PREFIX)]
)
def test_the_line_about_deleted_state_is_right_for_groups_and_for_transactional_ids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topic: str, prefix: str
) -> None:
    async def run() -> None:
        store, local, clock = MemoryStore(), open_log(tmp_path), ManualClock()
        with ThreadPoolExecutor(1) as executor:
            archive = StateArchive(
                store,
                lambda: [LedLog(UnifiedLog(local), 0)],
                executor=executor,
                clock=clock,
                topic=topic,
                prefix=prefix,
            )
            append(local, [commit("a", 1)])
            assert await archive.run_once() == 1
            store.delete([state_key(prefix, 0)])
            await archive.check()

    asyncio.run(run())
    (line,) = caplog.records
    assert "groups' offsets or transactional ids were deleted in the bucket" in line.message
    assert line.__dict__["fields"]["objects"] == [state_key(prefix, 0)]


def append(local: LocalLog, records: Sequence[tuple[bytes, bytes | None]]) -> None:
    append_alone(
        local,
        memoryview(bytearray(batch(0, records))),
        leader_epoch=0,
        origin=AppendOrigin.COORDINATOR,
    )


def test_commits_are_exposed_until_they_are_written_and_unknown_before_the_first_write(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        store, local, clock = MemoryStore(), open_log(tmp_path), ManualClock()
        with ThreadPoolExecutor(1) as executor:
            logs = [UnifiedLog(local)]
            archive = StateArchive(
                store,
                lambda: [LedLog(one, 0) for one in logs],
                executor=executor,
                clock=clock,
                interval_ms=10_000,
            )
            assert list(archive.exposures()) == [Exposure()]
            append(local, [commit("a", 1)])
            assert list(archive.exposures()) == [None]
            await archive.run_once()
            assert list(archive.exposures()) == [Exposure()]
            before = local.size_bytes
            clock.advance_ms(5_000)
            await archive.run_once()
            append(local, [commit("a", 2), commit("b", 1)])
            clock.advance_ms(15_000)
            added = local.size_bytes - before
            assert list(archive.exposures()) == [
                Exposure(record_count=2, size_bytes=added, age_s=15.0, late_s=5.0)
            ]
            await archive.run_once()
            assert list(archive.exposures()) == [Exposure()]

    asyncio.run(run())
