"""Where a reset puts the offsets of a group; pure.

A target is first what was asked, then held between the start and the end of the log: an offset
outside would leave the next consumer to its `auto.offset.reset`, which nobody asked for. Kafka's
tool does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from strandline.storage.model import TimestampMs


class Target(Enum):
    """What a partition's offset is set to."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    SHIFT = "shift"
    # Also a duration: the moment that long ago.
    MOMENT = "moment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """`number` is the offset, the shift (either sign) or the moment in ms; 0 for the others."""

    target: Target
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition as a group sees it; `committed` is None where the group has no offset."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    committed: int | None = None
    # Of the first record at or after the moment asked for; None when there is none, or none asked.
    moment_offset: int | None = None

    @property
    def lag(self) -> int | None:
        """Records behind the committed offset; never negative."""
        return None if self.committed is None else max(0, self.end_offset - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What a reset does to one partition."""

    topic: str
    partition: int
    old_offset: int | None
    new_offset: int
    # Why it is not exactly what was asked; empty when it is.
    note: str = ""


def moment_of(reset: Reset) -> TimestampMs | None:
    """The moment to look up before `plan`, if one is needed."""
    return reset.number if reset.target is Target.MOMENT else None


def plan(reset: Reset, partitions: Sequence[PartitionState]) -> list[Move]:
    """One move per partition, in the order given."""
    return [_move(reset, state) for state in partitions]


def _move(reset: Reset, state: PartitionState) -> Move:
    wanted, note = _wanted(reset, state)
    offset = min(max(wanted, state.start_offset), state.end_offset)
    if offset != wanted:
        edge = "start" if offset == state.start_offset else "end"
        note = f"{wanted} is outside the log: its {edge}"
    return Move(
        topic=state.topic,
        partition=state.partition,
        old_offset=state.committed,
        new_offset=offset,
        note=note,
    )


def _wanted(reset: Reset, state: PartitionState) -> tuple[int, str]:
    match reset.target:
        case Target.EARLIEST:
            return state.start_offset, ""
        case Target.LATEST:
            return state.end_offset, ""
        case Target.OFFSET:
            return reset.number, ""
        case Target.MOMENT:
            if state.moment_offset is None:
                return state.end_offset, "no record is that young: the end"
            return state.moment_offset, ""
        case Target.CURRENT | Target.SHIFT:
            if state.committed is None:
                # A shift needs something to shift; Kafka's tool goes to the end as well.
                return state.end_offset, "the group has no offset here: the end"
            return state.committed + (reset.number if reset.target is Target.SHIFT else 0), ""
