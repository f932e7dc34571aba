"""Which replicas clients of a listener can reach, as the metadata have it (Kafka's MetadataCache).

A replica is offline if its broker is fenced or unknown, has no such listener, or lost the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from strandline.broker.cluster.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.controller.directories import is_online
from strandline.broker.protocol.formats.metadata_records import UNASSIGNED_DIRECTORY


class Reachable:
    """The replicas of one image, for the clients of one listener."""

    def __init__(self, image: MetadataImage, listener: str, config: BrokerConfig) -> None:
        self._node_id = config.node_id
        # A lone broker answers for itself alone.
        self._is_alone = not config.membership.has_controllers
        self._listening = {
            broker.broker_id: broker
            for broker in image.brokers.values()
            if broker.broker_id == config.node_id
            or any(one.name == listener for one in broker.end_points)
        }

    def leader_of(self, partition: PartitionImage) -> NodeId:
        """Returns the leader, NO_LEADER if clients cannot reach it."""
        leader = partition.leader
        if leader == self._node_id or leader in self._listening:
            return leader
        return NO_LEADER

    def offline_replicas(self, partition: PartitionImage) -> Sequence[NodeId]:
        """Returns the replicas that nobody can reach now."""
        if self._is_alone:
            return ()
        folders = partition.directories or repeat(UNASSIGNED_DIRECTORY)
        return [
            node
            for node, folder in zip(partition.replicas, folders, strict=False)
            if (broker := self._listening.get(node)) is None
            or broker.fenced
            or not is_online(broker, folder)
        ]
