"""Bytes that the members of classic groups hold: what they brought to JoinGroup, bounded.

A member tells the leader what it likes in as many bytes as fit a request, and everybody's are kept
as long as the member lives. `group.max.size` bounds their number in one group; this bounds the
bytes, of one group and of all groups of the broker together.

    one group       refused as too large (GROUP_MAX_SIZE_REACHED): its client is told for good
    all together    COORDINATOR_NOT_AVAILABLE: clients try again, and there is room when others go

What was written to the log is never refused: a group is loaded as it was, and nobody can join it
until it is smaller.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum, auto

from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# The record of a group holds what its members brought for the protocol that was chosen, and may
# have message.max.bytes, 1 MiB unless that was raised. What could not be written is worth nothing.
GROUP_BYTES_MAX = 64 * 1024 * 1024
# A thousand groups whose members bring as much as a record holds are none that anybody has.
ALL_GROUPS_BYTES_MAX = 256 * 1024 * 1024
# What a member costs beside its strings: the objects, and its places in tables.
MEMBER_BYTES = 1024


class Lack(Enum):
    """What there is no room in."""

    GROUP = auto()
    BROKER = auto()


class Room:
    """What all groups of a broker share. Not thread-safe."""

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
        # Who was refused comes again at once.
        self.quiet_log = QuietLog(log)

    def __repr__(self) -> str:
        return f"<Room {self.held_bytes} of {self.total_bytes_max}>"


class Share:
    """What one group holds of the room. It is given back when the group is gone, however it went:
    groups are also forgotten as whole tables of them, when their partition is.
    """

    __slots__ = ("_room", "held_bytes")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.held_bytes = 0

    def __del__(self) -> None:
        self.change(-self.held_bytes)

    def lack_of(self, more_bytes: int) -> Lack | None:
        """What cannot take so many bytes more; less is always possible."""
        if more_bytes <= 0:
            return None
        if self.held_bytes + more_bytes > self._room.group_bytes_max:
            return Lack.GROUP
        if self._room.held_bytes + more_bytes > self._room.total_bytes_max:
            return Lack.BROKER
        return None

    def change(self, by_bytes: int) -> None:
        self.held_bytes += by_bytes
        self._room.held_bytes += by_bytes


def member_bytes(protocols: Iterable[tuple[str, bytes]], *names: str | None) -> int:
    """What a member holds with these protocols and strings."""
    held = sum(len(name) + len(metadata) for name, metadata in protocols)
    return MEMBER_BYTES + held + sum(len(name or "") for name in names)
