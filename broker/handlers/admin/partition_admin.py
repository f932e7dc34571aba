"""Admin APIs for partitions: replicas, producers, leader elections, reassignments.

DescribeTopicPartitions        0    page by page, in the order of names (KIP-966)
DescribeProducers              0    the idempotent producers of a partition
ElectLeaders                   0-2  1 election type; 2 flexible
AlterPartitionReassignments    0-1  1 a changed replication factor can be refused
ListPartitionReassignments     0    the ongoing reassignments

With one broker, the leader of a partition is its only replica. So no election is needed, a
reassignment to this broker is complete at once, one to another broker is impossible, and none is
ever in progress.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import NO_LEADER, PartitionImage, TopicImage
from strandline.broker.cluster.metadata.placement import check_assignments
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS, topic_name_fault
from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.handlers.metadata.reachable import Reachable
from strandline.broker.handlers.services.authorized_operations import ALL_OF_A_TOPIC
from strandline.broker.handlers.services.limits import clipped, refuse_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from strandline.broker.protocol.messages.describe_producers import (
    ActiveProducer,
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResult,
)
from strandline.broker.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribedTopic,
    DescribedTopicPartition,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from strandline.broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.local.formats.producer_state import NO_SEQUENCE, ProducerEntry
from strandline.storage.model import TopicPartition


class PartitionAdminHandlers:
    """Handlers that answer from the current image and the running logs."""

    def __init__(self, services: Services) -> None:
        self._metadata = services.metadata
        self._replicas = services.replicas
        self._config = services.config
        self._page_partitions_max = services.config.partitions.described_max

    # --- DescribeTopicPartitions -------------------------------------------------------------

    def describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> DescribeTopicPartitionsResponse:
        refuse_flood(len(request.topics))
        topics = self._metadata.image.topics
        names = {topic.name for topic in request.topics} or set(topics)
        cursor = request.cursor or Cursor(topic_name="", partition_index=0)
        # A page may begin inside a named topic only: others would be skipped silently.
        is_elsewhere = bool(request.topics and request.cursor) and cursor.topic_name not in names
        if cursor.partition_index < 0 or is_elsewhere:
            # A request for all topics has no other name that could carry the error.
            named = names if request.topics else {cursor.topic_name}
            return DescribeTopicPartitionsResponse(
                topics=[
                    DescribedTopic(name=name, error_code=ErrorCode.INVALID_REQUEST)
                    for name in sorted(named)
                ]
            )
        room = max(1, min(request.response_partition_limit, self._page_partitions_max))
        reachable = Reachable(self._metadata.image, context.caller.listener, self._config)
        described: list[DescribedTopic] = []
        next_cursor: Cursor | None = None
        for name in sorted(name for name in names if name >= cursor.topic_name):
            if room == 0:
                next_cursor = Cursor(topic_name=name, partition_index=0)
                break
            topic = topics.get(name)
            if topic is None:
                described.append(DescribedTopic(name=name, error_code=_code_of_missing(name)))
                continue
            first = cursor.partition_index if name == cursor.topic_name else 0
            page = topic.partitions[first : first + room]
            described.append(_described(topic, page, reachable))
            room -= len(page)
            if first + len(page) < topic.partition_count:
                next_cursor = Cursor(topic_name=name, partition_index=first + len(page))
                break
        return DescribeTopicPartitionsResponse(topics=described, next_cursor=next_cursor)

    # --- DescribeProducers -------------------------------------------------------------------

    def describe_producers(
        self, request: DescribeProducersRequest, _context: RequestContext
    ) -> DescribeProducersResponse:
        _refuse_partition_flood([topic.partition_indexes for topic in request.topics])
        # A repeated partition is answered once: it may have very many producers.
        wanted: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        return DescribeProducersResponse(
            topics=[
                DescribeProducersTopicResult(
                    name=name, partitions=[self._producers(name, index) for index in indexes]
                )
                for name, indexes in wanted.items()
            ]
        )

    def _producers(self, topic: str, index: int) -> DescribeProducersPartition:
        fault = topic_name_fault(topic)
        if fault is not None:
            return DescribeProducersPartition(
                partition_index=index,
                error_code=ErrorCode.INVALID_TOPIC_EXCEPTION,
                error_message=clipped(fault),
            )
        # Any replica answers, as in Kafka: who looks for hanging transactions may ask each of them.
        found = self._replicas.partition(topic, index)
        served: Partition | LeaderRefusal
        if found is None:
            served = self._replicas.refusal_of_missing(topic, index)
        elif found.is_offline:
            served = LeaderRefusal(ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            served = found
        if isinstance(served, LeaderRefusal):
            message = f"no partition {index} of a topic named {topic!r}"
            if served.code is ErrorCode.KAFKA_STORAGE_ERROR:
                message = "its log folder is offline"
            return DescribeProducersPartition(
                partition_index=index, error_code=served.code, error_message=clipped(message)
            )
        if served.is_leader and not served.log.may_append:
            return DescribeProducersPartition(
                partition_index=index,
                error_code=ErrorCode.KAFKA_STORAGE_ERROR,
                error_message="what its archive has is not known yet",
            )
        return DescribeProducersPartition(
            partition_index=index,
            active_producers=[
                _active(entry) for entry in served.log.local.producers.entries.values()
            ],
        )

    # --- ElectLeaders ------------------------------------------------------------------------

    def elect_leaders(
        self, request: ElectLeadersRequest, _context: RequestContext
    ) -> ElectLeadersResponse:
        if request.election_type not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
            return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
        if request.topic_partitions is None:
            # An answer for all partitions lists only those that needed an election.
            return ElectLeadersResponse()
        _refuse_partition_flood([topic.partitions for topic in request.topic_partitions])
        return ElectLeadersResponse(
            replica_election_results=[
                ReplicaElectionResult(
                    topic=topic.topic,
                    partition_result=[
                        self._election(topic.topic, index, request.election_type)
                        for index in topic.partitions
                    ],
                )
                for topic in request.topic_partitions
            ]
        )

    def _election(self, topic: str, index: int, election_type: int) -> PartitionResult:
        partition = self._metadata.image.partition(TopicPartition(topic, index))
        if partition is None:
            code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such topic or partition."
        elif partition.leader != NO_LEADER:
            code, message = ErrorCode.ELECTION_NOT_NEEDED, "The only replica leads already."
        elif election_type == ElectionType.PREFERRED:
            code, message = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "No replica is online."
        else:
            code, message = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is online."
        return PartitionResult(partition_id=index, error_code=code, error_message=message)

    # --- reassignments -----------------------------------------------------------------------

    def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, _context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        _refuse_partition_flood([topic.partitions for topic in request.topics])
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            responses=[
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[
                        self._reassigned(topic.name, partition) for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )

    def _reassigned(
        self, topic: str, asked: ReassignablePartition
    ) -> ReassignablePartitionResponse:
        try:
            index = asked.partition_index
            if self._metadata.image.partition(TopicPartition(topic, index)) is None:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such topic or partition.")
            if asked.replicas is None:
                raise Refusal(
                    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is going on."
                )
            check_assignments([tuple(asked.replicas)], self._metadata.image.brokers)
        except Refusal as refusal:
            return ReassignablePartitionResponse(
                partition_index=asked.partition_index,
                error_code=refusal.error_code,
                error_message=clipped(refusal.message),
            )
        # The only broker has every partition already.
        return ReassignablePartitionResponse(partition_index=asked.partition_index)

    def list_partition_reassignments(
        self, _request: ListPartitionReassignmentsRequest, _context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse()


# --- rows ------------------------------------------------------------------------------------


def _refuse_partition_flood(partitions: Sequence[Sequence[object]]) -> None:
    """Raises CloseConnectionError for too many topics, or too many partitions of them together."""
    refuse_flood(len(partitions))
    refuse_flood(sum(map(len, partitions)))


def _code_of_missing(name: str) -> ErrorCode:
    if topic_name_fault(name) is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _described(
    topic: TopicImage, partitions: Sequence[PartitionImage], reachable: Reachable
) -> DescribedTopic:
    return DescribedTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        topic_authorized_operations=ALL_OF_A_TOPIC,
        partitions=[
            DescribedTopicPartition(
                partition_index=partition.partition,
                leader_id=reachable.leader_of(partition),
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                # Replicas that may be elected without being in sync (KIP-966).
                eligible_leader_replicas=partition.eligible_leader_replicas,
                last_known_elr=partition.last_known_elr,
                offline_replicas=reachable.offline_replicas(partition),
            )
            for partition in partitions
        ],
    )


def _active(entry: ProducerEntry) -> ActiveProducer:
    return ActiveProducer(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.batches[-1].last_sequence if entry.batches else NO_SEQUENCE,
        last_timestamp=entry.last_timestamp_ms,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.transaction_first_offset,
    )
