"""A broker only reads an archive that is, or may be, another broker's."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.errors import (
    AccessDenied,
    ArchiveLost,
    ReadOnlyReplica,
    StoreFull,
    TierError,
    TierUnavailable,
)
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.local.log_dirs import missing_folder_mark
from strandline.storage.remote.manifest.store import commit, load
from strandline.storage.tiering.changes.change_reader import PolledChanges
from strandline.storage.tiering.policy.leadership import Lead
from tests.support.lone_replica import append_alone
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import GRACE_MS, ID_PARTITION, Rig, asynchronous

EVERYTHING = PolledChanges(is_everything=True)


async def start_with(rig: Rig, lead: Lead) -> None:
    rig.lead = lead
    await rig.crash()


async def settle(rig: Rig) -> None:
    for _ in range(3):
        await rig.settle()
        rig.pass_ms(60_000)


@asynchronous
async def test_until_it_is_known_whose_the_archive_is_it_is_only_read(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await settle(rig)
        rig.produce_segments(1)
        before = rig.manifest
        await start_with(rig, Lead.UNKNOWN)
        rig.produce_segments(1)
        await settle(rig)
        assert rig.manifest == before
        assert rig.local_segments == [(20, 30), (30, 40), (40, 40)]
        await rig.assert_everything_is_readable()
        rig.manager.confirm()
        await settle(rig)
        assert rig.archived[-1] == (30, 40)
        assert rig.local_segments == [(40, 40)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_disk_that_was_lost_waits_to_go_on_behind_the_archive(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await settle(rig)
        rig.lead = Lead.UNKNOWN
        await rig.lose_disk()
        await settle(rig)
        assert rig.manager.is_waiting
        with pytest.raises(TierUnavailable):
            rig.produce(1)
        rig.manager.confirm()
        await settle(rig)
        rig.produce_segments(1)
        await settle(rig)
        assert rig.archived[-1] == (20, 30)
        await rig.assert_everything_is_readable()


@pytest.mark.parametrize("was_written", [False, True])
@pytest.mark.parametrize("is_away", [False, True])
@asynchronous
async def test_a_disk_that_is_there_takes_records_before_its_archive_answers(
    tmp_path: Path, was_written: bool, is_away: bool
) -> None:
    """Be it that the manifest is not known, or whose it is: idle, emptied and never written."""
    async with Rig(tmp_path) as rig:
        if was_written:
            rig.produce_segments(2)
        await settle(rig)
        rig.lead = Lead.UNKNOWN
        if is_away:
            rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        await rig.crash()
        assert rig.manager.is_waiting == (was_written and not is_away)
        rig.produce_segments(1)
        await settle(rig)
        rig.memory.clear_faults()
        await settle(rig)
        rig.produce_segments(1)
        rig.manager.confirm()
        await settle(rig)
        assert rig.archived == [(base, base + 10) for base in range(0, 10 * len(rig.sent), 10)]
        await rig.assert_everything_is_readable()


@pytest.mark.parametrize("is_outdated", [False, True])
@asynchronous
async def test_a_start_reads_a_manifest_once_though_it_claims_it_when_it_is_known_whose_it_is(
    tmp_path: Path, is_outdated: bool
) -> None:
    """With a thousand idle partitions that is a thousand requests less; unless it is not new."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await settle(rig)
        rig.lead = Lead.UNKNOWN
        rig.memory.requests.clear()
        await rig.crash()
        if is_outdated:
            stored = load(rig.store, ID_PARTITION)
            assert stored is not None
            commit(rig.store, stored, stored.manifest.with_leader_epoch(rig.leader_epoch - 1))
        rig.manager.confirm()
        await rig.manager.start()
        asked = [r.operation for r in rig.memory.requests if r.key == rig.manifest_key]
        if not is_outdated:
            assert sorted(asked) == ["get", "put"]
        await settle(rig)
        assert rig.manifest is not None
        assert rig.manifest.leader_epoch == rig.leader_epoch
        rig.produce_segments(1)
        await settle(rig)
        assert rig.archived[-1] == (20, 30)
        await rig.assert_everything_is_readable()


