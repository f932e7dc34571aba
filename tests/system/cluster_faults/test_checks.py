"""Each check finds a history that breaks it, and nothing in one that is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.cluster_faults.checks import (
    CHECKS,
    BatchMark,
    Check,
    LogRecord,
    Outcome,
    Replica,
    a_folder_has_what_consumers_read,
    a_group_skips_nothing,
    acknowledged_is_there,
    committed_offsets_never_go_back,
    each_record_was_copied_once,
    ends_never_go_back,
    idempotent_is_there_once_and_in_order,
    nothing_aborted_is_read,
    nothing_is_invented,
    replicas_are_the_same,
    the_lake_has_the_same,
    transactions_are_whole,
    violations,
    what_was_read_stays,
)
from tests.system.cluster_faults.history import Event, History

TEXTS = ["p.1:0", "p.1:1", "t.1:7:0", "t.1:8:0", "p.1:2"]
# The third transaction record is aborted.
ABORTED = 3


def right() -> Outcome:
    """Two transactions, of which the second was aborted, between records of another producer."""
    records = {offset: LogRecord(offset // 2, text) for offset, text in enumerate(TEXTS)}
    committed = {offset: text for offset, text in enumerate(TEXTS) if offset != ABORTED}
    marks = [BatchMark(offset, offset, offset // 2, 100 + offset) for offset in range(len(TEXTS))]
    reads = [Event(100 + offset, "read", 0, offset, text) for offset, text in committed.items()]
    return Outcome(
        topic="t",
        histories=[
            History(
                "p",
                "t",
                [
                    Event(10, "acknowledged", 0, 0, TEXTS[0]),
                    Event(11, "acknowledged", 0, -1, TEXTS[1]),
                    Event(12, "acknowledged", 0, 4, TEXTS[4]),
                ],
                is_idempotent=True,
            ),
            History(
                "t", "t", [Event(20, "commit", -1, 1, "t.1:7"), Event(21, "abort", -1, 1, "t.1:8")]
            ),
            History(
                "c",
                "t",
                [
                    *reads,
                    Event(110, "committed", 0, 5, "-"),
                    Event(112, "found", 0, 5, "111"),
                    Event(113, "end", 0, 5, "112"),
                ],
                group="g",
                is_read_committed=True,
            ),
        ],
        records={0: records},
        committed={0: committed},
        ends={0: len(TEXTS)},
        replicas={
            ("broker 1", 0): Replica(0, marks),
            ("broker 2", 0): Replica(2, marks[2:]),
        },
        decoded={0: dict(records)},
        lake={0: dict(committed)},
    )


def lose_a_record(outcome: Outcome) -> None:
    outcome.records[0][0] = LogRecord(0, "p.1:9")


def lose_a_record_of_unknown_offset(outcome: Outcome) -> None:
    outcome.records[0][1] = LogRecord(0, "p.1:9")


def move_a_record(outcome: Outcome) -> None:
    outcome.records[0][5] = outcome.records[0].pop(4)


def append_a_record_again(outcome: Outcome) -> None:
    outcome.records[0][5] = LogRecord(2, TEXTS[4])


def swap_two_records(outcome: Outcome) -> None:
    outcome.records[0][0], outcome.records[0][4] = outcome.records[0][4], outcome.records[0][0]


def invent_a_record(outcome: Outcome) -> None:
    outcome.records[0][5] = LogRecord(2, "somebody:0")


def change_a_replica(outcome: Outcome) -> None:
    outcome.replicas["broker 2", 0].batches[0] = BatchMark(2, 2, 1, 999)


def shorten_a_replica(outcome: Outcome) -> None:
    outcome.replicas["broker 2", 0].batches.pop()


def lower_an_epoch_everywhere(outcome: Outcome) -> None:
    for replica in outcome.replicas.values():
        replica.batches[-1] = BatchMark(4, 4, 0, 104)


def change_an_epoch_in_a_folder(outcome: Outcome) -> None:
    outcome.decoded[0][4] = LogRecord(3, TEXTS[4])


def leave_a_record_out_of_a_folder(outcome: Outcome) -> None:
    del outcome.decoded[0][4]


def change_what_was_read(outcome: Outcome) -> None:
    outcome.histories[2].events.append(Event(150, "read", 0, 1, "p.1:7"))


def read_what_is_gone(outcome: Outcome) -> None:
    outcome.histories[2].events.append(Event(150, "read", 0, 7, "p.1:7"))


def read_what_is_aborted(outcome: Outcome) -> None:
    outcome.histories[2].events.append(Event(150, "read", 0, ABORTED, TEXTS[ABORTED]))


def lose_a_transaction(outcome: Outcome) -> None:
    del outcome.committed[0][2]


def commit_what_was_aborted(outcome: Outcome) -> None:
    outcome.committed[0][ABORTED] = TEXTS[ABORTED]


def commit_half_of_an_unknown_one(outcome: Outcome) -> None:
    outcome.histories[1].events[0] = Event(20, "unknown", -1, 2, "t.1:7")


def commit_a_transaction_twice(outcome: Outcome) -> None:
    outcome.committed[0][5] = TEXTS[2]


def find_an_older_offset(outcome: Outcome) -> None:
    outcome.histories[2].events.append(Event(130, "found", 0, 4, "120"))


def find_no_offset(outcome: Outcome) -> None:
    outcome.histories[2].events.append(Event(130, "found", 0, -1, "120"))


def tell_an_end_below_what_was_read(outcome: Outcome) -> None:
    outcome.histories[2].events.append(Event(130, "end", 0, 4, "120"))


def tell_an_end_that_is_never_reached(outcome: Outcome) -> None:
    outcome.histories[2].events.append(Event(130, "end", 0, 9, "120"))


def skip_a_record(outcome: Outcome) -> None:
    events = outcome.histories[2].events
    events[:] = [one for one in events if (one.kind, one.offset) != ("read", 1)]


def leave_a_row_out(outcome: Outcome) -> None:
    assert outcome.lake is not None
    del outcome.lake[0][1]


def change_a_row(outcome: Outcome) -> None:
    assert outcome.lake is not None
    outcome.lake[0][1] = "p.1:7"


def archive_what_is_aborted(outcome: Outcome) -> None:
    assert outcome.lake is not None
    outcome.lake[0][ABORTED] = TEXTS[ABORTED]


def leave_out_a_copy(outcome: Outcome) -> None:
    outcome.source = right()
    del outcome.committed[0][1]


def copy_a_record_again(outcome: Outcome) -> None:
    outcome.source = right()
    outcome.committed[0][5] = TEXTS[1]


BROKEN: tuple[tuple[Check, Callable[[Outcome], None]], ...] = (
    (acknowledged_is_there, lose_a_record),
    (acknowledged_is_there, lose_a_record_of_unknown_offset),
    (acknowledged_is_there, move_a_record),
    (idempotent_is_there_once_and_in_order, append_a_record_again),
    (idempotent_is_there_once_and_in_order, swap_two_records),
    (nothing_is_invented, invent_a_record),
    (replicas_are_the_same, change_a_replica),
    (replicas_are_the_same, shorten_a_replica),
    (replicas_are_the_same, lower_an_epoch_everywhere),
    (a_folder_has_what_consumers_read, change_an_epoch_in_a_folder),
    (a_folder_has_what_consumers_read, leave_a_record_out_of_a_folder),
    (what_was_read_stays, change_what_was_read),
    (what_was_read_stays, read_what_is_gone),
    (nothing_aborted_is_read, read_what_is_aborted),
    (transactions_are_whole, lose_a_transaction),
    (transactions_are_whole, commit_what_was_aborted),
    (transactions_are_whole, commit_half_of_an_unknown_one),
    (transactions_are_whole, commit_a_transaction_twice),
    (committed_offsets_never_go_back, find_an_older_offset),
    (committed_offsets_never_go_back, find_no_offset),
    (ends_never_go_back, tell_an_end_below_what_was_read),
    (ends_never_go_back, tell_an_end_that_is_never_reached),
    (a_group_skips_nothing, skip_a_record),
    (the_lake_has_the_same, leave_a_row_out),
    (the_lake_has_the_same, change_a_row),
    (the_lake_has_the_same, archive_what_is_aborted),
    (each_record_was_copied_once, leave_out_a_copy),
    (each_record_was_copied_once, copy_a_record_again),
)


def test_nothing_is_found_in_a_history_that_is_right() -> None:
    assert violations(right()) == []


@pytest.mark.parametrize(("check", "break_it"), BROKEN, ids=lambda one: one.__name__)
def test_a_broken_history_is_found(check: Check, break_it: Callable[[Outcome], None]) -> None:
    outcome = right()
    break_it(outcome)
    assert list(check(outcome)) != []


def test_every_check_has_a_history_that_breaks_it() -> None:
    assert {check for check, _ in BROKEN} == set(CHECKS)
