"""Connections: answers in the order of the requests, slow readers, many clients, an end."""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from pathlib import Path

import pytest

from strandline.broker.network.server import ACCEPT_PAUSE_S
from strandline.broker.protocol.codec.codec import decode
from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.describe_cluster import DescribeClusterRequest
from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.broker.protocol.messages.find_coordinator import FindCoordinatorRequest
from strandline.broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from strandline.broker.protocol.messages.produce import ProduceResponse
from strandline.broker.protocol.schema.schema import Request, Response
from tests.support.broker import BrokerProcess, eventually
from tests.support.response_class import response_class
from tests.support.wire import WireClient, decode_response_header
from tests.system.calls import (
    LATEST,
    MakeTopic,
    append,
    assert_serves,
    batch,
    create_topic,
    end_offset,
    fetch_request,
    fetch_topic,
    frame_of,
    produce_request,
    read_all,
    records_in,
    software,
)

pytestmark = pytest.mark.slow

MIXED_COUNT = 50


def mixed_requests(topic: str) -> list[tuple[Request, int]]:
    """Requests that are answered at once, after a disk write, after a wait, in many versions."""
    kinds: list[tuple[Request, int]] = [
        (software(), 3),
        (produce_request(topic, batch(value=b"pipelined")), 9),
        (MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12),
        (InitProducerIdRequest(transaction_timeout_ms=0), 4),
        (fetch_request(fetch_topic(topic, {0: 0})), 12),
        (
            ListOffsetsRequest(
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST)],
                    )
                ]
            ),
            7,
        ),
        (produce_request(topic, batch(value=b"pipelined")), 3),
        (DescribeClusterRequest(), 1),
        # Parked: nothing will come, so it holds up the connection for its 5 ms.
        (fetch_request(fetch_topic(topic, {1: 0}), max_wait_ms=5), 11),
        (FindCoordinatorRequest(coordinator_keys=["group"]), 4),
        (software(), 0),
    ]
    return [kinds[index % len(kinds)] for index in range(MIXED_COUNT)]


def receive_response(client: WireClient, request: Request, version: int) -> tuple[int, Response]:
    frame = memoryview(client.receive_frame())
    correlation_id, position = decode_response_header(request.spec.key, version, frame)
    cls = response_class(request.spec.key)
    return correlation_id, decode(cls, version, frame[position:])


