"""The log folders of replicas, as their brokers report them (AssignReplicasToDirs, KIP-858).

A replica in a folder that is offline is out of sync, and leads nothing. One whose folder its broker
has no more is a new, empty one in another folder: it leads nothing either, until it has copied all
from a leader. In Kafka the last leader would lead again, and the others drop what they have.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from strandline.broker.cluster.metadata.controller_messages import Decision, Refusal
from strandline.broker.controller.broker_epoch import check_epoch
from strandline.broker.controller.directories import is_reserved
from strandline.broker.controller.messages import (
    AssignDirectories,
    AssignedReplicas,
    ReplicaInFolder,
)
from strandline.broker.controller.partitions.change import PartitionTarget
from strandline.broker.controller.partitions.decided import Partitions, directory_of
from strandline.broker.controller.partitions.elections import leave
from strandline.broker.controller.partitions.index import Place
from strandline.broker.protocol.formats.metadata_records import (
    MetadataRecord,
    RegisterBrokerRecord,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import TopicId


def assign(partitions: Partitions, asked: AssignDirectories) -> Decision[AssignedReplicas]:
    """Notes the folders that are known replicas; each other one has its error."""
    try:
        broker = check_epoch(partitions.image, asked.node_id, asked.broker_epoch)
    except Refusal as refusal:
        refused = AssignedReplicas(error_code=refusal.error_code, error_message=refusal.message)
        return Decision(records=(), results=(refused,))
    records: list[MetadataRecord] = []
    codes: dict[ReplicaInFolder, ErrorCode] = {}
    offline: dict[Place, None] = {}
    for directory in asked.directories:
        for topic in directory.topics:
            for one in topic.partitions:
                place = directory.id, topic.topic_id, one.partition_index
                codes[place] = ErrorCode.NONE
                try:
                    records += _assigned(partitions, broker, *place)
                except Refusal as refusal:
                    codes[place] = refusal.error_code
                else:
                    if directory.id not in broker.log_dirs:
                        offline[place[1:]] = None
    done: Decision[AssignedReplicas] = Decision(
        records=(), results=(AssignedReplicas(codes=codes),)
    )
    if not offline:
        return replace(done, records=tuple(records))
    return Decision(
        records=tuple(records),
        results=(),
        # What is in a folder that is offline leaves, where it is known to be there.
        then=lambda image: leave(
            partitions.at(image), asked.node_id, lambda _: done, places=list(offline)
        ),
    )


def _assigned(
    partitions: Partitions,
    broker: RegisterBrokerRecord,
    directory: uuid.UUID,
    topic_id: TopicId,
    number: int,
) -> list[MetadataRecord]:
    topic, node = partitions.image.topics_by_id.get(topic_id), broker.broker_id
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= number < topic.partition_count:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[number]
    if node not in partition.replicas:
        raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    before = directory_of(partition, node)
    is_gone = not is_reserved(before) and before not in broker.log_dirs
    target = PartitionTarget(
        directories={node: directory},
        emptied=node if is_gone and directory in broker.log_dirs else None,
    )
    record = partitions.change((topic, partition), target)
    return [] if record is None else [record]
