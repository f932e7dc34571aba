"""Long archives (sealed manifest pages) and transactions over the border of the tiers."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from strandline.storage.errors import OffsetOutOfRange, TierUnavailable
from strandline.storage.model import Isolation
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.records.txn_index import decode_entries
from strandline.storage.remote.manifest import manifest as manifest_module
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.tiering.changes.change_reader import PolledChanges
from strandline.storage.tiering.policy.leadership import Lead
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.bucket_checks import check_bucket
from tests.unit.storage.tiering.harness import (
    GRACE_MS,
    ID_PARTITION,
    PARTITION,
    Rig,
    asynchronous,
    keys_of,
    make_small_pages,
)
from tests.unit.storage.tiering.transactional_producer import Producer


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small_pages(monkeypatch)


# --- pages -------------------------------------------------------------------------------------


@asynchronous
async def test_offsets_in_sealed_pages_are_readable_also_after_a_restart(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(9)
        rig.pass_ms(5000)
        await rig.settle()
        manifest = rig.manifest
        assert manifest is not None
        assert len(manifest.pages) >= 2
        await rig.assert_everything_is_readable()
        await rig.crash()
        await rig.assert_everything_is_readable()
        found = await rig.log.find_timestamp(0)
        assert found is not None
        assert found.offset == 0


@asynchronous
async def test_retention_by_age_drops_whole_pages_and_parts_of_them(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for _ in range(9):
            rig.produce_segments(1)
            await rig.settle()
            rig.pass_ms(10_000)
        rig.configure(retention_ms=45_000)
        # Written 90, 80 ... 10 s ago, the last record of each 9 ms later.
        await rig.settle()
        assert rig.log.log_start_offset == 50
        manifest = rig.manifest
        assert manifest is not None
        assert manifest.first_offset == 50
        assert manifest.segment_count == 4
        rig.configure(retention_ms=-1)
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        left = {key for key in rig.data_keys() if key not in keys_of(rig.manifest)}
        pages = rig.manifest.pages if rig.manifest else ()
        assert len(left) == 2 * sum(page.segment_count for page in pages)
        rig.configure(retention_ms=1)
        for _ in range(2):
            await rig.settle()
            rig.pass_ms(GRACE_MS)
        await rig.settle()
        assert rig.data_keys() == []
        assert [info.key for info in rig.store.list("topics/") if "/manifest/" in info.key] == []


@pytest.mark.parametrize("damage", ["gone", "zeros"])
@asynchronous
async def test_a_lost_page_below_the_log_start_keeps_nothing_in_the_bucket(
    tmp_path: Path, damage: str
) -> None:
    """What only it named is found by a listing; pages before and behind it go as ever."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(13)
        await rig.settle()
        assert rig.manifest is not None
        first, lost, *_ = rig.manifest.pages
        in_lost = {
            key
            for entry in manifest_store.read_page(rig.store, lost)
            for key in (entry.log_key, entry.meta_key)
        }
        if damage == "gone":
            rig.memory.delete([lost.key])
        else:
            rig.memory.put(lost.key, bytes(100))
        await rig.crash()
        await rig.settle()
        # Records of its range may still be read once it is brought back.
        rig.log.delete_records(lost.end_offset - 1)
        await settle_for_a_while(rig)
        assert rig.manifest.pages[0] == lost
        assert first.key not in set(rig.memory.keys())
        rig.log.delete_records(rig.manifest.end_offset)
        await settle_for_a_while(rig)
        assert rig.manifest.is_empty
        assert set(rig.data_keys()) == in_lost
        assert lost.key not in set(rig.memory.keys())
        check_bucket(rig)
        assert rig.data_keys() == []


async def settle_for_a_while(rig: Rig) -> None:
    for _ in range(6):
        await rig.settle()
        rig.pass_ms(GRACE_MS)


