"""`make mixed`: a strandline broker under the controllers of each release of Apache Kafka.

Features and metadata.version are ranges: it serves under each level that it claims, and under a
higher one from the moment when it is finalized. Users, rules and quotas are in the metadata log.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from bench.comparison.peers import kafka_java
from strandline.broker.cluster.metadata.features import CLAIMED
from tests.compat.mixed.cluster import RECORDS, WAIT_S, java, name_of, produce, read
from tests.compat.mixed.nodes import (
    CLUSTER_ID,
    HEAP,
    OLDEST,
    RELEASES,
    STRANDLINE_ID,
    KafkaNode,
    kafka_controller,
    strandline_broker,
    without_other_groups,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.users import BOB, PASSWORD, librdkafka_login, make_users

RULES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
VALUES = [b"%d" % number for number in range(RECORDS)]
# The oldest level that controllers of 4.0 and newer know, before log folders (15), SCRAM (11).
OLDEST_LEVEL = "3.3-IV3"


@contextmanager
def running(controller: KafkaNode) -> Iterator[KafkaNode]:
    controller.start()
    try:
        yield controller
    finally:
        controller.end()


def levels(broker: BrokerProcess) -> dict[str, str]:
    """The finalized features that a broker tells of."""
    said = java("FeatureCommand", "--bootstrap-server", broker.bootstrap, "describe")
    return dict(re.findall(r"Feature: (\S+).*FinalizedVersionLevel: (\S+)", said))


def create(broker: BrokerProcess, name: str, partitions: int = 1) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT_S)
    eventually(lambda: leaders(admin, name) == {STRANDLINE_ID})
    return admin


def leaders(admin: AdminClient, name: str) -> set[int]:
    found = admin.list_topics(name, timeout=WAIT_S).topics[name].partitions
    return {one.leader for one in found.values()}


@pytest.mark.parametrize("release", RELEASES)
def test_a_broker_serves_under_the_controller_of_each_release(release: str, tmp_path: Path) -> None:
    controller = kafka_controller(
        tmp_path / "controller", RULES, features=without_other_groups(release), release=release
    )
    with running(controller):
        ours = strandline_broker(
            tmp_path / "ours",
            controller,
            settings={**RULES, "sasl.enabled.mechanisms": "SCRAM-SHA-256"},
        )
        secured = int(ours.add_listener("CLIENTS", "SASL_PLAINTEXT").rpartition(":")[2])
        with ours:
            name = name_of("served")
            admin = create(ours, name, 2)
            for partition in (0, 1):
                produce(ours.bootstrap, name, partition, VALUES)
                assert read(ours.bootstrap, name, partition, RECORDS) == VALUES
            assert_a_transaction_counts_once(ours, name)
            assert levels(ours)["group.version"] == "1"
            make_users(ours, [BOB])
            assert not may_write(secured, name)
            rule = AclBinding(
                ResourceType.TOPIC,
                name,
                ResourcePatternType.LITERAL,
                f"User:{BOB}",
                "*",
                AclOperation.WRITE,
                AclPermissionType.ALLOW,
            )
            admin.create_acls([rule])[rule].result(WAIT_S)
            eventually(lambda: may_write(secured, name))
            at_ours = ("--bootstrap-server", ours.bootstrap, "--entity-type", "users")
            java(
                "ConfigCommand",
                *at_ours,
                *("--entity-name", BOB, "--alter", "--add-config", "producer_byte_rate=1000"),
            )
            eventually(lambda: throttled(secured, name))
            # All of it is in the metadata, which a start reads.
            assert ours.stop() == 0
            ours.start()
            eventually(lambda: throttled(secured, name))
            assert read(ours.bootstrap, name, 1, RECORDS) == VALUES
            assert "Traceback" not in ours.log_text()


def may_write(port: int, topic: str) -> bool:
    producer = Producer(librdkafka_login(port, BOB, PASSWORD))
    failures: list[object] = []
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(WAIT_S) == 0
    # A comparison of the client's error with None fails in the client.
    return failures[0] is None


def throttled(port: int, topic: str) -> bool:
    """Whether the broker makes that user wait."""
    waits: list[float] = []
    producer = Producer(
        {
            **librdkafka_login(port, BOB, PASSWORD),
            "throttle_cb": lambda event: waits.append(event.throttle_time),
        }
    )
    for _ in range(20):
        producer.produce(topic, bytes(1000), partition=0)
        producer.flush(WAIT_S)
        producer.poll(0)
        if waits:
            break
    return bool(waits)


def assert_a_transaction_counts_once(broker: BrokerProcess, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    for outcome in ("abort", "commit"):
        producer.begin_transaction()
        producer.produce(topic, outcome.encode(), key=b"t", partition=0)
        getattr(producer, f"{outcome}_transaction")(WAIT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: list[bytes | None] = []

    def all_read() -> bool:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            if message.key() == b"t":
                found.append(message.value())
        return b"commit" in found

    eventually(all_read)
    assert found == [b"commit"]
    consumer.close()


@pytest.mark.parametrize("release", [OLDEST, *list(RELEASES)[-1:]])
def test_the_metadata_version_may_be_old_and_is_raised_while_the_broker_serves(
    release: str, tmp_path: Path
) -> None:
    """From before the metadata had log folders (KIP-858) to the newest that the release has."""
    controller = kafka_controller(
        tmp_path / "controller", features=(), release=release, metadata_version=OLDEST_LEVEL
    )
    with running(controller):
        settings = {"log.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}"}
        ours = strandline_broker(tmp_path / "ours", controller, settings=settings)
        # Controllers of that level do not tell their cluster.
        format_as_kafka(tmp_path / "format.properties", ours)
        with ours:
            before, after = name_of("before"), name_of("after")
            create(ours, before, 4)
            produce(ours.bootstrap, before, 3, VALUES)
            java(
                "FeatureCommand",
                *("--bootstrap-server", ours.bootstrap),
                *("upgrade", "--metadata", _name_of_level(release)),
            )
            create(ours, after, 4)
            produce(ours.bootstrap, after, 3, VALUES)
            for topic in (before, after):
                assert read(ours.bootstrap, topic, 3, RECORDS) == VALUES
            # The controller learns of the folders, which it did not keep before.
            eventually(lambda: "broker registers again" in ours.log_text())
            assert ours.stop() == 0
            ours.start()
            for topic in (before, after):
                assert read(ours.bootstrap, topic, 3, RECORDS) == VALUES
            assert "Traceback" not in ours.log_text()


def format_as_kafka(properties: Path, broker: BrokerProcess) -> None:
    """By kafka-storage.sh, which takes the properties of a broker."""
    told = {"node.id": str(STRANDLINE_ID), "listeners": "PLAINTEXT://:0", **broker.settings}
    properties.write_text("".join(f"{name}={text}\n" for name, text in told.items()))
    words = ("format", "--cluster-id", CLUSTER_ID, "--config", str(properties))
    subprocess.run(kafka_java("kafka.tools.StorageTool", *words, options=HEAP), check=True)


def _name_of_level(release: str) -> str:
    level = RELEASES[release]
    assert level in CLAIMED["metadata.version"]
    return {25: "4.0-IV3", 33: "4.4-IV2"}[level]


@pytest.mark.parametrize("release", [one for one in RELEASES if one > "4.2"])
def test_a_cluster_that_a_new_release_formatted_refuses_the_broker_with_the_commands_that_help(
    release: str, tmp_path: Path
) -> None:
    with running(kafka_controller(tmp_path / "controller", features=(), release=release)) as new:
        ours = strandline_broker(tmp_path / "ours", new)
        ours.begin()
        assert ours.wait_for_exit(WAIT_S) != 0
        for feature in ("share.version", "streams.version"):
            assert f"downgrade --feature {feature}=0" in ours.log_text()
        java(
            "FeatureCommand",
            *("--bootstrap-controller", new.address),
            *("downgrade", "--feature", "share.version=0", "--feature", "streams.version=0"),
        )
        with ours:
            name = name_of("let-in")
            create(ours, name)
            produce(ours.bootstrap, name, 0, VALUES)
            # While it is a member, the controller does not let anybody finalize what it lacks.
            with pytest.raises(AssertionError, match=f"[Bb]roker {STRANDLINE_ID}"):
                java(
                    "FeatureCommand",
                    *("--bootstrap-server", ours.bootstrap),
                    *("upgrade", "--feature", "share.version=1"),
                )
            assert read(ours.bootstrap, name, 0, RECORDS) == VALUES
            assert ours.stop() == 0
