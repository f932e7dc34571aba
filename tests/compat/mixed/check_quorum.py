"""`make mixed`: controllers of Apache Kafka that stand still, are killed and are started anew.

Whoever is active next, strandline brokers find it as Kafka's do: by the answers of the others.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from tests.compat.mixed.cluster import RECORDS, WAIT_S, Mixed, leader_of, name_of, produce, read
from tests.compat.mixed.nodes import SECOND_ID, STRANDLINE_ID
from tests.support.broker import eventually

OURS = [[STRANDLINE_ID], [SECOND_ID]]


@contextmanager
def producing(mixed: Mixed, topic: str) -> Iterator[None]:
    """Sends to both of ours meanwhile; each record is acknowledged once, in order."""
    producer = Producer(
        {
            "bootstrap.servers": mixed.ours.bootstrap,
            "enable.idempotence": True,
            "delivery.timeout.ms": int(WAIT_S * 1000),
        }
    )
    over, sent, failed = threading.Event(), [0, 0], []

    def send() -> None:
        while not over.is_set():
            for partition in (0, 1):
                producer.produce(
                    topic,
                    b"%d" % sent[partition],
                    partition=partition,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                sent[partition] += 1
            producer.poll(0.01)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        assert producer.flush(WAIT_S) == 0
    assert failed == []
    for partition, count in enumerate(sent):
        assert count > 0
        values = read(mixed.apache.address, topic, partition, count)
        assert values == [b"%d" % number for number in range(count)]


def fenced(mixed: Mixed) -> list[int]:
    """Those of ours that the metadata do not name as alive."""
    alive = mixed.admin("apache").list_topics(timeout=WAIT_S).brokers
    return [node for node in (STRANDLINE_ID, SECOND_ID) if node not in alive]


def test_without_controllers_leaders_go_on_and_changes_wait(mixed: Mixed) -> None:
    name = name_of("alone")
    mixed.create(name, OURS)
    values = [b"%d" % number for number in range(RECORDS)]
    for node in mixed.controllers:
        node.pause()
    try:
        for partition in (0, 1):
            produce(mixed.ours.bootstrap, name, partition, values)
            assert read(mixed.second.bootstrap, name, partition, RECORDS) == values
        admin = mixed.admin("ours")
        waiting = admin.create_topics([NewTopic("never", 1)], request_timeout=3)["never"]
        with pytest.raises(Exception, match=r"[Tt]imed out|_TIMED_OUT"):
            waiting.result(WAIT_S)
    finally:
        for node in mixed.controllers:
            node.resume()
    leader_of(mixed.controllers)
    eventually(lambda: fenced(mixed) == [])
    again = name_of("again")
    mixed.create(again, OURS)
    produce(mixed.ours.bootstrap, again, 0, values)


@pytest.mark.parametrize("through", ["ours", "second"])
def test_when_the_active_controller_is_killed_the_next_one_is_found(
    mixed: Mixed, through: str
) -> None:
    name = name_of("before")
    mixed.create(name, OURS)
    victim = leader_of(mixed.controllers)
    with producing(mixed, name):
        victim.end(signal.SIGKILL)
        after = name_of("after")
        mixed.create(after, OURS, through)
        assert fenced(mixed) == []
        values = [b"%d" % number for number in range(RECORDS)]
        produce(mixed.second.bootstrap, after, 0, values)
        victim.start()
    assert leader_of(mixed.controllers) is not victim


def test_a_controller_that_stands_still_fences_none_of_ours(mixed: Mixed) -> None:
    """Its connections stay open, and answer nothing: who waits too long for them is fenced."""
    name = name_of("still")
    mixed.create(name, OURS)
    victim = leader_of(mixed.controllers)
    lost: set[int] = set()
    with producing(mixed, name):
        victim.pause()
        try:
            others = [node for node in mixed.controllers if node is not victim]
            leader_of(others)
            # Twice the session of a broker.
            until_s = time.monotonic() + 12
            while time.monotonic() < until_s:
                lost.update(fenced(mixed))
                time.sleep(0.2)
            mixed.create(name_of("meanwhile"), OURS, "second")
        finally:
            victim.resume()
    assert lost == set()


def test_a_rolling_restart_of_the_controllers_is_noticed_by_nobody(mixed: Mixed) -> None:
    name = name_of("rolling")
    mixed.create(name, OURS)
    epochs = [broker.log_text().count("broker registered") for broker in (mixed.ours, mixed.second)]
    with producing(mixed, name):
        for node in mixed.controllers:
            node.end()
            leader_of(mixed.controllers)
            mixed.create(name_of("meanwhile"), OURS, "second")
            node.start()
            assert fenced(mixed) == []
    assert epochs == [
        broker.log_text().count("broker registered") for broker in (mixed.ours, mixed.second)
    ]


def test_a_rolling_restart_of_the_brokers_loses_nothing(mixed: Mixed) -> None:
    name = name_of("brokers")
    mixed.create(name, OURS)
    with producing(mixed, name):
        for broker in (mixed.ours, mixed.second):
            assert broker.stop() == 0
            broker.start()
        mixed.ours.kill()
        mixed.ours.start()
