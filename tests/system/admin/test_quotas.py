"""Clients above their quota are answered at once, told how long to wait, and made to (KIP-219)."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaEntry,
    EntityData,
    QuotaOperation,
)
from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from strandline.broker.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaComponent,
)
from strandline.broker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from strandline.broker.protocol.messages.produce import ProduceResponse
from tests.support.broker import BrokerProcess, eventually
from tests.support.kafka_python import KafkaConsumer
from tests.support.wire import WireClient
from tests.system.calls import (
    KEEP_EVERYTHING,
    batch,
    create_topic,
    end_offset,
    fetch_request,
    fetch_topic,
    produce_request,
    software,
)

pytestmark = [pytest.mark.slow, pytest.mark.clients]

INVALID_REQUEST = 42
UNSUPPORTED_VERSION = 35
THROTTLING_QUOTA_EXCEEDED = 89
RESOURCE_NOT_FOUND = 91
DUPLICATE_RESOURCE = 92
# A pause is kept to the millisecond by the broker; the clocks of two processes are read.
CLOCKS_S = 0.05
# Two windows of a second: a client's burst is what one second allows.
BROKER_SETTINGS = {**KEEP_EVERYTHING, "quota.window.num": "2"}


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[WireClient]:
    """A connection that no quota of a test is for; takes all quotas away in the end."""
    with WireClient(broker.port, client_id="admin") as connected:
        yield connected
        described = describe(connected)
        for entity, quotas in described:
            alter(connected, entity, dict.fromkeys(quotas))


@pytest.fixture
def client_id() -> str:
    """A client that nothing is known of yet."""
    return f"client-{uuid.uuid4().hex[:8]}"


def of(client_id: str) -> dict[str, str | None]:
    """The entity of one client id."""
    return {"client-id": client_id}


def alter(
    client: WireClient,
    entity: dict[str, str | None],
    quotas: dict[str, float | None],
    *,
    version: int = 1,
    validate_only: bool = False,
) -> AlterClientQuotasResponse:
    return client.ask(
        AlterClientQuotasRequest(
            entries=[
                AlterQuotaEntry(
                    entity=[
                        EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity.items()
                    ],
                    ops=[
                        QuotaOperation(key=key, value=value or 0.0, remove=value is None)
                        for key, value in quotas.items()
                    ],
                )
            ],
            validate_only=validate_only,
        ),
        AlterClientQuotasResponse,
        version,
    )


def describe(
    client: WireClient, *components: QuotaComponent, version: int = 1
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    response = client.ask(
        DescribeClientQuotasRequest(components=list(components)),
        DescribeClientQuotasResponse,
        version,
    )
    assert response.error_code == 0, response
    assert response.entries is not None
    return [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {quota.key: quota.value for quota in entry.quotas},
        )
        for entry in response.entries
    ]


# --- setting and describing ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_described_as_they_were_set(admin: WireClient, version: int) -> None:
    pair = {"user": "alice", "client-id": None}
    alter(admin, pair, {"producer_byte_rate": 1000, "request_percentage": 12.5}, version=version)
    alter(admin, {"ip": "10.0.0.9"}, {"connection_creation_rate": 7}, version=version)
    assert describe(admin, version=version) == [
        (
            {"client-id": None, "user": "alice"},
            {"producer_byte_rate": 1000, "request_percentage": 12.5},
        ),
        ({"ip": "10.0.0.9"}, {"connection_creation_rate": 7}),
    ]
    user = QuotaComponent(entity_type="user", match_type=0, match="alice")
    assert len(describe(admin, user, version=version)) == 1
    default = QuotaComponent(entity_type="user", match_type=1)
    assert describe(admin, default, version=version) == []


def test_what_is_only_validated_is_not_set(admin: WireClient) -> None:
    (good,) = alter(admin, of("somebody"), {"producer_byte_rate": 5}, validate_only=True).entries
    (bad,) = alter(admin, of("somebody"), {"producer_byte_rate": -5}, validate_only=True).entries
    assert (good.error_code, bad.error_code) == (0, INVALID_REQUEST)
    assert describe(admin) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([QuotaComponent(entity_type="", match_type=2)], INVALID_REQUEST),
        ([QuotaComponent(entity_type="group", match_type=2)], UNSUPPORTED_VERSION),
        ([QuotaComponent(entity_type="user", match_type=2)] * 2, INVALID_REQUEST),
        ([QuotaComponent(entity_type="user", match_type=0)], INVALID_REQUEST),
        ([QuotaComponent(entity_type="user", match_type=1, match="x")], INVALID_REQUEST),
        ([QuotaComponent(entity_type="user", match_type=9)], INVALID_REQUEST),
        (
            [
                QuotaComponent(entity_type="user", match_type=2),
                QuotaComponent(entity_type="ip", match_type=2),
            ],
            INVALID_REQUEST,
        ),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(
    admin: WireClient, components: list[QuotaComponent], code: int
) -> None:
    response = admin.ask(
        DescribeClientQuotasRequest(components=components), DescribeClientQuotasResponse, 1
    )
    assert (response.error_code, response.entries) == (code, None)


def test_nobody_has_scram_credentials(admin: WireClient) -> None:
    """Kafka's tools ask for them whenever they describe a user."""
    everybody, named = (
        admin.ask(
            DescribeUserScramCredentialsRequest(users=users),
            DescribeUserScramCredentialsResponse,
            0,
        )
        for users in (None, [UserName(name="alice"), UserName(name="bob"), UserName(name="bob")])
    )
    assert (everybody.error_code, list(everybody.results)) == (0, [])
    assert {r.user: r.error_code for r in named.results} == {
        "alice": RESOURCE_NOT_FOUND,
        "bob": DUPLICATE_RESOURCE,
    }


