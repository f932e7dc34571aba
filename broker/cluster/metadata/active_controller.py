"""The active controller: the only one that changes the metadata, one entry after the other.

    1 decide on the image (pure)   2 append the records to the metadata log (durable)
    3 the view takes over the new image, and its followers apply it   4 answer

A crash after 2 loses the answer, not the change: a start publishes the whole image. One entry is in
flight; whoever comes meanwhile waits, and decides on the image after it.

Handlers of clients' requests run where the active controller is, and decide by a function of the
image. What a broker itself asks for is a request of ControllerClient.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import (
    Decision,
    NewTopic,
    ResultT,
    TopicDefaults,
    TopicResult,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata_log import MetadataLog, MetadataRaced
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.storage.errors import StorageError
from strandline.storage.model import TopicId

# Losing the race this often in a row means that another writer appends in a loop.
RACES_MAX = 10


class ActiveController:
    """Decides on the metadata, and appends to their log."""

    def __init__(
        self, view: MetadataView, metadata_log: MetadataLog, *, executor: Executor
    ) -> None:
        """`executor` runs the blocking appends; one worker is enough."""
        self.view = view
        self._metadata_log = metadata_log
        self._executor = executor
        self._changing = asyncio.Lock()
        # The outcome of the last append is unknown.
        self._unsure = False

    async def change(
        self, decide: Callable[[MetadataImage], Decision[ResultT]]
    ) -> Decision[ResultT]:
        """Decides on the newest image and carries the decision out.

        Raises StorageError if the metadata log cannot be written. The outcome of the append is then
        unknown, so the next change reads the log again first and applies what it holds.
        """
        async with self._changing:
            loop = asyncio.get_running_loop()
            if self._unsure:
                await self._refresh()
            for _ in range(RACES_MAX):
                decision = decide(self.view.image)  # 1
                if not decision.records:
                    return decision
                try:
                    delta, image = await loop.run_in_executor(  # 2
                        self._executor, self._metadata_log.append, decision.records
                    )
                except MetadataRaced:
                    # Another broker appended first: the image now includes its change.
                    await self.view.take_over(self._metadata_log.image)
                    continue
                except StorageError:
                    self._unsure = True
                    raise
                await self.view.take_over(image, delta)  # 3
                return decision  # 4
            raise StorageError(f"the metadata log was changed by others {RACES_MAX} times in a row")

    async def raise_leader_epochs(self, node_id: NodeId) -> None:
        """Raises the epochs of all that the node leads. Raises as `change`."""
        await self.change(lambda image: controller.raise_leader_epochs(image, node_id))

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        image = await loop.run_in_executor(self._executor, self._metadata_log.refresh)
        self._unsure = False
        await self.view.take_over(image)


class ControllerClient:
    """What a broker itself asks of the active controller. All raise as `ActiveController.change`.

    Each is a request that Kafka's brokers send (KIP-500, KIP-730), so that the controller may be
    elsewhere.
    """

    def __init__(
        self,
        active: ActiveController,
        *,
        node_id: NodeId,
        topic_defaults: Callable[[], TopicDefaults],
    ) -> None:
        self._active = active
        self._node_id = node_id
        self._topic_defaults = topic_defaults

    async def create_topics(self, topics: Sequence[NewTopic]) -> Sequence[TopicResult]:
        """Creates topics, such as internal ones: CreateTopics."""
        decision = await self._active.change(
            lambda image: controller.create_topics(image, topics, defaults=self._topic_defaults())
        )
        return decision.results

    async def allocate_producer_ids(self) -> range:
        """Returns a block of producer ids for this broker alone: AllocateProducerIds."""
        decision = await self._active.change(
            lambda image: controller.allocate_producer_ids(image, self._node_id)
        )
        return decision.results[0]

    async def finish_purges(self, topic_ids: Collection[TopicId]) -> None:
        """Removes the notes of purges: IncrementalAlterConfigs."""
        await self._active.change(lambda image: controller.finish_purges(image, topic_ids))

    async def raise_leader_epochs(self) -> None:
        """Raises the epochs of all that this broker leads: it reuses offsets, which readers must
        notice (KIP-320). Missing folders are created on the way.
        """
        await self._active.raise_leader_epochs(self._node_id)
