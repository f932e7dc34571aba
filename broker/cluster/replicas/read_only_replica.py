"""The controller of a read-only replica: the origin's metadata, read from its bucket.

    bucket                                        this broker
    metadata/  mirror of the origin's log   --->  image: its tiered topics, led by this node; ACLs
    topics/    manifests                    --->  logs that end where the archives end
                                            plus  __consumer_offsets of this broker's own groups

The replica polls the bucket every few seconds and follows created and deleted topics; a partition
ends where its archive ended at the last poll. The replica writes nothing to the bucket and allows
changes to groups only: others are refused with POLICY_VIOLATION, which no client retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

from strandline.broker.cluster.metadata.active_controller import Decisions
from strandline.broker.cluster.metadata.controller_messages import (
    ControllerRequest,
    CreateTopics,
    Outcome,
    RaiseLeaderEpochs,
    ResultT,
)
from strandline.broker.cluster.metadata.image import (
    MetadataDelta,
    MetadataImage,
    TopicImage,
)
from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.cluster.replicas.tiers import is_tiered
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import ReadOnlyReplica, StorageError

REFUSAL = str(ReadOnlyReplica())


class ReplicaRefuses(StorageError):
    """A change that a replica refuses, where no `Outcome` can carry the error."""

    kafka_code = ErrorCode.POLICY_VIOLATION


class FollowingController:
    """Follows the origin: its image, merged with the internal topics of this broker.

    Decides on these topics alone; a `Controller` for the handlers.
    """

    def __init__(
        self,
        origin: MetadataLog,
        own: MetadataLog,
        decisions: Decisions,
        *,
        node_id: NodeId,
        executor: Executor,
    ) -> None:
        """`origin` is read from the bucket, never written; `own` is on this disk."""
        self._origin = origin
        self._own = own
        self._decisions = decisions
        self._node_id = node_id
        self._executor = executor
        self._changing = asyncio.Lock()
        # What the image was merged from.
        self._merged = MetadataImage(), MetadataImage()
        self.view = MetadataView(self._merge(MetadataImage()).image())

    @property
    def origin_version(self) -> int:
        """The last entry of the origin's metadata that was read from its mirror."""
        return self._origin.image.version

    async def ask(self, request: ControllerRequest[ResultT]) -> Sequence[ResultT]:
        """Carries out changes to internal topics and refuses all others.

        The leader epochs are the origin's: only missing partitions are created. Raises StorageError
        if the log of this broker cannot be written, or if no result can say that it is refused.
        """
        async with self._changing:
            if isinstance(request, RaiseLeaderEpochs):
                await self._take_over_both()
                return ()
            decision = self._decisions[type(request)](self.view.image, request)
            if not decision.records:
                return decision.results
            if not _creates_internal_topics(request):
                return tuple(map(_refused, decision.results))
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._own.append, decision.records)
            await self._take_over_both()
            return decision.results

    async def refresh(self) -> None:
        """Reads the origin's changes from the bucket. Raises StorageError if it cannot be read."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._origin.catch_up)
        async with self._changing:
            await self._take_over_both()

    async def _take_over_both(self) -> None:
        delta = self._merge(self.view.image)
        await self.view.take_over(delta.image(), delta)

    def _merge(self, before: MetadataImage) -> MetadataDelta:
        """Merges what changed: the tiered topics of the origin, led by this node, with the rules of
        who may do what, and internal topics of this broker's own.
        """
        origin_before, own_before = self._merged
        self._merged = self._origin.image, self._own.image
        origin = MetadataDelta(origin_before, self._origin.image)
        own = MetadataDelta(own_before, self._own.image)
        merged = MetadataDelta(before)
        merged.version, merged.cluster_id = origin.version, origin.cluster_id
        merged.feature_levels = origin.feature_levels
        merged.acls, merged.acl_ids = origin.acls, origin.acl_ids
        merged.brokers = own.brokers
        for topic in origin.topics.gone():
            merged.drop_topic(topic.topic_id)
        for topic in origin.topics.changed():
            if is_tiered(topic) and topic.name not in INTERNAL_TOPICS:
                merged.set_topic(led_by(topic, self._node_id))
            else:
                merged.drop_topic(topic.topic_id)
        for topic in own.topics.changed():
            merged.set_topic(topic)
        return merged


def led_by(topic: TopicImage, node_id: NodeId) -> TopicImage:
    """Returns the topic with all its partitions on that node."""
    nodes = (node_id,)
    partitions = (
        replace(partition, leader=node_id, replicas=nodes, isr=nodes)
        for partition in topic.partitions
    )
    return replace(topic, partitions=tuple(partitions))


def _creates_internal_topics(request: ControllerRequest[ResultT]) -> bool:
    return isinstance(request, CreateTopics) and all(
        topic.name in INTERNAL_TOPICS for topic in request.topics
    )


def _refused(result: ResultT) -> ResultT:
    """Raises ReplicaRefuses for a result that carries no error, such as producer ids."""
    if not isinstance(result, Outcome):
        raise ReplicaRefuses(REFUSAL)
    if result.error_code is not ErrorCode.NONE:
        return result
    return replace(result, error_code=ErrorCode.POLICY_VIOLATION, error_message=REFUSAL)
