"""The record of a broker: logins, changes and traffic of real clients, and no secret."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    UserScramCredentialUpsertion,
)

from strandline.broker.audit.record import MINUTE_S
from tests.support.broker import BrokerProcess
from tests.support.users import (
    ALICE,
    PASSWORD,
    SETTINGS,
    librdkafka_login,
    listener_ports,
    scram_info,
)

pytestmark = [pytest.mark.slow, pytest.mark.clients]

SECRET = "hunter2-of-the-new-user"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The record of a broker that was used and stopped."""
    folder = tmp_path_factory.mktemp("audit")
    file = folder / "audit.json"
    with BrokerProcess(folder, settings={**SETTINGS, "strandline.audit.file": str(file)}) as broker:
        use(broker)
        broker.stop()
        assert SECRET not in broker.log_text()
    text = file.read_text()
    assert PASSWORD not in text
    assert SECRET not in text
    assert (file.stat().st_mode & 0o077) == 0
    return [json.loads(line) for line in text.splitlines()]


def use(broker: BrokerProcess) -> None:
    port = listener_ports(broker)["CLIENTS"]
    login = librdkafka_login(port, ALICE, PASSWORD)
    admin = AdminClient(login)
    (created,) = admin.create_topics([NewTopic("t", 2, config={"retention.ms": "1000"})]).values()
    created.result(60)
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        "t",
        incremental_configs=[
            ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(60)
    bad = ConfigResource(
        ConfigResource.Type.TOPIC,
        "t",
        incremental_configs=[
            ConfigEntry("my.password", SECRET, incremental_operation=AlterConfigOpType.SET)
        ],
    )
    (refused,) = admin.incremental_alter_configs([bad]).values()
    assert refused.exception(60) is not None
    upsertion = UserScramCredentialUpsertion("dora", scram_info("SCRAM-SHA-512"), SECRET.encode())
    admin.alter_user_scram_credentials([upsertion])["dora"].result(60)
    producer = Producer(login)
    producer.produce("t", bytes(5000))
    assert producer.flush(60) == 0
    consumer = Consumer({**login, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    assert len(consumer.consume(1, 60)) == 1
    consumer.close()
    wrong = Producer({**librdkafka_login(port, ALICE, "wrong"), "log_level": 0})
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=2)
    (deleted,) = admin.delete_topics(["t"]).values()
    deleted.result(60)
    producer.produce("made", b"by the first record")
    assert producer.flush(60) == 0


def of(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


def test_logins_are_recorded_with_user_mechanism_and_address(lines: list[dict[str, Any]]) -> None:
    logins = of(lines, "login")
    accepted = [line for line in logins if line["result"] == "accepted"]
    assert {(one["principal"], one["mechanism"], one["address"]) for one in accepted} == {
        ("User:alice", "PLAIN", "127.0.0.1")
    }
    # The client tried more than once.
    refused, *counts = [line for line in logins if line["result"] == "refused"]
    assert all("not_recorded" in line for line in counts)
    assert (refused["principal"], refused["listener"]) == ("User:alice", "CLIENTS")


def test_each_change_is_recorded_with_who_made_it(lines: list[dict[str, Any]]) -> None:
    changes = of(lines, "change")
    assert {one["principal"] for one in changes} == {"User:alice"}
    created, altered, refused, user, deleted, made = changes
    assert (created["request"], created["topic"], created["partitions"], created["error"]) == (
        "CreateTopics",
        "t",
        2,
        "NONE",
    )
    assert created["properties"] == {"retention.ms": "1000"}
    assert altered["properties"] == {"segment.bytes": "1048576"}
    assert refused["properties"] == {"my.password": "(hidden)"}
    assert refused["error"] == "INVALID_CONFIG"
    assert (user["user"], user["password"], user["mechanism"]) == ("dora", "set", "SCRAM-SHA-512")
    assert (deleted["request"], deleted["topic"]) == ("DeleteTopics", "t")
    # By a producer that asked for a topic which was not there.
    assert (made["request"], made["topic"], made["error"]) == ("Metadata", "made", "NONE")


def test_what_a_user_read_and_wrote_is_summed(lines: list[dict[str, Any]]) -> None:
    """The broker stopped within a minute: its last lines have what was not told yet."""
    assert MINUTE_S > 30
    sums = [(one["principal"], one["topic"]) for one in of(lines, "traffic")]
    assert set(sums) == {("User:alice", "t"), ("User:alice", "made")}
    assert sum(one["written_bytes"] for one in of(lines, "traffic")) > 5000
    assert sum(one["read_bytes"] for one in of(lines, "traffic")) > 5000


def test_no_client_fails_while_the_folder_of_the_record_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "audit.json"
    file.parent.mkdir()
    settings = {**SETTINGS, "strandline.audit.file": str(file)}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        shutil.rmtree(file.parent)
        admin = AdminClient(librdkafka_login(listener_ports(broker)["CLIENTS"], ALICE, PASSWORD))
        (created,) = admin.create_topics([NewTopic("t", 1)]).values()
        created.result(60)
        file.parent.mkdir()
        broker.stop()
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert "CreateTopics" in {line.get("request") for line in lines}


def test_a_record_that_cannot_be_written_refuses_the_start(tmp_path: Path) -> None:
    settings = {"strandline.audit.file": str(tmp_path / "none" / "audit.json")}
    broker = BrokerProcess(tmp_path, settings=settings)
    with pytest.raises(AssertionError, match=r"strandline\.audit\.file"):
        broker.start()
