"""The archive of a partition goes on under its next leader, which closed its segments elsewhere.

archive       [ 0, 10)[10, 20)
first leader  [ 0, 10)[10, 20)[20, 30 ..
next leader   [ 0,                30)[30 ..
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.crash_points import (
    COPY_AFTER_COMMIT,
    COPY_AFTER_LOG,
    COPY_AFTER_META,
    COPY_AFTER_REWRITE,
    COPY_BEFORE_COMMIT,
    DELETE_BEFORE_LOCAL,
    TAIL_AFTER_COMMIT,
    TAIL_AFTER_PART,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import ReadOnlyReplica, TierUnavailable
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.model import NO_EPOCH, Isolation
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.object_store.interface import (
    FileBody,
    ObjectInfo,
    PutBody,
    PutCondition,
)
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.lifecycle import SegmentState
from tests.support.memory_store import MemoryStore
from tests.unit.storage.tiering.harness import (
    CONFIG,
    ID_PARTITION,
    PARTITION,
    Rig,
    asynchronous,
    keys_of,
)

UPLOAD_MS = 10_000
WITH_PIECES = replace(CONFIG, strandline_remote_active_segment_upload_ms=UPLOAD_MS)


@asynccontextmanager
async def next_leader(first: Rig, folder: Path) -> AsyncIterator[Rig]:
    """Another broker that has the records of `first`, in one segment, and leads from now on."""
    rig = Rig(folder, config=first.config, store=first.memory, leader_epoch=2, clock=first.clock)
    rig.sent = list(first.sent)
    await rig.open(start=False)
    try:
        replicate(first, rig)
        await rig.manager.start()
        yield rig
    finally:
        rig._end()


def replicate(first: Rig, rig: Rig) -> None:
    while rig.log.end_offset < first.log.end_offset:
        read = first.log.read(rig.log.end_offset, bytes_max=1 << 20, isolation=Isolation.LOG_END)
        assert read is not None
        assert read.range is not None
        batches = memoryview(bytearray(read.range.read()))
        rig.log.append(batches, leader_epoch=NO_EPOCH, origin=AppendOrigin.REPLICATION)
    rig.log.local.advance_high_watermark(rig.log.end_offset)


def pieces(rig: Rig) -> list[tuple[int, int]]:
    manifest = rig.manifest
    return [] if manifest is None else [(p.base_offset, p.end_offset) for p in manifest.tail]


async def pass_and_settle(rig: Rig) -> None:
    for _ in range(4):
        rig.pass_ms(UPLOAD_MS // 2)
        await rig.manager.run_once()


async def offsets_in(rig: Rig) -> list[int]:
    """The offsets that the records had when they were produced."""
    return [int(bytes(record.value or b"")) for record in await rig.records()]


async def archive_two_segments(rig: Rig) -> None:
    rig.produce_segments(2)
    rig.produce(10)
    await rig.manager.run_once()
    assert rig.archived == [(0, 10), (10, 20)]


# --- copies ----------------------------------------------------------------------------------


@asynchronous
async def test_a_copy_begins_where_the_archive_ends_inside_a_segment(tmp_path: Path) -> None:
    async with Rig(tmp_path / "first") as first:
        await archive_two_segments(first)
        async with next_leader(first, tmp_path / "next") as rig:
            rig.produce_segments(1)
            rig.pass_ms(10_000)
            assert await rig.settle() == 1
            assert rig.archived == [(0, 10), (10, 20), (20, 40)]
            assert rig.log.local_start_offset == 40
            await rig.assert_everything_is_readable()
            rig.assert_archive_is_whole()


@asynchronous
async def test_a_recompressed_copy_begins_there_too(tmp_path: Path) -> None:
    async with Rig(tmp_path / "first") as first:
        await archive_two_segments(first)
        first.config = replace(first.config, strandline_remote_compression_type="zstd")
        async with next_leader(first, tmp_path / "next") as rig:
            rig.put(*[(b"", str(offset).encode()) for offset in range(30, 2030)])
            rig.roll()
            rig.pass_ms(10_000)
            await rig.settle()
            assert rig.archived == [(0, 10), (10, 20), (20, 2030)]
            assert rig.manifest is not None
            entry = rig.manifest.segments[-1]
            assert entry.recompressed_from_bytes is not None
            assert await offsets_in(rig) == list(range(2030))
            rig.assert_archive_is_whole()


@asynchronous
async def test_a_log_with_another_history_than_the_archive_is_not_copied(tmp_path: Path) -> None:
    """The archive ends with records of epoch 1, and this log has others there, of epoch 0."""
    async with Rig(tmp_path / "first") as first:
        await archive_two_segments(first)
        rig = Rig(tmp_path / "next", store=first.memory, leader_epoch=3, clock=first.clock)
        await rig.open(start=False)
        rig.leader_epoch = 0
        rig.produce(30)
        rig.roll()
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        assert rig.statistics.pending[0].state is SegmentState.OVERLAP
        assert rig.local_segments[0] == (0, 30)
        rig._end()


# --- unclean elections -----------------------------------------------------------------------


@pytest.mark.parametrize("has_led_before", [False, True])
@asynchronous
async def test_who_is_elected_uncleanly_takes_no_records_before_it_knows_the_archive(
    tmp_path: Path, *, has_led_before: bool
) -> None:
    """It would give offsets a second time that the archive has."""
    async with Rig(tmp_path / "first") as first:
        await archive_two_segments(first)
        rig = Rig(tmp_path / "next", store=first.memory, clock=first.clock)
        await rig.open(start=False)
        if not has_led_before:
            rig.manager.end_leading(PARTITION)
        rig.leader_epoch = 2
        rig.manager.begin_leading(PARTITION, 2, is_lone=False, is_recovering=True)
        with pytest.raises(TierUnavailable):
            rig.produce(10)
        await rig.manager.run_once()
        assert (rig.log.local_start_offset, rig.log.end_offset) == (20, 20)
        rig.produce_segments(1)
        await rig.manager.run_once()
        assert rig.archived == [(0, 10), (10, 20), (20, 30)]
        # What the first leader alone had is gone, and what is archived stays.
        assert await offsets_in(rig) == list(range(30))
        rig.assert_archive_is_whole()
        rig._end()


@asynchronous
async def test_the_start_of_one_that_was_elected_uncleanly_takes_none_either(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path / "first") as first:
        await archive_two_segments(first)
        rig = Rig(tmp_path / "next", store=first.memory, clock=first.clock, leader_epoch=2)
        await rig.open(start=False)
        rig.manager.detach(PARTITION)
        rig.manager.attach(
            rig.log, rig.topic_info, leader_epoch=2, is_lone=False, is_recovering=True
        )
        with pytest.raises(TierUnavailable):
            rig.produce(10)
        await rig.manager.run_once()
        rig.produce(10)
        assert rig.log.end_offset == 30
        rig._end()


@asynchronous
async def test_the_only_replica_takes_records_whatever_its_election_was(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await archive_two_segments(rig)
        rig.manager.begin_leading(PARTITION, 2, is_recovering=True)
        rig.produce(10)


# --- pieces ----------------------------------------------------------------------------------


@asynchronous
async def test_pieces_begin_where_the_archive_ends_inside_a_segment(tmp_path: Path) -> None:
    async with Rig(tmp_path / "first", config=WITH_PIECES) as first:
        await archive_two_segments(first)
        async with next_leader(first, tmp_path / "next") as rig:
            rig.produce(10)
            await pass_and_settle(rig)
            assert pieces(rig) == [(20, 40)]
            rig.produce(10)
            await pass_and_settle(rig)
            assert pieces(rig)[-1][1] == 50
            await rig.lose_disk()
            assert rig.log.local_start_offset == 20
            await rig.assert_everything_is_readable()
            rig.assert_archive_is_whole()


@asynchronous
async def test_the_next_leader_goes_on_behind_the_pieces_of_the_one_before(tmp_path: Path) -> None:
    async with Rig(tmp_path / "first", config=WITH_PIECES) as first:
        await archive_two_segments(first)
        await pass_and_settle(first)
        assert pieces(first) == [(20, 30)]
        async with next_leader(first, tmp_path / "next") as rig:
            before = rig.data_keys()
            await pass_and_settle(rig)
            assert rig.data_keys() == before
            for _ in range(30):
                rig.produce(1)
            rig.roll()
            rig.produce(10)
            await pass_and_settle(rig)
            assert rig.archived == [(0, 10), (10, 20), (20, 60)]
            assert pieces(rig) == [(60, 70)]
            await rig.assert_everything_is_readable()
            rig.assert_archive_is_whole()


# --- the claim -------------------------------------------------------------------------------


@asynchronous
async def test_a_new_leader_epoch_claims_the_manifest_at_once(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await archive_two_segments(rig)
        rig.manager.begin_leading(PARTITION, 2)
        await rig.manager.run_once()
        assert rig.manifest is not None
        assert rig.manifest.leader_epoch == 2
        requests = len(rig.memory.requests)
        await rig.manager.run_once()
        assert len(rig.memory.requests) == requests


@asynchronous
async def test_a_former_leader_moves_no_log_start(tmp_path: Path) -> None:
    """It was paused before the retention of the topic was altered, and deletes by the old one."""
    async with Rig(tmp_path / "first") as first:
        await archive_two_segments(first)
        async with next_leader(first, tmp_path / "next") as rig:
            await rig.manager.run_once()
            first.log.move_log_start(20)
            await first.manager.run_once()
            assert rig.manifest is not None
            assert (rig.manifest.log_start_offset, rig.manifest.leader_epoch) == (0, 2)
            first.pass_ms(10_000)
            await first.manager.run_once()
            assert first.log.remote is not None
            assert first.log.remote.life.is_fenced
            await rig.settle()
            await rig.assert_everything_is_readable()


class NotingStore(MemoryStore):
    """Notes the manifests that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.manifests: list[Manifest] = []

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        if key.endswith("manifest.json"):
            assert not isinstance(body, FileBody)
            self.manifests.append(Manifest.decode(body))
        return super().put(key, body, condition=condition)


