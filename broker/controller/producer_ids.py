"""Blocks of producer ids for brokers (KIP-730)."""

from __future__ import annotations

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import Decision, Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.controller.broker_epoch import check_epoch
from strandline.broker.controller.messages import AllocateBlock, AllocatedBlock


def allocate(image: MetadataImage, asked: AllocateBlock) -> Decision[AllocatedBlock]:
    """Allocates a block that nobody had. Raises StorageError if all ids are used up."""
    try:
        check_epoch(image, asked.node_id, asked.broker_epoch)
    except Refusal as refusal:
        refused = AllocatedBlock(error_code=refusal.error_code, error_message=refusal.message)
        return Decision(records=(), results=(refused,))
    decision = controller.allocate_producer_ids(image, asked.node_id)
    (ids,) = decision.results
    block = AllocatedBlock(first_id=ids.start, id_count=len(ids))
    return Decision(records=decision.records, results=(block,))
