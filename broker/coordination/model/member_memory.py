"""A memory limit for the JoinGroup metadata that members of classic groups hold.

A group keeps the metadata that a member sends for the leader as long as the member lives.
`group.max.size` bounds the members of one group; this bounds the bytes, of one group and of all
groups of the broker together.

    one group       refused as too large (GROUP_MAX_SIZE_REACHED), which is final for its client
    all together    COORDINATOR_NOT_AVAILABLE: clients retry, and succeed when others have left

A group in the log is never refused: it is loaded as it is, and takes no joins until it is smaller.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum, auto

from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# The record of a group holds its members' metadata for the chosen protocol, and may have
# message.max.bytes, 1 MiB unless that was raised. A group that cannot be written is of no use.
GROUP_BYTES_MAX = 64 * 1024 * 1024
# A thousand groups whose metadata fill a record each: more than any real broker has.
ALL_GROUPS_BYTES_MAX = 256 * 1024 * 1024
# The memory of a member beside its strings: objects and table entries.
MEMBER_BYTES = 1024


class ExhaustedLimit(Enum):
    """The limit that is exhausted."""

    GROUP = auto()
    BROKER = auto()


class MemberMemory:
    """The memory budget that all groups of a broker share. Not thread-safe."""

    __slots__ = ("group_bytes_max", "held_bytes", "quiet_log", "total_bytes_max")

    def __init__(
        self,
        *,
        group_bytes_max: int = GROUP_BYTES_MAX,
        total_bytes_max: int = ALL_GROUPS_BYTES_MAX,
    ) -> None:
        self.group_bytes_max = group_bytes_max
        self.total_bytes_max = total_bytes_max
        self.held_bytes = 0
        # Refused clients retry at once.
        self.quiet_log = QuietLog(log)

    def __repr__(self) -> str:
        return f"<Room {self.held_bytes} of {self.total_bytes_max}>"


class GroupBudget:
    """One group's part of the budget, released when the object dies: groups are also dropped as
    whole tables, with their partition.
    """

    __slots__ = ("_room", "held_bytes")

    def __init__(self, room: MemberMemory) -> None:
        self._room = room
        self.held_bytes = 0

    def __del__(self) -> None:
        self.change(-self.held_bytes)

    def lack_of(self, more_bytes: int) -> ExhaustedLimit | None:
        """Returns the limit that so many more bytes would exceed; None also for less than now."""
        if more_bytes <= 0:
            return None
        if self.held_bytes + more_bytes > self._room.group_bytes_max:
            return ExhaustedLimit.GROUP
        if self._room.held_bytes + more_bytes > self._room.total_bytes_max:
            return ExhaustedLimit.BROKER
        return None

    def change(self, by_bytes: int) -> None:
        self.held_bytes += by_bytes
        self._room.held_bytes += by_bytes


def member_bytes(protocols: Iterable[tuple[str, bytes]], *names: str | None) -> int:
    """Returns the memory of a member with these protocols and strings."""
    held = sum(len(name) + len(metadata) for name, metadata in protocols)
    return MEMBER_BYTES + held + sum(len(name or "") for name in names)
