"""Allocates producer ids, each once in the life of a cluster.

Ids come from a block that is allocated in the metadata log for good: a crash loses the rest of a
block, but no id is used twice.
"""

from __future__ import annotations

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import Decision
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata import Metadata


class ProducerIds:
    """Owner of the current block of producer ids. Used on the event loop only."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._next = 0
        self._block_end = 0

    async def take(self) -> int:
        """Returns a new id. Raises StorageError."""
        while self._next == self._block_end:
            decision = await self._metadata.change(self._next_block)
            for block in decision.results:
                self._next, self._block_end = block.start, block.stop
        taken = self._next
        self._next += 1
        return taken

    def _next_block(self, image: MetadataImage) -> Decision[range]:
        """Allocates a block, unless another request did so while this one waited for its turn."""
        if self._next < self._block_end:
            return Decision(records=(), results=())
        return controller.allocate_producer_ids(image)
