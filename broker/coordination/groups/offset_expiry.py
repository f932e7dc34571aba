"""Deletes committed offsets that expired, and those of deleted topics.

A commit has its topic's id, so an offset of a deleted topic is known as such, whatever has the name
now: it is never returned, and its tombstone may be written late. A broker that ended before it
wrote the tombstone does so when the partition is loaded; one that could not write it, with the next
expiry check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TypeAlias

from strandline.broker.cluster.metadata.image import TopicImage
from strandline.broker.coordination.groups.group_shard import GroupSlot, GroupSlots
from strandline.broker.coordination.groups.group_writes import in_batches, write_offsets
from strandline.broker.coordination.model.classic_messages import CoordinatorFault, Instant
from strandline.broker.coordination.model.offset_messages import CoordinatorRecord
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.model import TimestampMs

log = logging.getLogger(__name__)

Topics: TypeAlias = Mapping[str, TopicImage]


class OffsetExpiry:
    """Writes tombstones of expired and deleted offsets in every loaded partition."""

    def __init__(
        self,
        slots: GroupSlots,
        topics: Callable[[], Topics],
        *,
        interval_ms: int,
        now: Instant,
        believed_ms: Callable[[], TimestampMs],
    ) -> None:
        """`topics` returns the existing topics.

        `believed_ms` is the time used for expiry: the wall clock may have jumped.
        """
        self._slots = slots
        self._topics = topics
        self._believed_ms = believed_ms
        self._interval_ms = interval_ms
        self._next_expiry_ms = now.monotonic_ms + interval_ms

    async def expire_if_due(self, now: Instant) -> None:
        """Deletes offsets older than `offsets.retention.minutes`, once per interval.

        One partition after the other: it looks at every offset.
        """
        if now.monotonic_ms < self._next_expiry_ms:
            return
        self._next_expiry_ms = now.monotonic_ms + self._interval_ms
        believed = now._replace(wall_ms=self._believed_ms())
        async for slot in in_turns(self._slots.present()):
            if not slot.is_loaded:
                continue
            records = slot.shard.expire(believed)
            if records:
                log.info("offsets expired", extra={"fields": _fields(slot, records=len(records))})
            _write(slot, records, now)
            self._delete(slot, slot.shard.committed_topics(), now)

    def follow(self, gone: Set[str], now: Instant) -> None:
        """Deletes the offsets of deleted topics, which had these names."""
        for slot in self._slots.present():
            if slot.is_loaded:
                self._delete(slot, gone, now)

    def note_loaded(self, slot: GroupSlot, now: Instant) -> None:
        """Completes the offsets of old states, and deletes those of deleted topics."""
        _write(slot, slot.shard.completed_offsets(), now)
        self._delete(slot, slot.shard.committed_topics(), now)

    def _delete(self, slot: GroupSlot, names: Set[str], now: Instant) -> None:
        _write(slot, slot.shard.topic_tombstones(names, self._topics()), now)


def _write(slot: GroupSlot, records: Sequence[CoordinatorRecord], now: Instant) -> None:
    try:
        for batch in in_batches(records):
            write_offsets(slot, batch, now)
    except CoordinatorFault as fault:
        log.warning(
            "upkeep of committed offsets not written",
            extra={"fields": _fields(slot, error=fault.error_code.name)},
        )


def _fields(slot: GroupSlot, **more: object) -> dict[str, object]:
    return {"partition": str(slot.partition.topic_partition), **more}