def test_quotas_outlive_a_kill(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, settings=KEEP_EVERYTHING).start()
    with WireClient(broker.port) as client:
        alter(client, {"user": None}, {"consumer_byte_rate": 4096})
    broker.kill()
    with broker, WireClient(broker.port) as client:
        assert describe(client) == [({"user": None}, {"consumer_byte_rate": 4096})]


# --- throttling, byte by byte --------------------------------------------------------------------


def assert_muted_for(client: WireClient, throttle_ms: int, asked_s: float) -> None:
    """The connection answers its next request when the pause is over, and not before.

    `asked_s` is from before the request that was throttled: its answer may have come late.
    """
    assert throttle_ms > 0
    client.ask(software(), ApiVersionsResponse, 3)
    assert time.monotonic() - asked_s >= throttle_ms / 1000 - CLOCKS_S


def produced(client: WireClient, topic: str, size: int, version: int = 9) -> ProduceResponse:
    request = produce_request(topic, batch(value=b"v" * size))
    return client.ask(request, ProduceResponse, version)


@pytest.mark.parametrize("version", [3, 8, 9])
def test_a_producer_is_answered_at_once_and_then_muted(
    broker: BrokerProcess, admin: WireClient, client_id: str, version: int
) -> None:
    topic = f"produced-{version}"
    create_topic(admin, topic, 1)
    # The rate of one client is that of one request: a pause between two of them would lower it.
    for each in (client_id, f"modest-{client_id}"):
        alter(admin, of(each), {"producer_byte_rate": 40_000})
    with WireClient(broker.port, client_id=f"modest-{client_id}") as client:
        assert produced(client, topic, 1000, version).throttle_time_ms == 0
    with WireClient(broker.port, client_id=client_id) as client:
        # A third more than the second allows: about a third of a second.
        asked_s = time.monotonic()
        response = produced(client, topic, 52_000, version)
        # Stored and answered all the same.
        assert end_offset(admin, topic) == 2
        assert_muted_for(client, response.throttle_time_ms, asked_s)


def test_what_is_pipelined_behind_it_waits_too(
    broker: BrokerProcess, admin: WireClient, client_id: str
) -> None:
    create_topic(admin, "pipelined", 1)
    alter(admin, of(client_id), {"producer_byte_rate": 40_000})
    with WireClient(broker.port, client_id=client_id) as client:
        began_s = time.monotonic()
        first = client.send(produce_request("pipelined", batch(value=b"v" * 52_000)), 9)
        second = client.send(software(), 3)
        throttle_ms = client.receive(ProduceResponse, 9, first).throttle_time_ms
        client.receive(ApiVersionsResponse, 3, second)
        assert time.monotonic() - began_s >= throttle_ms / 1000 - CLOCKS_S


