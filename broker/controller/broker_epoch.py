"""The broker epoch: a request of a broker is one of its newest registration, or refused."""

from __future__ import annotations

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord
from strandline.broker.protocol.schema.errors import ErrorCode


def check_epoch(image: MetadataImage, node_id: NodeId, broker_epoch: int) -> RegisterBrokerRecord:
    """Returns the registration that a broker speaks of. Raises Refusal if it is not the newest."""
    broker = image.brokers.get(node_id)
    if broker is None:
        raise Refusal(
            ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {node_id}"
        )
    if broker.broker_epoch != broker_epoch:
        raise Refusal(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.broker_epoch}, but got broker epoch {broker_epoch}",
        )
    return broker
