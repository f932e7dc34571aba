"""The current metadata image, and the only way to change it.

    1 decide on the image (pure)   2 append the records to the metadata log (durable)
    3 take over the new image      4 publish it, and what changed, to its followers   5 answer

A crash after 2 loses the answer, not the change: the first publication to a follower is the whole
image, as changes of the empty one. Changes are serialised; readers use `image` without waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import TypeAlias

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import Decision, ResultT
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.metadata_log import MetadataLog, MetadataRaced
from strandline.broker.cluster.metadata.records import NodeId
from strandline.storage.errors import StorageError
from strandline.storage.model import TopicId

# Losing the race this often in a row means that another writer appends in a loop.
RACES_MAX = 10


# Applies what changed, and has the image after it (Kafka's MetadataPublisher). A follower that did
# not finish gets the same changes again, together with the next ones.
Follower: TypeAlias = Callable[[MetadataDelta, MetadataImage], Awaitable[None] | None]


class Metadata:
    """Owner of the metadata image on this broker."""

    def __init__(
        self,
        image: MetadataImage,
        metadata_log: MetadataLog,
        *,
        executor: Executor,
    ) -> None:
        """`executor` runs the blocking appends; one worker is enough."""
        self._image = image
        # The image that all followers have applied.
        self._followed = image
        self._metadata_log = metadata_log
        self._followers: list[Follower] = []
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

    async def publish_to(self, *followers: Follower) -> None:
        """Publishes the image to them, in this order, and from now on each change."""
        async with self._changing:
            self._followers += followers
            await _publish(followers, MetadataDelta(MetadataImage(), self._image), self._image)

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
                    delta, image = await loop.run_in_executor(  # 2
                        self._executor, self._metadata_log.append, decision.records
                    )
                except MetadataRaced:
                    # Another broker appended first: the image now includes its change.
                    await self._take_over(self._metadata_log.image)
                    continue
                except StorageError:
                    self._unsure = True
                    raise
                await self._take_over(image, delta)  # 3, 4
                return decision  # 5
            raise StorageError(f"the metadata log was changed by others {RACES_MAX} times in a row")

    async def bump_leader_epochs(self, node_id: NodeId) -> None:
        """Bumps the epochs of all that the node leads: it reuses offsets, which readers must notice
        (KIP-320). Creates missing folders. Raises as `change`.
        """
        await self.change(lambda _: controller.start_broker(node_id))

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        image = await loop.run_in_executor(self._executor, self._metadata_log.refresh)
        self._unsure = False
        await self._take_over(image)

    async def _take_over(self, image: MetadataImage, delta: MetadataDelta | None = None) -> None:
        self._image = image
        # It begins elsewhere if a follower failed at an earlier change, or was cancelled.
        if delta is None or delta.before is not self._followed:
            delta = MetadataDelta(self._followed, image)
        await _publish(self._followers, delta, image)
        self._followed = image


async def _publish(
    followers: Iterable[Follower], delta: MetadataDelta, image: MetadataImage
) -> None:
    for follow in followers:
        following = follow(delta, image)
        if following is not None:
            await following
