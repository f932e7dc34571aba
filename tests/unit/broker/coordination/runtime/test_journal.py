"""With replicas an answer leaves when what it tells of is below the high watermark."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.runtime.journal import Journal
from strandline.broker.coordination.transactions.transaction import (
    TransactionState,
    TransactionVersion,
)
from strandline.broker.coordination.transactions.verification import Confirmation
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import TopicPartition
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.marker import MarkerType
from tests.support.manual_clock import ManualClock
from tests.unit.broker.cluster.served import serving
from tests.unit.broker.coordination.coordinator_world import (
    MemoryPartition,
    World,
    commit_request,
    offset_in,
    play,
    until,
)
from tests.unit.broker.coordination.transactions import test_transaction_coordinator as transactions
from tests.unit.broker.coordination.transactions.test_transaction_coordinator import (
    TransactionWorld,
)
from tests.unit.storage.local.builders import batch
from tests.unit.storage.local.log_folders import open_dirs

A = TopicPartition("t", 0)
V1, V2 = TransactionVersion.V0, TransactionVersion.V2


def _hold(world: World) -> None:
    for partition in world.partitions.values():
        partition.hold()


def _release(world: World) -> None:
    for partition in world.partitions.values():
        partition.release()


async def _waits(answer: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Starts what has to wait, and lets it go as far as it can."""
    asking = asyncio.create_task(answer)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done()
    return asking


def test_a_commit_and_a_read_after_it_are_answered_when_the_commit_is_replicated() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.commit("g", commit_request(1))
        _hold(world)
        committing = await _waits(coordinator.commit("g", commit_request(2)))
        assert offset_in(coordinator, "g") == 2
        reading = await _waits(coordinator.describe("g"))
        of_all = await _waits(coordinator.read_groups(lambda group: group.group_id))
        _release(world)
        assert await committing == (ErrorCode.NONE,)
        await asyncio.gather(reading, of_all)

    play(scenario)


@pytest.mark.parametrize("version", [V1, V2])
def test_no_marker_and_no_answer_leaves_before_prepare_is_replicated(
    version: TransactionVersion,
) -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        producer = await transactions.begun(coordinator, A)
        _hold(world)
        ending = await _waits(coordinator.end("tx", producer, MarkerType.COMMIT, version))
        assert world.markers.written == []
        assert transactions.state_of(coordinator) is TransactionState.PREPARE_COMMIT
        _release(world)
        await ending
        assert [where for where, *_ in world.markers.written] == [A]
        assert transactions.state_of(coordinator) is TransactionState.COMPLETE_COMMIT

    transactions.play(scenario)


def test_a_new_producer_is_answered_when_its_identity_is_replicated() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        await transactions.begin_again(coordinator)
        _hold(world)
        beginning = await _waits(transactions.begin_again(coordinator))
        _release(world)
        await beginning

    transactions.play(scenario)


def test_a_request_that_is_cancelled_during_its_sync_waits_for_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forever(_: MemoryPartition) -> None:
        await asyncio.Event().wait()

    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        await transactions.begin_again(coordinator)
        monkeypatch.setattr(MemoryPartition, "flush", forever)
        _hold(world)
        beginning = await _waits(transactions.begin_again(coordinator))
        beginning.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert beginning.cancelled()

    transactions.play(scenario)


def test_a_timed_out_transaction_gets_its_markers_when_its_prepare_is_replicated() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        await transactions.begun(coordinator, A)
        _hold(world)
        world.clock.advance_ms(
            transactions.TIMEOUT_MS + transactions.CONFIG.timeout_check_interval_ms
        )
        await until(lambda: transactions.state_of(coordinator) is TransactionState.PREPARE_ABORT)
        assert world.markers.written == []
        _release(world)
        await until(lambda: world.markers.written)

    transactions.play(scenario)


def test_no_record_enters_a_partition_whose_join_may_still_be_lost() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        producer = await coordinator.init_producer("tx", timeout_ms=1000, expected=None)
        other = await transactions.begun(coordinator, A, name="other")
        _hold(world)
        for _ in range(2):
            code = coordinator.confirm("tx", producer, A, Confirmation.ADD)
            assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        _release(world)
        assert coordinator.confirm("tx", producer, A, Confirmation.ADD) is ErrorCode.NONE
        # What others write meanwhile keeps no record back.
        _hold(world)
        adding = await _waits(
            coordinator.add_partitions("other", other, {TopicPartition("t", 1)}, V2)
        )
        assert coordinator.confirm("tx", producer, A, Confirmation.LOOK) is ErrorCode.NONE
        _release(world)
        assert await adding is ErrorCode.NONE

    transactions.play(scenario)


@pytest.mark.parametrize("resigns", [True, False])
def test_a_wait_ends_with_the_leadership_and_after_its_time(resigns: bool) -> None:
    async def scenario(world: World) -> None:
        partition = MemoryPartition(0)
        journal = Journal(partition, "group", QuietLog(logging.getLogger(__name__), world.clock))  # type: ignore[arg-type]  # a fake
        partition.end_offset = 3
        partition.hold()
        partition.end_offset = 4
        waiting = asyncio.create_task(journal.settled())
        await asyncio.sleep(0)
        if resigns:
            journal.resign()
        with pytest.raises(CoordinatorFault) as refused:
            await waiting
        code = ErrorCode.NOT_COORDINATOR if resigns else ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert refused.value.error_code is code

    play(scenario)


@pytest.mark.parametrize("goes", [True, False])
def test_a_real_partition_wakes_who_waits_for_its_high_watermark(
    tmp_path: Path, goes: bool
) -> None:
    async def scenario() -> None:
        with ThreadPoolExecutor(1) as disk:
            dirs = open_dirs(tmp_path)
            partition = (await serving(dirs, disk, partitions=1)).partition("t", 0)
            assert partition is not None
            journal = Journal(
                partition, "group", QuietLog(logging.getLogger(__name__), ManualClock())
            )
            await journal.settled()
            # A record that no other replica has yet.
            partition.log.append(batch(), leader_epoch=0)
            waiting = await _waits(journal.settled())
            if goes:
                partition.gone()
                with pytest.raises(CoordinatorFault) as refused:
                    await waiting
                assert refused.value.error_code is ErrorCode.NOT_COORDINATOR
            else:
                partition.append(batch())
                await waiting
            dirs.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("leads_again", [True, False])
def test_who_resigned_writes_nothing_more_also_if_its_broker_leads_again(
    tmp_path: Path, leads_again: bool
) -> None:
    """What it knows is older than what another leader may have written meanwhile."""

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as disk:
            dirs = open_dirs(tmp_path)
            partition = (await serving(dirs, disk, partitions=1)).partition("t", 0)
            assert partition is not None
            journal = Journal(
                partition, "group", QuietLog(logging.getLogger(__name__), ManualClock())
            )
            journal.append(batch())
            partition.end_leading(2, 7)
            if leads_again:
                journal.resign()
                partition.begin_leading(1, 8)
            with pytest.raises(CoordinatorFault) as refused:
                journal.append(batch())
            assert refused.value.error_code is ErrorCode.NOT_COORDINATOR
            assert partition.log.end_offset == 1
            dirs.close()

    asyncio.run(scenario())
