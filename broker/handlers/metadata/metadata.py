"""Metadata, DescribeCluster and FindCoordinator: brokers, leaders and coordinators.

Metadata         0  an empty list requests all topics; 1 null does, and an empty list none
                 4  allow_auto_topic_creation (older ones imply it)
                 7  leader epochs; 8-10 cluster operations; 9 flexible
                10  answers with topic ids; 12 topics by id; 13 a top-level error
DescribeCluster  0-2   1 endpoint type, 2 fenced brokers
FindCoordinator  0-6   1 key type, 4 batched, 6 share groups

A missing topic is created if the client and `auto.create.topics.enable` allow it. A broker that
leads all of it answers with the new topic at once. Otherwise the answer is that of Kafka's brokers,
UNKNOWN_TOPIC_OR_PARTITION: the client asks again after its backoff, and the leaders have learned
the topic meanwhile. They would refuse the first requests of a producer that comes earlier, and one
with several requests in flight that is not idempotent would get its records in another order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence, Set
from functools import partial

from strandline.broker.cluster.metadata.controller_messages import (
    CreateTopics,
    NewTopic,
    TopicResult,
)
from strandline.broker.cluster.metadata.image import (
    NO_LEADER,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS, topic_name_fault
from strandline.broker.config.listeners import Listener
from strandline.broker.coordination.runtime.slots import coordinating_partition
from strandline.broker.handlers.metadata.reachable import Reachable
from strandline.broker.handlers.services.authorized_operations import (
    ALL_OF_A_TOPIC,
    ALL_OF_THE_CLUSTER,
)
from strandline.broker.handlers.services.limits import refuse_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from strandline.broker.protocol.messages.metadata import (
    OPERATIONS_UNKNOWN,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.errors import StorageError
from strandline.storage.model import ZERO_TOPIC_ID
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2
COORDINATOR_TOPICS = {0: OFFSETS_TOPIC, 1: TRANSACTION_TOPIC}
FIRST_BATCHED_FIND_COORDINATOR = 4
FIRST_VERSION_BY_TOPIC_ID = 12
FIRST_WITH_LISTENER_NOT_FOUND = 6
# Of a leader without the listener of the client, by whether it knows of that.
LISTENER_FAULTS = (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LISTENER_NOT_FOUND)
# Enough for an operator to recognise the client.
LOGGED_NAMES_MAX = 10


class MetadataHandlers:
    """Handlers that answer from the current image."""

    def __init__(self, services: Services, advertised: Callable[[str], Listener]) -> None:
        self._config = services.config
        self._metadata = services.metadata
        self._services = services
        self._advertised = advertised
        self._quiet_log = QuietLog(log, services.clock)

    # --- Metadata ----------------------------------------------------------------------------

    def metadata(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse | Coroutine[object, None, MetadataResponse]:
        refuse_flood(len(request.topics or ()))
        if request.topics is None or (context.api_version == 0 and not request.topics):
            return self._describe_all(request, context)
        missing = self._creatable(request, request.topics)
        if missing:
            return self._create_and_describe(request, context, missing)
        return self._metadata_of(request, context)

    async def _describe_all(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse:
        image = self._metadata.image
        describe = self._describer(request, context)
        topics = [describe(topic) async for topic in in_turns(image.topics.values())]
        return self._with_cluster(request, context, topics)

    async def _create_and_describe(
        self, request: MetadataRequest, context: RequestContext, missing: Sequence[NewTopic]
    ) -> MetadataResponse:
        await self._create(missing, context)
        return self._metadata_of(request, context, untold=self._led_elsewhere(missing))

    def _led_elsewhere(self, new: Sequence[NewTopic]) -> Set[str]:
        """Returns those that exist and have a partition whose leader is another broker."""
        topics = self._metadata.image.topics
        return {
            topic.name
            for topic in new
            if topic.name in topics
            and any(one.leader != self._config.node_id for one in topics[topic.name].partitions)
        }

    def _metadata_of(
        self, request: MetadataRequest, context: RequestContext, untold: Set[str] = frozenset()
    ) -> MetadataResponse:
        """`untold` are topics that the answer says to be unknown."""
        assert request.topics is not None
        image, describe = self._metadata.image, self._describer(request, context)
        topics = [
            MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=wanted.name)
            if wanted.name in untold
            else _look_up(wanted, image, context.api_version, describe)
            for wanted in _once_each(request.topics)
        ]
        return self._with_cluster(request, context, topics)

    def _describer(
        self, request: MetadataRequest, context: RequestContext
    ) -> Callable[[TopicImage], MetadataResponseTopic]:
        """Returns what describes the topics of the present image to this client."""
        knows_listeners = context.api_version >= FIRST_WITH_LISTENER_NOT_FOUND
        return partial(
            _describe,
            Reachable(self._metadata.image, context.caller.listener, self._config),
            ALL_OF_A_TOPIC if request.include_topic_authorized_operations else OPERATIONS_UNKNOWN,
            LISTENER_FAULTS[knows_listeners],
        )

    def _with_cluster(
        self,
        request: MetadataRequest,
        context: RequestContext,
        topics: Sequence[MetadataResponseTopic],
    ) -> MetadataResponse:
        image = self._metadata.image
        return MetadataResponse(
            cluster_authorized_operations=ALL_OF_THE_CLUSTER
            if request.include_cluster_authorized_operations
            else OPERATIONS_UNKNOWN,
            brokers=[
                MetadataResponseBroker(
                    node_id=broker.broker_id, host=address.host, port=address.port, rack=broker.rack
                )
                for broker, address in self._some_brokers(image, context.caller.listener)
            ],
            cluster_id=image.cluster_id,
            controller_id=self._config.node_id,
            topics=topics,
        )

    def _some_brokers(
        self, image: MetadataImage, listener: str
    ) -> Sequence[tuple[RegisterBrokerRecord, Listener]]:
        """The brokers of an answer to Metadata: those that are fenced only if all are.

        After a restart of all, this one may answer before the controller has unfenced any. Kafka's
        answer has no broker then, and librdkafka (2.10 and newer) gives up those that it knows for
        good: it asks nobody any more.
        """
        unfenced = list(self._brokers(image, listener))
        return unfenced or list(self._brokers(image, listener, with_fenced=True))

    def _brokers(
        self, image: MetadataImage, listener: str, *, with_fenced: bool = False
    ) -> Iterator[tuple[RegisterBrokerRecord, Listener]]:
        """Yields the brokers that clients of this listener can reach, in the order of their ids."""
        for _, broker in sorted(image.brokers.items()):
            address = self._address(broker, listener)
            if address is not None and (with_fenced or not broker.fenced):
                yield broker, address

    def _address(self, broker: RegisterBrokerRecord, listener: str) -> Listener | None:
        if broker.broker_id == self._config.node_id:
            # Its port may have been chosen after it registered.
            return self._advertised(listener)
        for one in broker.end_points:
            if one.name == listener:
                return Listener(name=one.name, host=one.host, port=one.port)
        return None

    def _creatable(
        self, request: MetadataRequest, wanted: Sequence[MetadataRequestTopic]
    ) -> list[NewTopic]:
        """Returns the missing topics that the request creates."""
        if not (request.allow_auto_topic_creation and self._config.topics.auto_creation_enabled):
            return []
        existing = self._metadata.image.topics
        return [
            NewTopic(name=topic.name)
            for topic in _once_each(wanted)
            if topic.name
            and topic.topic_id == ZERO_TOPIC_ID
            and topic.name not in existing
            and topic.name not in INTERNAL_TOPICS
            and topic_name_fault(topic.name) is None
        ]

    async def _create(
        self, missing: Sequence[NewTopic], _context: RequestContext
    ) -> Sequence[TopicResult]:
        try:
            return await self._services.controller.ask(CreateTopics(missing))
        except StorageError as error:
            # The answer has UNKNOWN_TOPIC_OR_PARTITION, and the client retries.
            self._quiet_log.say(
                logging.WARNING,
                "topics not created",
                type(error).__name__,
                {
                    "topics": ",".join(topic.name for topic in missing[:LOGGED_NAMES_MAX]),
                    "count": len(missing),
                    "error": str(error),
                },
            )
            return ()

    # --- DescribeCluster ---------------------------------------------------------------------

    def describe_cluster(
        self, request: DescribeClusterRequest, context: RequestContext
    ) -> DescribeClusterResponse:
        image = self._metadata.image
        if request.endpoint_type != ENDPOINT_BROKERS:
            is_known = request.endpoint_type == ENDPOINT_CONTROLLERS
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if is_known
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this is a broker endpoint; there is no controller endpoint"
                if is_known
                else f"unknown endpoint type {request.endpoint_type}",
                cluster_id=image.cluster_id,
                brokers=(),
            )
        return DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=self._config.node_id,
            cluster_authorized_operations=ALL_OF_THE_CLUSTER
            if request.include_cluster_authorized_operations
            else OPERATIONS_UNKNOWN,
            brokers=[
                DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=address.host,
                    port=address.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
                for broker, address in self._brokers(
                    image, context.caller.listener, with_fenced=request.include_fenced_brokers
                )
            ],
        )

    # --- FindCoordinator ---------------------------------------------------------------------

    def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        """Answers with the leader of the partition that has the key's state.

        Without the topic with this broker, which creates it.
        """
        batched = context.api_version >= FIRST_BATCHED_FIND_COORDINATOR
        keys = request.coordinator_keys if batched else (request.key,)
        refuse_flood(len(keys))
        coordinators = [self._coordinator(key, request.key_type, context) for key in keys]
        if batched:
            return FindCoordinatorResponse(coordinators=coordinators)
        coordinator = coordinators[0]
        return FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )

    def _coordinator(self, key: str, key_type: int, context: RequestContext) -> Coordinator:
        # The empty group id too: consumers without a group.id used to commit under it.
        topic_name = COORDINATOR_TOPICS.get(key_type)
        if topic_name is None:
            return _no_coordinator(
                key, ErrorCode.INVALID_REQUEST, f"coordinator type {key_type} is not served"
            )
        image, node_id = self._metadata.image, self._config.node_id
        topic = image.topics.get(topic_name)
        if topic is not None:
            node_id = topic.partitions[coordinating_partition(key, topic.partition_count)].leader
        broker = image.brokers.get(node_id)
        address = None if broker is None else self._address(broker, context.caller.listener)
        if address is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return _no_coordinator(key, code, f"broker {node_id} is not there")
        return Coordinator(key=key, node_id=node_id, host=address.host, port=address.port)


def _no_coordinator(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message
    )


def _once_each(topics: Sequence[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    """Returns the topics without repetitions."""
    return list({(topic.name, topic.topic_id): topic for topic in topics}.values())


def _look_up(
    wanted: MetadataRequestTopic,
    image: MetadataImage,
    version: int,
    describe: Callable[[TopicImage], MetadataResponseTopic],
) -> MetadataResponseTopic:
    if wanted.name is None or wanted.topic_id != ZERO_TOPIC_ID:
        if version < FIRST_VERSION_BY_TOPIC_ID:
            # The fields exist before they have a meaning, and an answer needs a name.
            return MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=wanted.name or ""
            )
        topic, missing = image.topics_by_id.get(wanted.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
    else:
        topic, missing = image.topics.get(wanted.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None and topic_name_fault(wanted.name) is not None:
            missing = ErrorCode.INVALID_TOPIC_EXCEPTION
    if topic is None:
        return MetadataResponseTopic(error_code=missing, name=wanted.name, topic_id=wanted.topic_id)
    return describe(topic)


def _describe(
    reachable: Reachable, operations: int, listener_fault: ErrorCode, topic: TopicImage
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        topic_authorized_operations=operations,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _described(reachable, listener_fault, partition) for partition in topic.partitions
        ],
    )


def _described(
    reachable: Reachable, listener_fault: ErrorCode, partition: PartitionImage
) -> MetadataResponsePartition:
    code, leader = ErrorCode.NONE, reachable.leader_of(partition)
    if leader == NO_LEADER:
        code = ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else listener_fault
    return MetadataResponsePartition(
        error_code=code,
        partition_index=partition.partition,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=reachable.offline_replicas(partition),
    )
