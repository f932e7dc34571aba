"""The shell around KIP-848 groups: the log before the answer, restarts, clocks, searches."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest

from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.coordination.consumer import consumer_group
from strandline.broker.coordination.groups.group_coordinator import GroupCoordinator
from strandline.broker.coordination.model.classic_messages import (
    CoordinatorFault,
    GroupState,
    SyncRequest,
)
from strandline.broker.coordination.model.consumer_messages import (
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from strandline.broker.coordination.model.group_offsets import GroupOffsets
from strandline.broker.coordination.model.offset_messages import (
    CommitRequest,
    OffsetToCommit,
    OffsetToDelete,
)
from strandline.broker.coordination.model.pending_offsets import PendingOffsets
from strandline.broker.protocol.formats.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerTopicPartitions,
    encode_assignment,
)
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import DiskError, MessageTooLarge
from tests.unit.broker.coordination.coordinator_world import (
    TOPIC_ID,
    Running,
    World,
    commit_request,
    offset_in,
    play,
    until,
    until_loaded,
)
from tests.unit.broker.coordination.group_trace import join_request


def joining(
    member_id: str = "m", *, topics: tuple[str, ...] | None = ("t",), regex: str | None = None
) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        topic_names=topics,
        topic_regex=regex,
        owned={},
    )


def beat(member_id: str, epoch: int) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(group_id="g", member_id=member_id, member_epoch=epoch)


async def read(coordinator: GroupCoordinator, member_id: str, epoch: int) -> int:
    """The offset that a member fetches."""

    def look(offsets: GroupOffsets, _pending: PendingOffsets) -> int:
        found = offsets.get("t", 0)
        assert found is not None
        return found.offset

    return await coordinator.read_offsets("g", look, member_id=member_id, member_epoch=epoch)


def commit(epoch: int, member_id: str = "m", *, version: int = 9) -> CommitRequest:
    return CommitRequest(
        member_id=member_id,
        generation=epoch,
        offsets=(OffsetToCommit("t", 0, 5),),
        knows_member_epochs=version >= 9,
    )


async def refusal(coordinator: GroupCoordinator, request: ConsumerHeartbeat) -> ErrorCode:
    with pytest.raises(CoordinatorFault) as caught:
        await coordinator.consumer_heartbeat(request)
    return caught.value.error_code


def has_everything(answer: HeartbeatAnswer) -> bool:
    return answer.assignment == {TOPIC_ID: frozenset({0})}


def test_a_group_and_its_member_outlive_the_coordinator() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as first:
            answer = await first.consumer_heartbeat(joining())
            assert answer.member_epoch == 1
            assert has_everything(answer)
            assert await first.commit("g", commit(1)) == (ErrorCode.NONE,)
        async with Running(world) as second:
            await until_loaded(second)
            assert offset_in(second, "g") == 5
            assert (await second.consumer_heartbeat(beat("m", 1))).member_epoch == 1
            described = await second.describe_consumers("g")
            assert described.state == "Stable"
            assert described.assignor == "uniform"
            assert [member.member_id for member in described.members] == ["m"]

    play(scenario)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (DiskError("full"), ErrorCode.NOT_COORDINATOR),
        (MessageTooLarge("large"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_cannot_be_written_has_not_happened(failure: Exception, code: ErrorCode) -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        assert has_everything(await coordinator.consumer_heartbeat(joining("a")))
        world.fail(failure)
        assert await refusal(coordinator, joining("b")) is code
        leaving = ConsumerHeartbeat(group_id="g", member_id="a", member_epoch=-1)
        assert await refusal(coordinator, leaving) is code
        world.fail(None)
        members = (await coordinator.describe_consumers("g")).members
        assert [member.member_id for member in members] == ["a"]
        assert (await coordinator.consumer_heartbeat(beat("a", 1))).member_epoch == 1

    play(scenario)


def test_a_silent_member_is_fenced_also_when_it_cannot_be_written_at_first() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            await coordinator.consumer_heartbeat(joining())
            world.fail(DiskError("full"))
            world.clock.advance_ms(45_000)
            await asyncio.sleep(0.05)
            assert (await coordinator.describe_consumers("g")).members
            world.fail(None)
            world.clock.advance_ms(1_000)
            await until(lambda: coordinator.groups()[0].state is GroupState.EMPTY)
            assert await refusal(coordinator, beat("m", 1)) is ErrorCode.UNKNOWN_MEMBER_ID

    play(scenario)


def test_very_many_silent_members_are_fenced_in_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_group, "FENCED_AT_ONCE_MAX", 3)

    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            for number in range(10):
                await coordinator.consumer_heartbeat(joining(f"m{number}"))
            world.clock.advance_ms(45_000)
            await until(lambda: coordinator.groups()[0].state is GroupState.EMPTY)
            # Ten joins, and four times some were fenced.
            assert (await coordinator.describe_consumers("g")).epoch == 14

    play(scenario)


def test_very_many_silent_members_that_cannot_be_fenced_keep_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_group, "FENCED_AT_ONCE_MAX", 3)

    async def scenario(world: World) -> None:
        attempts = itertools.count()

        def fail(_: memoryview, *, origin: object) -> None:
            # Ends a loop that lets nobody else run.
            assert next(attempts) < 100, origin
            raise DiskError("full")

        async with Running(world) as coordinator:
            for number in range(10):
                await coordinator.consumer_heartbeat(joining(f"m{number}"))
            with monkeypatch.context() as full_disk:
                for partition in world.partitions.values():
                    full_disk.setattr(partition, "append", fail)
                world.clock.advance_ms(45_000)
                await asyncio.sleep(0.05)
                # The clock stands still: they were tried once.
                assert next(attempts) == 1
            world.clock.advance_ms(1_000)
            await until(lambda: coordinator.groups()[0].state is GroupState.EMPTY)

    play(scenario)


def test_a_request_that_is_refused_creates_no_topic() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        assert await refusal(coordinator, joining(topics=None)) is ErrorCode.INVALID_REQUEST
        assert OFFSETS_TOPIC not in world.image.topics

    play(scenario)


def test_a_loading_group_is_not_served() -> None:
    async def scenario(world: World) -> None:
        await world.coordinator().consumer_heartbeat(joining())
        restarted = world.coordinator()
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await refusal(restarted, beat("m", 1)) is loading
        assert await refusal(restarted, joining()) is loading

    play(scenario)


def test_members_commit_and_fetch_in_their_epoch() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.consumer_heartbeat(joining())
        assert await coordinator.commit("g", commit(0)) == (ErrorCode.STALE_MEMBER_EPOCH,)
        assert await coordinator.commit("g", commit(1, "x")) == (ErrorCode.UNKNOWN_MEMBER_ID,)
        assert await coordinator.commit("g", commit_request()) == (ErrorCode.UNKNOWN_MEMBER_ID,)
        old = commit(1, version=8)
        assert await coordinator.commit("g", old) == (ErrorCode.UNSUPPORTED_VERSION,)
        assert await coordinator.commit("g", commit(1)) == (ErrorCode.NONE,)
        assert offset_in(coordinator, "g") == 5
        assert await read(coordinator, "m", 1) == 5
        for member_id, epoch, code in (
            ("m", 2, ErrorCode.STALE_MEMBER_EPOCH),
            ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            with pytest.raises(CoordinatorFault) as caught:
                await read(coordinator, member_id, epoch)
            assert caught.value.error_code is code

    play(scenario)


def test_offsets_that_members_read_are_kept_and_those_of_an_empty_group_expire() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            await coordinator.consumer_heartbeat(joining())
            await coordinator.commit("g", commit(1))
            deletion = await coordinator.delete_offsets("g", [OffsetToDelete("t", 0)])
            assert deletion.error_codes == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)
            for _ in range(20):
                world.clock.advance_ms(40_000)
                await coordinator.consumer_heartbeat(beat("m", 1))
                await asyncio.sleep(0.01)
            assert coordinator.statistics().offset_count == 1
            leaving = ConsumerHeartbeat(group_id="g", member_id="m", member_epoch=-1)
            await coordinator.consumer_heartbeat(leaving)
            world.clock.advance_ms(60_000)
            await until(lambda: not coordinator.groups())
        async with Running(world) as coordinator:
            await until_loaded(coordinator)
            assert coordinator.groups() == []

    play(scenario)


def test_only_a_group_without_members_is_deleted() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.consumer_heartbeat(joining())
        await coordinator.commit("g", commit(1))
        assert await coordinator.delete("g") is ErrorCode.NON_EMPTY_GROUP
        leaving = ConsumerHeartbeat(group_id="g", member_id="m", member_epoch=-1)
        await coordinator.consumer_heartbeat(leaving)
        assert await coordinator.delete("g") is ErrorCode.NONE
        assert coordinator.groups() == []
        assert coordinator.offsets_of("g") is None

    play(scenario)


def test_topics_of_a_regular_expression_are_found_off_the_loop() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        answer = await coordinator.consumer_heartbeat(joining(topics=(), regex="t+"))
        assert answer.assignment == {}
        while not answer.assignment:
            await asyncio.sleep(0.005)
            answer = await coordinator.consumer_heartbeat(beat("m", answer.member_epoch))
        assert has_everything(answer)

    play(scenario)


def test_topics_that_there_was_no_thread_to_look_for_are_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            answer = await coordinator.consumer_heartbeat(joining(topics=(), regex="t+"))
        world.clock.advance_ms(consumer_group.REGEX_REFRESH_MIN_MS + 1)
        while not answer.assignment:
            await asyncio.sleep(0.005)
            answer = await coordinator.consumer_heartbeat(beat("m", answer.member_epoch))
        assert has_everything(answer)

    play(scenario)


def test_a_simple_group_and_an_empty_one_of_the_other_kind_are_taken_over() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.commit("g", commit_request(7))
        await coordinator.consumer_heartbeat(joining())
        assert offset_in(coordinator, "g") == 7
        leaving = ConsumerHeartbeat(group_id="g", member_id="m", member_epoch=-1)
        await coordinator.consumer_heartbeat(leaving)
        async with Running(world) as running:
            await until_loaded(running)
            joined = await running.join("g", join_request())
            assert joined.error_code is ErrorCode.NONE
            assert offset_in(running, "g") == 7
            with pytest.raises(CoordinatorFault):
                await running.describe_consumers("g")

    play(scenario)


def test_members_that_wait_in_a_classic_group_are_told_when_it_goes_over() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            joined = await coordinator.join("g", join_request())
            await coordinator.sync(
                "g",
                SyncRequest(
                    member_id=joined.member_id,
                    generation=1,
                    assignments={joined.member_id: all_of_t()},
                ),
            )
            # Another one joins, and waits for the first.
            waiting = asyncio.ensure_future(coordinator.join("g", join_request()))
            await asyncio.sleep(0.01)
            await coordinator.consumer_heartbeat(joining("n"))
            assert (await waiting).error_code is ErrorCode.REBALANCE_IN_PROGRESS
            code = await coordinator.heartbeat(
                "g", member_id=joined.member_id, group_instance_id=None, generation=1
            )
            assert code is ErrorCode.REBALANCE_IN_PROGRESS
            leaving = ConsumerHeartbeat(group_id="g", member_id="n", member_epoch=-1)
            await coordinator.consumer_heartbeat(leaving)
            described = await coordinator.describe("g")
            assert described is not None
            assert described.state is GroupState.PREPARING_REBALANCE

    play(scenario)


def all_of_t() -> bytes:
    return encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=[ConsumerTopicPartitions(topic="t", partitions=[0])]
        )
    )


def test_a_topic_that_is_created_later_is_assigned() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.consumer_heartbeat(joining(topics=("t", "u")))
        created = topic_records("u", TOPIC_ID.__class__(int=9), ((1,),), {})
        world.image = world.image.apply_entry(created)
        answer = await coordinator.consumer_heartbeat(beat("m", 1))
        assert answer.member_epoch == 2
        assert answer.assignment is not None
        assert len(answer.assignment) == 2

    play(scenario)
