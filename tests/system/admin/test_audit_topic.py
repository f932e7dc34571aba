"""The record in a topic: the broker writes it, and nobody else can."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.support.broker import BrokerProcess, eventually
from tests.support.metrics import METRICS_ON, metric
from tests.support.wire import WireClient
from tests.system.calls import (
    batch,
    create_topic,
    describe_topic,
    end_offset,
    produce,
    produce_request,
    read_all,
)
from tests.system.config_calls import alter

pytestmark = pytest.mark.slow

TOPIC = "audit.record"
SETTINGS = {"strandline.audit.topic": TOPIC, **METRICS_ON}
DENIED = 29
SET = 0
# Changes before the disk is full, and while it is.
BEFORE, MEANWHILE = 60, 3
CANNOT = "the record cannot be appended to its topic"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("audit"), settings=SETTINGS) as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(broker.port) as connected:
        yield connected


def lines(client: WireClient) -> list[dict[str, Any]]:
    if describe_topic(client, TOPIC).error_code:
        # Its first line makes it.
        return []
    try:
        return [json.loads(record.value or b"") for record in read_all(client, TOPIC)]
    except AssertionError:
        # It is made, or deleted, at this moment.
        return []


def has_made(client: WireClient, topic: str) -> bool:
    made = [line for line in lines(client) if line.get("topic") == topic]
    return [(line["event"], line["request"], line["error"]) for line in made] == [
        ("change", "CreateTopics", "NONE")
    ]


def test_the_broker_makes_the_topic_and_writes_the_record(
    broker: BrokerProcess, client: WireClient
) -> None:
    create_topic(client, "a")
    assert eventually(lambda: has_made(client, "a"))
    assert metric(broker, "strandline_audit_lines_lost_total") == 0


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("large", [False, True])
def test_no_client_can_write_it(client: WireClient, acks: int, large: bool) -> None:
    create_topic(client, f"b-{acks}-{large}")
    assert eventually(lambda: has_made(client, f"b-{acks}-{large}"))
    before = end_offset(client, TOPIC)
    # A large one takes another way through the broker.
    forged = batch(2000, value=b"{}" * 100) if large else batch()
    answer = produce(client, TOPIC, forged, acks=acks)
    assert answer.error_code == DENIED
    assert "broker alone" in (answer.error_message or "")
    assert end_offset(client, TOPIC) == before


def test_a_write_that_asks_for_no_answer_closes_the_connection(
    broker: BrokerProcess, client: WireClient
) -> None:
    create_topic(client, "c")
    assert eventually(lambda: has_made(client, "c"))
    before = end_offset(client, TOPIC)
    with WireClient(broker.port) as other:
        other.send(produce_request(TOPIC, batch(), acks=0), 9)
        assert other.closed_by_broker()
    assert end_offset(client, TOPIC) == before


def test_a_topic_that_was_deleted_is_made_again_and_says_who_deleted_it(
    client: WireClient,
) -> None:
    create_topic(client, "d")
    assert eventually(lambda: has_made(client, "d"))
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=60_000)
    (deleted,) = client.ask(deletion, DeleteTopicsResponse, 6).responses
    assert deleted.error_code == 0

    def is_told() -> bool:
        return [
            (line["request"], line["topic"]) for line in lines(client)[:1] if "request" in line
        ] == [("DeleteTopics", TOPIC)]

    assert eventually(is_told)


def test_what_is_known_when_the_broker_stops_is_in_the_topic(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        with WireClient(broker.port) as client:
            create_topic(client, "t")
            assert eventually(lambda: has_made(client, "t"))
            assert produce(client, "t", batch()).error_code == 0
        broker.stop()
        broker.start()
        with WireClient(broker.port) as client:
            traffic = [line for line in lines(client) if line["event"] == "traffic"]
            # Who reads the record is in it.
            assert {line["topic"]: line["written_bytes"] for line in traffic} == {
                "t": len(batch()),
                TOPIC: 0,
            }


def altered_count(client: WireClient) -> int:
    return len([one for one in lines(client) if one.get("request") == "IncrementalAlterConfigs"])


def keep_for(client: WireClient, retention_ms: int) -> None:
    change = ("retention.ms", SET, str(retention_ms))
    assert alter(client, "t", change, resource_type=ConfigResourceType.TOPIC).error_code == 0


def test_on_a_full_disk_lines_wait_and_clients_notice_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker, WireClient(broker.port) as client:
        create_topic(client, "t")
        # The topic of the record has the largest file by far, which alone finds no room.
        for number in range(BEFORE):
            keep_for(client, 10**9 + number)
        assert eventually(lambda: altered_count(client) == BEFORE)
        (file,) = (broker.data / f"{TOPIC}-0").glob("*.log")
        before = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (file.stat().st_size, before[1]))
        for number in range(MEANWHILE):
            keep_for(client, 10**10 + number)
        assert produce(client, "t", batch()).error_code == 0
        assert eventually(lambda: CANNOT in broker.log_text())
        assert "File too large" in broker.log_text().partition(CANNOT)[2].splitlines()[0]
        assert altered_count(client) == BEFORE
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, before)
        assert eventually(lambda: altered_count(client) == BEFORE + MEANWHILE)
        assert metric(broker, "strandline_audit_lines_lost_total") == 0


@pytest.mark.parametrize("name", ["no/topic", "__consumer_offsets"])
def test_a_name_that_no_topic_of_the_record_can_have_is_refused(tmp_path: Path, name: str) -> None:
    broker = BrokerProcess(tmp_path, settings={"strandline.audit.topic": name})
    with pytest.raises(AssertionError, match=r"strandline\.audit\.topic"):
        broker.start()