@asynchronous
async def test_a_log_start_is_committed_under_an_own_claim(tmp_path: Path) -> None:
    store = NotingStore()
    async with Rig(tmp_path, store=store) as rig:
        await archive_two_segments(rig)
        rig.manager.begin_leading(PARTITION, 2)
        rig.log.move_log_start(10)
        store.manifests.clear()
        await rig.manager.run_once()
        written = [(one.leader_epoch, one.log_start_offset) for one in store.manifests]
        assert written[:2] == [(2, 0), (2, 10)]


# --- kills -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [
        COPY_AFTER_REWRITE,
        COPY_AFTER_LOG,
        COPY_AFTER_META,
        COPY_BEFORE_COMMIT,
        COPY_AFTER_COMMIT,
        DELETE_BEFORE_LOCAL,
    ],
)
@asynchronous
async def test_a_crash_while_copying_from_inside_a_segment_loses_and_doubles_nothing(
    tmp_path: Path, point: str
) -> None:
    config = replace(
        CONFIG,
        strandline_remote_compression_type="zstd" if point == COPY_AFTER_REWRITE else "producer",
    )
    async with Rig(tmp_path / "first", config=config) as first:
        await archive_two_segments(first)
        before = keys_of(first.manifest)
        async with next_leader(first, tmp_path / "next") as rig:
            rig.produce_segments(1)
            rig.pass_ms(10_000)
            with simulated_crash(point), pytest.raises(SimulatedCrash):
                await rig.settle()
            is_committed = point in (COPY_AFTER_COMMIT, DELETE_BEFORE_LOCAL)
            assert (rig.archived[2:] == [(20, 40)]) is is_committed
            uploads = first.memory.count_requests("put", r"\.log$")
            await rig.crash()
            await rig.settle()
            assert rig.archived == [(0, 10), (10, 20), (20, 40)]
            assert keys_of(rig.manifest) >= before
            assert first.memory.count_requests("put", r"\.log$") - uploads == (not is_committed)
            assert rig.log.local_start_offset == 40
            await rig.lose_disk()
            assert await offsets_in(rig) == list(range(40))


