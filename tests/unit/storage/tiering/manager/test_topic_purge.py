"""A deleted topic's folder is emptied, after its last copy has ended and after restarts."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.storage.errors import (
    AccessDenied,
    TierUnavailable,
)
from strandline.storage.remote.keys import topic_folder
from strandline.storage.remote.manifest.topic_info import TopicInfo, load_topic_info
from strandline.storage.tiering.manager.partition_tiering import PartitionTiering
from strandline.storage.tiering.manager.topic_objects import TopicObjects
from tests.support.memory_store import Fault, Timing
from tests.unit.storage.tiering.harness import (
    GRACE_MS,
    TOPIC,
    TOPIC_ID,
    Rig,
    asynchronous,
)


@asynchronous
async def test_deleting_a_topic_empties_its_folder(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        info = load_topic_info(rig.store, TOPIC, TOPIC_ID)
        assert info is not None
        assert info.is_deleted
        assert len(rig.data_keys()) == 6, "readers have their grace time"
        assert rig.purged == []
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        assert rig.memory.keys() == []
        folder = topic_folder(TOPIC, TOPIC_ID)
        assert rig.memory.count_requests("abort_uploads", folder), "what is half uploaded goes too"


@asynchronous
async def test_one_of_several_brokers_purges_and_who_takes_over_goes_on(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.is_caretaker = False
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        assert len(rig.data_keys()) == 6, "it is another one's"
        rig.is_caretaker = True
        rig.manager.caretaker_changed()
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        rig.is_caretaker = False
        rig.manager.caretaker_changed()
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        assert len(rig.data_keys()) == 6, "it is another one's again"
        rig.is_caretaker = True
        rig.manager.caretaker_changed()
        await rig.manager.run_once()
        assert rig.memory.keys() == [], "the tombstone said that it had begun"


@asynchronous
async def test_who_was_stopped_within_a_purge_deletes_nothing_more(tmp_path: Path) -> None:
    """The topic may have been tiered again meanwhile, after another broker's purge."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.manager.disable_topic(rig.topic_info)
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS)
        before = rig.memory.keys()
        objects = TopicObjects(rig.topic_info, rig.memory, may_delete=lambda: False)
        assert objects.delete_some(), "somebody else goes on"
        assert rig.memory.keys() == before


@asynchronous
async def test_a_topic_that_is_tiered_again_before_its_purge_began_keeps_its_archive(
    tmp_path: Path,
) -> None:
    """Its leader is another broker, which saw no tombstone."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.manager.disable_topic(rig.topic_info)
        rig.manager.keep_topic(TOPIC_ID)
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        assert len(rig.data_keys()) == 6


@asynchronous
async def test_a_purge_that_fails_is_known_with_its_topic_and_kind(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.memory.add_fault(Fault(operation="delete", error=AccessDenied, times=-1))
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        (state,) = rig.manager.failing
        assert state.failure is not None
        found = state.activity, state.subject, state.failure.kind
        assert found == ("purge", TOPIC, "AccessDenied")
        rig.memory.clear_faults()
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        assert rig.manager.failing == []


async def empty(rig: Rig, ask: Callable[[TopicInfo], None]) -> None:
    """A topic that had an archive has none; `ask` says so."""
    rig.produce_segments(3)
    await rig.settle()
    ask(rig.topic_info)
    await rig.manager.run_once()
    rig.pass_ms(GRACE_MS)
    await rig.manager.run_once()
    assert rig.memory.keys() == []


@pytest.mark.parametrize("name", ["00000000000000000030-1-{uuid}.log", "manifest.json"])
@asynchronous
async def test_what_comes_after_the_purge_goes_too_before_the_topic_is_forgotten(
    tmp_path: Path, name: str
) -> None:
    """An upload of a process that was killed may be on its way, in a proxy or in the store."""
    async with Rig(tmp_path) as rig:
        await empty(rig, rig.manager.delete_topic)
        folder = topic_folder(TOPIC, TOPIC_ID)
        rig.memory.put(f"{folder}0/{name.format(uuid=uuid.uuid4().hex)}", b"late")
        rig.pass_ms(2 * rig.tiering_config.copy_timeout_ms - 1)
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        assert rig.purged == [], "an upload may still come"
        rig.pass_ms(1)
        await rig.manager.run_once()
        assert rig.memory.keys() == []
        assert rig.purged == [rig.topic_info]


@asynchronous
async def test_a_topic_that_is_tiered_again_keeps_its_archive_when_late_uploads_are_due(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        await empty(rig, rig.manager.disable_topic)
        rig.manager.attach(rig.log, rig.topic_info, leader_epoch=rig.leader_epoch, is_new=True)
        rig.produce_segments(1)
        await rig.settle()
        archived = rig.memory.keys()
        assert archived
        rig.pass_ms(2 * rig.tiering_config.copy_timeout_ms)
        await rig.manager.run_once()
        assert rig.memory.keys() == archived


@asynchronous
async def test_an_interrupted_purge_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS)
        rig.memory.add_fault(
            Fault(operation="delete", error=TierUnavailable, moment=Timing.AFTER, times=1)
        )
        await rig.manager.run_once()
        assert 0 < len(rig.data_keys()) < 6, "it stopped in the middle"
        rig.attach = lambda: None  # type: ignore[method-assign]  # the topic is gone
        await rig.crash()
        await rig.manager.run_once()
        assert rig.memory.keys() == []


@asynchronous
async def test_a_copy_under_way_when_its_topic_is_deleted_leaves_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path, grace_ms=0) as rig:
        rig.produce_segments(1)
        gate = threading.Event()
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", gate=gate))
        running = asyncio.gather(rig.manager.run_once())
        while not rig.memory.count_requests("put", r"\.log$"):
            await asyncio.sleep(0.001)
        rig.manager.delete_topic(rig.topic_info)
        gate.set()
        await running
        rig.pass_ms(1)
        await rig.manager.run_once()
        assert rig.memory.keys() == []


@asynchronous
async def test_a_topic_s_objects_go_only_when_its_last_copy_has_ended(tmp_path: Path) -> None:
    """Else the end of the copy would lie in an empty folder, until that is looked at once more."""
    waits = asyncio.Event()
    wait_until_idle = PartitionTiering.wait_until_idle

    async def noted(self: PartitionTiering) -> None:
        waits.set()
        await wait_until_idle(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionTiering, "wait_until_idle", noted)
        async with Rig(tmp_path, grace_ms=0) as rig:
            rig.produce_segments(1)
            gate = threading.Event()
            rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", gate=gate))
            copying = asyncio.ensure_future(rig.manager.run_once())
            while not rig.memory.count_requests("put", r"\.meta$"):
                await asyncio.sleep(0.001)
            rig.manager.delete_topic(rig.topic_info)
            purging = asyncio.ensure_future(rig.manager.run_once())
            waiting = asyncio.ensure_future(waits.wait())
            await asyncio.wait({purging, waiting}, return_when=asyncio.FIRST_COMPLETED)
            is_done = purging.done()
            gate.set()
            waiting.cancel()
            await asyncio.gather(copying, purging)
            assert not is_done, "the copy was under way"
            assert rig.memory.keys() == []


@asynchronous
async def test_a_deleted_topic_is_not_revived_by_a_broker_that_missed_it(tmp_path: Path) -> None:
    async with Rig(tmp_path / "a") as one:
        one.manager.delete_topic(one.topic_info)
        await one.manager.run_once()
        async with Rig(tmp_path / "b", store=one.store) as other:
            other.produce_segments(1)
            await other.manager.run_once()
            assert other.data_keys() == []
