"""The metadata as a broker sees it: the image that it has reached, and those who follow it.

Whoever drives the view (the controller of a lone broker, the poll of a read-only replica) gives it
each image with what changed. Readers use `image` without waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.storage.model import TopicId

# Applies what changed, and has the image after it (Kafka's MetadataPublisher). A follower that did
# not finish gets the same changes again, together with the next ones.
Follower: TypeAlias = Callable[[MetadataDelta, MetadataImage], Awaitable[None] | None]


class MetadataView:
    """The newest image of this broker, published to a list of followers. On the event loop only."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        # The image that all followers have applied.
        self._followed = image
        self._followers: list[Follower] = []
        self._publishing = asyncio.Lock()

    @property
    def image(self) -> MetadataImage:
        return self._image

    def topic_name(self, topic_id: TopicId | None) -> str | None:
        """Returns the name of the topic with that id; None if there is none."""
        topic = None if topic_id is None else self._image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    async def publish_to(self, *followers: Follower) -> None:
        """Publishes the image to them, in this order, and from now on each change.

        The first publication is the whole image, as changes of the empty one.
        """
        async with self._publishing:
            self._followers += followers
            # Not one whose publication waits: they get its changes with the others.
            image = self._followed
            await _publish(followers, MetadataDelta(MetadataImage(), image), image)

    async def take_over(self, image: MetadataImage, delta: MetadataDelta | None = None) -> None:
        """Takes over a newer image; returns when all followers have applied it.

        `delta` is what changed since the image before, computed without it. Raises what a follower
        raises.
        """
        self._image = image
        async with self._publishing:
            if delta is None or delta.before is not self._followed:
                # Somebody else wrote it, or a follower failed at an earlier change.
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
