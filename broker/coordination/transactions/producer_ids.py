"""Allocates producer ids, each once in the life of a cluster.

Ids come from a block that is allocated in the metadata log for good: a crash loses the rest of a
block, but no id is used twice.
"""

from __future__ import annotations

import asyncio

from strandline.broker.cluster.metadata.active_controller import ControllerClient


class ProducerIds:
    """Owner of the current block of producer ids. Used on the event loop only."""

    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller
        # Of those that find no id left, one asks for a block.
        self._asking = asyncio.Lock()
        self._next = 0
        self._block_end = 0

    async def take(self) -> int:
        """Returns a new id. Raises StorageError."""
        while self._next == self._block_end:
            async with self._asking:
                if self._next == self._block_end:
                    block = await self._controller.allocate_producer_ids()
                    self._next, self._block_end = block.start, block.stop
        taken = self._next
        self._next += 1
        return taken