@asynchronous
async def test_who_may_have_lost_a_disk_takes_no_records_over_restarts_until_that_is_known(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await settle(rig)
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        await rig.lose_disk()
        for _ in range(2):
            with pytest.raises(TierUnavailable):
                rig.produce(1)
            await rig.crash()
        assert missing_folder_mark.is_marked(rig.folder)
        rig.memory.clear_faults()
        await settle(rig)
        assert not missing_folder_mark.is_marked(rig.folder)
        rig.produce_segments(1)
        # It is known now, and that is kept.
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        await rig.crash()
        rig.produce_segments(1)
        rig.memory.clear_faults()
        await settle(rig)
        assert rig.archived[-1] == (30, 40)
        await rig.assert_everything_is_readable()


@asynchronous
async def test_nothing_is_freed_for_what_another_broker_archived(tmp_path: Path) -> None:
    """Its records are others, under the same offsets."""
    async with Rig(tmp_path / "one") as rig:
        rig.produce_segments(1)
        await settle(rig)
        rig.produce_segments(1)
        async with Rig(
            tmp_path / "two", store=rig.store, leader_epoch=rig.leader_epoch + 1, clock=rig.clock
        ) as twin:
            twin.produce_segments(2)
            await settle(twin)
            assert twin.archived[-1] == (20, 30)
        rig.produce_segments(1)
        await settle(rig)
        assert rig.local_segments == [(10, 20), (20, 30), (30, 30)]
        assert set(rig.reasons) >= {"another broker owns the manifest of the partition"}
        assert await rig.read_all(10) == b"".join(rig.sent[1:])


@asynchronous
async def test_an_archive_that_is_lost_is_neither_written_nor_relied_upon(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.manager.run_once()
        before = rig.manifest
        rig.manager.lose("somebody else writes there")
        rig.manager.confirm()
        rig.produce_segments(1)
        rig.configure(retention_ms=1000)
        await settle(rig)
        assert rig.local_segments[0] == (0, 10)
        assert rig.log.log_start_offset == 0
        rig.manager.delete_topic(rig.topic_info)
        await settle(rig)
        rig.pass_ms(2 * rig.tiering_config.copy_timeout_ms)
        await settle(rig)
        assert rig.manifest == before
        assert not rig.purged


@asynchronous
async def test_a_store_that_takes_no_writes_is_read_and_copied_to_when_it_takes_them_again(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await settle(rig)
        before = rig.manifest
        rig.lead = Lead.UNKNOWN
        await rig.crash()
        rig.manager.note_claim(None, AccessDenied("probe", "put", "403"))
        rig.manager.confirm()
        rig.memory.requests.clear()
        rig.produce_segments(1)
        await settle(rig)
        assert rig.manifest == before
        assert rig.memory.count_requests("put|delete") == 0
        await rig.assert_everything_is_readable()
        rig.manager.note_claim(None, None)
        await settle(rig)
        assert rig.archived[-1] == (20, 30)
        await rig.assert_everything_is_readable()


@pytest.mark.parametrize("error", [AccessDenied, StoreFull])
@asynchronous
async def test_a_manifest_that_cannot_be_claimed_is_read_all_the_same(
    tmp_path: Path, error: type[TierError]
) -> None:
    """The right to write may be missing for one folder alone, of which no probe tells."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await settle(rig)
        rig.memory.add_fault(Fault(operation="put", error=error, key_pattern="topics/", times=-1))
        await rig.crash()
        await settle(rig)
        await rig.assert_everything_is_readable()
        rig.memory.clear_faults()
        rig.produce_segments(1)
        await settle(rig)
        assert rig.archived[-1] == (20, 30)
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_broker_that_lost_its_archive_refuses_producers_where_it_is_told_to(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.tiering_config = replace(rig.tiering_config, refuses_if_lost=True)
        await rig.crash()
        rig.produce(3)
        rig.manager.lose("another broker")
        with pytest.raises(ArchiveLost):
            rig.produce(1)
        # The markers of its transactions are its own.
        own = memoryview(bytearray(rig.sent[-1]))
        append_alone(rig.log, own, leader_epoch=rig.leader_epoch, origin=AppendOrigin.COORDINATOR)
        assert rig.log.end_offset == 6


@pytest.mark.parametrize("lead", Lead)
@asynchronous
async def test_only_who_leads_an_archive_uploads_and_deletes(tmp_path: Path, lead: Lead) -> None:
    """Though there is a segment to copy, one to delete, and two to merge."""
    async with Rig(tmp_path / "origin") as origin:
        origin.produce_segments(5)
        await origin.settle()
        other = Rig(
            tmp_path / "other",
            store=origin.memory,
            clock=origin.clock,
            leader_epoch=origin.leader_epoch + 1,
            merge_target_bytes=1 << 20,
        )
        origin.configure(local_retention_ms=-1)
        origin.produce_segments(1)
        shutil.copytree(origin.folder, other.folder)
        other.lead = Lead.UNKNOWN if lead is Lead.LOST else lead
        async with other:
            if lead is Lead.LOST:
                other.manager.lose("another broker's start is there")
            other.log.move_log_start(15)
            before = origin.manifest
            origin.memory.requests.clear()
            for _ in range(4):
                other.pass_ms(GRACE_MS)
                if lead is Lead.FOLLOWING:
                    other.manager.apply_changes(EVERYTHING)
                await other.manager.run_once()
            changed = origin.memory.count_requests("put|delete")
            assert (changed == 0) is (lead is not Lead.CONFIRMED)
            assert (origin.manifest == before) is (lead is not Lead.CONFIRMED)


@asynchronous
async def test_a_log_that_is_followed_takes_no_records_and_deletes_none(tmp_path: Path) -> None:
    async with Rig(tmp_path / "origin") as origin:
        origin.produce_segments(2)
        await origin.settle()
        replica = Rig(tmp_path / "replica", store=origin.memory, clock=origin.clock)
        replica.lead = Lead.FOLLOWING
        async with replica:
            assert replica.log.end_offset == 20
            for _ in AppendOrigin:
                with pytest.raises(ReadOnlyReplica):
                    replica.produce(1)
            with pytest.raises(ReadOnlyReplica):
                replica.log.delete_records(10)
            assert (replica.log.log_start_offset, replica.log.end_offset) == (0, 20)
