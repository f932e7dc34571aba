"""The shell: records before answers, and what happens when the log does not play along."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.cluster.replicas.partition import PartitionGone
from strandline.broker.coordination.model.classic_messages import (
    CoordinatorFault,
    GroupState,
    LeavingMember,
    SyncRequest,
)
from strandline.broker.protocol.formats.metadata_records import RemoveTopicRecord
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.concurrency import turns
from strandline.storage.errors import (
    DiskError,
    InvalidProducerEpoch,
    InvalidTimestamp,
    MessageTooLarge,
    RecordsRejected,
)
from tests.unit.broker.coordination.coordinator_world import (
    TOPIC_ID,
    MemoryPartition,
    Running,
    World,
    commit_request,
    fault_of,
    offset_in,
    play,
    until,
    until_loaded,
)
from tests.unit.broker.coordination.group_trace import join_request


def test_nothing_is_created_for_those_who_only_look() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        assert coordinator.offsets_of("g") is None
        assert await coordinator.describe("g") is None
        assert coordinator.groups() == []
        assert await coordinator.delete("g") is ErrorCode.GROUP_ID_NOT_FOUND
        assert OFFSETS_TOPIC not in world.image.topics

    play(scenario)


def test_the_first_commit_creates_the_topic_with_the_partitions_asked_for() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        assert await coordinator.commit("g", commit_request()) == (ErrorCode.NONE,)
        topic = world.image.topics[OFFSETS_TOPIC]
        assert topic.partition_count == 2
        assert topic.properties["cleanup.policy"] == "compact"

    play(scenario)


def test_a_second_coordinator_loads_what_the_first_has_written() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as first:
            joined = await first.join("g", join_request())
            wanted = SyncRequest(
                member_id=joined.member_id,
                generation=1,
                assignments={joined.member_id: b"all"},
            )
            assert (await first.sync("g", wanted)).assignment == b"all"
            await first.commit("h", commit_request(5))
            await first.commit("h", commit_request(6))
        async with Running(world) as second:
            await until_loaded(second)
            assert offset_in(second, "h") == 6
            described = await second.describe("g")
            assert described is not None
            assert described.state is GroupState.STABLE
            assert described.members[0].assignment == b"all"
            (left,) = await second.leave("g", [LeavingMember(member_id=joined.member_id)])
            assert left.error_code is ErrorCode.NONE

    play(scenario)


def test_a_silent_member_is_missed() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            joined = await coordinator.join("g", join_request())
            await coordinator.sync("g", SyncRequest(member_id=joined.member_id, generation=1))
            world.clock.advance_ms(10_000)
            await until(lambda: coordinator.statistics().groups_by_state[GroupState.EMPTY] == 1)

    play(scenario)


def test_many_groups_that_fall_silent_together_leave_turns_of_the_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S_MAX", 0.0)
    group_count = 50

    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            for number in range(group_count):
                await coordinator.join(f"g{number}", join_request())

            def silent_count() -> int:
                return coordinator.statistics().groups_by_state[GroupState.EMPTY]

            world.clock.advance_ms(10_000)
            while silent_count() < group_count:
                count_before = silent_count()
                await asyncio.sleep(0)
                assert silent_count() - count_before <= 1

    play(scenario)


def test_old_offsets_are_looked_for_and_forgotten() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            await coordinator.commit("g", commit_request())
            world.clock.advance_ms(11 * 60_000)
            await until(lambda: not coordinator.statistics().offset_count)
            assert await coordinator.describe("g") is None
        async with Running(world) as coordinator:
            await until_loaded(coordinator)
            assert await coordinator.describe("g") is None

    play(scenario)


def test_a_look_for_old_offsets_leaves_turns_of_the_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S_MAX", 0.0)

    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            for number in range(20):
                await coordinator.commit(f"g{number}", commit_request())
            partitions = world.partitions.values()
            world.clock.advance_ms(11 * 60_000)
            while coordinator.statistics().offset_count:
                ends_before = [one.end_offset for one in partitions]
                await asyncio.sleep(0)
                ends = [one.end_offset for one in partitions]
                assert sum(a != b for a, b in zip(ends, ends_before, strict=True)) <= 1

    play(scenario)


def test_the_offsets_of_a_deleted_topic_are_forgotten_before_the_next_commit() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.commit("g", commit_request())
        world.publish(coordinator, RemoveTopicRecord(topic_id=TOPIC_ID))
        assert offset_in(coordinator, "g") is None

    play(scenario)


def test_offsets_of_a_deleted_topic_go_with_the_next_check_if_they_cannot_go_at_once() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            await coordinator.commit("g", commit_request())
            world.fail(DiskError("full"))
            world.publish(coordinator, RemoveTopicRecord(topic_id=TOPIC_ID))
            assert offset_in(coordinator, "g") == 5
            world.fail(None)
            world.clock.advance_ms(60_000)
            await until(lambda: offset_in(coordinator, "g") is None)

    play(scenario)


# --- while it loads --------------------------------------------------------------------------


@pytest.mark.parametrize("is_dead", [False, True])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_the_offsets_of_a_topic_that_was_deleted_while_its_groups_load_are_forgotten(
    is_dead: bool, is_made_again: bool
) -> None:
    async def scenario(world: World) -> None:
        await world.coordinator().commit("g", commit_request())
        before = world.image
        if is_dead:
            # The broker died between the deletion and forgetting.
            world.image = world.image.apply_entry([RemoveTopicRecord(topic_id=TOPIC_ID)])
        restarted = world.coordinator()
        assert fault_of(lambda: restarted.offsets_of("g")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if not is_dead:
            world.publish(restarted, RemoveTopicRecord(topic_id=TOPIC_ID))
            assert fault_of(restarted.groups) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if is_made_again:
            (topic,) = [t for t in before.topics.values() if t.topic_id == TOPIC_ID]
            replicas = tuple(p.replicas for p in topic.partitions)
            world.publish(restarted, *topic_records(topic.name, uuid4(), replicas, {}))
        running = asyncio.create_task(restarted.run())
        await until_loaded(restarted)
        assert offset_in(restarted, "g") is None
        running.cancel()

    play(scenario)


# --- when it cannot write --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (DiskError("full"), ErrorCode.NOT_COORDINATOR),
        (MessageTooLarge("too much"), ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (InvalidProducerEpoch("old"), ErrorCode.INVALID_PRODUCER_EPOCH),
        # As Kafka's CoordinatorOperationExceptionHelper maps what an append refuses.
        (InvalidTimestamp("tomorrow"), ErrorCode.INVALID_TIMESTAMP),
        (PartitionGone("deleted"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (RecordsRejected("no reason"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_commit_that_cannot_be_written_is_refused_and_not_seen(
    failure: Exception, code: ErrorCode
) -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.commit("g", commit_request(1))
        world.fail(failure)
        with pytest.raises(CoordinatorFault) as caught:
            await coordinator.commit("g", commit_request(2))
        assert caught.value.error_code is code
        assert offset_in(coordinator, "g") == 1

    play(scenario)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (DiskError("full"), ErrorCode.NOT_COORDINATOR),
        (MessageTooLarge("too much"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_group_that_cannot_be_written_never_was(failure: Exception, code: ErrorCode) -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        world.fail(failure)
        answer = await coordinator.join("g", join_request())
        assert answer.error_code is code
        assert await coordinator.describe("g") is None
        assert coordinator.statistics().parked_requests == 0

    play(scenario)


def test_members_are_told_that_their_assignment_was_not_written() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            joined = await coordinator.join("g", join_request())
            world.fail(DiskError("full"))
            synced = await coordinator.sync(
                "g", SyncRequest(member_id=joined.member_id, generation=1)
            )
            assert synced.error_code is ErrorCode.NOT_COORDINATOR

    play(scenario)


def test_a_caller_that_gives_up_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        waiting = asyncio.create_task(coordinator.join("g", join_request()))
        await until(lambda: coordinator.statistics().parked_requests)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert coordinator.statistics().parked_requests == 0

    play(scenario)


def test_groups_go_with_their_topic_and_begin_anew_with_another_one() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.commit("g", commit_request())
        offsets = world.image.topics[OFFSETS_TOPIC]
        world.publish(coordinator, RemoveTopicRecord(topic_id=offsets.topic_id))
        assert coordinator.statistics().loaded_partitions == 0
        assert offset_in(coordinator, "g") is None
        world.partitions = {0: MemoryPartition(0), 1: MemoryPartition(1)}
        await coordinator.commit("g", commit_request(7))
        assert offset_in(coordinator, "g") == 7

    play(scenario)
