"""Clients in great number, clients that do not go on, and requests as large as may be.

Each sentence is shown over real sockets: the broker stays up, its memory bounded, others served.
"""

from __future__ import annotations

import resource
import socket
import struct
import threading
import urllib.error
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaEntry,
    QuotaEntity,
    QuotaOperation,
)
from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from strandline.broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from strandline.broker.protocol.messages.describe_configs import (
    ConfigResourceType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from strandline.broker.protocol.messages.fetch import FetchPartition, FetchResponse, FetchTopic
from strandline.broker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from strandline.broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from strandline.broker.protocol.messages.produce import ProduceResponse
from strandline.broker.protocol.schema import Request
from tests.integration.calls import (
    KEEP_EVERYTHING,
    assert_serves,
    batch,
    create_topic,
    fetch_request,
    frame_of,
    produce_request,
    software,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.metrics import METRICS_ON, get, metric, metrics_port
from tests.support.wire import WireClient

pytestmark = pytest.mark.slow

UNKNOWN_TOPIC_OR_PARTITION = 3
CLIENTS = 2000
IDLE_MS = 1000
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that closes idle connections soon, and shows its metrics."""
    settings = {
        **KEEP_EVERYTHING,
        "connections.max.idle.ms": str(IDLE_MS),
        "quota.window.num": "2",
        **METRICS_ON,
    }
    with BrokerProcess(tmp_path_factory.mktemp("load"), settings=settings) as running:
        yield running
        assert running.running, running.log_text()[-4000:]
        assert "Traceback" not in running.log_text(), running.log_text()[-4000:]


@pytest.fixture
def descriptors() -> Iterator[None]:
    """As many sockets as the test needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3 * CLIENTS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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


# --- many connections ----------------------------------------------------------------------------


def test_connections_that_do_nothing_are_closed_after_the_idle_time(broker: BrokerProcess) -> None:
    before = metric(broker, "strandline_connections_closed_total", reason="idle")
    with WireClient(broker.port) as idle:
        idle.ask(software(), ApiVersionsResponse, 3)
        assert idle.closed_by_broker()
    assert metric(broker, "strandline_connections_closed_total", reason="idle") > before


def test_a_connection_that_is_used_is_not_idle(broker: BrokerProcess) -> None:
    create_topic_once(broker, "quiet")
    with WireClient(broker.port) as waiting:
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
    broker: BrokerProcess, descriptors: None
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
    broker: BrokerProcess, descriptors: None
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
    entity = [QuotaEntity(entity_type="ip", entity_name="127.0.0.7")]
    quota = QuotaOperation(key="connection_creation_rate", value=4.0)
    with WireClient(broker.port) as client:
        client.ask(
            AlterClientQuotasRequest(entries=[AlterQuotaEntry(entity=entity, ops=[quota])]),
            AlterClientQuotasResponse,
            1,
        )
    refused = 0
    for _ in range(8):
        with socket.create_connection(
            ("127.0.0.1", broker.port), timeout=60, source_address=("127.0.0.7", 0)
        ) as connected:
            try:
                connected.sendall(frame_of(software(), 3))
                refused += connected.recv(1) == b""
            except ConnectionError:
                refused += 1
    # Four in the second that is free; each that is refused has waited for its turn.
    assert 1 <= refused <= 4
    assert_serves(broker.port)


# --- huge requests -------------------------------------------------------------------------------


def names(count: int) -> list[str]:
    return [f"{number:x}" for number in range(count)]


def largest_fetch() -> Request:
    partitions = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1)
        for number in range(63_000)
    ]
    return fetch_request(FetchTopic(name="none", partitions=partitions), session_epoch=0)


HOSTILE: Sequence[tuple[str, Callable[[], Request], int]] = [
    (
        "Metadata",
        lambda: MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names(250_000)],
            allow_auto_topic_creation=False,
        ),
        4,
    ),
    (
        "CreatePartitions",
        lambda: CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(name=name, count=2, assignments=None)
                for name in names(120_000)
            ],
            timeout_ms=1000,
        ),
        1,
    ),
    ("Fetch", largest_fetch, 11),
    (
        "ListOffsets",
        lambda: ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name="none",
                    partitions=[
                        ListOffsetsPartition(partition_index=number, timestamp=-1)
                        for number in range(160_000)
                    ],
                )
            ]
        ),
        3,
    ),
    (
        "OffsetForLeaderEpoch",
        lambda: OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(
                    topic="none",
                    partitions=[
                        OffsetForLeaderPartition(partition=number, leader_epoch=0)
                        for number in range(160_000)
                    ],
                )
            ]
        ),
        3,
    ),
    (
        "DeleteRecords",
        lambda: DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name="none",
                    partitions=[
                        DeleteRecordsPartition(partition_index=number, offset=0)
                        for number in range(160_000)
                    ],
                )
            ],
            timeout_ms=1000,
        ),
        1,
    ),
    (
        "OffsetCommit",
        lambda: OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    name="none",
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=number, committed_offset=0, committed_metadata=""
                        )
                        for number in range(110_000)
                    ],
                )
            ],
        ),
        6,
    ),
    (
        "OffsetFetch",
        lambda: OffsetFetchRequest(
            group_id="g",
            topics=[OffsetFetchRequestTopic(name="none", partition_indexes=range(480_000))],
        ),
        5,
    ),
    (
        "OffsetDelete",
        lambda: OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name="none",
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=number)
                        for number in range(480_000)
                    ],
                )
            ],
        ),
        0,
    ),
    (
        "LeaveGroup",
        lambda: LeaveGroupRequest(
            group_id="g",
            members=[MemberIdentity(member_id="m", group_instance_id=None)] * 380_000,
        ),
        3,
    ),
    (
        "DescribeConfigs",
        lambda: DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=ConfigResourceType.BROKER,
                    resource_name="1",
                    configuration_keys=names(250_000),
                )
            ]
        ),
        1,
    ),
]


