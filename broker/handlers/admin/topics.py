"""CreateTopics, DeleteTopics, CreatePartitions: creates, deletes and extends topics.

CreateTopics      0-7  4 counts of -1 mean the defaults; 5 flexible, answers with configs (KIP-525);
                       7 answers with topic ids
DeleteTopics      0-6  4 flexible; 5 error messages; 6 by topic id
CreatePartitions  0-3  2 flexible

Each answers when the change is durable and in force on this broker, so `timeout_ms` is not needed.
The rules and their messages are in `cluster/controller.py`. If the metadata log cannot be written,
say because the disk is full, each topic is answered KAFKA_STORAGE_ERROR with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import (
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
    DeleteResult,
    DeleteTopics,
    Intent,
    NewPartitions,
    NewTopic,
    ReplicaAssignment,
    TopicReference,
    TopicResult,
)
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.config.rows import describe_topic
from strandline.broker.handlers.admin.mutation_quota import (
    REFUSED,
    Admission,
    addition_cost,
    creation_cost,
)
from strandline.broker.handlers.services.limits import clipped, refuse_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatedTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import StorageError
from strandline.storage.model import TopicId

# Before v3, clients do not know TOPIC_DELETION_DISABLED.
FIRST_VERSION_WITH_DELETION_DISABLED = 3
FIRST_VERSION_WITH_TOPIC_IDS = 6
# From here on clients know THROTTLING_QUOTA_EXCEEDED.
FIRST_STRICT_CREATION = 6
FIRST_STRICT_DELETION = 5
FIRST_STRICT_ADDITION = 3


class TopicHandlers:
    """Handlers of the three APIs that create, delete and extend topics."""

    def __init__(self, services: NodeServices, replicas: ReplicaManager | None = None) -> None:
        """Answers wait for the `replicas` of this node, if it has any."""
        self._replicas = replicas
        self._metadata = services.metadata
        self._controller = services.controller
        self._services = services

    async def create_topics(
        self, request: CreateTopicsRequest, context: RequestContext
    ) -> CreateTopicsResponse:
        if len(request.topics) > controller.PARTITIONS_PER_REQUEST_MAX:
            # Each has at least one partition, so even their configurations are not read.
            return CreateTopicsResponse(topics=[_one_of_too_many(t.name) for t in request.topics])
        admission = Admission(self._services, context, strict_from=FIRST_STRICT_CREATION)
        image, defaults = self._metadata.image, self._services.topic_defaults
        topics, refused = admission.split(
            [_new_topic(topic) for topic in request.topics],
            lambda topic: 0 if request.validate_only else creation_cost(image, topic, defaults),
        )
        done = await self._ask(
            CreateTopics(topics, _intent(request.validate_only)), (topic.name for topic in topics)
        )
        await self._created_here(result.topic_id for result in done)
        results = [*done, *(_throttled(topic.name) for topic in refused)]
        return CreateTopicsResponse(
            throttle_time_ms=admission.throttle_ms,
            topics=[self._created(result) for result in results],
        )

    async def _created_here(self, topic_ids: Iterable[TopicId]) -> None:
        if self._replicas is not None:
            await self._replicas.created(topic_ids)

    def _created(self, result: TopicResult) -> CreatableTopicResult:
        if result.error_code is not ErrorCode.NONE:
            return CreatableTopicResult(
                name=result.name,
                error_code=result.error_code,
                error_message=clipped(result.error_message),
                configs=None,
            )
        return CreatableTopicResult(
            name=result.name,
            topic_id=result.topic_id,
            num_partitions=result.partition_count,
            replication_factor=result.replication_factor,
            configs=[
                CreatedTopicConfig(
                    name=row.name,
                    value=row.value,
                    read_only=row.read_only,
                    config_source=row.source,
                    is_sensitive=row.sensitive,
                )
                for row in describe_topic(self._services.running, result.properties)
            ],
        )

    async def delete_topics(
        self, request: DeleteTopicsRequest, context: RequestContext
    ) -> DeleteTopicsResponse:
        if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
            references = [
                TopicReference(name=topic.name, topic_id=topic.topic_id) for topic in request.topics
            ]
        else:
            references = [TopicReference(name=name) for name in request.topic_names]
        refuse_flood(len(references))
        admission = Admission(self._services, context, strict_from=FIRST_STRICT_DELETION)
        image = self._metadata.image
        references, refused = admission.split(
            references, lambda reference: controller.deletion_cost(image, reference)
        )
        done: Sequence[DeleteResult]
        try:
            done = await self._controller.ask(DeleteTopics(references))
            if self._replicas is not None:
                await self._replicas.deleted(result.topic_id for result in done)
        except StorageError as error:
            code = ErrorCode(error.kafka_code)
            done = [_not_deleted(r, code, str(error)) for r in dict.fromkeys(references)]
        results = [*done, *(_not_deleted(r, REFUSED, REFUSED.message) for r in refused)]
        return DeleteTopicsResponse(
            throttle_time_ms=admission.throttle_ms,
            responses=[
                DeletableTopicResult(
                    name=result.name,
                    topic_id=result.topic_id,
                    error_code=_deletion_code(result.error_code, context.api_version),
                    error_message=clipped(result.error_message),
                )
                for result in results
            ],
        )

    async def create_partitions(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        refuse_flood(len(request.topics))
        wanted = [
            NewPartitions(
                name=topic.name,
                partition_count=topic.count,
                assignments=None
                if topic.assignments is None
                else tuple(tuple(assignment.broker_ids) for assignment in topic.assignments),
            )
            for topic in request.topics
        ]
        admission = Admission(self._services, context, strict_from=FIRST_STRICT_ADDITION)
        image = self._metadata.image
        topics, refused = admission.split(
            wanted, lambda topic: 0 if request.validate_only else addition_cost(image, topic)
        )
        done = await self._ask(
            CreatePartitions(topics, _intent(request.validate_only)),
            (topic.name for topic in topics),
        )
        await self._created_here(result.topic_id for result in done)
        results = [*done, *(_throttled(topic.name) for topic in refused)]
        return CreatePartitionsResponse(
            throttle_time_ms=admission.throttle_ms,
            results=[
                CreatePartitionsTopicResult(
                    name=result.name,
                    error_code=result.error_code,
                    error_message=clipped(result.error_message),
                )
                for result in results
            ],
        )

    async def _ask(
        self, request: ControllerRequest[TopicResult], names: Iterable[str]
    ) -> Sequence[TopicResult]:
        """Returns a result per name; errors if the metadata log could not be written."""
        try:
            return await self._controller.ask(request)
        except StorageError as error:
            code = ErrorCode(error.kafka_code)
            return [
                TopicResult(name=name, error_code=code, error_message=str(error))
                for name in dict.fromkeys(names)
            ]


def _throttled(name: str) -> TopicResult:
    return TopicResult(name=name, error_code=REFUSED, error_message=REFUSED.message)


def _not_deleted(reference: TopicReference, code: ErrorCode, message: str) -> DeleteResult:
    return DeleteResult(
        name=reference.name, topic_id=reference.topic_id, error_code=code, error_message=message
    )


def _one_of_too_many(name: str) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        error_code=ErrorCode.POLICY_VIOLATION,
        error_message=f"more than {controller.PARTITIONS_PER_REQUEST_MAX} topics in one request",
        configs=None,
    )


def _intent(validate_only: bool) -> Intent:
    return Intent.VALIDATE if validate_only else Intent.APPLY


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            ReplicaAssignment(
                partition=assignment.partition_index, replicas=tuple(assignment.broker_ids)
            )
            for assignment in topic.assignments
        ),
        properties={config.name: config.value for config in topic.configs},
    )


def _deletion_code(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.TOPIC_DELETION_DISABLED and version < FIRST_VERSION_WITH_DELETION_DISABLED:
        return ErrorCode.INVALID_REQUEST
    return code