@asynchronous
async def test_what_is_let_go_at_once_adds_a_bounded_number_of_marks_to_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much a shortened retention lets go: every commit writes all marks."""
    marks_max, segments = 4, 15
    monkeypatch.setattr(manifest_module, "MARKS_MAX", marks_max)
    async with Rig(tmp_path) as rig:
        rig.produce_segments(segments)
        await rig.settle()
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        rig.configure(retention_ms=1)
        waiting: list[int] = []
        for _ in range(segments):
            await rig.settle()
            manifest = rig.manifest
            assert manifest is not None
            # And the pages, of two entries each here, that went with them.
            assert len(manifest.deleting) <= marks_max + marks_max // 2
            assert manifest.log_start_offset == rig.log.log_start_offset == 10 * segments
            with pytest.raises(OffsetOutOfRange):
                rig.log.read(10 * segments - 1, bytes_max=1000)
            waiting.append(rig.statistics.deleting_segments)
            rig.pass_ms(GRACE_MS)
        # What waits for its turn is told as well, and none of it counts as kept.
        assert waiting[0] >= segments
        assert waiting[-1] == 0
        assert sorted(waiting, reverse=True) == waiting
        assert rig.data_keys() == []
        assert [info.key for info in rig.store.list("topics/") if "/manifest/" in info.key] == []


@asynchronous
async def test_retention_by_size_over_pages_keeps_exactly_what_it_must(tmp_path: Path) -> None:
    """Wherever the border lies: between pages, in the middle of one, or in the root."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(9)
        await rig.settle()
        for kept in range(8, 0, -1):
            rig.configure(retention_bytes=sum(map(len, rig.sent[-kept:])))
            await rig.settle()
            assert rig.log.log_start_offset == 10 * (9 - kept)
            assert await rig.read_all() == b"".join(rig.sent[-kept:])


@asynchronous
async def test_archived_records_without_a_time_are_as_old_as_their_upload(tmp_path: Path) -> None:
    """In sealed pages as in the root."""
    async with Rig(tmp_path) as rig:
        for _ in range(6):
            rig.produce(1, timestamp_ms=-1)
            rig.roll()
        await rig.settle()
        assert rig.manifest is not None
        assert rig.manifest.pages
        rig.configure(retention_ms=60_000)
        rig.pass_ms(59_999)
        await rig.settle()
        assert rig.log.log_start_offset == 0
        rig.pass_ms(1)
        # As a whole no page is known to be old: a round looks into one of them.
        for _ in rig.manifest.pages:
            await rig.settle()
        assert rig.log.log_start_offset == 6


# --- transactions ------------------------------------------------------------------------------


