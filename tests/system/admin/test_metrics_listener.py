"""The HTTP listener: health, readiness and numbers, and what is no request for them."""

from __future__ import annotations

import socket
import urllib.error
import uuid
from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.produce import ProduceResponse
from strandline.broker.telemetry.http_server import CONNECTIONS_MAX
from tests.support.broker import BrokerProcess, eventually
from tests.support.metrics import METRICS_ON, get, metric, metrics_port
from tests.support.wire import WireClient
from tests.system.calls import (
    KEEP_EVERYTHING,
    assert_serves,
    batch,
    create_topic,
    fetch,
    produce_request,
    software,
)

pytestmark = pytest.mark.slow

OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
UNKNOWN_LEADER_EPOCH = 75
BROKER_SETTINGS = {**KEEP_EVERYTHING, **METRICS_ON}


def close_all(connections: Sequence[socket.socket]) -> None:
    for connected in connections:
        connected.close()


def test_health_and_readiness_are_told(broker: BrokerProcess) -> None:
    assert get(broker, "/healthz") == get(broker, "/readyz") == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(broker, "/other")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /" + b"a" * 20_000, b"431"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n", b"200"),
    ],
)
def test_what_is_no_request_for_metrics_is_refused(
    broker: BrokerProcess, sent: bytes, status: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", metrics_port(broker)), timeout=60) as connected:
        connected.sendall(sent)
        assert connected.recv(12) == b"HTTP/1.1 " + status
        while connected.recv(65536):
            pass


def test_http_clients_that_do_not_go_on_harm_nobody(broker: BrokerProcess) -> None:
    address = ("127.0.0.1", metrics_port(broker))
    silent = [socket.create_connection(address, timeout=60) for _ in range(8)]
    unread = [socket.create_connection(address, timeout=60) for _ in range(7)]
    for connected in unread:
        connected.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert get(broker, "/healthz") == "ok\n"
    more = [socket.create_connection(address, timeout=60) for _ in range(CONNECTIONS_MAX)]
    # Above the bound they are told so at once. A page that the sockets take whole is over.
    assert more[-1].recv(12) == b"HTTP/1.1 503"
    assert_serves(broker.port)
    close_all([*silent, *unread, *more])
    eventually(lambda: get(broker, "/healthz"))


def test_numbers_are_what_happened(broker: BrokerProcess) -> None:
    topic = f"counted-{uuid.uuid4().hex[:8]}"
    messages_in = "kafka_server_brokertopicmetrics_messagesin_total"
    requests = "kafka_network_requestmetrics_requests_total"
    asked = {"request": "ApiVersions", "version": "3"}
    with WireClient(broker.port) as client:
        create_topic(client, topic)
        assert metric(broker, messages_in, topic=topic) == 0
        client.ask(software(), ApiVersionsResponse, 3)
    before = metric(broker, requests, **asked)
    with WireClient(broker.port) as client:
        for _ in range(3):
            client.ask(software(), ApiVersionsResponse, 3)
    assert metric(broker, requests, **asked) == before + 3
    with WireClient(broker.port) as client:
        produced = client.ask(produce_request(topic, batch(5)), ProduceResponse, 9)
        assert produced.topics[0].partitions[0].error_code == 0
        refused = client.ask(produce_request(topic, batch(1), partition=7), ProduceResponse, 9)
        assert refused.topics[0].partitions[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert metric(broker, messages_in, topic=topic) == 5
    errors = "kafka_network_requestmetrics_errors_total"
    wrong = metric(broker, errors, request="Produce", error="UNKNOWN_TOPIC_OR_PARTITION")
    assert wrong == 1


def test_what_clients_do_wrong_is_no_failure_of_the_broker(broker: BrokerProcess) -> None:
    """Alarms made for Kafka's FailedFetchRequestsPerSec and FailedProduceRequestsPerSec."""
    topic = f"failed-{uuid.uuid4().hex[:8]}"
    corrupt = bytearray(batch(1))
    corrupt[-1] ^= 1
    with WireClient(broker.port) as client:
        create_topic(client, topic, configs={"max.message.bytes": "1000"})

        def produce(records: bytes) -> int:
            answer = client.ask(produce_request(topic, records), ProduceResponse, 9)
            return answer.topics[0].partitions[0].error_code

        assert produce(batch(1, value=b"v" * 1000)) == MESSAGE_TOO_LARGE
        assert produce(bytes(corrupt)) == CORRUPT_MESSAGE
        assert failures(broker, "produce", topic) == 0
        # Kafka counts what its validation of the records refuses.
        assert produce(batch(1, first_timestamp_ms=2**62)) == INVALID_TIMESTAMP
        assert failures(broker, "produce", topic) == 1
        assert fetch(client, topic, 5).error_code == OFFSET_OUT_OF_RANGE
        assert fetch(client, topic, 0, current_leader_epoch=77).error_code == UNKNOWN_LEADER_EPOCH
        assert failures(broker, "fetch", topic) == 0


def failures(broker: BrokerProcess, what: str, topic: str) -> float:
    return metric(
        broker, f"kafka_server_brokertopicmetrics_failed{what}requests_total", topic=topic
    )


@pytest.mark.clients
def test_the_lag_of_a_group_is_told_by_partition(broker: BrokerProcess) -> None:
    topic = f"lag-{uuid.uuid4().hex[:8]}"
    with WireClient(broker.port) as client:
        create_topic(client, topic)
        client.ask(produce_request(topic, batch(5)), ProduceResponse, 9)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "lagging"})

    def commits() -> bool:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        except KafkaException:
            return False  # The first group of a broker makes the topic of the offsets.
        return True

    try:
        assert eventually(commits)
    finally:
        consumer.close()
    where = {"consumergroup": "lagging", "topic": topic, "partition": "0"}
    assert metric(broker, "kafka_consumergroup_current_offset", **where) == 2
    assert metric(broker, "kafka_consumergroup_lag", **where) == 3
