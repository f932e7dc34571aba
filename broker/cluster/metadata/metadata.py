"""The current metadata image, and the only way to change it.

    1 decide on the image (pure)   2 append the records to the metadata log (durable)
    3 take over the new image      4 make this broker's partitions follow it   5 answer

A crash after 2 loses the answer, not the change: start-up makes the partitions follow the image.
Changes are serialised; readers use `image` without waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import Decision, ResultT
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata_log import MetadataLog, MetadataRaced
from strandline.broker.cluster.metadata.records import NodeId
from strandline.storage.errors import StorageError
from strandline.storage.model import TopicId

# Losing the race this often in a row means that another writer appends in a loop.
RACES_MAX = 10


class ImageFollower(Protocol):
    """Applies a new image to this broker's partitions."""

    async def follow(self, image: MetadataImage) -> None: ...


class Metadata:
    """Owner of the metadata image on this broker."""

    def __init__(
        self,
        image: MetadataImage,
        metadata_log: MetadataLog,
        *,
        follower: ImageFollower,
        executor: Executor,
    ) -> None:
        """`executor` runs the blocking appends; one worker is enough."""
        self._image = image
        self._metadata_log = metadata_log
        self._follower = follower
        self._executor = executor
        self._changing = asyncio.Lock()
        # The outcome of the last append is unknown.
        self._unsure = False

    @property
    def image(self) -> MetadataImage:
        return self._image

    def topic_name(self, topic_id: TopicId | None) -> str | None:
        """Returns the name of the topic with that id; None if there is none."""
        topic = None if topic_id is None else self._image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

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
                decision = decide(self._image)  # 1
                if not decision.records:
                    return decision
                try:
                    self._image = await loop.run_in_executor(  # 2, 3
                        self._executor, self._metadata_log.append, decision.records
                    )
                except MetadataRaced:
                    # Another broker appended first: the image now includes its change.
                    self._image = self._metadata_log.image
                    continue
                except StorageError:
                    self._unsure = True
                    raise
                await self._follower.follow(self._image)  # 4
                return decision  # 5
            raise StorageError(f"the metadata log was changed by others {RACES_MAX} times in a row")

    async def bump_leader_epochs(self, node_id: NodeId) -> None:
        """Bumps the epochs of all that the node leads: it reuses offsets, which readers must notice
        (KIP-320). Creates missing folders. Raises as `change`.
        """
        await self.change(lambda _: controller.start_broker(node_id))

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        self._image = await loop.run_in_executor(self._executor, self._metadata_log.refresh)
        self._unsure = False
        await self._follower.follow(self._image)
