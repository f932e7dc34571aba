"""Deletes committed offsets that expired, and those of deleted topics.

If the tombstones cannot be written, the offsets stay and the next expiry check retries. A new topic
must not inherit the offsets of a deleted one with its name. So a partition that is loading while a
topic is deleted drops that topic's offsets once it is loaded, and all others without a topic too: a
broker may have crashed right after a deletion. Names of topics created during the loading, which
may reuse a name, are noted until all partitions are loaded or the topic is deleted; the existing
topics bound their number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Sequence

from strandline.broker.coordination.model.classic_messages import CoordinatorFault, Instant
from strandline.broker.coordination.model.offset_messages import CoordinatorRecord
from strandline.broker.coordination.runtime.journal import in_batches, write_offsets
from strandline.broker.coordination.runtime.shard import GroupSlot, GroupSlots
from strandline.storage.model import TimestampMs

log = logging.getLogger(__name__)


class OffsetExpiry:
    """Writes tombstones of expired and deleted offsets in every loaded partition."""

    def __init__(
        self,
        slots: GroupSlots,
        *,
        interval_ms: int,
        now: Instant,
        believed_ms: Callable[[], TimestampMs],
    ) -> None:
        """`believed_ms` is the time used for expiry: the wall clock may have jumped."""
        self._slots = slots
        self._believed_ms = believed_ms
        self._interval_ms = interval_ms
        self._next_expiry_ms = now.monotonic_ms + interval_ms
        # Names of existing topics created while a partition was not loaded; cleared when all are.
        self._made_while_loading: set[str] = set()

    async def expire_if_due(self, now: Instant) -> None:
        """Deletes offsets older than `offsets.retention.minutes`, once per interval.

        One partition after the other: it looks at every offset.
        """
        if now.monotonic_ms < self._next_expiry_ms:
            return
        self._next_expiry_ms = now.monotonic_ms + self._interval_ms
        believed = now._replace(wall_ms=self._believed_ms())
        for slot in self._slots.present():
            if not slot.is_loaded:
                continue
            records = slot.shard.expire(believed)
            if records:
                log.info("offsets expired", extra={"fields": _fields(slot, records=len(records))})
            _write_tombstones(slot, records, now)
            await asyncio.sleep(0)

    @property
    def remembered_count(self) -> int:
        """Number of names kept for partitions that are not loaded."""
        return len(self._made_while_loading)

    def follow(
        self, topics: Container[str], *, gone: set[str], made: set[str], now: Instant
    ) -> None:
        """Deletes the offsets of the topics in `gone`.

        `made` are topics created since the last call; their names may be in `gone` too.
        """
        is_every_loaded = True
        for slot in self._slots.all():
            if not slot.is_loaded:
                is_every_loaded = False
            elif gone:
                _write_tombstones(slot, slot.shard.topic_tombstones(gone), now)
        if not is_every_loaded:
            self._made_while_loading |= made
        self._made_while_loading = {name for name in self._made_while_loading if name in topics}

    def note_loaded(self, slot: GroupSlot, topics: Container[str], now: Instant) -> None:
        """Deletes offsets of topics deleted meanwhile; `topics` are the existing ones.

        Every commit in that log precedes the deletion of its topic: a partition that is not loaded
        accepts no commits.
        """
        known = slot.shard.committed_topics()
        gone = {
            topic for topic in known if topic in self._made_while_loading or topic not in topics
        }
        _write_tombstones(slot, slot.shard.topic_tombstones(gone), now)
        if all(other.is_loaded for other in self._slots.all()):
            self._made_while_loading.clear()


def _write_tombstones(slot: GroupSlot, records: Sequence[CoordinatorRecord], now: Instant) -> None:
    try:
        for batch in in_batches(records):
            write_offsets(slot, batch, now)
    except CoordinatorFault as fault:
        log.warning(
            "expired offsets not deleted",
            extra={"fields": _fields(slot, error=fault.error_code.name)},
        )


def _fields(slot: GroupSlot, **more: object) -> dict[str, object]:
    return {"partition": str(slot.partition.topic_partition), **more}
