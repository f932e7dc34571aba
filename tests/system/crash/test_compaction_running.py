"""Compaction in a real broker: beside its clients, over restarts, and killed half way."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.storage.crash_points import (
    CLEAN_AFTER_COMMIT,
    ENVIRONMENT_VARIABLE,
    EXIT_STATUS_KILLED,
)
from tests.support.broker import BrokerProcess, children_of, eventually, size_bytes
from tests.support.wire import WireClient
from tests.system.group_calls import commit, committed, wait_until_loaded

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.clients]

OFFSETS_TOPIC = "__consumer_offsets"
SETTINGS = {
    # Segments are closed as soon as somebody writes to them a moment later, or nobody does.
    "log.roll.ms": "300",
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "0",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.delete.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "300"}
KEYS = [f"key-{number}" for number in range(20)]
ROUNDS = 5


def create(broker: BrokerProcess, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)


def produce(broker: BrokerProcess, topic: str, first_round: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(first_round, first_round + ROUNDS):
        for key in KEYS:
            producer.produce(topic, key=key, value=f"{key} {number}")
        assert producer.flush(60) == 0


def ask_to_compact(client: WireClient, topic: str) -> None:
    """Makes it a compacted topic; nobody waits for the answer."""
    policy = IncrementalConfig(
        name="cleanup.policy", config_operation=ConfigOperation.SET, value="compact"
    )
    resource = IncrementalAlterConfigsResource(
        resource_type=ConfigResourceType.TOPIC, resource_name=topic, configs=[policy]
    )
    client.send(IncrementalAlterConfigsRequest(resources=[resource]), 1)


def consume(broker: BrokerProcess, topic: str) -> dict[int, tuple[bytes, bytes]]:
    """What librdkafka reads from the beginning to the end, by offset."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[int, tuple[bytes, bytes]] = {}
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "nothing within 60 s"
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return found
                raise KafkaException(error)
            found[message.offset()] = (message.key(), message.value())
    finally:
        consumer.close()


def is_compacted(broker: BrokerProcess, topic: str) -> bool:
    return len(consume(broker, topic)) <= len(KEYS)


def last_values(found: dict[int, tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    return dict(found[offset] for offset in sorted(found))


def expected(last_round: int) -> dict[bytes, bytes]:
    return {key.encode(): f"{key} {last_round}".encode() for key in KEYS}


# Every step has its kill in test_compaction_property.py; this is the one where the swap counts.
@pytest.mark.parametrize("point", [CLEAN_AFTER_COMMIT])
def test_a_broker_that_dies_while_a_segment_is_swapped_loses_no_key(
    tmp_path: Path, point: str
) -> None:
    broker = BrokerProcess(tmp_path, settings=SETTINGS, environment={ENVIRONMENT_VARIABLE: point})
    with broker:
        # Compacted when all of it is there: it would die in the middle of what is acknowledged.
        create(broker, "t", **{"segment.ms": COMPACTED["segment.ms"]})
        produce(broker, "t")
        with WireClient(broker.port) as client:
            ask_to_compact(client, "t")
            assert broker.wait_for_exit(60) == EXIT_STATUS_KILLED
        broker.environment.clear()
        broker.start()
        assert last_values(consume(broker, "t")) == expected(ROUNDS - 1)
        assert eventually(lambda: is_compacted(broker, "t"))
        assert last_values(consume(broker, "t")) == expected(ROUNDS - 1)
        assert broker.stop() == 0
    names = {path.suffix for path in (broker.data / "t-0").iterdir()}
    assert not names & {".cleaned", ".swap"}


def test_committed_offsets_outlive_the_compaction_of_their_topic(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        folder = broker.data / f"{OFFSETS_TOPIC}-0"

        def log_bytes() -> int:
            return sum(map(size_bytes, folder.glob("*.log")))

        create(broker, "t")
        with WireClient(broker.port) as client:
            for number in range(300):
                for group in ("one", "two"):
                    assert commit(client, group, {("t", 0): number}) == [0]
                if number == 0:
                    round_bytes = log_bytes()
        # Measured now, it would be what a slow machine has left: much is compacted meanwhile.
        assert eventually(lambda: 0 < log_bytes() < 300 * round_bytes / 10)
        for end in (broker.stop, broker.kill):
            end()
            broker.start()
            with WireClient(broker.port) as client:
                wait_until_loaded(client)
                for group in ("one", "two"):
                    assert committed(client, group, "t") == 299
                    assert commit(client, group, {("t", 0): 299}) == [0]


def test_a_cleaner_that_dies_leaves_one_log_for_later_and_cleans_the_others(tmp_path: Path) -> None:
    # So slow that the child is met while it works on the first topic.
    settings = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": "4000"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        create(broker, "victim", **COMPACTED)
        produce(broker, "victim")

        ((pid, _), *_) = eventually(lambda: list(children_of(broker.pid)))
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: "log not compacted, will be tried again" in broker.log_text())
        create(broker, "other", **COMPACTED)
        produce(broker, "other")
        assert eventually(lambda: is_compacted(broker, "other"), timeout_s=60)
        assert last_values(consume(broker, "victim")) == expected(ROUNDS - 1)


def test_a_topic_may_be_compacted_and_deleted_by_age(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        both = {"cleanup.policy": "compact,delete", "segment.ms": "300"}
        create(broker, "both", **both, **{"retention.ms": "1500"})
        create(broker, "kept", **COMPACTED, **{"retention.ms": "1500"})
        for topic in ("both", "kept"):
            produce(broker, topic)
        assert eventually(lambda: is_compacted(broker, "both"))
        assert eventually(lambda: consume(broker, "both") == {})
        assert eventually(lambda: is_compacted(broker, "kept"))
        assert last_values(consume(broker, "kept")) == expected(ROUNDS - 1)
