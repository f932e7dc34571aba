"""Carries out the effects of an event in a classic group: writes its state, answers its members.

    a new group      write, then answer: members must not see a group that is not in the log
    all else         answer, then write: these answers do not depend on the write; those that
                     do (an assignment) come from the group's `written`

After a failed write the group answers its members itself (`write_failed`); a new group is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.groups.group_shard import GroupEffects, GroupSlot
from strandline.broker.coordination.model.classic_messages import (
    Answer,
    CoordinatorFault,
    CreationWrite,
    Effects,
    Instant,
    JoinAnswer,
)
from strandline.broker.coordination.model.offset_messages import GroupRecord
from strandline.broker.coordination.records.offset_records import encode_records
from strandline.broker.protocol.schema.errors import ErrorCode


def carry_out(
    slot: GroupSlot,
    step: GroupEffects,
    *,
    answer: Callable[[Sequence[Answer]], None],
    now: Callable[[], Instant],
) -> None:
    """Writes the record of the effects, and sends the answers."""
    group, effects = step.group, step.effects
    if group is None:
        answer(effects.answers)
        return
    while effects.write is not None:
        write, written_at = effects.write, now()
        if not isinstance(write, CreationWrite):
            answer(effects.answers)
        try:
            record = GroupRecord(group.group_id, write.snapshot)
            slot.journal.append(encode_records((record,), written_at.wall_ms))
        except CoordinatorFault as fault:
            code = fault.error_code
            if isinstance(write, CreationWrite):
                for answers in _undo_creation(slot, group, effects, code, written_at):
                    answer(answers)
                return
            effects = group.write_failed(write, code, written_at)
        else:
            if isinstance(write, CreationWrite):
                answer(effects.answers)
            effects = group.written(write, written_at)
    answer(effects.answers)


def _undo_creation(
    slot: GroupSlot, group: Group, effects: Effects, error_code: ErrorCode, now: Instant
) -> tuple[Sequence[Answer], Sequence[Answer]]:
    """Removes a group whose creation could not be written; its joins are answered with an error."""
    slot.shard.forget(group.group_id)
    refused = [JoinAnswer(ticket=known.ticket, error_code=error_code) for known in effects.answers]
    return refused, group.unload(error_code, now).answers