def test_pipelined_requests_are_answered_in_order(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    requests = mixed_requests(topic)
    with WireClient(broker.port) as pipelining:
        pipelining.send_raw(
            b"".join(
                frame_of(request, version, correlation_id=number)
                for number, (request, version) in enumerate(requests)
            )
        )
        answers = [receive_response(pipelining, request, v) for request, v in requests]
    assert [correlation_id for correlation_id, _ in answers] == list(range(MIXED_COUNT))
    base_offsets = [
        partition.base_offset
        for _, response in answers
        if isinstance(response, ProduceResponse)
        for answered in response.topics
        for partition in answered.partitions
    ]
    assert base_offsets == list(range(len(base_offsets)))
    # Each sees what was done before it on its connection.
    fetched = [
        len(records_in(partition))
        for (request, _), (_, response) in zip(requests, answers, strict=True)
        if isinstance(response, FetchResponse)
        for answered in response.topics
        for partition in answered.partitions
        if partition.index == 0
    ]
    assert fetched == [1, 3, 5, 7, 9]
    producer_ids = [r.producer_id for _, r in answers if isinstance(r, InitProducerIdResponse)]
    assert len(set(producer_ids)) == len(producer_ids)
    assert end_offset(client, topic) == len(base_offsets)


def test_a_thousand_pipelined_produces_are_stored_in_order(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    """One write of 1000 requests; the answers are read after all of it is sent."""
    values = [b"%d" % number for number in range(1000)]
    with WireClient(broker.port) as pipelining:
        pipelining.send_raw(
            b"".join(
                frame_of(produce_request(topic, batch(value=value)), 9, correlation_id=number)
                for number, value in enumerate(values)
            )
        )
        for number in range(1000):
            response = pipelining.receive(ProduceResponse, 9, number)
            assert response.topics[0].partitions[0].base_offset == number
    assert [record.value for record in read_all(client, topic)] == values


def connect_with_small_buffer(port: int) -> socket.socket:
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connected.settimeout(60)
    connected.connect(("127.0.0.1", port))
    return connected


def test_a_slow_reader_of_a_large_fetch_gets_all_bytes(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    sent = [batch(value=bytes([number]) * 900_000) for number in range(10)]
    append(client, topic, *sent)
    memory_mib = broker.resident_mib()
    request = fetch_request(fetch_topic(topic, {0: 0}, partition_max_bytes=50_000_000))
    with connect_with_small_buffer(broker.port) as slow:
        # Another request behind it: its answer follows the large one.
        slow.sendall(frame_of(request, 12, correlation_id=1) + frame_of(software(), 3, 2))
        received = bytearray()
        (length,) = struct.unpack(">i", slow.recv(4, socket.MSG_WAITALL))
        while len(received) < length:
            received += slow.recv(min(3000, length - len(received)))
            if len(received) % 90_000 < 3000:
                # While it is in the middle of its answer, others are served.
                assert_serves(broker.port)
        (length,) = struct.unpack(">i", slow.recv(4, socket.MSG_WAITALL))
        second = slow.recv(length, socket.MSG_WAITALL)
    response = decode(FetchResponse, 12, memoryview(received)[5:])
    (answer,) = response.topics[0].partitions
    assert [record.value for record in records_in(answer)] == [
        bytes([number]) * 900_000 for number in range(10)
    ]
    assert second[:4] == struct.pack(">i", 2)
    # What waits for a slow reader waits in the file, not in memory.
    assert broker.resident_mib() - memory_mib < 5


def test_readers_that_do_not_read_hold_up_nobody_and_cost_no_memory(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    append(client, topic, *[batch(value=b"x" * 900_000)] * 10)
    memory_mib = broker.resident_mib()
    request = fetch_request(fetch_topic(topic, {0: 0}, partition_max_bytes=50_000_000))
    stalled = [connect_with_small_buffer(broker.port) for _ in range(20)]
    for connected in stalled:
        connected.sendall(frame_of(request, 12) * 20)
    assert_serves(broker.port)
    assert append(client, topic, batch()) == 10
    assert broker.resident_mib() - memory_mib < 20
    for connected in stalled:
        connected.close()
    assert_serves(broker.port)


def test_many_connections_are_served_at_once(broker: BrokerProcess) -> None:
    clients = [WireClient(broker.port) for _ in range(200)]
    sent = [connected.send(software(), 3) for connected in clients]
    for connected, correlation_id in zip(clients, sent, strict=True):
        assert connected.receive(ApiVersionsResponse, 3, correlation_id).error_code == 0
        connected.close()


# --- limits ----------------------------------------------------------------------------------


def test_connections_above_max_connections_are_closed_at_once(
    strict_broker: BrokerProcess, strict_client: WireClient
) -> None:
    clients = [WireClient(strict_broker.port) for _ in range(4)]
    for connected in clients:
        assert connected.ask(software(), ApiVersionsResponse, 3).error_code == 0
    with WireClient(strict_broker.port) as sixth:
        assert sixth.closed_by_broker()
    clients.pop().close()

    def has_room() -> bool:
        with WireClient(strict_broker.port) as another:
            try:
                return another.ask(software(), ApiVersionsResponse, 3).error_code == 0
            except ConnectionError:
                return False

    eventually(has_room)
    assert strict_client.ask(software(), ApiVersionsResponse, 3).error_code == 0
    for connected in clients:
        connected.close()


def test_a_request_above_socket_request_max_bytes_closes_the_connection(
    strict_broker: BrokerProcess, strict_client: WireClient, topic_name: str
) -> None:
    create_topic(strict_client, topic_name)
    frame = frame_of(produce_request(topic_name, batch(value=b"x" * 19_000)), 9)
    assert len(frame) <= 20_000
    with WireClient(strict_broker.port) as client:
        client.send_raw(frame)
        assert client.receive(ProduceResponse, 9, 1).topics[0].partitions[0].error_code == 0
        client.send_raw(frame_of(produce_request(topic_name, batch(value=b"x" * 20_000)), 9))
        assert client.closed_by_broker()
    assert end_offset(strict_client, topic_name) == 1


def test_fetch_max_bytes_of_the_broker_bounds_every_fetch(
    strict_client: WireClient, topic_name: str
) -> None:
    create_topic(strict_client, topic_name)
    append(strict_client, topic_name, *[batch(value=b"x" * 9000)] * 5)
    request = fetch_request(fetch_topic(topic_name, {0: 0}), max_bytes=2**31 - 1)
    response = strict_client.ask(request, FetchResponse, 12)
    assert len(records_in(response.topics[0].partitions[0])) == 3


def broker_cpu_s(broker: BrokerProcess) -> float:
    """Processor time of the broker so far."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_who_only_connects_leaves_the_logs_their_descriptors(tmp_path: Path) -> None:
    """Or the next checkpoint would find none, and every partition be offline for it."""
    with BrokerProcess(tmp_path) as broker, WireClient(broker.port) as client:
        create_topic(client, "t")
        used = max(int(entry.name) for entry in Path(f"/proc/{broker.pid}/fd").iterdir()) + 1
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + 80, used + 80))
        idle = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(120)]
        eventually(lambda: "accepting paused" in broker.log_text())
        for number in range(3):
            create_topic(client, f"t{number}")
            append(client, f"t{number}", batch())
        assert "Too many open files" not in broker.log_text()
        for waiting in idle:
            waiting.close()
        with WireClient(broker.port) as another:
            assert end_offset(another, "t0") == 1


def test_a_broker_out_of_descriptors_serves_those_it_has_and_takes_others_in_later(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path) as broker:
        used = max(int(entry.name) for entry in Path(f"/proc/{broker.pid}/fd").iterdir()) + 1
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + 3, used + 3))
        # There may be some below the highest that are free.
        clients = [WireClient(broker.port) for _ in range(20)]
        sent = [client.send(software(), 3) for client in clients]
        for client, correlation_id in zip(clients[:3], sent[:3], strict=True):
            assert client.receive(ApiVersionsResponse, 3, correlation_id).error_code == 0
        # Those who wait in the backlog cost neither processor time nor log.
        eventually(lambda: "accepting paused" in broker.log_text())
        busy_s = broker_cpu_s(broker)
        time.sleep(3 * ACCEPT_PAUSE_S)
        assert broker_cpu_s(broker) - busy_s < 0.3
        assert broker.log_text().count("accepting paused") == 1
        for client in clients[:3]:
            client.close()
        for client, correlation_id in zip(clients[3:], sent[3:], strict=True):
            assert client.receive(ApiVersionsResponse, 3, correlation_id).error_code == 0
            client.close()
