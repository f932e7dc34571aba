"""A 404 on the manifest is not believed by itself; a manifest that is gone stops the partition.

And when a topic is purged and tiered once more, nothing of its life before comes into the next one.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.errors import AccessDenied, CorruptFile, ObjectNotFound, TierUnavailable
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.keys import manifest_key, topic_key
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.manifest import new_generation
from strandline.storage.remote.manifest.topic_info import load_topic_info
from strandline.storage.tiering.audit.restoring import read_partition
from tests.support.memory_store import Fault, MemoryStore, Timing
from tests.unit.storage.tiering.bucket_checks import check_bucket, heal
from tests.unit.storage.tiering.harness import (
    GRACE_MS,
    ID_PARTITION,
    TOPIC,
    TOPIC_ID,
    Rig,
    asynchronous,
)

MANIFEST = r"manifest\.json$"


def deny(rig: Rig, times: int = 1) -> Fault:
    return rig.memory.add_fault(
        Fault(operation="get", key_pattern=MANIFEST, error=ObjectNotFound, times=times)
    )


async def archive_and_free(rig: Rig) -> None:
    """Three segments in the bucket alone, one on the disk, and no checkpoint."""
    rig.produce_segments(3)
    await rig.settle()
    rig.pass_ms(5000)
    await rig.settle()
    rig.produce_segments(1)
    assert rig.log.local.start_offset == 30
    rig.checkpoint_path.unlink(missing_ok=True)


@asynchronous
async def test_a_manifest_that_is_not_found_once_moves_no_log_start(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await archive_and_free(rig)
        lie = deny(rig)
        await rig.crash()
        assert lie.hit_count == 1
        assert rig.log.log_start_offset == 0
        with pytest.raises(TierUnavailable):
            await rig.log.read_remote(0, bytes_max=1000)
        await heal(rig)
        await rig.assert_everything_is_readable()
        check_bucket(rig)


@asynchronous
async def test_a_manifest_that_is_not_found_gives_no_offset_a_second_time(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await archive_and_free(rig)
        await rig.settle()
        deny(rig, times=2)
        await rig.lose_disk()
        for _ in range(2):
            with pytest.raises(TierUnavailable):
                rig.produce()
            rig.pass_ms(GRACE_MS)
            await rig.manager.run_once()
        rig.produce()
        assert rig.log.end_offset == 50
        await heal(rig)
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_manifest_that_was_lost_is_an_error_until_it_is_put_back(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await archive_and_free(rig)
        content = rig.memory.get(rig.manifest_key)
        rig.memory.delete([rig.manifest_key])
        await rig.crash()
        for _ in range(3):
            rig.pass_ms(GRACE_MS)
            await rig.settle()
        assert rig.log.log_start_offset == 0
        assert rig.manifest is None
        with pytest.raises(CorruptFile, match="Put it back"):
            await rig.log.read_remote(0, bytes_max=1000)
        with pytest.raises(CorruptFile, match="the manifest was lost"):
            read_partition(rig.store, ID_PARTITION)
        rig.memory.put(rig.manifest_key, content)
        await heal(rig)
        await rig.assert_everything_is_readable()
        check_bucket(rig)


@asynchronous
async def test_with_everything_on_this_disk_a_lost_manifest_is_made_anew(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.memory.delete([rig.manifest_key])
        await rig.crash()
        await heal(rig)
        await rig.assert_everything_is_readable()
        check_bucket(rig)


@asynchronous
async def test_a_log_that_was_never_archived_needs_no_manifest(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await rig.crash()
        rig.produce()
        rig.roll()
        await rig.settle()
        assert rig.archived == [(0, 10)]


@pytest.mark.parametrize("fails", [r"\.log$", r"\.tail$"])
@asynchronous
async def test_the_manifest_comes_before_every_other_object(tmp_path: Path, fails: str) -> None:
    async with Rig(tmp_path) as rig:
        # Done, and nobody is told; then the machine is lost.
        rig.memory.add_fault(
            Fault(operation="put", key_pattern=fails, error=TierUnavailable, moment=Timing.AFTER)
        )
        rig.configure(strandline_remote_active_segment_upload_ms=1000)
        rig.produce()
        if fails == r"\.log$":
            rig.roll()
        await rig.manager.run_once()
        if not rig.data_keys():
            rig.pass_ms(2000)
            await rig.manager.run_once()
        assert len(rig.data_keys()) == 1
        rig.sent.clear()
        await rig.lose_disk()
        rig.produce()
        await heal(rig)
        await rig.assert_everything_is_readable()
        check_bucket(rig, is_disk_lost=True)


def test_a_partition_is_empty_only_if_its_folder_is() -> None:
    store = MemoryStore()
    partition = TopicIdPartition("orders", uuid.uuid4(), 1)
    assert manifest_store.load_or_refuse(store, partition) is None
    # Its neighbour's objects are not its own.
    store.put(manifest_key(TopicIdPartition("orders", partition.topic_id, 10)), b"{}")
    assert manifest_store.load_or_refuse(store, partition) is None


# --- topic.json ----------------------------------------------------------------------------------


@asynchronous
async def test_a_topic_that_is_not_found_once_keeps_its_tombstone(tmp_path: Path) -> None:
    """Or what is being deleted would be a living topic after the next start."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        await rig.crash(start=False)
        rig.produce_segments(1)
        key = topic_key(TOPIC, TOPIC_ID)
        rig.memory.add_fault(Fault(operation="get", key_pattern=key, error=ObjectNotFound, times=2))
        await rig.manager.start()
        await rig.manager.run_once()
        info = load_topic_info(rig.memory, TOPIC, TOPIC_ID)
        assert info is None or info.is_deleted