@pytest.mark.parametrize("point", [TAIL_AFTER_PART, TAIL_AFTER_COMMIT])
@asynchronous
async def test_a_crash_while_a_piece_from_inside_a_segment_is_uploaded_loses_nothing(
    tmp_path: Path, point: str
) -> None:
    async with Rig(tmp_path / "first", config=WITH_PIECES) as first:
        await archive_two_segments(first)
        async with next_leader(first, tmp_path / "next") as rig:
            rig.produce(10)
            with simulated_crash(point), pytest.raises(SimulatedCrash):
                await pass_and_settle(rig)
            assert pieces(rig) == ([(20, 40)] if point == TAIL_AFTER_COMMIT else [])
            await rig.crash()
            rig.produce(10)
            await pass_and_settle(rig)
            assert pieces(rig)[-1][1] == 50
            await rig.lose_disk()
            assert (rig.log.local_start_offset, rig.log.end_offset) == (20, 50)
            await rig.assert_everything_is_readable()
            rig.assert_archive_is_whole()


# --- elections -------------------------------------------------------------------------------


@asynchronous
async def test_the_archive_of_a_partition_that_is_led_elsewhere_is_left_alone(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=WITH_PIECES) as rig:
        await archive_two_segments(rig)
        rig.produce_segments(2)
        rig.manager.end_leading(PARTITION)
        rig.log.move_log_start(10)
        with pytest.raises(ReadOnlyReplica):
            rig.produce(1)
        requests = len(rig.memory.requests)
        await pass_and_settle(rig)
        await rig.manager.start()
        assert len(rig.memory.requests) == requests
        assert rig.archived == [(0, 10), (10, 20)]
        assert rig.log.remote is not None
        assert rig.log.remote.life.lead is Lead.FOLLOWING
        # What is archived stays readable, and is no reason to take a backup.
        assert rig.log.highest_remote_offset == 19
        assert rig.statistics.exposed is not None
        assert rig.statistics.exposed.record_count == 0