@asynchronous
async def test_what_is_undecided_is_read_from_this_disk_by_who_asks_for_it(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce(5)
        producer = Producer(rig, 7)
        undecided = producer.send()
        rig.produce(5)
        committed = Isolation.READ_COMMITTED
        read = rig.log.read(0, bytes_max=10_000, isolation=committed)
        assert read is not None
        assert read.next_offset == undecided
        read = rig.log.read(undecided, bytes_max=10_000, isolation=committed)
        assert read is not None
        assert (read.range, read.next_offset) == (None, undecided)
        read = rig.log.read(0, bytes_max=10_000)
        assert read is not None
        assert read.next_offset == rig.log.end_offset
        producer.end(MarkerType.COMMIT)
        read = rig.log.read(undecided, bytes_max=10_000, isolation=committed)
        assert read is not None
        assert read.next_offset == rig.log.end_offset


@asynchronous
async def test_segments_of_an_open_transaction_wait_and_say_whose_it_is(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        producer = Producer(rig, 7)
        rig.produce_segments(1)
        producer.send()
        rig.roll()
        rig.produce_segments(1)
        await rig.settle()
        assert rig.archived == [(0, 10)]
        assert rig.reasons[0] == (
            "holds records above the last stable offset: producer 7 of epoch 0 has had a"
            " transaction open since offset 10; it ends at its timeout, or with"
            " kafka-transactions.sh abort"
        )
        producer.end(MarkerType.COMMIT)
        rig.roll()
        await rig.settle()
        assert [base for base, _ in rig.archived][-1] == 21
        assert rig.statistics.copy_lag_segments == 0


@asynchronous
async def test_aborts_are_found_in_later_segments_and_over_the_border_of_the_tiers(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        first, second = Producer(rig, 1), Producer(rig, 2)
        aborted_early = first.send()  # segment 0: records of both
        aborted_late = second.send()
        rig.roll()
        first.end(MarkerType.ABORT)  # segment 1: the first abort
        rig.produce(5)
        rig.roll()
        rig.produce(5)  # segment 2: the second abort, which stays local
        second.end(MarkerType.ABORT)
        rig.roll()
        rig.produce(5)
        await rig.settle()
        assert len(rig.archived) == 3
        rig.log.free_segments(rig.log.local.segments[1].end_offset)
        assert len(rig.local_segments) == 2
        cold = await rig.log.read_remote(0, bytes_max=1, isolation=Isolation.READ_COMMITTED)
        assert cold.next_offset == 1
        assert [(t.producer_id, t.first_offset) for t in cold.aborted] == [(1, aborted_early)]
        cold = await rig.log.read_remote(0, bytes_max=10_000, isolation=Isolation.READ_COMMITTED)
        assert {(t.producer_id, t.first_offset) for t in cold.aborted} == {
            (1, aborted_early),
            (2, aborted_late),
        }


@asynchronous
async def test_the_meta_of_a_segment_alone_tells_which_of_its_records_were_aborted(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        producer = Producer(rig, 1)
        first_offset = producer.send()
        rig.roll()
        marker_offset = producer.end(MarkerType.ABORT)  # in the next segment
        rig.roll()
        await rig.settle()
        manifest = rig.manifest
        assert manifest is not None
        entry = manifest.segments[0]
        section = segment_meta.read_section(
            rig.store, entry.meta_key, entry.meta_size_bytes, segment_meta.Section.TXN_INDEX
        )
        assert section is not None
        [aborted] = decode_entries(section, source="")
        assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (
            1,
            first_offset,
            marker_offset,
        )


@asynchronous
async def test_plain_segments_need_no_search_for_aborts(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(9)
        rig.pass_ms(5000)
        await rig.settle()
        rig.memory.requests.clear()
        cold = await rig.log.read_remote(0, bytes_max=1, isolation=Isolation.READ_COMMITTED)
        assert list(cold.aborted) == []
        assert rig.memory.count_requests("get", "manifest") <= 1


# --- leadership, and manifests that must not be believed -----------------------------------------


@asynchronous
async def test_a_new_epoch_of_this_broker_ends_its_being_fenced(tmp_path: Path) -> None:
    async with Rig(tmp_path, leader_epoch=5) as rig:
        rig.produce_segments(1)
        await rig.settle()
        stored = manifest_store.load(rig.store, ID_PARTITION)
        assert stored is not None
        manifest_store.commit(rig.store, stored, stored.manifest.with_leader_epoch(9))
        rig.produce_segments(1)
        for _ in range(2):
            await rig.settle()
            rig.pass_ms(5000)
        assert rig.archived == [(0, 10)]
        rig.manager.begin_leading(PARTITION, 10)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        manifest = rig.manifest
        assert manifest is not None
        assert manifest.leader_epoch == 10


@asynchronous
async def test_a_replica_is_not_fenced_by_an_epoch_that_it_hears_of_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At each start of its origin that would be a warning for each partition, to stop one."""
    async with Rig(tmp_path / "origin") as origin:
        replica = Rig(tmp_path / "replica", store=origin.memory, clock=origin.clock)
        replica.lead = Lead.FOLLOWING
        async with replica:
            origin.leader_epoch = 2
            origin.manager.begin_leading(PARTITION, 2)
            origin.produce_segments(1)
            await origin.settle()
            replica.manager.apply_changes(PolledChanges(is_everything=True))
            await replica.manager.run_once()
            remote = replica.log.remote
            assert remote is not None
            assert remote.manifest is not None
            assert remote.manifest.leader_epoch == 2
            assert not remote.life.is_fenced
            assert not [line.message for line in caplog.records if line.levelname == "WARNING"]


@asynchronous
async def test_a_replica_that_could_not_go_on_behind_the_archive_tries_again_without_news(
    tmp_path: Path,
) -> None:
    """Or it would not know where the log begins and ends until its origin writes again."""
    async with Rig(tmp_path / "origin") as origin:
        origin.produce_segments(2)
        await origin.settle()
        replica = Rig(tmp_path / "replica", store=origin.memory, clock=origin.clock)
        replica.lead = Lead.FOLLOWING
        origin.memory.add_fault(Fault(key_pattern=r"\.meta$", error=TierUnavailable))
        async with replica:
            assert replica.log.end_offset == 0
            assert replica.log.has_unknown_extent
            for _ in range(3):
                replica.pass_ms(60_000)
                await replica.manager.run_once()
            assert replica.log.end_offset == origin.log.end_offset
            assert not replica.log.has_unknown_extent


async def archive_without_marker(rig: Rig, kind: MarkerType) -> None:
    """Archives a segment in which a transaction began, and not the one with its end."""
    producer = Producer(rig, 7)
    producer.send()
    rig.roll()
    producer.end(kind)
    await rig.settle()
    assert rig.archived == [(0, 1)]


@asynchronous
@pytest.mark.parametrize("kind", MarkerType)
async def test_a_log_that_lost_a_marker_ends_the_transaction_as_its_archived_segment_has_it(
    tmp_path: Path, kind: MarkerType
) -> None:
    async with Rig(tmp_path) as rig:
        await archive_without_marker(rig, kind)
        await rig.lose_disk()
        await rig.settle()
        local = rig.log.local
        assert rig.log.local.last_stable_offset == rig.log.end_offset == 2
        assert bool(local.aborted_transactions(0, 2)) is (kind is MarkerType.ABORT)


@asynchronous
async def test_a_lost_object_keeps_no_other_transaction_from_its_archived_end(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        first, second = Producer(rig, 7), Producer(rig, 8)
        first.send()
        rig.roll()
        second.send()
        rig.roll()
        second.end(MarkerType.ABORT)
        first.end(MarkerType.ABORT)
        await rig.settle()
        assert rig.archived == [(0, 1), (1, 2)]
        manifest = rig.manifest
        assert manifest is not None
        rig.memory.delete([manifest.segments[0].meta_key])
        await rig.lose_disk()
        await rig.settle()
        local = rig.log.local
        assert [opened.producer_id for opened in local.producers.open_entries()] == [7]
        assert [one.producer_id for one in local.aborted_transactions(1, 3)] == [8]


@asynchronous
@pytest.mark.parametrize("reason", ["lost", "claimed"])
async def test_the_archive_of_another_broker_ends_no_transaction_of_this_disk(
    tmp_path: Path, reason: str
) -> None:
    async with Rig(tmp_path, leader_epoch=5) as rig:
        await archive_without_marker(rig, MarkerType.COMMIT)
        shutil.rmtree(rig.folder)
        rig.folder.mkdir()
        rig.leader_epoch = 1
        await rig.crash(start=False)
        Producer(rig, 7).send()
        if reason == "lost":
            rig.manager.lose("somebody else")
        await rig.settle()
        assert rig.log.local.last_stable_offset == 0


@asynchronous
async def test_a_manifest_that_went_back_is_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        older = rig.store.get(rig.manifest_key)
        rig.produce_segments(1)
        rig.pass_ms(500)
        await rig.settle()
        rig.store.put(rig.manifest_key, older)
        rig.produce_segments(1)
        rig.pass_ms(5000)
        for _ in range(3):
            await rig.settle()
            rig.pass_ms(5000)
        assert rig.archived == [(0, 10)], "nothing is written over it"
        failure = rig.statistics.copy_failure
        assert failure is not None
        assert "went back" in failure.reason
        assert (20, 30) in rig.local_segments, "what only we have stays"


@asynchronous
async def test_a_manifest_that_vanished_is_not_begun_anew(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.store.delete([info.key for info in rig.store.list("")])
        rig.produce_segments(1)
        for _ in range(3):
            await rig.settle()
            rig.pass_ms(5000)
        assert rig.manifest is None
        assert "was there before" in rig.reasons[0]
        assert (10, 20) in rig.local_segments


@asynchronous
async def test_detaching_while_the_manifest_is_loaded_is_fine(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        gate = threading.Event()
        fault = rig.memory.add_fault(
            Fault(operation="get", key_pattern=r"manifest\.json$", gate=gate)
        )
        await rig.crash(start=False)
        step = asyncio.gather(rig.manager.run_once())
        while not fault.hit_count:
            await asyncio.sleep(0.001)
        rig.manager.detach(PARTITION)
        gate.set()
        await step
        assert rig.log.remote is None
        assert rig.log.end_offset == 10