@asynchronous
async def test_a_tombstone_that_is_late_deletes_no_topic_that_is_tiered_again(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        key = topic_key(TOPIC, TOPIC_ID)
        late = Fault(
            operation="put",
            key_pattern=key,
            error=TierUnavailable,
            moment=Timing.LATE,
            times=1,
        )
        rig.memory.add_fault(late)
        rig.manager.delete_topic(rig.topic_info)
        for _ in range(4):
            await rig.manager.run_once()
            rig.pass_ms(GRACE_MS)
        assert late.hit_count == 1
        assert list(rig.store.list("topics/")) == []
        # It is tiered again under the same id, and everything is on the disk.
        rig.attach()
        await heal(rig)
        rig.memory.deliver_late()
        await rig.crash()
        await heal(rig)
        assert rig.archived == [(0, 10)]
        await rig.assert_everything_is_readable()


async def tier_again_during_the_purge(rig: Rig) -> None:
    """One segment was archived; the partition waits until that is gone."""
    rig.produce_segments(1)
    await rig.settle()
    rig.manager.disable_topic(rig.topic_info)
    await rig.manager.run_once()
    rig.attach()


@asynchronous
async def test_a_topic_that_is_altered_while_it_waits_is_described_as_it_is_now(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        await tier_again_during_the_purge(rig)
        now = replace(rig.topic_info, properties={**rig.topic_info.properties, "retention.ms": "7"})
        rig.manager.update_topic(now)
        await heal_for_a_while(rig)
        assert rig.archived == [(0, 10)]
        assert load_topic_info(rig.memory, TOPIC, TOPIC_ID) == now


@asynchronous
async def test_a_leader_epoch_that_begins_while_a_partition_waits_is_that_of_its_manifest(
    tmp_path: Path,
) -> None:
    """A manifest of an older epoch would say that its newer records are of another past."""
    async with Rig(tmp_path) as rig:
        await tier_again_during_the_purge(rig)
        rig.manager.begin_leading(rig.log.topic_partition, rig.leader_epoch + 3)
        await heal_for_a_while(rig)
        assert rig.archived == [(0, 10)]
        assert rig.manifest is not None
        assert rig.manifest.leader_epoch == rig.leader_epoch + 3


async def turn_off_with_a_late_delete(rig: Rig) -> None:
    """Two segments are archived; the DELETE of their manifest is not answered, and not done yet."""
    rig.produce_segments(2)
    await rig.settle()
    late = Fault(
        operation="delete", key_pattern=MANIFEST, error=TierUnavailable, moment=Timing.LATE
    )
    rig.memory.add_fault(late)
    rig.manager.disable_topic(rig.topic_info)
    for _ in range(2):
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS)
    assert late.hit_count == 1


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_wanted_meanwhile", [False, True])
@asynchronous
async def test_a_delete_that_is_late_takes_no_manifest_of_a_topic_that_is_tiered_again(
    tmp_path: Path, is_killed: bool, is_wanted_meanwhile: bool
) -> None:
    async with Rig(tmp_path) as rig:
        await turn_off_with_a_late_delete(rig)
        if is_killed:
            rig.memory.add_fault(Fault(operation="delete", error=TierUnavailable, times=1))
            # Tiered again while it was down, or after.
            attach = rig.attach
            if not is_wanted_meanwhile:
                rig.attach = lambda: None  # type: ignore[method-assign]
            await rig.crash()
            rig.attach = attach  # type: ignore[method-assign]
        elif is_wanted_meanwhile:
            rig.attach()
        for _ in range(4):
            await rig.manager.run_once()
            rig.pass_ms(GRACE_MS)
        if not is_wanted_meanwhile:
            assert set(rig.memory.keys()) <= {topic_key(TOPIC, TOPIC_ID)}
            rig.attach()
            rig.attach()
        await rig.manager.run_once()
        rig.memory.deliver_late()
        rig.pass_ms(2 * rig.tiering_config.copy_timeout_ms)
        for _ in range(3):
            await rig.manager.run_once()
            rig.pass_ms(GRACE_MS)
        rig.produce_segments(1)
        await heal(rig)
        assert rig.archived == [(0, 10), (10, 20), (20, 30)]
        await rig.assert_everything_is_readable()
        check_bucket(rig)


async def tier_again_before_the_delete_comes(rig: Rig) -> None:
    """While the broker is down. Nothing but the DELETE is left after that."""
    for _ in range(2):
        await rig.crash()
        for _ in range(4):
            await rig.manager.run_once()
            rig.pass_ms(GRACE_MS)
    rig.memory.deliver_late()
    rig.pass_ms(2 * rig.tiering_config.copy_timeout_ms)
    await heal_for_a_while(rig)
    assert rig.archived == [(0, 10), (10, 20)]
    await rig.assert_everything_is_readable()
    check_bucket(rig)


@asynchronous
async def test_each_start_within_the_wait_knows_of_a_delete_that_may_be_late(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        await turn_off_with_a_late_delete(rig)
        await tier_again_before_the_delete_comes(rig)


@asynchronous
async def test_a_late_delete_that_names_the_version_keeps_no_topic_waiting(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.memory.lacks = frozenset()
        await turn_off_with_a_late_delete(rig)
        for _ in range(2):
            await rig.manager.run_once()
            rig.pass_ms(GRACE_MS)
        assert rig.memory.keys() == []
        rig.attach()
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        assert rig.memory.deliver_late() == 0
        assert rig.memory.count_requests("delete", MANIFEST) == 2


@asynchronous
async def test_a_start_knows_of_a_late_delete_of_what_came_after_a_purge(tmp_path: Path) -> None:
    """The first purge had all its answers; a manifest came after it, and went with the second."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.settle()
        manifest = rig.memory.get(manifest_key(ID_PARTITION))
        rig.manager.disable_topic(rig.topic_info)
        for _ in range(3):
            await rig.manager.run_once()
            rig.pass_ms(GRACE_MS)
        assert rig.memory.keys() == []
        rig.memory.put(manifest_key(ID_PARTITION), manifest)
        late = Fault(
            operation="delete", key_pattern=MANIFEST, error=TierUnavailable, moment=Timing.LATE
        )
        rig.memory.add_fault(late)
        rig.pass_ms(2 * rig.tiering_config.copy_timeout_ms)
        for _ in range(2):
            await rig.manager.run_once()
            rig.pass_ms(GRACE_MS)
        assert late.hit_count == 1
        assert set(rig.memory.keys()) == {topic_key(TOPIC, TOPIC_ID)}
        await tier_again_before_the_delete_comes(rig)
        rig.pass_ms(2 * rig.tiering_config.copy_timeout_ms)
        await heal_for_a_while(rig)
        found = load_topic_info(rig.memory, TOPIC, TOPIC_ID)
        assert found is not None
        assert not found.is_deleted


@asynchronous
async def test_a_commit_that_is_late_names_nothing_in_an_archive_that_was_begun_anew(
    tmp_path: Path,
) -> None:
    """An etag may be a hash, and the first manifest of a partition names nothing in every life."""
    async with Rig(tmp_path, grace_ms=0) as rig:
        rig.produce_segments(1)
        late = Fault(
            operation="put",
            key_pattern=MANIFEST,
            error=TierUnavailable,
            moment=Timing.LATE,
            skip=1,
        )
        rig.memory.add_fault(late)
        await rig.manager.run_once()
        assert late.hit_count == 1
        # Nothing is committed but the first manifest, which names nothing; so it is in both lives.
        rig.manager.delete_topic(rig.topic_info)
        for _ in range(3):
            rig.pass_ms(GRACE_MS)
            await rig.manager.run_once()
        assert rig.memory.keys() == []
        rig.attach()
        no_copy = Fault(operation="put", key_pattern=r"\.log$", error=AccessDenied, times=-1)
        rig.memory.add_fault(no_copy)
        await rig.manager.run_once()
        assert rig.manifest is not None
        assert rig.memory.deliver_late() == 0
        assert rig.archived == []
        rig.memory.clear_faults()
        await heal(rig)
        await rig.assert_everything_is_readable()
        check_bucket(rig)


@asynchronous
async def test_an_archive_that_somebody_began_in_place_of_ours_is_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        stored = manifest_store.load(rig.memory, ID_PARTITION)
        assert stored is not None
        generation = new_generation(rig.clock.now_ms() + 1)
        later = replace(stored.manifest, generation=generation, segments=(), revision=1)
        assert later.order > stored.manifest.order
        rig.memory.put(rig.manifest_key, later.encode())
        rig.produce_segments(1)
        await heal_for_a_while(rig)
        failure = rig.statistics.copy_failure
        assert failure is not None
        assert "another archive" in failure.reason
        assert (10, 20) in rig.local_segments, "what only we have stays"


async def heal_for_a_while(rig: Rig) -> None:
    for _ in range(3):
        rig.pass_ms(GRACE_MS)
        await rig.settle()


@asynchronous
async def test_an_empty_disk_whose_archive_was_purged_takes_records_when_it_is_tiered_again(
    tmp_path: Path,
) -> None:
    """Its folder was missing at the start, and its manifest was never read."""
    async with Rig(tmp_path) as rig:
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        await rig.lose_disk()
        with pytest.raises(TierUnavailable):
            rig.produce(1)
        rig.memory.clear_faults()
        rig.manager.disable_topic(rig.topic_info)
        for _ in range(3):
            await rig.manager.run_once()
            rig.pass_ms(GRACE_MS)
        rig.manager.attach(rig.log, rig.topic_info, leader_epoch=rig.leader_epoch, is_new=True)
        await rig.settle()
        rig.produce_segments(1)
        await rig.settle()
        assert rig.archived == [(0, 10)]
        await rig.assert_everything_is_readable()
