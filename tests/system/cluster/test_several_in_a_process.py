"""Several brokers live in one process on one event loop, each in an environment of its own."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.broker.config.listeners import CannotListen
from strandline.storage.errors import StrandlineError
from tests.support.cluster import LocalBrokers


def make_topic(bootstrap: str, topic: str, **properties: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, 1, 1, config=properties)]).values()
    made.result(30)


def produce(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value=value)
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str, count: int, *, group: str = "g") -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, timeout=30)
        return [(message.value() or b"").decode() for message in messages]
    finally:
        consumer.close()


@pytest.mark.slow
def test_three_brokers_start_serve_and_stop(tmp_path: Path) -> None:
    with LocalBrokers(tmp_path, count=3) as brokers:
        for number, broker in enumerate(brokers):
            make_topic(broker.bootstrap, "t")
            produce(broker.bootstrap, "t", *(f"{number}-{one}" for one in range(3)))
        for number, broker in enumerate(brokers):
            found = consume(broker.bootstrap, "t", 3)
            assert found == [f"{number}-0", f"{number}-1", f"{number}-2"]
    assert [one.name for one in threading.enumerate() if one.name == "brokers"] == []


@pytest.mark.slow
def test_one_stops_and_starts_again_while_the_others_serve(tmp_path: Path) -> None:
    with LocalBrokers(tmp_path, count=3) as brokers:
        first, second, _ = brokers
        make_topic(second.bootstrap, "t")
        produce(second.bootstrap, "t", "before")
        second.stop()
        make_topic(first.bootstrap, "t")
        produce(first.bootstrap, "t", "meanwhile")
        assert consume(first.bootstrap, "t", 1) == ["meanwhile"]
        second.start()
        produce(second.bootstrap, "t", "after")
        assert consume(second.bootstrap, "t", 2) == ["before", "after"]


@pytest.mark.slow
@pytest.mark.heavy
def test_each_archives_into_a_bucket_of_its_own_and_a_taken_port_stops_that_broker_alone(
    tmp_path: Path,
) -> None:
    with LocalBrokers(tmp_path, count=2) as brokers:
        first, second = brokers
        second.stop()
        port = first.port
        second.settings["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        with pytest.raises(CannotListen):
            second.start()
        second.settings["listeners"] = "PLAINTEXT://127.0.0.1:0"
        second.settings["remote.log.storage.system.enable"] = "true"
        second.settings["strandline.remote.url"] = (tmp_path / "archive").as_uri()
        second.start()
        make_topic(second.bootstrap, "t", **{"remote.storage.enable": "true"})
        produce(second.bootstrap, "t", "archived")
        assert consume(second.bootstrap, "t", 1) == ["archived"]
        make_topic(first.bootstrap, "t")


@pytest.mark.slow
def test_folders_of_one_broker_are_locked_against_another(tmp_path: Path) -> None:
    with LocalBrokers(tmp_path, count=2) as brokers:
        first, second = brokers
        second.stop()
        second.settings["log.dirs"] = first.settings["log.dirs"]
        with pytest.raises(StrandlineError, match="in use"):
            second.start()
