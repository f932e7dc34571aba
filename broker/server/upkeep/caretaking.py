"""What a broker of a cluster does for the archive of all while it is the caretaker.

    the mirror notes a deleted topic ─► the topic is purged ─► the mirror drops the note

The mirror itself, cluster.json and orphans are looked after by the loops that a lone broker has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from strandline.broker.cluster.archive.cluster_mirror import ClusterMirror
from strandline.broker.cluster.replicas.tiers import describe_deleted
from strandline.storage.model import TopicId
from strandline.storage.tiering.manager.manager import TieringManager

# Costs no request.
CHECK_S: Final = 0.5


class Caretaking:
    """Begins the purges that the mirror notes. Used on the event loop only."""

    def __init__(
        self,
        tiering: TieringManager,
        mirror: ClusterMirror,
        is_caretaker: Callable[[], bool],
    ) -> None:
        self._tiering = tiering
        self._mirror = mirror
        self._is_caretaker = is_caretaker
        self._was_caretaker = False
        self._begun: set[TopicId] = set()

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            self.step()
            await asyncio.sleep(CHECK_S)

    def step(self) -> None:
        """Takes over or gives up what is the caretaker's, and begins noted purges."""
        is_caretaker = self._is_caretaker()
        if is_caretaker != self._was_caretaker:
            self._was_caretaker = is_caretaker
            self._begun.clear()
            self._tiering.caretaker_changed()
        if not is_caretaker or not self._tiering.may_write():
            return
        noted = self._mirror.pending_purges
        self._begun &= noted.keys()
        for topic_id, deleted in noted.items():
            if topic_id not in self._begun:
                self._begun.add(topic_id)
                self._tiering.delete_topic(describe_deleted(deleted))
