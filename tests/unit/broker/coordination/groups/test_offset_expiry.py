"""When offsets are looked at, and by which clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from strandline.broker.coordination.groups.offset_expiry import OffsetExpiry
from strandline.broker.coordination.model.classic_messages import Instant
from strandline.broker.coordination.model.offset_messages import CoordinatorRecord
from strandline.broker.coordination.runtime.slots import Slots

NOW = Instant(wall_ms=1_000_000, monotonic_ms=1_000)


@dataclass
class Shard:
    """Notes when it was asked."""

    expired_at: list[Instant] = field(default_factory=list)

    def expire(self, now: Instant) -> Sequence[CoordinatorRecord]:
        self.expired_at.append(now)
        return ()

    def committed_topics(self) -> set[str]:
        return set()

    def topic_tombstones(self, *_: object) -> Sequence[CoordinatorRecord]:
        return ()


@dataclass
class OnePartition:
    """The only slot, and the slots."""

    shard: Shard = field(default_factory=Shard)
    is_loaded: bool = True

    def present(self) -> list[OnePartition]:
        return [self]


def test_offsets_expire_by_the_time_that_is_believed_and_not_by_a_clock_that_leapt() -> None:
    slots = OnePartition()
    expiry = OffsetExpiry(
        cast(Slots, slots),
        dict,
        interval_ms=10**9,
        now=NOW,
        believed_ms=lambda: NOW.wall_ms,
    )
    leapt = Instant(NOW.wall_ms + 10**11, NOW.monotonic_ms + 10**9)
    asyncio.run(expiry.expire_if_due(leapt))
    assert slots.shard.expired_at == [Instant(NOW.wall_ms, leapt.monotonic_ms)]
