"""The model of transactions sees what it is there to see."""

from __future__ import annotations

import pytest

from tests.system.soak.model import Violations, make_value
from tests.system.soak.transacted.model import (
    CommittedPass,
    Fate,
    TransactionModel,
    code_of,
    key_of,
    record_count,
)

WRITER = 7
# Three records in each partition.
LARGE = 2


def key(transaction: int) -> int:
    return key_of(code_of(WRITER, transaction, 0))


@pytest.fixture
def model() -> TransactionModel:
    """Transaction 0 is committed, 1 aborted, 2 committed; a marker follows each."""
    made = TransactionModel("t", 2, Violations())
    made.become(key(0), Fate.COMMITTED, [0, 0])
    made.become(key(1), Fate.ABORTED)
    made.become(key(LARGE), Fate.COMMITTED, [7, 7])
    return made


def read(model: TransactionModel, *records: tuple[int, int, int], partition: int = 0) -> list[str]:
    """What is wrong about somebody's reading these: offset, transaction, index."""
    passed(model, *records, partition=partition)
    return model.violations.texts


def passed(
    model: TransactionModel, *records: tuple[int, int, int], partition: int = 0, end: int = 9
) -> CommittedPass:
    reading = CommittedPass(model, partition, "reader")
    for offset, transaction, index in records:
        code = code_of(WRITER, transaction, index)
        reading.accept(offset, make_value("t", partition, 0, code, b"x"))
    reading.finish(end)
    return reading


WHOLE = ((0, 0, 0), (5, 2, 0), (6, 2, 1), (7, 2, 2))


def test_the_model_has_nothing_to_say_of_what_was_committed(model: TransactionModel) -> None:
    assert record_count(LARGE) == 3
    assert read(model, *WHOLE) == []
    # A transaction that is open further below holds the reader back.
    passed(model, *WHOLE[:2], end=6)
    # Nobody knows, or its writer has not said yet.
    model.become(key(3), Fate.EITHER)
    assert read(model, *WHOLE, (10, 3, 0)) == []


def test_the_model_sees_what_was_aborted_before_or_after_it_was_read(
    model: TransactionModel,
) -> None:
    assert "transaction 1 of writer 7 was aborted" in read(model, (0, 0, 0), (2, 1, 0))[0]
    model.violations = Violations()
    model.become(key(3), Fate.COMMITTED, [9, 9])
    model.become(key(3), Fate.ABORTED)
    assert "was committed, and then aborted" in model.violations.texts[0]


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ((WHOLE[0], WHOLE[1], WHOLE[2]), "2 of its records were read"),
        (WHOLE[1:], "transaction 0 of writer 7 was committed, 0 of"),
        ((*WHOLE, (8, 2, 2)), "twice or out of order"),
        ((*WHOLE, (7, 2, 2)), "double"),
    ],
)
def test_the_model_sees_what_is_missing_and_what_comes_twice(
    model: TransactionModel, records: tuple[tuple[int, int, int], ...], text: str
) -> None:
    assert text in read(model, *records)[0]


def test_the_model_sees_a_transaction_that_is_in_one_partition_alone(
    model: TransactionModel,
) -> None:
    model.become(key(3), Fate.EITHER)
    passes = [passed(model, *WHOLE, partition=0), passed(model, *WHOLE, (10, 3, 0), partition=1)]
    model.check_atomic([passes[0], passes[0]])
    assert model.violations.texts == []
    model.check_atomic(passes)
    assert "transaction 3 of writer 7 is not in every partition" in model.violations.texts[0]


def test_the_model_expects_of_a_lost_disk_what_was_found_again(model: TransactionModel) -> None:
    model.lose(0)
    assert model.committed(0) == {}
    model.found(0, {key(0)})
    assert read(model, WHOLE[0]) == []
    assert "transaction 0 of writer 7" in read(model)[0]
