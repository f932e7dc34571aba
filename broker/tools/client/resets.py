"""Plans a reset of a group's offsets; pure.

A target is clamped to the start and the end of the log: with an offset outside, the next consumer
would apply its `auto.offset.reset`, which the user did not request. Kafka's tool does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from strandline.storage.model import TimestampMs


class ResetTarget(Enum):
    """The target of a reset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    SHIFT = "shift"
    # Also a duration: the moment that long ago.
    MOMENT = "moment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A requested reset: `number` is the offset, the shift (either sign) or the moment in ms."""

    target: ResetTarget
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition of a group; `committed` is None without a committed offset."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    committed: int | None = None
    # Offset of the first record at or after the requested moment; None if there is none.
    moment_offset: int | None = None

    @property
    def lag(self) -> int | None:
        """Records behind the committed offset; never negative."""
        return None if self.committed is None else max(0, self.end_offset - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The change of one partition's offset."""

    topic: str
    partition: int
    old_offset: int | None
    new_offset: int
    # Why it differs from the request; empty if it does not.
    note: str = ""


def moment_of(reset: Reset) -> TimestampMs | None:
    """Returns the moment to look up before `plan`, if one is needed."""
    return reset.number if reset.target is ResetTarget.MOMENT else None


def plan(reset: Reset, partitions: Sequence[PartitionState]) -> list[Move]:
    """Returns one move per partition, in the order given."""
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
        case ResetTarget.EARLIEST:
            return state.start_offset, ""
        case ResetTarget.LATEST:
            return state.end_offset, ""
        case ResetTarget.OFFSET:
            return reset.number, ""
        case ResetTarget.MOMENT:
            if state.moment_offset is None:
                return state.end_offset, "no record is that young: the end"
            return state.moment_offset, ""
        case ResetTarget.CURRENT | ResetTarget.SHIFT:
            if state.committed is None:
                # A shift needs a committed offset; Kafka's tool goes to the end as well.
                return state.end_offset, "the group has no offset here: the end"
            return state.committed + (reset.number if reset.target is ResetTarget.SHIFT else 0), ""
