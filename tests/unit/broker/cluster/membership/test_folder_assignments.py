"""A broker tells in which of its log folders its replicas are: port of AssignmentsManagerTest."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence

import pytest

from strandline.broker.cluster.membership import folder_assignments
from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.membership.folder_assignments import (
    FolderAssignments,
    directories_of,
    told_when_full,
)
from strandline.broker.cluster.membership.quorum import Quorum
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.peers.peer import connect_by
from strandline.broker.peers.security import PeerSecurity
from strandline.broker.protocol.formats.metadata_records import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from strandline.broker.protocol.messages.assign_replicas_to_dirs import (
    AssignedDirectoryResult,
    AssignedPartitionResult,
    AssignedTopicResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import SystemClock
from tests.support.fake_controller import FakeController

CLOCK = SystemClock()
WAIT_S = 30.0
NODE, OTHER, EPOCH = 9, 1, 1000
ONE, TWO = uuid.UUID(int=1001), uuid.UUID(int=1002)
TOPIC = uuid.UUID(int=500)
KEEPS_FOLDERS = FeatureLevelRecord(name="metadata.version", feature_level=25)

Told = dict[tuple[uuid.UUID, int], uuid.UUID]


class World:
    """A broker with replicas in folders, and the metadata that it follows."""

    def __init__(self, controller: FakeController) -> None:
        quorum = Quorum([controller.address])
        quorum.note(1, 5, controller.address)
        connect = connect_by(PeerSecurity(listener="C"), client_id="b", clock=CLOCK)
        self.view = MetadataView(MetadataImage())
        self.folders: Told = {}
        self.assignments = FolderAssignments(
            ControllerChannel(quorum, connect, CLOCK, request_s_max=WAIT_S),
            self.view,
            CLOCK,
            node_id=NODE,
            broker_epoch=lambda: EPOCH,
            folder_of=lambda topic_id, number: self.folders.get((topic_id, number)),
        )

    async def publish(self, *records: MetadataRecord) -> None:
        delta = MetadataDelta(self.view.image)
        delta.apply(list(records))
        delta.version = self.view.image.version + 1
        await self.view.take_over(delta.image(), delta)

    async def make(self, count: int, *, folder: uuid.UUID = ONE) -> None:
        """A topic, whose replicas the broker has put into a folder."""
        self.folders |= {(TOPIC, number): folder for number in range(count)}
        await self.publish(KEEPS_FOLDERS, *topic(count))


def topic(count: int, directory: uuid.UUID = UNASSIGNED_DIRECTORY) -> list[MetadataRecord]:
    return [
        TopicRecord(name="orders", topic_id=TOPIC),
        *(
            PartitionRecord(
                partition_id=number,
                topic_id=TOPIC,
                replicas=[NODE],
                isr=[NODE],
                removing_replicas=[],
                adding_replicas=[],
                leader=NODE,
                leader_epoch=0,
                partition_epoch=0,
                directories=[directory],
            )
            for number in range(count)
        ),
    ]


def taken(request: AssignReplicasToDirsRequest, *refused: int) -> AssignReplicasToDirsResponse:
    """What a controller answers that refuses some partitions, by their numbers."""
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return AssignReplicasToDirsResponse(
        directories=[
            AssignedDirectoryResult(
                id=directory.id,
                topics=[
                    AssignedTopicResult(
                        topic_id=one.topic_id,
                        partitions=[
                            AssignedPartitionResult(
                                partition_index=number.partition_index,
                                error_code=code if number.partition_index in refused else 0,
                            )
                            for number in one.partitions
                        ],
                    )
                    for one in directory.topics
                ],
            )
            for directory in request.directories
        ]
    )


def told(request: AssignReplicasToDirsRequest) -> Told:
    assert (request.broker_id, request.broker_epoch) == (NODE, EPOCH)
    return {
        (one.topic_id, number.partition_index): directory.id
        for directory in request.directories
        for one in directory.topics
        for number in one.partitions
    }


def assigning(
    work: Callable[[World, FakeController], Awaitable[None]],
    *answers: Callable[[AssignReplicasToDirsRequest], AssignReplicasToDirsResponse],
) -> None:
    """Runs `work`; the controller gives these answers, and then takes all."""
    left = list(answers)

    def answer(request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        return (left.pop(0) if left else taken)(request)

    async def run() -> None:
        async with FakeController({ApiKey.ASSIGN_REPLICAS_TO_DIRS: answer}) as controller:
            world = World(controller)
            await world.view.publish_to(world.assignments.follow)
            running = asyncio.ensure_future(world.assignments.run())
            try:
                async with asyncio.timeout(WAIT_S):
                    await work(world, controller)
            finally:
                running.cancel()
                await asyncio.wait((running,))

    asyncio.run(run())


async def requests(controller: FakeController, count: int) -> list[Told]:
    """The first requests that came, and no more than those so far."""
    while len(controller.requests) < count:
        await asyncio.sleep(0.005)
    found: Sequence[AssignReplicasToDirsRequest] = controller.of(AssignReplicasToDirsRequest)
    assert len(found) == count
    return [told(one) for one in found]


def all_in(folder: uuid.UUID, *numbers: int) -> Told:
    return {(TOPIC, number): folder for number in numbers}


def test_replicas_whose_folder_nobody_knows_are_told_together_once() -> None:
    async def work(world: World, controller: FakeController) -> None:
        await world.make(3)
        assert await requests(controller, 1) == [all_in(ONE, 0, 1, 2)]
        await world.publish(
            *(
                PartitionChangeRecord(partition_id=number, topic_id=TOPIC, directories=[ONE])
                for number in range(3)
            )
        )
        world.assignments.check()
        await asyncio.sleep(0.3)
        assert len(controller.requests) == 1

    assigning(work)


def test_a_replica_that_moved_is_told_again() -> None:
    async def work(world: World, controller: FakeController) -> None:
        world.folders |= all_in(ONE, 0, 1)
        await world.publish(KEEPS_FOLDERS, *topic(2, directory=ONE))
        world.folders[TOPIC, 1] = TWO
        world.assignments.check()
        assert await requests(controller, 1) == [all_in(TWO, 1)]

    assigning(work)


@pytest.mark.parametrize(
    "code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_CONTROLLER]
)
def test_a_request_that_failed_is_sent_again(code: ErrorCode) -> None:
    def refuse(_: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        return AssignReplicasToDirsResponse(error_code=code)

    async def work(world: World, controller: FakeController) -> None:
        await world.make(1)
        if code is ErrorCode.NOT_CONTROLLER:
            await until_doubted(world)
        assert await requests(controller, 2) == [all_in(ONE, 0)] * 2

    async def until_doubted(world: World) -> None:
        quorum = world.assignments._channel._quorum  # what the feed does in a broker
        active = quorum.active
        assert active is not None
        while quorum.active is not None:
            await asyncio.sleep(0.001)
        quorum.note(active.node_id, active.epoch, active.address)

    assigning(work, refuse)


def test_of_a_request_only_what_was_refused_is_sent_again() -> None:
    async def work(world: World, controller: FakeController) -> None:
        await world.make(2)
        assert await requests(controller, 2) == [all_in(ONE, 0, 1), all_in(ONE, 1)]

    assigning(work, lambda request: taken(request, 1))


def test_an_answer_about_others_is_none() -> None:
    def of_another(_: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        other = AssignedTopicResult(
            topic_id=uuid.UUID(int=77), partitions=[AssignedPartitionResult(partition_index=0)]
        )
        return AssignReplicasToDirsResponse(
            directories=[AssignedDirectoryResult(id=ONE, topics=[other])]
        )

    async def work(world: World, controller: FakeController) -> None:
        await world.make(1)
        assert await requests(controller, 2) == [all_in(ONE, 0)] * 2

    assigning(work, of_another)


@pytest.mark.parametrize(
    "record",
    [
        RemoveTopicRecord(topic_id=TOPIC),
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC, replicas=[OTHER], directories=[TWO]),
    ],
)
def test_a_replica_that_left_before_it_was_told_is_not_told(record: MetadataRecord) -> None:
    async def work(world: World, controller: FakeController) -> None:
        await world.make(1)
        await world.publish(record)
        await asyncio.sleep(0.3)
        assert controller.requests == []

    assigning(work)


def test_nothing_is_told_where_the_metadata_keep_no_folders_and_all_when_they_begin_to() -> None:
    async def work(world: World, controller: FakeController) -> None:
        world.folders |= all_in(ONE, 0, 1)
        # 3.7-IV1.
        await world.publish(
            FeatureLevelRecord(name="metadata.version", feature_level=16), *topic(2)
        )
        world.assignments.check()
        await asyncio.sleep(0.3)
        assert controller.requests == []
        await world.publish(KEEPS_FOLDERS)
        assert await requests(controller, 1) == [all_in(ONE, 0, 1)]

    assigning(work)


def test_a_replica_without_a_folder_waits_until_it_has_one() -> None:
    async def work(world: World, controller: FakeController) -> None:
        await world.publish(KEEPS_FOLDERS, *topic(2))
        world.folders[TOPIC, 1] = TWO
        world.assignments.check()
        assert await requests(controller, 1) == [all_in(TWO, 1)]

    assigning(work)


def test_no_request_has_more_than_kafka_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder_assignments.ASSIGNMENTS_MAX == 2250
    monkeypatch.setattr(folder_assignments, "ASSIGNMENTS_MAX", 2)

    async def work(world: World, controller: FakeController) -> None:
        await world.make(5)
        found = await requests(controller, 3)
        assert [len(one) for one in found] == [2, 2, 1]
        assert found[0] | found[1] | found[2] == all_in(ONE, *range(5))

    assigning(work)


def test_a_request_has_its_replicas_by_folder_and_topic() -> None:
    second = uuid.UUID(int=501)
    replicas = {(TOPIC, 1): ONE, (TOPIC, 2): TWO, (second, 1): ONE, (TOPIC, 3): ONE}
    shape = [
        (one.id, [(each.topic_id, [p.partition_index for p in each.partitions])
                  for each in one.topics])
        for one in directories_of(replicas)
    ]  # fmt: skip
    assert shape == [(ONE, [(TOPIC, [1, 3]), (second, [1])]), (TWO, [(TOPIC, [2])])]


def test_what_is_in_a_full_folder_is_told_as_lost_if_another_replica_is_in_sync() -> None:
    def told(*isr: int) -> uuid.UUID:
        (record,) = [one for one in topic(1) if isinstance(one, PartitionRecord)]
        delta = MetadataDelta(MetadataImage())
        both = record.replaced(
            replicas=[NODE, OTHER], isr=list(isr), leader=isr[0], directories=[ONE, TWO]
        )
        delta.apply([*topic(0), both])
        partition = delta.image().topics_by_id[TOPIC].partitions[0]
        return told_when_full(ONE, partition, NODE)

    assert told(NODE, OTHER) == LOST_DIRECTORY
    # Another one leads meanwhile.
    assert told(OTHER) == LOST_DIRECTORY
    # Nobody else can lead it: it is read here.
    assert told(NODE) == ONE