class EndingStore(MemoryStore):
    """Calls `meanwhile` while it stores the records of a segment."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        if key.endswith(".log"):
            self.meanwhile()
        return super().put(key, body, condition=condition)


@asynchronous
async def test_a_copy_that_outlives_the_lead_is_not_committed(tmp_path: Path) -> None:
    store = EndingStore()
    async with Rig(tmp_path, store=store) as rig:
        loop = asyncio.get_running_loop()
        rig.produce_segments(1)

        async def end() -> None:
            rig.manager.end_leading(PARTITION)

        def end_meanwhile() -> None:
            asyncio.run_coroutine_threadsafe(end(), loop).result()

        store.meanwhile = end_meanwhile
        await rig.manager.run_once()
        stored = manifest_store.load(store, ID_PARTITION)
        assert stored is None or not stored.manifest.segments
        store.meanwhile = lambda: None
        rig.manager.begin_leading(PARTITION, 3)
        await rig.manager.run_once()
        stored = manifest_store.load(store, ID_PARTITION)
        assert stored is not None
        assert stored.manifest.leader_epoch == 3
        assert [one.end_offset for one in stored.manifest.segments] == [10]


@asynchronous
async def test_leads_change_hands_and_the_archive_goes_on(tmp_path: Path) -> None:
    """The first leader follows meanwhile, and reads what the second one archived when it leads."""
    async with Rig(tmp_path / "first") as first:
        await archive_two_segments(first)
        first.manager.end_leading(PARTITION)
        async with next_leader(first, tmp_path / "next") as rig:
            rig.roll()
            await rig.manager.run_once()
            assert rig.archived == [(0, 10), (10, 20), (20, 30)]
            rig.manager.end_leading(PARTITION)
            assert first.log.highest_remote_offset == 19
            first.manager.begin_leading(PARTITION, 3)
            first.roll()
            first.produce_segments(1)
            await first.manager.run_once()
            assert first.archived[:3] == [(0, 10), (10, 20), (20, 30)]
            assert len(first.archived) == 4
            assert first.manifest is not None
            assert first.manifest.leader_epoch == 3
            first.assert_archive_is_whole()


@asynchronous
async def test_what_is_known_of_the_bucket_concerns_the_partitions_that_are_led(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        await archive_two_segments(rig)
        rig.manager.end_leading(PARTITION)
        rig.manager.lose("another cluster's")
        assert rig.log.remote is not None
        assert rig.log.remote.life.lead is Lead.FOLLOWING
        rig.manager.begin_leading(PARTITION, 2)
        assert rig.log.remote is not None
        assert rig.log.remote.life.lead is Lead.LOST
        await rig.manager.run_once()
        assert rig.manifest is not None
        assert rig.manifest.leader_epoch == 1
