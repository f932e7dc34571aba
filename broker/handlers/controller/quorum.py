"""DescribeQuorum of a controller process: it leads, and the brokers observe."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from strandline.broker.cluster.metadata.topic_names import METADATA_TOPIC
from strandline.broker.config.listeners import Listener
from strandline.broker.controller.feed import ServedMetadataLog
from strandline.broker.handlers.controller.followers import FollowerHandlers
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


class ControllerQuorumHandler:
    """Handler of DescribeQuorum."""

    def __init__(
        self,
        services: NodeServices,
        feed: ServedMetadataLog,
        followers: FollowerHandlers,
        *,
        directory_id: uuid.UUID,
        advertised: Callable[[str], Listener],
    ) -> None:
        """`directory_id` is that of the folder of the metadata log."""
        self._services = services
        self._feed = feed
        self._followers = followers
        self._directory_id = directory_id
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
        if (topic, partition) != (METADATA_TOPIC, 0):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return DescribeQuorumPartition(
                partition_index=partition, error_code=code, error_message=code.message
            )
        node_id, now_ms = self._services.config.node_id, self._services.clock.now_ms()
        brokers = self._services.metadata.image.brokers
        return DescribeQuorumPartition(
            partition_index=partition,
            leader_id=node_id,
            leader_epoch=self._feed.epoch,
            high_watermark=self._feed.end,
            current_voters=[
                ReplicaState(
                    replica_id=node_id,
                    replica_directory_id=self._directory_id,
                    log_end_offset=self._feed.end,
                    # As Kafka's leader says of itself.
                    last_fetch_timestamp=now_ms,
                    last_caught_up_timestamp=now_ms,
                )
            ],
            observers=[
                ReplicaState(
                    replica_id=replica_id,
                    replica_directory_id=one.directory_id,
                    log_end_offset=one.end_offset,
                    last_fetch_timestamp=one.fetched_ms,
                    last_caught_up_timestamp=one.caught_up_ms,
                )
                for replica_id, one in sorted(self._followers.progress.items())
                if replica_id in brokers
            ],
        )
