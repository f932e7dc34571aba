"""How far one follower is, as its leader sees it (Kafka's Replica).

    offset          leader's end:  at the last fetch   now
       |                              |                 |
    follower asks from here: it has all before

A follower is caught up at the time of a fetch that reached the leader's end of the fetch before: it
need not have what came in between. Times are those of a monotonic clock, in ms.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

from strandline.broker.protocol.formats.metadata_records import (
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
)
from strandline.storage.model import Offset

UNKNOWN_OFFSET: Offset = -1
# The epoch of a broker that has not fetched yet, or does not say it: it is not compared.
NO_BROKER_EPOCH = -1
NEVER_MS = -(2**62)


class Asking:
    """When a follower asked last for all partitions of its fetch session."""

    __slots__ = ("asked_ms",)

    def __init__(self) -> None:
        self.asked_ms: float = NEVER_MS


class FollowerProgress:
    """One follower of one partition."""

    __slots__ = (
        "asking",
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "directory",
        "end_offset",
        "fetched_ms",
        "has_fetched",
        "known_ms",
        "leader_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, *, now_ms: float, is_in_sync: bool) -> None:
        """Of a new leader: an in-sync follower has the time of a lag to show itself."""
        self.broker_id = broker_id
        self.broker_epoch = NO_BROKER_EPOCH
        self.has_fetched = False
        self.end_offset: Offset = UNKNOWN_OFFSET
        self.log_start_offset: Offset = UNKNOWN_OFFSET
        # The leader's end at the last fetch.
        self.leader_end_offset: Offset = UNKNOWN_OFFSET
        self.fetched_ms: float = NEVER_MS
        self.caught_up_ms: float = now_ms if is_in_sync else NEVER_MS
        # Since when the leader knows it: not later than it began to be behind.
        self.known_ms: float = now_ms
        # The log folder that it is in.
        self.directory = UNASSIGNED_DIRECTORY
        # Its session, whose fetches do not name a partition without news.
        self.asking: Asking | None = None

    def __repr__(self) -> str:
        return (
            f"<FollowerProgress broker={self.broker_id} epoch={self.broker_epoch}"
            f" end={self.end_offset} of {self.leader_end_offset}>"
        )

    def begin_epoch(self, leader_end_offset: Offset, *, now_ms: float, is_in_sync: bool) -> None:
        """The same leader was elected again: what it knew of the follower stays."""
        self.known_ms = self.behind_since_ms
        self.caught_up_ms = now_ms if is_in_sync else NEVER_MS
        self.fetched_ms = self.caught_up_ms
        self.leader_end_offset = leader_end_offset

    def fetched(
        self,
        offset: Offset,
        log_start_offset: Offset,
        *,
        leader_end_offset: Offset,
        now_ms: float,
        broker_epoch: int,
    ) -> None:
        """The follower asks for records from `offset` on, where the leader ends as given."""
        if offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self.leader_end_offset = max(leader_end_offset, self.leader_end_offset)
        self.fetched_ms = now_ms
        self.broker_epoch = broker_epoch
        self.has_fetched = True

    def is_in(self, online: Collection[uuid.UUID]) -> bool:
        """Whether its log folder is among those of its broker; one that is not known yet is."""
        unknown = (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY)
        return not online or self.directory in unknown or self.directory in online

    def falls_behind(self) -> None:
        """The leader's log goes on from where this follower had all of it, at its last fetch."""
        if self.asking is not None:
            self.caught_up_ms = max(self.caught_up_ms, self.asking.asked_ms)
            self.fetched_ms = max(self.fetched_ms, self.asking.asked_ms)

    @property
    def behind_since_ms(self) -> float:
        """Since when it is behind, if it is; as far back as this leader knows."""
        return max(self.caught_up_ms, self.known_ms)

    def is_caught_up(self, leader_end_offset: Offset, *, now_ms: float, lag_ms_max: float) -> bool:
        return self.end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_ms_max
