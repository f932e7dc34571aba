"""OffsetCommit, OffsetFetch and OffsetDelete.

OffsetCommit  0-10  1 membership, 2 without the commit timestamps of 1, which are not used,
                    5 no retention time any more, 6 leader epoch, 7 static members, 8 flexible,
                    9 GROUP_ID_NOT_FOUND and KIP-848, 10 topics by id
OffsetFetch   0-10  1 a missing commit is no error any more,
                    2 everything at once, and a top-level error, 5 leader epoch, 6 flexible,
                    7 require stable, 8 several groups, 9 KIP-848, 10 topics by id
OffsetDelete  0

Commits to unknown partitions are refused. Committed offsets of a deleted topic are not returned,
also if another topic has its name now.

With `require_stable` a partition whose offset an open transaction commits is answered
UNSTABLE_OFFSET_COMMIT (KIP-447).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from strandline.broker.cluster.metadata.image import MetadataImage, TopicImage
from strandline.broker.coordination.groups.group_coordinator import GroupCoordinator
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.model.group_offsets import NO_OFFSET, GroupOffsets, is_of
from strandline.broker.coordination.model.offset_messages import (
    CommitRequest,
    OffsetDeletion,
    OffsetToCommit,
    OffsetToDelete,
)
from strandline.broker.coordination.model.pending_offsets import PendingOffsets
from strandline.broker.handlers.services.limits import refuse_flood, refuse_partition_flood
from strandline.broker.handlers.services.offsets_to_commit import (
    OffsetsToCommit,
    partition_fault,
)
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.formats.offsets_topic import OffsetCommitValue
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from strandline.broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode

FIRST_COMMIT_BY_TOPIC_ID = 10
FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND = 9
FIRST_COMMIT_WITH_MEMBER_EPOCH = 9
FIRST_FETCH_BY_TOPIC_ID = 10
FIRST_FETCH_OF_SEVERAL_GROUPS = 8
FIRST_FETCH_WITH_TOP_LEVEL_ERROR = 2
FIRST_FETCH_WITH_NOTHING_COMMITTED = 1


class GroupOffsetHandlers:
    """Handlers of the offset APIs: decode, ask the coordinator, encode."""

    def __init__(self, services: Services, coordinator: GroupCoordinator) -> None:
        self._metadata = services.metadata
        self._coordinator = coordinator

    # --- OffsetCommit ------------------------------------------------------------------------

    async def offset_commit(
        self, request: OffsetCommitRequest, context: RequestContext
    ) -> OffsetCommitResponse:
        refuse_partition_flood(topic.partitions for topic in request.topics)
        wanted_offsets = OffsetsToCommit.of(
            request.topics,
            self._metadata.image,
            by_id=context.api_version >= FIRST_COMMIT_BY_TOPIC_ID,
        )
        offsets = tuple(wanted_offsets.offsets.values())
        if offsets:
            wanted_offsets.note(await self._commit(request, offsets, context.api_version))
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=wanted.name,
                    topic_id=wanted.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(
                            partition_index=partition.partition_index,
                            error_code=wanted_offsets.codes[row, column],
                        )
                        for column, partition in enumerate(wanted.partitions)
                    ],
                )
                for row, wanted in enumerate(request.topics)
            ]
        )

    async def _commit(
        self, request: OffsetCommitRequest, offsets: tuple[OffsetToCommit, ...], version: int
    ) -> Sequence[ErrorCode]:
        try:
            return await self._coordinator.commit(
                request.group_id,
                CommitRequest(
                    member_id=request.member_id,
                    group_instance_id=request.group_instance_id,
                    generation=request.generation_id_or_member_epoch,
                    retention_ms=request.retention_time_ms,
                    offsets=offsets,
                    missing_group_code=(
                        ErrorCode.GROUP_ID_NOT_FOUND
                        if version >= FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND
                        else ErrorCode.ILLEGAL_GENERATION
                    ),
                    knows_member_epochs=version >= FIRST_COMMIT_WITH_MEMBER_EPOCH,
                ),
            )
        except CoordinatorFault as fault:
            return (fault.error_code,) * len(offsets)

    # --- OffsetFetch -------------------------------------------------------------------------

    async def offset_fetch(
        self, request: OffsetFetchRequest, context: RequestContext
    ) -> OffsetFetchResponse:
        if context.api_version >= FIRST_FETCH_OF_SEVERAL_GROUPS:
            refuse_flood(len(request.groups))
            refuse_partition_flood(
                topic.partition_indexes for group in request.groups for topic in group.topics or ()
            )
            by_id = context.api_version >= FIRST_FETCH_BY_TOPIC_ID
            return OffsetFetchResponse(
                groups=[
                    await self._fetch_group(
                        group, by_id=by_id, is_stable_only=request.require_stable
                    )
                    for group in request.groups
                ]
            )
        refuse_partition_flood(topic.partition_indexes for topic in request.topics or ())
        return await self._fetch_one(request, context.api_version)

    async def _fetch_one(self, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        try:
            topics = await self._coordinator.read_offsets(
                request.group_id, partial(self._topics_of, request, version)
            )
        except CoordinatorFault as fault:
            # Also where the whole answer has the code, the only one in Kafka's: aiokafka looks at
            # partitions alone, and begins again at auto.offset.reset without them.
            code = fault.error_code
            return OffsetFetchResponse(
                error_code=code if version >= FIRST_FETCH_WITH_TOP_LEVEL_ERROR else ErrorCode.NONE,
                topics=[
                    OffsetFetchResponseTopic(
                        name=topic.name, partitions=_failed(topic.partition_indexes, code)
                    )
                    for topic in request.topics or ()
                ],
            )
        return OffsetFetchResponse(topics=topics)

    def _topics_of(
        self,
        request: OffsetFetchRequest,
        version: int,
        offsets: GroupOffsets,
        pending: PendingOffsets,
    ) -> list[OffsetFetchResponseTopic]:
        image = self._metadata.image
        if request.topics is None:
            topics = _fetch_everything(offsets, image)
        else:
            topics = []
            for topic in request.topics:
                found = _look_up(
                    offsets, topic.name, image.topics.get(topic.name), topic.partition_indexes
                )
                if version < FIRST_FETCH_WITH_NOTHING_COMMITTED:
                    found = [_with_error_if_missing(entry) for entry in found]
                topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=found))
        if request.require_stable:
            topics = [_stable(pending, request.group_id, one.name, one) for one in topics]
        return topics

    async def _fetch_group(
        self, group: OffsetFetchRequestGroup, *, by_id: bool, is_stable_only: bool
    ) -> OffsetFetchResponseGroup:
        def look(offsets: GroupOffsets, pending: PendingOffsets) -> list[OffsetFetchResponseTopic]:
            image = self._metadata.image
            topics = (
                _fetch_everything(offsets, image)
                if group.topics is None
                else _fetch_named(group, offsets, image, by_id=by_id)
            )
            if not is_stable_only:
                return topics
            return [_stable(pending, group.group_id, self._name_of(one), one) for one in topics]

        try:
            topics = await self._coordinator.read_offsets(
                group.group_id, look, member_id=group.member_id, member_epoch=group.member_epoch
            )
        except CoordinatorFault as fault:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=fault.error_code)
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)

    def _name_of(self, topic: OffsetFetchResponseTopic) -> str:
        known = self._metadata.image.topics_by_id.get(topic.topic_id)
        return topic.name if known is None else known.name

    # --- OffsetDelete ------------------------------------------------------------------------

    async def offset_delete(
        self, request: OffsetDeleteRequest, _context: RequestContext
    ) -> OffsetDeleteResponse:
        refuse_partition_flood(topic.partitions for topic in request.topics)
        image = self._metadata.image
        wanted = [
            OffsetToDelete(topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
            if partition_fault(image.topics.get(topic.name), partition.partition_index)
            is ErrorCode.NONE
        ]
        try:
            deletion = await self._coordinator.delete_offsets(request.group_id, wanted)
        except CoordinatorFault as fault:
            deletion = OffsetDeletion(group_code=fault.error_code)
        if deletion.group_code is not ErrorCode.NONE:
            return OffsetDeleteResponse(error_code=deletion.group_code)
        codes = dict(zip(wanted, deletion.error_codes, strict=True))
        return OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponsePartition(
                            partition_index=partition.partition_index,
                            error_code=codes.get(
                                OffsetToDelete(topic.name, partition.partition_index),
                                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            ),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


def _stable(
    pending: PendingOffsets, group_id: str, name: str, found: OffsetFetchResponseTopic
) -> OffsetFetchResponseTopic:
    """Replaces offsets that an open transaction may change."""
    return found.replaced(
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=one.partition_index,
                error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
            )
            if pending.has(group_id, name, one.partition_index)
            else one
            for one in found.partitions
        ]
    )


def _look_up(
    offsets: GroupOffsets, name: str, topic: TopicImage | None, partitions: Iterable[int]
) -> list[OffsetFetchResponsePartition]:
    return [_found(partition, offsets.get(name, partition), topic) for partition in partitions]


def _fetch_everything(
    offsets: GroupOffsets, image: MetadataImage
) -> list[OffsetFetchResponseTopic]:
    topics = []
    for name, partitions in offsets.topics.items():
        topic = image.topics.get(name)
        found = [
            _found(index, committed, topic)
            for index, committed in partitions.items()
            if is_of(committed, topic)
        ]
        if topic is not None and found:
            topics.append(
                OffsetFetchResponseTopic(name=name, topic_id=topic.topic_id, partitions=found)
            )
    return topics


def _fetch_named(
    group: OffsetFetchRequestGroup,
    offsets: GroupOffsets,
    image: MetadataImage,
    *,
    by_id: bool,
) -> list[OffsetFetchResponseTopic]:
    assert group.topics is not None
    topics = []
    for wanted in group.topics:
        topic = image.topics_by_id.get(wanted.topic_id) if by_id else image.topics.get(wanted.name)
        if topic is None and by_id:
            found = _failed(wanted.partition_indexes, ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            name = wanted.name if topic is None else topic.name
            found = _look_up(offsets, name, topic, wanted.partition_indexes)
        topics.append(
            OffsetFetchResponseTopic(name=wanted.name, topic_id=wanted.topic_id, partitions=found)
        )
    return topics


def _with_error_if_missing(
    found: OffsetFetchResponsePartition,
) -> OffsetFetchResponsePartition:
    if found.committed_offset != NO_OFFSET or found.error_code != ErrorCode.NONE:
        return found
    return found.replaced(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _found(
    partition: int, committed: OffsetCommitValue | None, topic: TopicImage | None
) -> OffsetFetchResponsePartition:
    if committed is None or not is_of(committed, topic):
        return OffsetFetchResponsePartition(partition_index=partition)
    return OffsetFetchResponsePartition(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _failed(partitions: Iterable[int], error_code: ErrorCode) -> list[OffsetFetchResponsePartition]:
    return [
        OffsetFetchResponsePartition(partition_index=partition, error_code=error_code)
        for partition in partitions
    ]
