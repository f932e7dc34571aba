"""DescribeQuorum: who keeps the metadata log. 0-2: 1 times, 2 directory ids and addresses.

This node alone keeps it: it is the leader and the only voter, and what it appended is committed.
Brokers that follow a controller's log observe it. Consoles that get no answer, such as Kafbat UI,
take the cluster for one of ZooKeeper.

The log has the name of Kafka's topic here. It is no topic: its entries are objects.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from strandline.broker.cluster.metadata.topic_names import METADATA_TOPIC
from strandline.broker.config.listeners import Listener
from strandline.broker.handlers.services.limits import refuse_partition_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
    QuorumListener,
    QuorumNode,
    ReplicaState,
)
from strandline.broker.protocol.schema.errors import ErrorCode

METADATA_PARTITION = 0


class KeptLog(NamedTuple):
    """The metadata log that this node keeps, in a folder of its own; a lone broker's epoch is 0."""

    epoch: int
    end_offset: int
    directory_id: uuid.UUID
    observers: Sequence[ReplicaState] = ()


class QuorumHandler:
    """Handler of DescribeQuorum, of a lone broker or of a controller."""

    def __init__(
        self,
        services: NodeServices,
        kept: Callable[[], KeptLog],
        advertised: Callable[[str], Listener],
    ) -> None:
        self._services = services
        self._kept = kept
        self._advertised = advertised

    def describe_quorum(
        self, request: DescribeQuorumRequest, context: RequestContext
    ) -> DescribeQuorumResponse:
        refuse_partition_flood(topic.partitions for topic in request.topics)
        name = context.caller.listener
        address = self._advertised(name)
        listener = QuorumListener(name=name, host=address.host, port=address.port)
        return DescribeQuorumResponse(
            topics=[
                DescribeQuorumTopic(
                    topic_name=topic.topic_name,
                    partitions=[
                        self._describe(topic.topic_name, partition.partition_index)
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
            nodes=[QuorumNode(node_id=self._services.config.node_id, listeners=[listener])],
        )

    def _describe(self, topic: str, partition: int) -> DescribeQuorumPartition:
        if (topic, partition) != (METADATA_TOPIC, METADATA_PARTITION):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return DescribeQuorumPartition(
                partition_index=partition, error_code=code, error_message=code.message
            )
        node_id, now_ms = self._services.config.node_id, self._services.clock.now_ms()
        kept = self._kept()
        return DescribeQuorumPartition(
            partition_index=partition,
            leader_id=node_id,
            leader_epoch=kept.epoch,
            high_watermark=kept.end_offset,
            current_voters=[
                ReplicaState(
                    replica_id=node_id,
                    replica_directory_id=kept.directory_id,
                    log_end_offset=kept.end_offset,
                    # As Kafka's leader says of itself.
                    last_fetch_timestamp=now_ms,
                    last_caught_up_timestamp=now_ms,
                )
            ],
            observers=kept.observers,
        )
