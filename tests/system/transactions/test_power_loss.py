"""The power fails, and each log loses another part of its end that was not synced.

A kill -9 leaves the page cache. So the broker is killed, and then the ends of its files are cut, as
a loss of power may leave them: at any byte, each file at another moment.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.crash_points import (
    EXIT_STATUS_KILLED,
    TRANSACTION_AFTER_LOST_END,
    TRANSACTION_AFTER_RETIRE,
)
from strandline.storage.records.batch.any_batch import iter_records, walk
from tests.support.broker import BrokerProcess, eventually
from tests.support.heavy import first, heavy
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING, create_topic, delete_topic
from tests.system.group_calls import committed
from tests.system.transactions.committed import committed_values, is_stable
from tests.system.transactions.going_on import retried, write_on
from tests.system.transactions.wire_producer import WireProducer

pytestmark = [pytest.mark.slow, pytest.mark.crash]

NONE = ErrorCode.NONE
PARTITIONS = 3
LOGS = tuple(f"t-{number}" for number in range(PARTITIONS))
STATE = "__transaction_state-0"
TRANSACTIONS = 40
GROUP = "g"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        **KEEP_EVERYTHING,
        "transaction.state.log.num.partitions": "1",
        "offsets.topic.num.partitions": "1",
        # Markers are newer than the records of tests, and would each begin another file.
        "log.roll.ms": str(10**12),
    }
    with BrokerProcess(tmp_path, settings=settings) as running:
        yield running
        assert "Traceback" not in running.log_text(), running.log_text()[-4000:]


def log_file(broker: BrokerProcess, partition: str) -> Path:
    (found,) = (broker.data / partition).glob("*.log")
    return found


def values_in(path: Path) -> list[bytes]:
    """The values of all whole batches, whatever their transactions came to."""
    buffer = path.read_bytes()
    return [
        bytes(record.value or b"")
        for batch in walk(buffer)
        if not batch.header.is_control
        for record in iter_records(buffer, batch.header, batch.position)
    ]


def cut_before_the_last_batches(path: Path, count: int) -> None:
    positions = [batch.position for batch in walk(path.read_bytes())]
    os.truncate(path, positions[-count])


def wait_until_stable(client: WireClient) -> None:
    for partition in range(PARTITIONS):
        eventually(lambda: is_stable(client, "t", partition=partition))  # noqa: B023


def a_producer(client: WireClient, version: int, *, partitions: int = 1) -> WireProducer:
    """The first producer of its id, and a topic for it."""
    create_topic(client, "t", partitions)
    producer = WireProducer(client, "tx", version=version)
    producer.begin()
    return producer


class History:
    """Random transactions of producers of both versions, and what became of each value."""

    def __init__(self, client: WireClient, chance: random.Random) -> None:
        self.chance = chance
        self.producers = [
            WireProducer(client, f"tx-{number}", version=1 + number % 2) for number in range(4)
        ]
        for producer in self.producers:
            producer.begin()
        self.is_committed: dict[bytes, bool] = {}
        self._count = 0

    def run(self) -> None:
        """Transactions that end; the last one of each producer stays open at times."""
        for _ in range(TRANSACTIONS):
            producer = self.chance.choice(self.producers)
            self._write(producer, is_committed := self.chance.random() < 0.6)
            assert producer.end(is_commit=is_committed) is NONE
        for producer in self.producers:
            if self.chance.random() < 0.5:
                self._write(producer, is_committed=False)

    def _write(self, producer: WireProducer, is_committed: bool) -> None:
        for partition in self.chance.sample(range(PARTITIONS), self.chance.randint(1, PARTITIONS)):
            self._count += 1
            value = b"%d" % self._count
            producer.send("t", value, partition=partition)
            self.is_committed[value] = is_committed


def before_a_power_loss(
    broker: BrokerProcess, seed: int, names: Sequence[str], *, kept: float
) -> History:
    """A history whose broker is dead; of these logs at least the share `kept` is left."""
    chance = random.Random(seed)
    with WireClient(broker.port) as client:
        create_topic(client, "t", PARTITIONS)
        history = History(client, chance)
        history.run()
    broker.kill()
    for name in names:
        path = log_file(broker, name)
        size = path.stat().st_size
        os.truncate(path, chance.randint(int(size * kept), size))
    return history


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_a_marker_that_is_lost_with_the_power_is_written_again(
    broker: BrokerProcess, seed: int
) -> None:
    history = before_a_power_loss(broker, seed, LOGS, kept=0)
    kept = [values_in(log_file(broker, f"t-{index}")) for index in range(PARTITIONS)]
    broker.start()
    with WireClient(broker.port) as client:
        # What was open is aborted by the successors; all else ends by itself.
        for producer in history.producers:
            producer.client = client
            producer.begin()
        wait_until_stable(client)
        expected = [[v for v in values if history.is_committed[v]] for values in kept]
        seen = [committed_values(client, "t", partition=index) for index in range(PARTITIONS)]
        assert seen == expected, f"seed {seed}"
        for producer in history.producers:
            producer.send("t", b"after", partition=0)
            assert producer.commit() is NONE
        assert committed_values(client, "t")[len(expected[0]) :] == [b"after"] * 4


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_no_transaction_hangs_and_none_that_was_aborted_is_shown_whatever_the_power_took(
    broker: BrokerProcess, seed: int
) -> None:
    history = before_a_power_loss(broker, 100 + seed, [*LOGS, STATE], kept=0.5)
    kept = [values_in(log_file(broker, f"t-{index}")) for index in range(PARTITIONS)]
    broker.start()
    with WireClient(broker.port) as client:
        for producer in history.producers:
            producer.client = client
            producer.begin()
        wait_until_stable(client)
        for partition, values in enumerate(kept):
            seen = committed_values(client, "t", partition=partition)
            assert set(seen) <= {v for v in values if history.is_committed[v]}, f"seed {seed}"


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_what_producers_commit_that_go_on_after_a_power_loss_is_there_once_and_nothing_else(
    broker: BrokerProcess, seed: int
) -> None:
    history = before_a_power_loss(broker, 200 + seed, [*LOGS, STATE], kept=0.75)
    broker.start()
    with WireClient(broker.port) as client:
        for producer in history.producers:
            producer.client = client
            # Its application gave up what it had open, whatever became of that.
            retried(lambda: producer.end(is_commit=False))  # noqa: B023
        after: list[bytes] = []
        for number in range(20):
            producer = history.chance.choice(history.producers)
            value = b"after-%d" % number
            write_on(producer, "t", [value], refused_max=1)
            after.append(value)
        wait_until_stable(client)
        seen = committed_values(client, "t")
        assert [value for value in seen if value.startswith(b"after")] == after, f"seed {seed}"
        before = {value for value in seen if not value.startswith(b"after")}
        assert before <= {v for v, is_committed in history.is_committed.items() if is_committed}


@pytest.mark.parametrize("version", [heavy(1), 2])
def test_a_transaction_that_the_coordinator_lost_is_aborted_and_its_producer_fenced(
    broker: BrokerProcess, version: int
) -> None:
    with WireClient(broker.port) as client:
        producer = a_producer(client, version, partitions=PARTITIONS)
        producer.send("t", b"lost")
    broker.kill()
    # All but the record that gave the id its producer.
    cut_before_the_last_batches(log_file(broker, STATE), 1)
    broker.start()
    with WireClient(broker.port) as client:
        producer.client = client
        eventually(lambda: is_stable(client, "t"))
        assert committed_values(client, "t") == []
        assert producer.write("t", b"more") is not NONE
        producer.begin()
        producer.send("t", b"again")
        assert producer.commit() is NONE
        assert committed_values(client, "t") == [b"again"]
    assert "transaction that had lost its end is ended" in broker.log_text()


@pytest.mark.parametrize("version", [heavy(1), 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_offsets_of_a_transaction_count_although_the_power_took_its_marker(
    broker: BrokerProcess, version: int, is_commit: bool
) -> None:
    with WireClient(broker.port) as client:
        producer = a_producer(client, version)
        assert producer.send_offset(GROUP, "t", 5) is NONE
        assert producer.end(is_commit=is_commit) is NONE
    broker.kill()
    cut_before_the_last_batches(log_file(broker, "__consumer_offsets-0"), 1)
    broker.start()
    with WireClient(broker.port) as client:
        assert eventually(lambda: committed(client, GROUP, "t") == (5 if is_commit else -1))
        producer.client = client
        producer.begin()
        # The coordinator of its transactions may still load.
        eventually(lambda: producer.send_offset(GROUP, "t", 6) is NONE)
        assert producer.commit() is NONE
        assert eventually(lambda: committed(client, GROUP, "t") == 6)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_power_loss_over_a_power_loss_leaves_the_outcome_as_it_was_decided(
    broker: BrokerProcess, is_commit: bool
) -> None:
    """The marker is written again, and lost again; other records had its offset before."""
    with WireClient(broker.port) as client:
        create_topic(client, "t", 1)
        producer = WireProducer(client, "tx", version=1)
        producer.begin()
        producer.send("t", b"decided")
        assert producer.end(is_commit=is_commit) is NONE
        producer.send("t", b"other")
        assert producer.end(is_commit=not is_commit) is NONE
    path = log_file(broker, "t-0")
    for batches in (3, 1):
        broker.kill()
        cut_before_the_last_batches(path, batches)
        assert values_in(path) == [b"decided"]
        broker.start()
        with WireClient(broker.port) as client:
            eventually(lambda: is_stable(client, "t"))
            assert committed_values(client, "t") == ([b"decided"] if is_commit else [])


@pytest.mark.parametrize("is_next_decided", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("version", [heavy(1), 2])
def test_a_decision_ends_its_own_transaction_and_not_the_next_one_of_its_producer(
    broker: BrokerProcess, version: int, is_commit: bool, is_next_decided: bool
) -> None:
    """The coordinator's log ends with the decision; the partition has the marker and more."""
    with WireClient(broker.port) as client:
        producer = a_producer(client, version)
        producer.send("t", b"decided")
        assert producer.end(is_commit=is_commit) is NONE
        producer.send("t", b"next")
        if is_next_decided:
            assert producer.end(is_commit=not is_commit) is NONE
    broker.kill()
    if is_next_decided:
        cut_before_the_last_batches(log_file(broker, "t-0"), 1)
    cut_before_the_last_batches(log_file(broker, STATE), 4 if is_next_decided else 2)
    broker.start()
    decided = [b"decided"] if is_commit else []
    with WireClient(broker.port) as client:
        producer.client = client
        if not is_next_decided:
            assert retried(producer.commit) is not NONE
        eventually(lambda: is_stable(client, "t"))
        assert committed_values(client, "t") == decided
        write_on(producer, "t", [b"a", b"b"], refused_max=1)
        assert committed_values(client, "t") == [*decided, b"a", b"b"]


