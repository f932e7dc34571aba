"""Allocates producer ids, each once in the life of a cluster.

Ids come from a block that is allocated in the metadata log for good: a crash loses the rest of a
block, but no id is used twice.
"""

from __future__ import annotations

from strandline.broker.cluster.metadata import controller
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
            before = self._block_end
            decision = await self._metadata.change(controller.allocate_producer_ids)
            (block,) = decision.results
            # Another request may have fetched a block meanwhile, which must not be lost.
            if self._block_end == before:
                self._next, self._block_end = block.start, block.stop
        taken = self._next
        self._next += 1
        return taken
