"""Tells the controllers in which log folder each replica of this broker is (KIP-858).

    the metadata change, or a partition moved ─► replicas elsewhere than they say ─► pending
    after 100 ms, so that many go together    ─► AssignReplicasToDirs             ─► done

A controller chooses the leader of a partition whose folder failed by that. It knows the folder of a
broker that has one; of several, the broker chooses, so it tells (Kafka's AssignmentsManager).

A disk that is full takes its folder offline in Kafka. Here its reads go on, and what others have in
sync is told as lost, which lets them lead it; once there is room, the folder is told again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.metadata.image import (
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.peers.errors import PeerError
from strandline.broker.protocol.formats.metadata_records import LOST_DIRECTORY
from strandline.broker.protocol.messages.assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import wait_within
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.model import TopicId
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# metadata.version 3.7-IV2: controllers before it keep no folders.
FOLDERS_SINCE: Final = 17
# AssignReplicasToDirsRequest.MAX_ASSIGNMENTS_PER_REQUEST.
ASSIGNMENTS_MAX: Final = 2250
# AssignmentsManager.STANDARD_BACKOFF; its first one is waited before each request.
RETRIES: Final = Backoff(0.1, 10.0, jitter=0.02)
# A disk may have answered late, and a partition may have moved.
CHECK_S: Final = 30.0

# A folder is full for so long after it refused an append: longer than the time between two looks.
FULL_S: Final = 2 * CHECK_S

# A topic and the number of a partition.
Replica = tuple[TopicId, int]


def told_when_full(folder: uuid.UUID, partition: PartitionImage, node_id: int) -> uuid.UUID:
    """Returns where the controllers are told that a replica in a full folder is.

    If nobody else is in sync it stays: its records are read here, at least.
    """
    return LOST_DIRECTORY if set(partition.isr) - {node_id} else folder


class FolderAssignments:
    """The replicas whose folder the controllers do not know. Used on the event loop only."""

    def __init__(
        self,
        channel: ControllerChannel,
        view: MetadataView,
        clock: Clock,
        *,
        node_id: int,
        broker_epoch: Callable[[], int],
        folder_of: Callable[[TopicId, int], uuid.UUID | None],
    ) -> None:
        """`folder_of` returns the id of the folder of a replica, None if it has none, or a failed
        one.
        """
        self._channel = channel
        self._view = view
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._folder_of = folder_of
        self._quiet_log = QuietLog(log, clock)
        # Bounded by the partitions of this broker.
        self._pending: dict[Replica, uuid.UUID] = {}
        self._woken = asyncio.Event()
        self._is_due = False
        self._failures = 0

    def __repr__(self) -> str:
        return f"<FolderAssignments pending={len(self._pending)} failures={self._failures}>"

    async def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Looks at the replicas of the topics that changed, after they were made."""
        changed: Iterable[TopicImage] = delta.topics.changed()
        if not _keeps_folders(delta.before) and _keeps_folders(image):
            changed = image.topics.values()
        async for topic in in_turns(changed):
            self._note(topic)

    def check(self) -> None:
        """Looks at all replicas soon: some were moved."""
        self._is_due = True
        self._woken.set()

    async def run(self) -> None:
        """Sends what is pending, for ever."""
        while True:
            await wait_within(self._woken, CHECK_S)
            is_due, self._is_due = self._is_due or not self._woken.is_set(), False
            self._woken.clear()
            if is_due:
                async for topic in in_turns(self._view.image.topics.values()):
                    self._note(topic)
            while self._pending:
                await asyncio.sleep(RETRIES.wait_s(self._failures + 1))
                if await self._send(self._next()):
                    self._failures = 0
                else:
                    self._failures += 1

    def _note(self, topic: TopicImage) -> None:
        """Notes the replicas of a topic that lie elsewhere than the metadata say."""
        if not _keeps_folders(self._view.image):
            return
        for partition in topic.partitions:
            if self._node_id not in partition.replicas:
                continue
            folder = self._folder_of(topic.topic_id, partition.partition)
            replica = topic.topic_id, partition.partition
            known = dict(zip(partition.replicas, partition.directories, strict=False))
            if folder is None or known.get(self._node_id) == folder:
                self._pending.pop(replica, None)
            else:
                self._pending[replica] = folder
                self._woken.set()

    def _next(self) -> Mapping[Replica, uuid.UUID]:
        """Takes what is sent next; drops replicas that this broker has no more."""
        image = self._view.image
        for replica in [one for one in self._pending if not self._is_valid(image, one)]:
            del self._pending[replica]
        return dict(islice(self._pending.items(), ASSIGNMENTS_MAX))

    def _is_valid(self, image: MetadataImage, replica: Replica) -> bool:
        topic_id, number = replica
        topic = image.topics_by_id.get(topic_id)
        return (
            topic is not None
            and number < topic.partition_count
            and self._node_id in topic.partitions[number].replicas
        )

    async def _send(self, sent: Mapping[Replica, uuid.UUID]) -> bool:
        """Returns whether the controller took each of them; the others stay pending."""
        if not sent:
            return True
        request = AssignReplicasToDirsRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            directories=directories_of(sent),
        )
        try:
            answer = await self._channel.ask(
                request, AssignReplicasToDirsResponse, code_of=lambda found: found.error_code
            )
        except PeerError as error:
            self._say(len(sent), str(error))
            return False
        if answer.error_code:
            self._say(len(sent), ErrorCode(answer.error_code).name)
            return False
        for replica in taken(answer):
            if self._pending.get(replica) == sent.get(replica):
                self._pending.pop(replica, None)
        refused = [one for one in sent if self._pending.get(one) == sent[one]]
        if refused:
            self._say(len(refused), _first_code(answer).name)
        return not refused

    def _say(self, count: int, reason: str) -> None:
        fields = {"replicas": count, "reason": reason}
        self._quiet_log.say(
            logging.WARNING, "the controller does not note log folders", reason, fields
        )


def directories_of(replicas: Mapping[Replica, uuid.UUID]) -> list[AssignedDirectory]:
    """Returns the replicas by folder and topic, as the request has them."""
    by_folder: dict[uuid.UUID, dict[TopicId, list[int]]] = {}
    for (topic_id, number), folder in replicas.items():
        by_folder.setdefault(folder, {}).setdefault(topic_id, []).append(number)
    return [
        AssignedDirectory(
            id=folder,
            topics=[
                AssignedTopic(
                    topic_id=topic_id,
                    partitions=[AssignedPartition(partition_index=one) for one in numbers],
                )
                for topic_id, numbers in topics.items()
            ],
        )
        for folder, topics in by_folder.items()
    ]


def taken(answer: AssignReplicasToDirsResponse) -> Iterable[Replica]:
    """Yields the replicas whose folder the controller has noted."""
    for directory in answer.directories:
        for topic in directory.topics:
            for one in topic.partitions:
                if not one.error_code:
                    yield topic.topic_id, one.partition_index


def _first_code(answer: AssignReplicasToDirsResponse) -> ErrorCode:
    codes = (
        one.error_code
        for directory in answer.directories
        for topic in directory.topics
        for one in topic.partitions
        if one.error_code
    )
    return ErrorCode(next(codes, ErrorCode.UNKNOWN_SERVER_ERROR))


def _keeps_folders(image: MetadataImage) -> bool:
    return image.finalized_level("metadata.version") >= FOLDERS_SINCE