@pytest.mark.parametrize("version", [heavy(1), 2])
def test_a_decision_ends_nothing_in_a_later_topic_of_the_same_name(
    broker: BrokerProcess, version: int
) -> None:
    with WireClient(broker.port) as client:
        producer = a_producer(client, version)
        producer.send("t", b"decided")
        assert producer.commit() is NONE
        delete_topic(client, "t")
        create_topic(client, "t", 1)
        producer.send("t", b"open")
    broker.kill()
    # The record that began the transaction.
    cut_before_the_last_batches(log_file(broker, STATE), 1)
    broker.start()
    with WireClient(broker.port) as client:
        eventually(lambda: is_stable(client, "t"))
        assert committed_values(client, "t") == []


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("version", [heavy(1), 2])
def test_what_is_committed_after_the_coordinator_fell_back_is_there_once(
    broker: BrokerProcess, version: int, goes_on: bool
) -> None:
    """Its log lost transactions whose batches and epochs are in the logs of the partitions."""
    with WireClient(broker.port) as client:
        producer = a_producer(client, version)
        size = log_file(broker, STATE).stat().st_size
        before = [b"before-%d" % number for number in range(6)]
        for value in before:
            if version == 1:
                producer.begin()
            producer.send("t", value)
            assert producer.commit() is NONE
    broker.kill()
    os.truncate(log_file(broker, STATE), size)
    broker.start()
    with WireClient(broker.port) as client:
        after = [b"after-%d" % number for number in range(8)]
        if goes_on:
            producer.client = client
        else:
            producer = WireProducer(client, "tx", version=version)
            producer.begin()
        write_on(producer, "t", after, refused_max=1 if goes_on else 0)
        assert committed_values(client, "t") == [*before, *after]


