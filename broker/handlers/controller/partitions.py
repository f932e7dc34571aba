"""Partitions: who is in sync, who leads, and who is to have replicas.

AlterPartition                 2-3  3 the epochs of the brokers in sync
ElectLeaders                   0-2  1 election type; 2 flexible
AlterPartitionReassignments    0-1  1 a changed replication factor can be refused
ListPartitionReassignments     0    the ongoing reassignments
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.broker.cluster.metadata.controller_messages import Controller, Outcome
from strandline.broker.cluster.metadata.image import PartitionImage
from strandline.broker.cluster.metadata.records import Replicas
from strandline.broker.controller.partitions.change import Election
from strandline.broker.controller.partitions.index import Place
from strandline.broker.controller.partitions.messages import (
    AlterInSync,
    ElectLeaders,
    InSyncResult,
    ListReassignments,
    PartitionNumber,
    ReassignPartitions,
    WantedInSync,
)
from strandline.broker.handlers.services.limits import clipped, refuse_partition_flood
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.messages.alter_partition import (
    AlteredPartition,
    AlteredPartitionResult,
    AlteredTopicResult,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
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
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import StorageError
from strandline.storage.model import TopicId

_WITH_EPOCHS = 3
# Of a leader that does not say it, or of a broker whose epoch it does not know.
_ANY_EPOCH = -1
_ELECTIONS: Mapping[int, Election] = {
    ElectionType.PREFERRED: Election.PREFERRED,
    ElectionType.UNCLEAN: Election.UNCLEAN,
}


class PartitionHandlers:
    """Handlers of what changes partitions."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def alter_partition(
        self, request: AlterPartitionRequest, context: RequestContext
    ) -> AlterPartitionResponse:
        refuse_partition_flood(topic.partitions for topic in request.topics)
        asked = AlterInSync(
            node_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            wanted=[
                _wanted(topic.topic_id, one, context.api_version)
                for topic in request.topics
                for one in topic.partitions
            ],
        )
        try:
            (altered,) = await self._controller.ask(asked)
        except StorageError as error:
            return AlterPartitionResponse(error_code=error.kafka_code)
        if altered.error_code is not ErrorCode.NONE:
            return AlterPartitionResponse(error_code=altered.error_code)
        return AlterPartitionResponse(
            topics=[
                AlteredTopicResult(
                    topic_id=topic.topic_id,
                    partitions=[
                        _altered((topic.topic_id, one.partition_index), altered.results)
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def elect_leaders(
        self, request: ElectLeadersRequest, _context: RequestContext
    ) -> ElectLeadersResponse:
        election = _ELECTIONS.get(request.election_type)
        if election is None:
            return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
        partitions: list[PartitionNumber] | None = None
        if request.topic_partitions is not None:
            refuse_partition_flood(topic.partitions for topic in request.topic_partitions)
            partitions = [
                (topic.topic, number)
                for topic in request.topic_partitions
                for number in topic.partitions
            ]
        try:
            (elected,) = await self._controller.ask(
                ElectLeaders(election=election, partitions=partitions)
            )
        except StorageError as error:
            return ElectLeadersResponse(error_code=error.kafka_code)
        results: dict[str, list[PartitionResult]] = {}
        for (name, number), outcome in elected.outcomes.items():
            results.setdefault(name, []).append(
                PartitionResult(
                    partition_id=number,
                    error_code=outcome.error_code,
                    error_message=clipped(outcome.error_message),
                )
            )
        return ElectLeadersResponse(
            replica_election_results=[
                ReplicaElectionResult(topic=name, partition_result=rows)
                for name, rows in results.items()
            ]
        )

    async def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, _context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        refuse_partition_flood(topic.partitions for topic in request.topics)
        asked = ReassignPartitions(
            replicas={
                (topic.name, one.partition_index): _replicas(one.replicas)
                for topic in request.topics
                for one in topic.partitions
            },
            allows_other_factor=request.allow_replication_factor_change,
        )
        try:
            (reassigned,) = await self._controller.ask(asked)
        except StorageError as error:
            return AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=request.allow_replication_factor_change,
                error_code=error.kafka_code,
                error_message=clipped(str(error)),
                responses=(),
            )
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            responses=[
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[
                        _reassigned(
                            one.partition_index,
                            reassigned.outcomes[topic.name, one.partition_index],
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )

    async def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest, _context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        partitions: list[PartitionNumber] | None = None
        if request.topics is not None:
            refuse_partition_flood(topic.partition_indexes for topic in request.topics)
            partitions = [
                (topic.name, number)
                for topic in request.topics
                for number in topic.partition_indexes
            ]
        try:
            (found,) = await self._controller.ask(ListReassignments(partitions))
        except StorageError as error:
            return ListPartitionReassignmentsResponse(
                error_code=error.kafka_code, error_message=clipped(str(error))
            )
        return ListPartitionReassignmentsResponse(
            topics=[
                OngoingTopicReassignment(
                    name=name, partitions=[_ongoing(partition) for partition in ongoing]
                )
                for name, ongoing in found.items()
            ]
        )


# --- rows ----------------------------------------------------------------------------------------


def _wanted(topic_id: TopicId, asked: AlteredPartition, version: int) -> WantedInSync:
    isr = [(node, _ANY_EPOCH) for node in asked.new_isr]
    if version >= _WITH_EPOCHS:
        isr = [(one.broker_id, one.broker_epoch) for one in asked.new_isr_with_epochs]
    return WantedInSync(
        place=(topic_id, asked.partition_index),
        leader_epoch=asked.leader_epoch,
        partition_epoch=asked.partition_epoch,
        isr=isr,
        leader_recovery_state=asked.leader_recovery_state,
    )


def _altered(place: Place, results: Mapping[Place, InSyncResult]) -> AlteredPartitionResult:
    result, (_, number) = results[place], place
    partition = result.partition
    if partition is None:
        return AlteredPartitionResult(partition_index=number, error_code=result.error_code)
    return AlteredPartitionResult(
        partition_index=number,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def _replicas(asked: Sequence[int] | None) -> Replicas | None:
    return None if asked is None else tuple(asked)


def _reassigned(number: int, outcome: Outcome) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=number,
        error_code=outcome.error_code,
        error_message=clipped(outcome.error_message),
    )


def _ongoing(partition: PartitionImage) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=partition.partition,
        replicas=partition.replicas,
        adding_replicas=partition.adding_replicas,
        removing_replicas=partition.removing_replicas,
    )
