"""A minute of the soak, and proof that its model sees what it is there to see."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

from tests.soak.model import (
    SEQUENCE_BITS,
    GroupProgress,
    PartitionModel,
    Pass,
    Violations,
    make_value,
)
from tests.soak.plan import BROKER_POINTS, DECK, Event, steps
from tests.soak.run import run

# Its first steps: a death in an upload of the open segment, a move between log folders, a store
# that hangs, the end of the replica, a death in a move, a lost disk. A slow machine does fewer.
SEED = 70912
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


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.crash
@pytest.mark.clients
def test_a_short_soak_finds_every_record_once_and_the_bucket_as_its_manifests_say(
    tmp_path: Path,
) -> None:
    outcome = run(LIFE_S, SEED, tmp_path, Console(quiet=True), steps_max=STEPS)
    assert outcome.violations == [], outcome.world.broker.log_text()[-4000:]
    assert outcome.step_count > 0
    assert outcome.story.probe.answered_count > 0
    assert all(reader.record_count for reader in outcome.story.readers)
