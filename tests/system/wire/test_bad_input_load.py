"""Clients in great number, and clients that do not go on.

Each sentence is shown over real sockets: the broker stays up, its memory bounded, others served.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaEntry,
    EntityData,
    QuotaOperation,
)
from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.fetch import FetchPartition, FetchResponse, FetchTopic
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.metrics import METRICS_ON, metric
from tests.support.wire import WireClient
from tests.system.calls import (
    KEEP_EVERYTHING,
    assert_serves,
    create_topic,
    fetch_request,
    frame_of,
    software,
)

pytestmark = pytest.mark.slow

CLIENTS = 2000
IDLE_MS = 1000
# Closes idle connections soon, and shows its metrics.
BROKER_SETTINGS = {
    **KEEP_EVERYTHING,
    "connections.max.idle.ms": str(IDLE_MS),
    "quota.window.num": "2",
    **METRICS_ON,
}


def connect(broker: BrokerProcess, count: int, first_bytes: bytes = b"") -> list[socket.socket]:
    connections = []
    for _ in range(count):
        connected = socket.create_connection(("127.0.0.1", broker.port), timeout=60)
        if first_bytes:
            connected.sendall(first_bytes)
        connections.append(connected)
    return connections


def close_all(connections: Sequence[socket.socket]) -> None:
    for connected in connections:
        connected.close()


def test_connections_that_do_nothing_are_closed_after_the_idle_time(broker: BrokerProcess) -> None:
    before = metric(broker, "strandline_connections_closed_total", reason="idle")
    with WireClient(broker.port) as idle:
        idle.ask(software(), ApiVersionsResponse, 3)
        assert idle.closed_by_broker()
    assert metric(broker, "strandline_connections_closed_total", reason="idle") > before


def test_a_connection_that_is_used_is_not_idle(broker: BrokerProcess) -> None:
    with WireClient(broker.port) as waiting:
        create_topic(waiting, "quiet")
        # It waits for longer than the idle time, and is answered.
        request = fetch_request(
            FetchTopic(
                name="quiet",
                partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)],
            ),
            max_wait_ms=2 * IDLE_MS,
        )
        assert waiting.ask(request, FetchResponse, 11).error_code == 0


def test_thousands_of_connections_are_held_and_others_are_served(
    broker: BrokerProcess, many_descriptors: None
) -> None:
    before_mib = broker.resident_mib()
    connections = connect(broker, CLIENTS)
    try:
        assert_serves(broker.port)
        assert broker.resident_mib() - before_mib < CLIENTS * 40 / 1024 + 16
    finally:
        close_all(connections)
    # Those that were never asked anything are closed like others that are idle.
    eventually(lambda: metric(broker, CONNECTIONS) < 10)


CONNECTIONS = "kafka_server_socket_server_metrics_connection_count"


def test_half_open_requests_cost_their_bytes_and_hold_up_nobody(
    broker: BrokerProcess, many_descriptors: None
) -> None:
    before_mib = broker.resident_mib()
    # Each announces 100 MB and sends three bytes of it.
    connections = connect(broker, CLIENTS // 2, struct.pack(">i", 100_000_000) + b"abc")
    try:
        assert_serves(broker.port)
        assert broker.resident_mib() - before_mib < CLIENTS / 2 * 40 / 1024 + 16
    finally:
        close_all(connections)
    assert_serves(broker.port)


def test_readers_that_do_not_drain_are_bounded_in_memory(broker: BrokerProcess) -> None:
    """Answers that are made in memory, asked for again and again and never read."""
    with WireClient(broker.port) as client:
        create_topic(client, "wide", 200)
    request = frame_of(MetadataRequest(topics=None), 9)
    before_mib = broker.resident_mib()
    connections = connect(broker, 6)
    try:
        for connected in connections:
            connected.setblocking(False)
            try:
                while True:
                    connected.send(request * 500)
            except BlockingIOError:
                pass
        assert_serves(broker.port)
        assert broker.resident_mib() - before_mib < 64
    finally:
        close_all(connections)


def test_all_who_come_faster_than_the_broker_accepts_are_served_in_the_end(
    broker: BrokerProcess,
) -> None:
    key = "max.connection.creation.rate"
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def alter(value: str | None) -> None:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        resource.incremental_configs = [
            ConfigEntry(key, value, incremental_operation=operation),
            ConfigEntry(f"listener.name.plaintext.{key}", value, incremental_operation=operation),
        ]
        (done,) = admin.incremental_alter_configs([resource]).values()
        done.result(60)

    alter("8")
    try:
        connections = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(90)]
        try:
            assert_serves(broker.port)
        finally:
            close_all(connections)
    finally:
        alter(None)


def test_who_connects_too_often_is_held_and_let_go(broker: BrokerProcess) -> None:
    entity = [EntityData(entity_type="ip", entity_name="127.0.0.7")]
    quota = QuotaOperation(key="connection_creation_rate", value=4.0)
    with WireClient(broker.port) as client:
        client.ask(
            AlterClientQuotasRequest(entries=[AlterQuotaEntry(entity=entity, ops=[quota])]),
            AlterClientQuotasResponse,
            1,
        )

    def is_refused() -> bool:
        with socket.create_connection(
            ("127.0.0.1", broker.port), timeout=60, source_address=("127.0.0.7", 0)
        ) as connected:
            try:
                connected.sendall(frame_of(software(), 3))
                return connected.recv(1) == b""
            except ConnectionError:
                return True

    # Four in the second that is free; each that is refused has waited for its turn.
    refused = sum(is_refused() for _ in range(8))
    assert refused <= 4
    # Where the machine makes a pause in between, none of them may have been too many.
    assert refused or eventually(is_refused, interval_s=0)
    assert_serves(broker.port)
