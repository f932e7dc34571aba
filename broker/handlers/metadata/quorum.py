"""DescribeQuorum: who keeps the metadata log. 0-2: 1 times, 2 directory ids and addresses.

This broker alone keeps it: it is the leader and the only voter, and what it appended is committed.
There are no elections, so the epoch stays 0. Consoles that get no answer, such as Kafbat UI, take
the cluster for one of ZooKeeper.

The log has the name of Kafka's topic here. It is no topic: its entries are objects.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.broker.cluster.metadata.topic_names import METADATA_TOPIC
from strandline.broker.config.listeners import Listener
from strandline.broker.handlers.services.limits import refuse_partition_flood
from strandline.broker.handlers.services.services import RequestContext, Services
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
from strandline.storage.local.formats.checkpoint import decode_id
from strandline.storage.local.log_dirs.log_dirs import LogDirs

METADATA_PARTITION = 0
LEADER_EPOCH = 0


class QuorumHandler:
    """Handler of DescribeQuorum."""

    def __init__(
        self, services: Services, log_dirs: LogDirs, advertised: Callable[[str], Listener]
    ) -> None:
        self._services = services
        self._log_dirs = log_dirs
        self._advertised = advertised

    def describe_quorum(
        self, request: DescribeQuorumRequest, context: RequestContext
    ) -> DescribeQuorumResponse:
        refuse_partition_flood(topic.partitions for topic in request.topics)
        address = self._advertised(context.caller.listener)
        listener = QuorumListener(
            name=context.caller.listener, host=address.host, port=address.port
        )
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
        node_id, end_offset = self._services.config.node_id, self._services.metadata.image.version
        now_ms = self._services.clock.now_ms()
        return DescribeQuorumPartition(
            partition_index=partition,
            leader_id=node_id,
            leader_epoch=LEADER_EPOCH,
            high_watermark=end_offset,
            current_voters=[
                ReplicaState(
                    replica_id=node_id,
                    replica_directory_id=decode_id(self._log_dirs.directories[0].directory_id),
                    log_end_offset=end_offset,
                    # As Kafka's leader says of itself.
                    last_fetch_timestamp=now_ms,
                    last_caught_up_timestamp=now_ms,
                )
            ],
        )
