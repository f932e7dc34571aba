"""The log folders of replicas, as their brokers report them (AssignReplicasToDirs, KIP-858).

A replica in a folder that is offline is out of sync, and leads nothing.
"""

from __future__ import annotations

import uuid

from strandline.broker.cluster.metadata.controller_messages import Decision, Refusal
from strandline.broker.cluster.metadata.image import MetadataImage, PartitionImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.controller.directories import is_online
from strandline.broker.controller.elections import Electorate, change_of, directory_of
from strandline.broker.controller.messages import (
    AssignDirectories,
    AssignedReplicas,
    ReplicaInFolder,
)
from strandline.broker.controller.registration import check_epoch
from strandline.broker.protocol.formats.metadata_records import (
    UNASSIGNED_DIRECTORY,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import TopicId


def assign(image: MetadataImage, asked: AssignDirectories) -> Decision[AssignedReplicas]:
    """Notes the folders that are known replicas; each other one has its error."""
    try:
        broker = check_epoch(image, asked.node_id, asked.broker_epoch)
    except Refusal as refusal:
        refused = AssignedReplicas(error_code=refusal.error_code, error_message=refusal.message)
        return Decision(records=(), results=(refused,))
    records: list[MetadataRecord] = []
    codes: dict[ReplicaInFolder, ErrorCode] = {}
    for directory in asked.directories:
        for topic in directory.topics:
            for one in topic.partitions:
                place = directory.id, topic.topic_id, one.partition_index
                codes[place] = ErrorCode.NONE
                try:
                    records += _assigned(image, broker, *place)
                except Refusal as refusal:
                    codes[place] = refusal.error_code
    return Decision(records=tuple(records), results=(AssignedReplicas(codes=codes),))


def _assigned(
    image: MetadataImage,
    broker: RegisterBrokerRecord,
    directory: uuid.UUID,
    topic_id: TopicId,
    number: int,
) -> list[MetadataRecord]:
    topic, node = image.topics_by_id.get(topic_id), broker.broker_id
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= number < topic.partition_count:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[number]
    if node not in partition.replicas:
        raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    records: list[MetadataRecord] = []
    if directory_of(partition, node) != directory:
        records.append(
            PartitionChangeRecord(
                partition_id=number,
                topic_id=topic_id,
                directories=_with_directory(partition, node, directory),
            )
        )
    if not is_online(broker, directory):
        isr = tuple(replica for replica in partition.isr if replica != node)
        change = change_of(topic, partition, Electorate(image, without=node), isr=isr)
        records += [] if change is None else [change]
    return records


def _with_directory(
    partition: PartitionImage, node_id: NodeId, directory: uuid.UUID
) -> list[uuid.UUID]:
    known = dict(zip(partition.replicas, partition.directories, strict=False))
    known[node_id] = directory
    return [known.get(replica, UNASSIGNED_DIRECTORY) for replica in partition.replicas]
