"""The checks of `many.py`: nothing in what is right, and each finds what breaks its promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.cluster_faults.checks import BatchMark, Replica
from tests.system.cluster_faults.many import (
    CHECKS,
    ManyOutcome,
    Run,
    a_group_skips_nothing,
    acknowledged_is_there,
    all_replicas_are_the_same,
    is_there_once_and_in_order,
    offsets_have_no_holes,
    runs_in,
    the_lake_has_the_same,
    violations,
    what_was_read_stays,
)

# A producer that was killed at its number 300, and the next one.
FIRST, SECOND = 17, 18
BATCHES = [BatchMark(0, 299, 1, 7), BatchMark(300, 999, 2, 8)]


def right() -> ManyOutcome:
    return ManyOutcome(
        acknowledged=[Run(0, 10, FIRST, 10, 200), Run(0, 320, SECOND, 20, 600)],
        # A member that came back reads some of it again.
        read=[Run(0, 0, FIRST, 0, 250), Run(0, 200, FIRST, 200, 100), Run(0, 300, SECOND, 0, 650)],
        found=[
            Run(0, 0, FIRST, 0, 300),
            Run(0, 300, SECOND, 0, 400),
            Run(0, 700, SECOND, 400, 300),
        ],
        lake=[Run(0, 0, FIRST, 0, 300), Run(0, 300, SECOND, 0, 500)],
        replicas={
            ("broker 1", 0): Replica(0, BATCHES),
            ("broker 2", 0): Replica(300, BATCHES[1:]),
        },
    )


def lose_the_end(outcome: ManyOutcome) -> None:
    outcome.found[-1] = Run(0, 700, SECOND, 400, 100)


def lose_the_middle(outcome: ManyOutcome) -> None:
    del outcome.found[1]


def move_records(outcome: ManyOutcome) -> None:
    outcome.found[1:] = [Run(0, 300, SECOND, 1, 700)]


def append_records_again(outcome: ManyOutcome) -> None:
    outcome.found.append(Run(0, 1000, FIRST, 250, 50))


def swap_records(outcome: ManyOutcome) -> None:
    outcome.found[1:] = [Run(0, 300, SECOND, 300, 400), Run(0, 700, SECOND, 0, 300)]


def read_other_records(outcome: ManyOutcome) -> None:
    outcome.read[-1] = Run(0, 300, FIRST, 300, 650)


def read_what_is_gone(outcome: ManyOutcome) -> None:
    outcome.read.append(Run(1, 0, FIRST, 0, 1))


def skip_records(outcome: ManyOutcome) -> None:
    outcome.read[1] = Run(0, 200, FIRST, 200, 99)


def leave_rows_out(outcome: ManyOutcome) -> None:
    outcome.lake[0] = Run(0, 0, FIRST, 0, 299)


def change_rows(outcome: ManyOutcome) -> None:
    outcome.lake[1] = Run(0, 300, SECOND, 1, 500)


def archive_nothing(outcome: ManyOutcome) -> None:
    outcome.lake.clear()


def change_a_replica(outcome: ManyOutcome) -> None:
    outcome.replicas["broker 2", 0] = Replica(300, [replace_crc(BATCHES[1])])


def replace_crc(mark: BatchMark) -> BatchMark:
    return mark._replace(crc=mark.crc + 1)


BROKEN = [
    (acknowledged_is_there, lose_the_end),
    (acknowledged_is_there, lose_the_middle),
    (acknowledged_is_there, move_records),
    (is_there_once_and_in_order, append_records_again),
    (is_there_once_and_in_order, swap_records),
    (offsets_have_no_holes, lose_the_middle),
    (what_was_read_stays, read_other_records),
    (what_was_read_stays, read_what_is_gone),
    (a_group_skips_nothing, skip_records),
    (the_lake_has_the_same, leave_rows_out),
    (the_lake_has_the_same, change_rows),
    (the_lake_has_the_same, archive_nothing),
    (all_replicas_are_the_same, change_a_replica),
]


def test_nothing_is_found_in_an_outcome_that_is_right() -> None:
    assert violations(right()) == []


@pytest.mark.parametrize(("check", "break_it"), BROKEN)
def test_a_broken_outcome_is_found(
    check: Callable[..., object], break_it: Callable[[ManyOutcome], None]
) -> None:
    outcome = right()
    break_it(outcome)
    assert any(f": {check.__name__}: " in text for text in violations(outcome))


def test_every_check_has_an_outcome_that_breaks_it() -> None:
    assert {check for check, _ in BROKEN} == set(CHECKS)


def test_runs_are_read_from_a_file_that_several_processes_wrote(tmp_path: Path) -> None:
    path = tmp_path / "many.read"
    path.write_text("\n0 10 17 10 200\n\n1 0 18 0 5\n")
    assert runs_in(path) == [Run(0, 10, 17, 10, 200), Run(1, 0, 18, 0, 5)]