@pytest.mark.parametrize("version", [heavy(1), 2])
def test_two_producers_never_have_the_same_identity_whatever_the_power_took(
    broker: BrokerProcess, version: int
) -> None:
    """No log knows any more that the first one had its last identity."""
    with WireClient(broker.port) as client:
        create_topic(client, "t", 1)
        first = WireProducer(client, "tx", version=version)
        first.begin()
        first.send("t", b"kept")
        assert first.commit() is NONE
        paths = [log_file(broker, name) for name in ("t-0", STATE)]
        kept = {path: path.stat().st_size for path in paths}
        first.send("t", b"lost")
        assert first.commit() is NONE
    broker.kill()
    for path, size in kept.items():
        os.truncate(path, size)
    broker.start()
    with WireClient(broker.port) as client:
        second = WireProducer(client, "tx", version=version)
        second.begin()
        first.client = client
        assert first.try_send("t", b"late") is not NONE
        write_on(second, "t", [b"a", b"b"], refused_max=0)
        assert committed_values(client, "t") == [b"kept", b"a", b"b"]


@pytest.mark.parametrize("version", [heavy(1), 2])
def test_no_part_of_a_transaction_commits_whose_other_part_was_aborted(
    broker: BrokerProcess, version: int
) -> None:
    """The coordinator lost that it began, and its producer goes on in another partition."""
    with WireClient(broker.port) as client:
        producer = a_producer(client, version, partitions=PARTITIONS)
        producer.send("t", b"aborted")
    broker.kill()
    cut_before_the_last_batches(log_file(broker, STATE), 1)
    broker.start()
    with WireClient(broker.port) as client:
        producer.client = client
        eventually(lambda: is_stable(client, "t"))
        assert producer.try_send("t", b"rest", partition=1) is not NONE
        assert producer.commit() is not NONE
        assert committed_values(client, "t", partition=1) == []


