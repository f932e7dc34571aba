"""Keeps `topic.json` in the bucket equal to the broker's description of the topic.

It is written before the first object of the topic, so that a folder with objects but without it is
always the remains of a purge, never a topic; and again when partitions or properties change: by the
next step of one of its partitions. A start compares what it finds in the bucket.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

from strandline.storage.errors import StorageError
from strandline.storage.model import TopicId
from strandline.storage.remote.manifest.topic_info import TopicInfo, change_topic_info
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads


class TopicDeletedError(StorageError):
    """The bucket says that this very topic (by id) was deleted: it takes no more objects."""


class TopicRegistration:
    """Description of one topic, shared by its partitions. Used on the event loop only."""

    def __init__(self, info: TopicInfo, threads: MetadataThreads) -> None:
        self.info = info
        self._threads = threads
        self._saved: TopicInfo | None = None
        self._lock = asyncio.Lock()

    def update(self, info: TopicInfo) -> None:
        """Takes over a changed description; the next `ensure` writes it."""
        assert info.topic_id == self.info.topic_id, (info, self.info)
        self.info = info

    def found(self, info: TopicInfo) -> None:
        """Notes what the bucket has; the next `ensure` writes nothing if that is the same."""
        if self._saved is None:
            self._saved = info

    @property
    def is_saved(self) -> bool:
        return self._saved == self.info

    async def ensure(self) -> None:
        """Returns when the bucket has the description. Raises TopicDeletedError, TierError."""
        if self.is_saved:
            return
        async with self._lock:
            info = self.info
            if self._saved != info:
                await self._threads.run(partial(self._save, info))
                self._saved = info

    def _save(self, info: TopicInfo) -> None:
        def change(found: TopicInfo | None) -> TopicInfo | None:
            if found is not None and found.is_deleted:
                raise TopicDeletedError(f"{info.key}: the topic was deleted at {found.deleted_ms}")
            return None if found == info else info

        change_topic_info(self._threads.store, info, change)

    def __repr__(self) -> str:
        return f"<TopicRegistration {self.info.topic} saved={self.is_saved}>"


class TopicRegistrations:
    """The registrations of all tiered topics, by id. Used on the event loop only."""

    def __init__(self) -> None:
        self._by_id: dict[TopicId, TopicRegistration] = {}
        # A topic that was deleted and recreated is here twice for a while. Of ten thousand
        # topics a name is counted, not searched for.
        self._counts: Counter[str] = Counter()

    def get(self, topic_id: TopicId) -> TopicRegistration | None:
        return self._by_id.get(topic_id)

    def add(self, registration: TopicRegistration) -> None:
        """Adds the registration of a topic that is not registered yet."""
        assert registration.info.topic_id not in self._by_id, registration
        self._by_id[registration.info.topic_id] = registration
        self._counts[registration.info.topic] += 1

    def remove(self, topic_id: TopicId) -> bool:
        """Removes the topic; True if it was registered."""
        registration = self._by_id.pop(topic_id, None)
        if registration is None:
            return False
        name = registration.info.topic
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]
        return True

    def has_name(self, topic: str) -> bool:
        """Returns whether a topic of this name is registered, under any id."""
        return topic in self._counts
