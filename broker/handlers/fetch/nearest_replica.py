"""Which replica a consumer had better fetch from (KIP-392; Kafka's RackAwareReplicaSelector).

    the leader has the client's rack                          the leader
    in-sync followers of that rack, which have the offset     the one that is furthest
    no replica of that rack                                   the leader

The leader names a follower instead of records, and the consumer fetches from there until it is
refused, or for its metadata.max.age.ms. Any replica serves consumers, below its own high watermark.
"""

from __future__ import annotations

from strandline.broker.cluster.in_sync.leading import Leading
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.services.leader_endpoints import leader_endpoints
from strandline.broker.protocol.messages.fetch import FetchResponsePartition
from strandline.storage.model import Offset


def preferred_answer(
    image: MetadataImage, partition: Partition, rack: str, listener: str, offset: Offset
) -> FetchResponsePartition | None:
    """Returns an answer that names a nearer replica; None if the leader is to serve the fetch."""
    leading = partition.leading
    if leading is None:
        return None
    node_id = _nearest(image, leading, partition.leader_id, rack, listener, offset)
    if node_id is None:
        return None
    return FetchResponsePartition(
        index=partition.topic_partition.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        preferred_read_replica=node_id,
    )


def _nearest(
    image: MetadataImage,
    leading: Leading,
    leader_id: NodeId,
    rack: str,
    listener: str,
    offset: Offset,
) -> NodeId | None:
    own = image.brokers.get(leader_id)
    if own is not None and own.rack == rack:
        return None
    # One that is not in sync may never keep up with the consumer.
    in_sync = leading.in_sync.committed
    near = [
        (one.end_offset, one.caught_up_ms, one.broker_id)
        for one in leading.followers()
        if one.broker_id in in_sync
        and (broker := image.brokers.get(one.broker_id)) is not None
        and broker.rack == rack
        and one.log_start_offset <= offset <= one.end_offset
    ]
    for *_, node_id in sorted(near, reverse=True):
        if next(leader_endpoints(image, (node_id,), listener), None) is not None:
            return node_id
    return None
