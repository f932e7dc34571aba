"""Deleted topics whose folder is empty, and which is looked at once more.

    purged                                              looked at again, forgotten
      |------- longer than an upload may take ---------------|
             ^ an upload that nobody waits for any more comes

An upload of a process that was killed, or one that was given up, may still be on its way when the
topic is purged: a proxy or the store has it, and goes on. Its objects would lie in a folder without
topic.json, where nobody takes them for safe to delete. So a topic counts as gone when its folder
was emptied a second time, after the time that an upload may take. Until then the metadata log asks
for the purge again at each start.

A DELETE may be on its way as well, if one was given up, or sent by a process that was killed. Most
names are used once, and a manifest's is not: it would take the manifest of a topic that was tiered
again meanwhile. So such a topic waits for the same time, and keeps its tombstone meanwhile: a start
finds it, and waits anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage.clock import Clock
from strandline.storage.model import Epoch, TopicId
from strandline.storage.remote.manifest.topic_info import TopicInfo
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.manager.topic_purge import TopicPurge


@dataclass(slots=True)
class WaitingPartition:
    """One that is tiered again, as soon as nothing can come any more of its earlier archive."""

    log: UnifiedLog
    info: TopicInfo
    leader_epoch: Epoch


class LateUploads:
    """Topics that were purged once. Used on the event loop only."""

    def __init__(self, clock: Clock, *, wait_ms: int) -> None:
        """`wait_ms` is longer than an upload that was begun before the purge may take."""
        self._clock = clock
        self._wait_s = wait_ms / 1000
        self._due: dict[TopicId, tuple[float, TopicInfo]] = {}
        # Those of which a DELETE may still come.
        self._in_doubt: set[TopicId] = set()

    def __contains__(self, topic_id: object) -> bool:
        return topic_id in self._due

    def expect(self, purge: TopicPurge) -> None:
        """The topic was purged just now."""
        topic_id = purge.info.topic_id
        self._due[topic_id] = (self._clock.monotonic_s() + self._wait_s, purge.info)
        if purge.is_in_doubt:
            self._in_doubt.add(topic_id)

    def holds_up(self, topic_id: TopicId) -> bool:
        """Whether what is archived of the topic now may be deleted by a request of before."""
        return topic_id in self._in_doubt

    def forget(self, topic_id: TopicId) -> None:
        """The topic is tiered again, and what its manifests do not name is found as an orphan."""
        self._due.pop(topic_id, None)

    def take_due(self) -> list[TopicInfo]:
        """The topics whose folders are to be looked at now; they are not kept."""
        now_s = self._clock.monotonic_s()
        due = [info for due_s, info in self._due.values() if now_s >= due_s]
        for info in due:
            del self._due[info.topic_id]
            self._in_doubt.discard(info.topic_id)
        return due

    def __repr__(self) -> str:
        return f"<LateUploads wait_s={self._wait_s:g} topics={len(self._due)}>"
