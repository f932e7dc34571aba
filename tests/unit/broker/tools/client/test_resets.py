"""Where a reset puts a group's offsets: what was asked, held inside the log."""

from __future__ import annotations

import pytest

from strandline.broker.tools.client.resets import PartitionState, Reset, ResetTarget, plan


def state(*, committed: int | None = 40, moment_offset: int | None = None) -> PartitionState:
    return PartitionState(
        topic="t",
        partition=0,
        start_offset=10,
        end_offset=100,
        committed=committed,
        moment_offset=moment_offset,
    )


@pytest.mark.parametrize(
    ("target", "number", "expected"),
    [
        (ResetTarget.EARLIEST, 0, 10),
        (ResetTarget.LATEST, 0, 100),
        (ResetTarget.CURRENT, 0, 40),
        (ResetTarget.OFFSET, 55, 55),
        (ResetTarget.SHIFT, 5, 45),
        (ResetTarget.SHIFT, -5, 35),
    ],
)
def test_a_target_inside_the_log_is_taken_as_it_is(
    target: ResetTarget, number: int, expected: int
) -> None:
    (move,) = plan(Reset(target=target, number=number), [state()])
    assert (move.old_offset, move.new_offset, move.note) == (40, expected, "")


@pytest.mark.parametrize(
    ("target", "number", "edge", "word"),
    [
        (ResetTarget.OFFSET, 3, 10, "start"),
        (ResetTarget.OFFSET, 500, 100, "end"),
        (ResetTarget.SHIFT, -70, 10, "start"),
        (ResetTarget.SHIFT, 70, 100, "end"),
    ],
)
def test_a_target_outside_the_log_becomes_its_edge_and_says_so(
    target: ResetTarget, number: int, edge: int, word: str
) -> None:
    (move,) = plan(Reset(target=target, number=number), [state()])
    assert move.new_offset == edge
    assert word in move.note


def test_an_offset_that_retention_overtook_is_held_at_the_start() -> None:
    (move,) = plan(Reset(target=ResetTarget.CURRENT), [state(committed=2)])
    assert move.new_offset == 10


@pytest.mark.parametrize("target", [ResetTarget.CURRENT, ResetTarget.SHIFT])
def test_what_has_no_offset_yet_goes_to_the_end(target: ResetTarget) -> None:
    (move,) = plan(Reset(target=target, number=-3), [state(committed=None)])
    assert (move.old_offset, move.new_offset) == (None, 100)
    assert move.note


def test_a_moment_is_its_record_and_after_the_last_record_the_end() -> None:
    reset = Reset(target=ResetTarget.MOMENT, number=1_000)
    assert [m.new_offset for m in plan(reset, [state(moment_offset=77), state()])] == [77, 100]


def test_lag_is_never_negative_and_unknown_without_an_offset() -> None:
    assert [state(committed=c).lag for c in (40, 100, 130, None)] == [60, 0, 0, None]