def test_a_producer_that_hears_no_answer_is_muted(
    broker: BrokerProcess, admin: WireClient, client_id: str
) -> None:
    create_topic(admin, "unheard", 1)
    alter(admin, of(client_id), {"producer_byte_rate": 40_000})
    with WireClient(broker.port, client_id=client_id) as client:
        began_s = time.monotonic()
        client.send(produce_request("unheard", batch(value=b"v" * 60_000), acks=0), 9)
        client.ask(software(), ApiVersionsResponse, 3)
        # 60,000 of 40,000 bytes per second: half a second more than the one that is free.
        assert time.monotonic() - began_s >= 0.4
    assert end_offset(admin, "unheard") == 1


def test_a_fetch_above_its_quota_is_empty_and_comes_again(
    broker: BrokerProcess, admin: WireClient, client_id: str
) -> None:
    create_topic(admin, "fetched", 1)
    for _ in range(3):
        produced(admin, "fetched", 30_000)
    alter(admin, of(client_id), {"consumer_byte_rate": 40_000})
    with WireClient(broker.port, client_id=client_id) as client:
        first = client.ask(
            fetch_request(fetch_topic("fetched", {0: 0}), max_wait_ms=0), FetchResponse, 12
        )
        # Never more than what the windows allow, whatever the client would take.
        assert first.throttle_time_ms == 0
        assert 30_000 < sum(p.records_bytes for t in first.topics for p in t.partitions) < 40_000

        def fetched_again() -> FetchResponse:
            return client.ask(
                fetch_request(fetch_topic("fetched", {0: 1}), max_wait_ms=0), FetchResponse, 12
            )

        # Where the machine makes a pause in between, there may be room for another one.
        for _ in range(10):
            asked_s = time.monotonic()
            second = fetched_again()
            if not second.topics:
                break
        assert not second.topics
        assert_muted_for(client, second.throttle_time_ms, asked_s)
        assert eventually(lambda: fetched_again().topics)


def test_a_parked_fetch_is_throttled_when_its_records_come(
    broker: BrokerProcess, admin: WireClient, client_id: str
) -> None:
    create_topic(admin, "parked", 1)
    alter(admin, of(client_id), {"consumer_byte_rate": 20_000})
    with WireClient(broker.port, client_id=client_id) as client:
        asked_s = time.monotonic()
        waiting = client.send(
            fetch_request(fetch_topic("parked", {0: 0}), max_wait_ms=10_000, min_bytes=1), 12
        )
        produced(admin, "parked", 30_000)
        response = client.receive(FetchResponse, 12, waiting)
        assert not response.topics
        assert_muted_for(client, response.throttle_time_ms, asked_s)


def test_time_of_the_broker_is_a_quota_of_every_request(
    broker: BrokerProcess, admin: WireClient, client_id: str
) -> None:
    alter(admin, of(client_id), {"request_percentage": 0.01})
    with WireClient(broker.port, client_id=client_id) as client:
        throttle_ms = 0
        while not throttle_ms:
            asked_s = time.monotonic()
            response = client.ask(MetadataRequest(topics=None), MetadataResponse, 9)
            throttle_ms = response.throttle_time_ms
        # Kafka never pauses longer than a window for it.
        assert throttle_ms <= 1000
        assert_muted_for(client, throttle_ms, asked_s)
    with WireClient(broker.port) as other:
        assert not other.ask(MetadataRequest(topics=None), MetadataResponse, 9).throttle_time_ms


def test_a_client_that_goes_away_while_it_is_muted_is_forgotten(
    broker: BrokerProcess, admin: WireClient, client_id: str
) -> None:
    create_topic(admin, "gone", 1)
    alter(admin, of(client_id), {"producer_byte_rate": 100})
    before = broker.socket_count()
    with WireClient(broker.port, client_id=client_id) as client:
        # An hour.
        assert produced(client, "gone", 360_000).throttle_time_ms > 3_000_000
        assert broker.socket_count() == before + 1
    eventually(lambda: broker.socket_count() == before)


# --- changes of the metadata ---------------------------------------------------------------------


def create(
    client: WireClient, names: list[str], partitions: int, version: int
) -> CreateTopicsResponse:
    topics = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
    ]
    return client.ask(CreateTopicsRequest(topics=topics), CreateTopicsResponse, version)