@pytest.mark.parametrize(("name", "make", "version"), HOSTILE, ids=[name for name, *_ in HOSTILE])
def test_a_huge_array_holds_up_nobody(
    broker: BrokerProcess, name: str, make: Callable[[], Request], version: int
) -> None:
    frame = frame_of(make(), version)
    assert MIB < len(frame) < 2.1 * MIB

    def answers_meanwhile(other: WireClient) -> int:
        ended = threading.Event()
        refused: list[bool] = []

        def send_hostile() -> None:
            with WireClient(broker.port) as hostile:
                hostile.send_raw(frame)
                # Its answer would be made on the loop, and take as long as the decoding did.
                refused.append(hostile.closed_by_broker())
            ended.set()

        sender = threading.Thread(target=send_hostile)
        sender.start()
        answered = 0
        while not ended.is_set():
            other.ask(software(), ApiVersionsResponse, 3)
            answered += 1
        sender.join()
        assert refused == [True]
        return answered

    before_mib = broker.resident_mib()
    with WireClient(broker.port) as other:
        other.ask(software(), ApiVersionsResponse, 3)
        # A busy machine may give this process no turn meanwhile: the best of three counts.
        answered_meanwhile = max(answers_meanwhile(other) for _ in range(3))
    # On the loop it would be two or three: one before, one behind, one between.
    assert answered_meanwhile >= 10, answered_meanwhile
    assert broker.resident_mib() - before_mib < 160


def test_sessions_of_tens_of_thousands_of_partitions_do_not_fill_the_memory(
    broker: BrokerProcess,
) -> None:
    create_topic_once(broker, "quiet")
    before_mib = broker.resident_mib()
    wanted = FetchTopic(
        name="x" * 200,
        partitions=[
            FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1)
            for number in range(10_000)
        ],
    )
    frame = frame_of(fetch_request(wanted, session_epoch=0, max_wait_ms=0), 11)
    sessions = 0
    with WireClient(broker.port) as client:
        for _ in range(30):
            client.send_raw(frame)
            # correlation id i32 | throttle i32 | error i16 | session id i32 | ...
            _, _, error, session_id = struct.unpack_from(">iihi", client.receive_frame())
            assert error == 0
            sessions += session_id != 0
    # Room for thirteen of them; the others are answered without a session.
    assert 1 <= sessions <= 20
    assert broker.resident_mib() - before_mib < 250


def create_topic_once(broker: BrokerProcess, name: str) -> None:
    with WireClient(broker.port) as client:
        response = client.ask(
            MetadataRequest(topics=[MetadataRequestTopic(name=name)]), MetadataResponse, 4
        )
        assert response.topics[0].error_code == 0


# --- the HTTP listener ---------------------------------------------------------------------------


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
    more = [socket.create_connection(address, timeout=60) for _ in range(4)]
    # Above the bound they are told so at once.
    assert any(connected.recv(12) == b"HTTP/1.1 503" for connected in more[1:])
    assert_serves(broker.port)
    close_all([*silent, *unread, *more])
    eventually(lambda: get(broker, "/healthz"))


def test_numbers_are_what_happened(broker: BrokerProcess) -> None:
    topic = f"counted-{uuid.uuid4().hex[:8]}"
    create_topic_once(broker, topic)
    messages_in = "kafka_server_brokertopicmetrics_messagesin_total"
    requests = "kafka_network_requestmetrics_requests_total"
    asked = {"request": "ApiVersions", "version": "3"}
    assert metric(broker, messages_in, topic=topic) == 0
    with WireClient(broker.port) as client:
        client.ask(software(), ApiVersionsResponse, 3)
    before = metric(broker, requests, **asked)
    # Nobody is connected while the numbers are read: this broker closes who is idle for a second.
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


@pytest.mark.clients
def test_the_lag_of_a_group_is_told_by_partition(broker: BrokerProcess) -> None:
    topic = f"lag-{uuid.uuid4().hex[:8]}"
    create_topic_once(broker, topic)
    with WireClient(broker.port) as client:
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
