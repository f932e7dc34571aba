"""Committed offsets that nobody needs any more: expired ones, and those of deleted topics.

What could not be written is not forgotten; the next look at expiry tries again. A partition that is
still being loaded when a topic is deleted forgets it once it is loaded, and with it what a broker
that died right after a deletion had no time to forget: no name may bring back the offsets of the
topic that had it before. Whatever has no topic by then is forgotten for that; a name that was made
meanwhile, and perhaps had a topic before, is remembered as long as it has one. So what is kept for
a partition that cannot be loaded is bounded by the topics that there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence

from strandline.broker.coordination.runtime.journal import in_batches, write_offsets
from strandline.broker.coordination.runtime.slots import Slot, Slots
from strandline.broker.coordination.values.group_values import CoordinatorFault, Moment
from strandline.broker.coordination.values.shard_values import CoordinatorRecord
from strandline.storage.model import TimestampMs

log = logging.getLogger(__name__)


class OffsetForgetting:
    """Writes the tombstones of every loaded partition."""

    def __init__(
        self,
        slots: Slots,
        *,
        interval_ms: int,
        now: Moment,
        believed_ms: Callable[[], TimestampMs],
    ) -> None:
        """`believed_ms` is the time to expire by: a clock may have jumped."""
        self._slots = slots
        self._believed_ms = believed_ms
        self._interval_ms = interval_ms
        self._next_expiry_ms = now.monotonic_ms + interval_ms
        # Names of topics that there are, made while a partition was not loaded; until all are.
        self._made_while_loading: set[str] = set()

    def expire_if_due(self, now: Moment) -> None:
        """Forgets what is past `offsets.retention.minutes`, once per interval."""
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

    @property
    def remembered_count(self) -> int:
        """Names that are kept for partitions that are not loaded."""
        return len(self._made_while_loading)

    def follow(
        self, topics: Container[str], *, gone: set[str], made: set[str], now: Moment
    ) -> None:
        """Forgets every offset of the topics that are `gone`; of those there are, some were `made`
        since the last look, and may be in both.
        """
        is_every_loaded = True
        for slot in self._slots.all():
            if not slot.is_loaded:
                is_every_loaded = False
            elif gone:
                _write_tombstones(slot, slot.shard.forget_topics(gone), now)
        if not is_every_loaded:
            self._made_while_loading |= made
        self._made_while_loading = {name for name in self._made_while_loading if name in topics}

    def note_loaded(self, slot: Slot, topics: Container[str], now: Moment) -> None:
        """Forgets what was deleted meanwhile; `topics` are those that there are.

        Whatever was committed for a name in that log was committed before the name was deleted:
        nobody can commit to a partition that is not loaded.
        """
        known = slot.shard.committed_topics()
        gone = {
            topic for topic in known if topic in self._made_while_loading or topic not in topics
        }
        _write_tombstones(slot, slot.shard.forget_topics(gone), now)
        if all(other.is_loaded for other in self._slots.all()):
            self._made_while_loading.clear()


def _write_tombstones(slot: Slot, records: Sequence[CoordinatorRecord], now: Moment) -> None:
    try:
        for batch in in_batches(records):
            write_offsets(slot, batch, now)
    except CoordinatorFault as fault:
        log.warning(
            "offsets not forgotten", extra={"fields": _fields(slot, error=fault.error_code.name)}
        )


def _fields(slot: Slot, **more: object) -> dict[str, object]:
    return {"partition": str(slot.partition.topic_partition), **more}
