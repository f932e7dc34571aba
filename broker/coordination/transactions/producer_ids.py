"""Allocates producer ids, each once in the life of a cluster.

Ids come from a block that is allocated in the metadata log for good: a crash loses the rest of a
block, but no id is used twice.
"""

from __future__ import annotations

import asyncio

from strandline.broker.cluster.metadata.controller_messages import AllocateProducerIds, Controller
from strandline.broker.cluster.metadata.records import NodeId
from strandline.storage.errors import StorageError


class ProducerIds:
    """Owner of the current block of producer ids. Used on the event loop only."""

    def __init__(self, controller: Controller, node_id: NodeId) -> None:
        self._controller = controller
        self._node_id = node_id
        # Of those that find no id left, one asks for a block.
        self._asking = asyncio.Lock()
        self._failure: StorageError | None = None
        self._failures = 0
        self._next = 0
        self._block_end = 0

    async def take(self) -> int:
        """Returns a new id. Raises StorageError."""
        while self._next == self._block_end:
            failures = self._failures
            async with self._asking:
                if failures != self._failures and self._failure is not None:
                    # Else the last of many would wait as long as all of them.
                    raise self._failure.with_traceback(None)
                if self._next == self._block_end:
                    await self._ask_for_block()
        taken = self._next
        self._next += 1
        return taken

    async def _ask_for_block(self) -> None:
        try:
            (block,) = await self._controller.ask(AllocateProducerIds(self._node_id))
        except StorageError as error:
            self._failure = error
            self._failures += 1
            raise
        self._next, self._block_end = block.start, block.stop
