"""A minute of the soak, and proof that its model sees what it is there to see."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.broker import eventually
from tests.support.heavy import HEAVY
from tests.system.soak.model import (
    SEQUENCE_BITS,
    GroupProgress,
    PartitionModel,
    Pass,
    Violations,
    make_value,
)
from tests.system.soak.patience import TICK_S, Patience
from tests.system.soak.plan import BROKER_POINTS, DECK, Event, steps
from tests.system.soak.run import run
from tests.system.soak.table import DELETE_RETENTION_MS, Sent, TableModel

# Its first steps: copying off and on, a move between log folders, a death in a compaction of the
# bucket, a store that is away, the end of the replica, a lost disk. A slow machine does fewer.
SEED = 1186
STEPS = 6
LIFE_S = 45.0
PRODUCER = 7


def test_a_seed_tells_the_same_story_again_and_every_kind_of_event_comes() -> None:
    first, again = (list(islice(steps(5), 200)) for _ in range(2))
    assert first == again
    assert first != list(islice(steps(6), 200))
    kinds = Counter(step.event for step in first)
    assert set(kinds) == set(Event)
    # No kind comes twice before all have come: a deck is used up first.
    deck = Counter(step.event for step in first[: len(DECK)])
    assert deck == Counter(DECK)
    reached = {step.point for step in islice(steps(5), 2000) if step.event is Event.CRASH_AT}
    assert reached == set(BROKER_POINTS)


@pytest.fixture
def partition() -> PartitionModel:
    model = PartitionModel(topic="t", number=0, violations=Violations())
    for offset in range(10):
        model.acknowledge(offset, code(offset))
    return model


def code(sequence: int) -> int:
    return PRODUCER << SEQUENCE_BITS | sequence


def value(partition: PartitionModel, sequence: int, *, incarnation: int = 0) -> bytes:
    return make_value(partition.topic, partition.number, incarnation, code(sequence), b"x")


def read(partition: PartitionModel, *offsets: int, start: int = 0) -> Pass:
    reading = Pass(partition, start, generation=partition.generation, who="reader")
    for offset in offsets:
        reading.accept(offset, value(partition, offset))
    return reading


def test_the_model_has_nothing_to_say_of_a_log_that_is_read_as_it_was_written(
    partition: PartitionModel,
) -> None:
    assert read(partition, *range(10)).count == 10
    partition.ceiling = partition.floor = 4
    read(partition, *range(4, 10), start=4)
    # The log start moved while somebody read.
    read(partition, 0, 1, 4, 5)
    assert partition.violations.texts == []


@pytest.mark.parametrize(
    ("offsets", "text"), [((0, 1, 3), "gap"), ((0, 1, 1), "double"), ((0, 2, 1), "gap")]
)
def test_the_model_sees_gaps_and_doubles(
    partition: PartitionModel, offsets: tuple[int, ...], text: str
) -> None:
    read(partition, *offsets)
    assert text in partition.violations.texts[0]


def test_the_model_looks_for_what_was_acknowledged_without_an_offset(
    partition: PartitionModel,
) -> None:
    for sequence in (10, 11):
        partition.acknowledge(None, code(sequence))
    partition.acknowledge(12, code(12))
    read(partition, *range(11))
    partition.check_read()
    assert partition.violations.texts == [
        "t-0: record 11 of producer 7 was acknowledged, and nobody read it"
    ]
    read(partition, *range(13))
    partition.check_read()
    assert len(partition.violations.texts) == 1


def test_the_model_sees_changed_foreign_and_disordered_records(partition: PartitionModel) -> None:
    reading = read(partition, 0)
    reading.accept(1, value(partition, 2))
    assert "record 2 of producer 7 was read, record 1" in partition.violations.texts[0]
    assert "1 was expected" in partition.violations.texts[1]
    reading.accept(2, value(partition, 2, incarnation=1))
    assert "strange" in partition.violations.texts[2]


def test_the_model_sees_a_log_start_that_moves_by_itself_or_back(
    partition: PartitionModel,
) -> None:
    partition.ceiling = 6
    partition.check_start(6, 0)
    assert partition.violations.texts == []
    partition.check_start(7, 0)
    partition.check_start(4, 5)
    assert len(partition.violations.texts) == 2


def test_the_model_sees_what_a_group_skips_and_forgets_what_a_lost_disk_took(
    partition: PartitionModel,
) -> None:
    progress = GroupProgress()
    for offset in (0, 1, 2, 1, 2, 3):
        progress.accept(partition, offset, value(partition, offset))
    assert partition.violations.texts == []
    progress.accept(partition, 5, value(partition, 5))
    assert "5 came, 4 was expected" in partition.violations.texts[0]
    assert partition.cut(0, 6) == 4
    progress.cut(partition, 6)
    assert (progress.end(partition), partition.acknowledged_end) == (6, 6)


# --- the compacted topic -----------------------------------------------------------------------


@pytest.fixture
def table() -> TableModel:
    """Four keys, a value each at 0 to 3; then a's and b's next value and a tombstone for c."""
    model = TableModel(topic="t", number=0, violations=Violations())
    for offset, key in enumerate((b"a", b"b", b"c", b"d", b"a", b"b", b"c")):
        put(model, offset, key, is_tombstone=offset == 6)
    return model


def put(model: TableModel, offset: int, key: bytes, *, is_tombstone: bool = False) -> None:
    model.sending(key)
    sent = Sent(key, None if is_tombstone else code(offset))
    model.acknowledge_row(offset, sent, sent_s=time.monotonic())


def read_table(model: TableModel, *rows: tuple[int, bytes], is_live: bool = True) -> list[str]:
    """What is wrong about somebody's reading these; c's tombstone is at 6."""
    reading = model.begin_pass(0, generation=model.generation, who="reader")
    for offset, key in rows:
        reading.accept(offset, None if offset == 6 else value(model, offset), key)
    reading.finish(7, is_live=is_live)
    return model.violations.texts


A, B, C, D = (4, b"a"), (5, b"b"), (6, b"c"), (3, b"d")


def test_the_table_has_nothing_to_say_of_what_compaction_leaves(table: TableModel) -> None:
    assert read_table(table, D, A, B, C) == []
    assert read_table(table, (0, b"a"), (2, b"c"), D, A, B, C) == []
    # A newer record that the reader did not get to, or that is only on its way.
    put(table, 7, b"a")
    table.sending(b"b")
    assert read_table(table, D, C) == []


def test_the_table_sees_a_last_value_that_is_gone(table: TableModel) -> None:
    found = read_table(table, (0, b"a"), D, B, C)
    assert "key a has lost its last value at 4; 0 was read" in found[0]


def test_the_table_sees_a_tombstone_that_goes_too_early_or_before_what_it_deleted(
    table: TableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "key c has lost its tombstone" in read_table(table, D, A, B)[0]
    table.violations = Violations()
    now_s = time.monotonic() + DELETE_RETENTION_MS / 1000
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    assert read_table(table, D, A, B) == []
    assert table.tombstones_gone == 1
    # A copy that lags behind may show the value of then and the gap of now.
    assert read_table(table, (2, b"c"), D, A, B, is_live=False) == []
    assert "key c has lost its tombstone" in read_table(table, (2, b"c"), D, A, B)[0]


def test_the_table_sees_doubles_and_what_was_never_sent(table: TableModel) -> None:
    assert "double" in read_table(table, D, A, A, B, C)[0]
    table.violations = Violations()
    assert "record 4 of producer 7 of key b was read" in read_table(table, D, (4, b"b"))[0]


def test_the_table_forgets_the_keys_that_a_lost_disk_took(table: TableModel) -> None:
    assert table.cut(0, 5) == 2
    # The newer records of b and c may have displaced the older ones before they were lost.
    assert read_table(table, D, A) == []
    put(table, 5, b"b")
    assert "key b has lost its last value at 5" in read_table(table, D, A)[0]


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.crash
@pytest.mark.clients
@HEAVY
def test_a_short_soak_finds_every_record_once_and_the_bucket_as_its_manifests_say(
    tmp_path: Path,
) -> None:
    outcome = run(LIFE_S, SEED, tmp_path, Console(quiet=True), steps_max=STEPS)
    assert outcome.violations == [], outcome.world.broker.log_text()[-4000:]
    assert outcome.step_count > 0
    assert outcome.story.probe.answered_count > 0


def test_time_without_a_core_is_no_time_to_be_stuck_in() -> None:
    turns = threading.Semaphore(0)
    patience = Patience(sleep=lambda _s: turns.acquire())
    # However long it waits for its turn, each counts as one.
    for turn in range(1, 4):
        time.sleep(3 * TICK_S)
        assert patience.now_s() == pytest.approx((turn - 1) * TICK_S)
        turns.release()
        eventually(lambda t=turn: patience.now_s() == pytest.approx(t * TICK_S))  # type: ignore[misc]
