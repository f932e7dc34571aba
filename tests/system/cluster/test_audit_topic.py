"""The record of each broker is in one topic, whichever broker leads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import BrokerProcess, eventually
from tests.support.controller import ControllerProcess
from tests.support.several_brokers import SeveralBrokers
from tests.support.wire import WireClient
from tests.system.calls import batch, create_topic, describe_topic, produce
from tests.system.cluster.bounced import SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.crash]

WAIT_S = 60.0
TOPIC = "audit.record"


def made_by(cluster: SeveralBrokers) -> set[str]:
    """The topics whose creation is in the record."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reads"})
    try:
        place = TopicPartition(TOPIC, 0, 0)
        if TOPIC not in consumer.list_topics(timeout=WAIT_S).topics:
            return set()
        _, end = consumer.get_watermark_offsets(place, timeout=WAIT_S)
        consumer.assign([place])
        lines: list[dict[str, Any]] = []
        while len(lines) < end:
            lines += [json.loads(one.value() or b"") for one in consumer.consume(end, WAIT_S)]
        return {line["topic"] for line in lines if line.get("request") == "CreateTopics"}
    except KafkaException:
        # The topic has no leader at this moment.
        return set()
    finally:
        consumer.close()


def create(cluster: SeveralBrokers, number: int, name: str) -> None:
    """At one broker, which has it in its record."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.port + number}"})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)


def test_a_client_that_comes_by_the_listener_of_brokers_writes_nothing(tmp_path: Path) -> None:
    """Without a login and an authorizer it could be anybody."""
    controller = ControllerProcess(tmp_path / "controller")
    settings = {
        **SETTINGS,
        "node.id": "1",
        "controller.quorum.bootstrap.servers": controller.bootstrap,
        "strandline.audit.topic": TOPIC,
    }
    broker = BrokerProcess(tmp_path / "broker", settings=settings)
    try:
        controller.start()
        broker.start()
        with WireClient(broker.port) as client:
            create_topic(client, "a")
            eventually(lambda: not describe_topic(client, TOPIC).error_code)
            code = 0

            def is_refused() -> bool:
                nonlocal code
                code = produce(client, TOPIC, batch(value=b"{}")).error_code
                return code != ErrorCode.NOT_LEADER_OR_FOLLOWER

            # The broker may know of the partition before it has made it.
            eventually(is_refused)
        assert code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    finally:
        broker.kill()
        controller.kill()


def test_what_each_broker_was_asked_is_in_the_topic_also_after_its_leader_died(
    tmp_path: Path,
) -> None:
    settings = (f"strandline.audit.topic={TOPIC}", "default.replication.factor=2")
    with SeveralBrokers(tmp_path, *settings, brokers=2) as cluster:
        create(cluster, 0, "a")
        create(cluster, 1, "b")
        # An admin client may ask another broker than its first one: each has lines of its own.
        eventually(lambda: made_by(cluster) >= {"a", "b"})
        refused: list[KafkaError | None] = []

        def note(error: KafkaError | None, _: Message) -> None:
            refused.append(error)

        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce(TOPIC, b"{}", on_delivery=note)
        assert producer.flush(WAIT_S) == 0
        assert [one and one.code() for one in refused] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        leader = admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions[0].leader
        cluster.kill(f"broker {leader}")
        create(cluster, 2 - leader, "c")
        eventually(lambda: made_by(cluster) >= {"a", "b", "c"})
        assert cluster.stop() == 0
        assert "Traceback" not in cluster.log_text()
