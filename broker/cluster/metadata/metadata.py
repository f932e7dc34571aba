"""The current metadata image, and the only way to change it.

    1 decide on the image (pure)   2 append the records to the metadata log (durable)
    3 take over the new image      4 make this broker's partitions follow it   5 answer

A crash after 2 loses the answer, not the change: start-up makes the partitions follow the image.
Changes are made one at a time; readers use `image` without waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Protocol, TypeVar

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata_log import MetadataLog, MetadataRaced
from strandline.broker.cluster.metadata.records import MetadataRecord, NodeId
from strandline.storage.errors import StorageError
from strandline.storage.model import TopicId

# Losing the race this often in a row means that somebody appends in a loop.
RACES_MAX = 10


class _Decision(Protocol):
    """What a controller function returns: records to append, and whatever the caller wants."""

    @property
    def records(self) -> Sequence[MetadataRecord]: ...


DecisionT = TypeVar("DecisionT", bound=_Decision)


class ImageFollower(Protocol):
    """Makes the world as the image says."""

    async def follow(self, image: MetadataImage) -> None: ...


class Metadata:
    """Owner of the image on this broker."""

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
        # The outcome of the last append is not known.
        self._unsure = False

    @property
    def image(self) -> MetadataImage:
        return self._image

    def topic_name(self, topic_id: TopicId | None) -> str | None:
        """What the topic of that id is called; None if there is none."""
        topic = None if topic_id is None else self._image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    async def change(self, decide: Callable[[MetadataImage], DecisionT]) -> DecisionT:
        """Decides on the newest image and carries the decision out.

        Raises StorageError if the metadata log cannot be written. Whether the entry is durable is
        open then, so the log is read again before the next change; what it holds is followed.
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
                    # Another broker appended first: its change is in the image that we now have.
                    self._image = self._metadata_log.image
                    continue
                except StorageError:
                    self._unsure = True
                    raise
                await self._follower.follow(self._image)  # 4
                return decision  # 5
            raise StorageError(f"the metadata log was changed by others {RACES_MAX} times in a row")

    async def lead_anew(self, node_id: NodeId) -> None:
        """A new epoch for all that the node leads, for offsets are given a second time, and readers
        must be able to tell (KIP-320). What found no folder is made. Raises as `change`.
        """
        await self.change(partial(controller.start_broker, node_id=node_id))

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        self._image = await loop.run_in_executor(self._executor, self._metadata_log.refresh)
        self._unsure = False
        await self._follower.follow(self._image)