def test_partitions_beyond_the_rate_are_refused_and_told_when_to_come_again(
    broker: BrokerProcess, admin: WireClient, client_id: str
) -> None:
    alter(admin, of(client_id), {"controller_mutation_rate": 5})
    with WireClient(broker.port, client_id=client_id) as client:
        asked_s = time.monotonic()
        response = create(client, ["m-a", "m-b"], 12, 7)
        codes = {topic.name: topic.error_code for topic in response.topics}
        assert codes == {"m-a": 0, "m-b": THROTTLING_QUOTA_EXCEEDED}
        assert_muted_for(client, response.throttle_time_ms, asked_s)
        eventually(lambda: create(client, ["m-b"], 1, 7).topics[0].error_code == 0)
    # So low that a slow disk does not make up for the next request.
    alter(admin, of(client_id), {"controller_mutation_rate": 0.1})
    with WireClient(broker.port, client_id=client_id) as client:
        grown = client.ask(
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name="m-b", count=20, assignments=None)],
                timeout_ms=1000,
            ),
            CreatePartitionsResponse,
            3,
        )
        if grown.results[0].error_code == 0:
            gone = client.ask(
                DeleteTopicsRequest(topics=[DeleteTopicState(name="m-a")], timeout_ms=1000),
                DeleteTopicsResponse,
                6,
            )
            assert gone.responses[0].error_code == THROTTLING_QUOTA_EXCEEDED
        else:
            assert grown.results[0].error_code == THROTTLING_QUOTA_EXCEEDED


def test_an_older_client_gets_what_it_asked_for_and_waits(
    broker: BrokerProcess, admin: WireClient, client_id: str
) -> None:
    alter(admin, of(client_id), {"controller_mutation_rate": 20})
    with WireClient(broker.port, client_id=client_id) as client:
        asked_s = time.monotonic()
        response = create(client, ["old-a", "old-b"], 25, 5)
        assert [topic.error_code for topic in response.topics] == [0, 0]
        assert_muted_for(client, response.throttle_time_ms, asked_s)


# --- real clients --------------------------------------------------------------------------------


def test_librdkafka_keeps_to_its_rate_and_others_are_not_slowed(
    broker: BrokerProcess, admin: WireClient
) -> None:
    create_topic(admin, "rdkafka", 1)
    rate = 100_000
    alter(admin, {"client-id": "slow"}, {"producer_byte_rate": rate})
    throttled: list[float] = []
    slow = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "slow",
            "batch.size": 20_000,
            "linger.ms": 1,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    done = threading.Event()

    def send_slowly() -> None:
        for _ in range(25):
            slow.produce("rdkafka", b"s" * 10_000)
            slow.poll(0)
        slow.flush(30)
        done.set()

    began_s = time.monotonic()
    sender = threading.Thread(target=send_slowly)
    sender.start()
    # Acknowledged one by one while the other is held up for its one and a half seconds.
    with WireClient(broker.port) as fast:
        answered_meanwhile = 0
        while not done.is_set():
            assert produced(fast, "rdkafka", 1000).throttle_time_ms == 0
            answered_meanwhile += 1
    sender.join()
    elapsed_s = time.monotonic() - began_s
    assert throttled
    assert answered_meanwhile >= 10
    # 250 KB at 100 KB/s, the first second free.
    assert elapsed_s >= 250_000 / rate - 1 - 0.5


def test_kafka_python_reads_everything_however_slowly(
    broker: BrokerProcess, admin: WireClient
) -> None:
    create_topic(admin, "python", 1)
    for _ in range(8):
        produced(admin, "python", 10_000)
    alter(admin, {"user": None, "client-id": "reader"}, {"consumer_byte_rate": 40_000})
    consumer = KafkaConsumer(
        "python",
        bootstrap_servers=broker.bootstrap,
        client_id="reader",
        auto_offset_reset="earliest",
        group_id=None,
        consumer_timeout_ms=60_000,
    )
    began_s = time.monotonic()
    offsets = [record.offset for _, record in zip(range(8), consumer, strict=False)]
    consumer.close()
    assert offsets == list(range(8))
    # 80 KB at 40 KB/s, the first second free.
    assert time.monotonic() - began_s >= 0.5