@pytest.mark.parametrize("point", [TRANSACTION_AFTER_LOST_END, TRANSACTION_AFTER_RETIRE])
@pytest.mark.parametrize("version", [heavy(1), 2])
def test_a_kill_while_a_start_mends_a_power_loss_leaves_the_rest_to_the_next_start(
    broker: BrokerProcess, version: int, point: str
) -> None:
    """Two transactions of which the coordinator knows nothing; the first end is not the last."""
    with WireClient(broker.port) as client:
        create_topic(client, "t", PARTITIONS)
        producers = [WireProducer(client, name, version=version) for name in ("a", "b")]
        for producer in producers:
            producer.begin()
        size = log_file(broker, STATE).stat().st_size
        for producer in producers:
            for partition in range(PARTITIONS):
                producer.send("t", b"lost", partition=partition)
    broker.kill()
    os.truncate(log_file(broker, STATE), size)
    broker.environment = {"STRANDLINE_CRASH_AT": point}
    broker.begin()
    assert broker.wait_for_exit(60) == EXIT_STATUS_KILLED
    broker.environment = {}
    broker.start()
    with WireClient(broker.port) as client:
        wait_until_stable(client)
        for producer in producers:
            producer.client = client
            assert producer.try_send("t", b"rest", partition=1) is not NONE
            assert producer.commit() is not NONE
            write_on(producer, "t", [b"after"], refused_max=1)
        seen = [committed_values(client, "t", partition=index) for index in range(PARTITIONS)]
        assert seen == [[b"after"] * 2, [], []]
