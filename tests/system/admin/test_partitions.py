"""What administrators ask about partitions, and the answers that a single broker has for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import ElectionType as ConfluentElection
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as PythonPartition
from kafka.admin import KafkaAdminClient

from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from strandline.broker.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from strandline.broker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from strandline.broker.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
)
from strandline.broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Request
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import (
    FIRST_TIMESTAMP_MS,
    MakeTopic,
    append,
    batch,
    create_topic,
    describe_topic,
    new_producer_id,
)

pytestmark = pytest.mark.slow

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_REQUEST = 42
KAFKA_STORAGE_ERROR = 56
ELECTION_NOT_NEEDED = 84
NO_REASSIGNMENT_IN_PROGRESS = 85


@pytest.fixture
def python_admin(broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield admin
    admin.close()


# --- DescribeTopicPartitions -----------------------------------------------------------------


def page(
    client: WireClient,
    *names: str,
    limit: int = 2000,
    cursor: tuple[str, int] | None = None,
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsTopic(name=name) for name in names],
        response_partition_limit=limit,
        cursor=Cursor(topic_name=cursor[0], partition_index=cursor[1]) if cursor else None,
    )
    return client.ask(request, DescribeTopicPartitionsResponse, 0)


def pages(client: WireClient, *names: str, limit: int) -> Iterator[list[tuple[str, int]]]:
    """Follows the cursor to the end: topic and partition, page by page."""
    cursor: tuple[str, int] | None = None
    while True:
        answer = page(client, *names, limit=limit, cursor=cursor)
        yield [(t.name or "", p.partition_index) for t in answer.topics for p in t.partitions]
        if answer.next_cursor is None:
            return
        cursor = answer.next_cursor.topic_name, answer.next_cursor.partition_index


def test_a_partition_is_described_as_metadata_describes_it(client: WireClient, topic: str) -> None:
    (described,) = page(client, topic).topics
    known = describe_topic(client, topic)
    assert (described.name, described.error_code, described.topic_id) == (topic, 0, known.topic_id)
    (partition,) = described.partitions
    assert (partition.leader_id, partition.leader_epoch) == (1, 0)
    assert (list(partition.replica_nodes), list(partition.isr_nodes)) == ([1], [1])
    assert list(partition.offline_replicas) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 2000])
def test_pages_together_name_every_partition_once_in_order(
    client: WireClient, topic_name: str, limit: int
) -> None:
    counts = {f"{topic_name}-{letter}": count for letter, count in (("c", 1), ("a", 3), ("b", 2))}
    for name, count in counts.items():
        create_topic(client, name, count)
    found = list(pages(client, *counts, limit=limit))
    assert all(len(one) == limit for one in found[:-1])
    expected = [(name, index) for name in sorted(counts) for index in range(counts[name])]
    assert [row for one in found for row in one] == expected


def test_no_topics_ask_for_all_of_them(client: WireClient, make_topic: MakeTopic) -> None:
    wide = make_topic(3)
    everything = [row for one in pages(client, limit=2) for row in one]
    assert {(wide, 0), (wide, 1), (wide, 2)} <= set(everything)
    assert everything == sorted(set(everything))


def test_a_page_has_at_least_one_partition_whatever_the_limit(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    for limit in (0, -1, -(2**31)):
        answer = page(client, topic, limit=limit)
        assert [len(t.partitions) for t in answer.topics] == [1]
    assert len(page(client, topic, limit=2**31 - 1).topics[0].partitions) == 2


def test_a_cursor_may_point_at_what_is_gone(client: WireClient, topic: str) -> None:
    for cursor in ((topic[:-1], 7), (topic, 0)):
        found = page(client, cursor=cursor).topics[0]
        assert (found.name, [p.partition_index for p in found.partitions]) == (topic, [0])
    assert topic not in {found.name for found in page(client, cursor=(topic + "z", 0)).topics}
    (behind,) = page(client, topic, cursor=(topic, 2**31 - 1)).topics
    assert (behind.error_code, list(behind.partitions)) == (0, [])


def test_names_that_are_no_topic_have_an_error_each(
    client: WireClient, topic: str, topic_name: str
) -> None:
    answer = page(client, topic_name, topic, "a/b", topic_name)
    codes = {described.name: described.error_code for described in answer.topics}
    assert len(answer.topics) == 3
    assert codes == {topic_name: UNKNOWN_TOPIC_OR_PARTITION, topic: 0, "a/b": INVALID_TOPIC}
    for names in ((topic,), ()):
        (refused,) = page(client, *names, cursor=(topic, -1)).topics
        assert (refused.name, refused.error_code) == (topic, INVALID_REQUEST)


def test_a_cursor_points_at_one_of_the_topics_that_are_named(
    client: WireClient, topic: str
) -> None:
    for elsewhere in ("a", "zzz"):
        answer = page(client, topic, "b", cursor=(elsewhere, 0))
        assert {t.name: t.error_code for t in answer.topics} == dict.fromkeys(
            (topic, "b"), INVALID_REQUEST
        )
        assert answer.next_cursor is None


# --- DescribeLogDirs -------------------------------------------------------------------------


def log_dir(
    client: WireClient, topics: dict[str, list[int]] | None, version: int = 5
) -> DescribeLogDirsResult:
    wanted = topics and [
        DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics.items()
    ]
    request = DescribeLogDirsRequest(topics=wanted)
    response = client.ask(request, DescribeLogDirsResponse, version)
    assert response.error_code == 0
    (result,) = response.results
    return result


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_log_dirs_show_the_bytes_of_each_partition_and_of_the_volume(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(2)
    encoded = batch(10)
    append(client, topic, encoded, encoded, partition=1)
    result = log_dir(client, {topic: [1, 0, 9], "absent": [0]}, version)
    assert (result.error_code, result.log_dir) == (0, str(broker.data))
    (found,) = result.topics
    assert found.name == topic
    sizes = {p.partition_index: (p.partition_size, p.offset_lag) for p in found.partitions}
    assert sizes == {0: (0, 0), 1: (2 * len(encoded), 0)}
    assert not any(p.is_future_key for p in found.partitions)
    if version >= 4:
        assert 0 < result.usable_bytes <= result.total_bytes
    else:
        assert (result.usable_bytes, result.total_bytes) == (-1, -1)


def test_log_dirs_show_all_partitions_to_those_who_name_none(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    (found,) = [t for t in log_dir(client, None).topics if t.name == topic]
    assert sorted(p.partition_index for p in found.partitions) == [0, 1, 2]


def test_each_folder_shows_its_own_and_one_that_is_offline_its_error(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second", tmp_path / "offline"]
    folders[2].write_text("a file is no folder")
    settings = {"log.dirs": ",".join(map(str, folders))}
    with (
        BrokerProcess(tmp_path / "broker", settings=settings) as broker,
        WireClient(broker.port) as client,
    ):
        create_topic(client, "t", 4)
        request = DescribeLogDirsRequest(topics=None)
        results = client.ask(request, DescribeLogDirsResponse, 5).results
    assert [(r.log_dir, r.error_code) for r in results] == [
        (str(folders[0]), 0),
        (str(folders[1]), 0),
        (str(folders[2]), KAFKA_STORAGE_ERROR),
    ]
    assert [[len(t.partitions) for t in r.topics] for r in results] == [[2], [2], []]


# --- DescribeProducers -----------------------------------------------------------------------


def test_idempotent_producers_are_described_until_their_last_batch(
    client: WireClient, topic: str, topic_name: str
) -> None:
    producer_id = new_producer_id(client)
    for sequence in (0, 3):
        encoded = batch(3, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        append(client, topic, encoded)
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersTopic(name=topic, partition_indexes=[0, 5, 0]),
            DescribeProducersTopic(name=topic_name, partition_indexes=[0]),
        ]
    )
    known, unknown = client.ask(request, DescribeProducersResponse, 0).topics
    assert [
        (p.partition_index, p.error_code) for p in (*known.partitions, *unknown.partitions)
    ] == [
        (0, 0),
        (5, UNKNOWN_TOPIC_OR_PARTITION),
        (0, UNKNOWN_TOPIC_OR_PARTITION),
    ]
    (producer,) = known.partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch) == (producer_id, 0)
    assert (producer.last_sequence, producer.last_timestamp) == (5, FIRST_TIMESTAMP_MS + 2)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)


def test_producers_of_a_name_that_no_topic_can_have_are_refused_as_such(client: WireClient) -> None:
    request = DescribeProducersRequest(
        topics=[DescribeProducersTopic(name="a/b", partition_indexes=[0])]
    )
    (answer,) = client.ask(request, DescribeProducersResponse, 0).topics
    assert answer.partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "a/b" in (answer.partitions[0].error_message or "")


# --- ElectLeaders ----------------------------------------------------------------------------


def elect(
    client: WireClient, wanted: Sequence[ElectLeadersTopic] | None, *, version: int, kind: int = 0
) -> ElectLeadersResponse:
    request = ElectLeadersRequest(election_type=kind, topic_partitions=wanted)
    return client.ask(request, ElectLeadersResponse, version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_partition_that_is_led_needs_no_election(
    client: WireClient, topic: str, version: int
) -> None:
    wanted = [ElectLeadersTopic(topic=topic, partitions=[0, 1])]
    for kind in (0, 1) if version else (0,):
        (result,) = elect(client, wanted, version=version, kind=kind).replica_election_results
        assert [(p.partition_id, p.error_code) for p in result.partition_result] == [
            (0, ELECTION_NOT_NEEDED),
            (1, UNKNOWN_TOPIC_OR_PARTITION),
        ]
    everything = elect(client, None, version=version)
    assert (everything.error_code, list(everything.replica_election_results)) == (0, [])


def test_an_unknown_kind_of_election_is_refused(client: WireClient) -> None:
    assert elect(client, None, version=2, kind=7).error_code == INVALID_REQUEST


# --- reassignments ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_a_partition_can_be_moved_to_where_it_is_and_nowhere_else(
    client: WireClient, topic: str, version: int
) -> None:
    asked: list[tuple[int, list[int] | None, int]] = [
        (0, [1], 0),
        (0, [2], INVALID_REPLICA_ASSIGNMENT),
        (0, [1, 2], INVALID_REPLICA_ASSIGNMENT),
        (0, [1, 1], INVALID_REPLICA_ASSIGNMENT),
        (0, [], INVALID_REPLICA_ASSIGNMENT),
        (0, None, NO_REASSIGNMENT_IN_PROGRESS),
        (1, [1], UNKNOWN_TOPIC_OR_PARTITION),
        (-1, None, UNKNOWN_TOPIC_OR_PARTITION),
    ]
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(partition_index=index, replicas=replicas)
                    for index, replicas, _ in asked
                ],
            )
        ]
    )
    response = client.ask(request, AlterPartitionReassignmentsResponse, version)
    assert response.error_code == 0
    (result,) = response.responses
    assert [(p.partition_index, p.error_code) for p in result.partitions] == [
        (index, code) for index, _, code in asked
    ]
    assert all(bool(p.error_message) == bool(p.error_code) for p in result.partitions)
    (partition,) = describe_topic(client, topic).partitions
    assert list(partition.replica_nodes) == [1]


def test_no_reassignment_is_ever_going_on(client: WireClient, topic: str) -> None:
    named = [ListPartitionReassignmentsTopic(name=topic, partition_indexes=[0])]
    for topics in (None, named):
        request = ListPartitionReassignmentsRequest(topics=topics)
        response = client.ask(request, ListPartitionReassignmentsResponse, 0)
        assert (response.error_code, list(response.topics)) == (0, [])


# --- floods ----------------------------------------------------------------------------------

MANY = [0] * 10_001


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (
            DescribeTopicPartitionsRequest(
                topics=[DescribeTopicPartitionsTopic(name="t") for _ in MANY]
            ),
            0,
        ),
        (DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=MANY)]), 5),
        (
            DescribeProducersRequest(
                topics=[DescribeProducersTopic(name="t", partition_indexes=MANY)]
            ),
            0,
        ),
        (
            ElectLeadersRequest(topic_partitions=[ElectLeadersTopic(topic="t", partitions=MANY)]),
            2,
        ),
        (
            AlterPartitionReassignmentsRequest(
                topics=[
                    ReassignableTopic(
                        name="t", partitions=[ReassignablePartition(partition_index=0)] * 10_001
                    )
                ]
            ),
            1,
        ),
    ],
    ids=["pages", "log dirs", "producers", "elections", "reassignments"],
)
def test_a_flood_of_names_closes_the_connection(
    broker: BrokerProcess, request_: Request, version: int
) -> None:
    with WireClient(broker.port) as client:
        client.send(request_, version)
        assert client.closed_by_broker()


# --- with other people's clients -------------------------------------------------------------


def test_confluent_kafka_hears_that_no_election_is_needed(
    broker: BrokerProcess, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = [ConfluentPartition(topic, 0)]
    (error,) = admin.elect_leaders(ConfluentElection.PREFERRED, wanted).result(60).values()
    assert error.code() == ELECTION_NOT_NEEDED


def test_kafka_python_understands_every_answer(
    broker: BrokerProcess, client: WireClient, topic: str, python_admin: KafkaAdminClient
) -> None:
    producer_id = new_producer_id(client)
    encoded = batch(1, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    append(client, topic, encoded)
    here = PythonPartition(topic, 0)

    described = python_admin.describe_topic_partitions([topic])
    assert [t["name"] for t in described["topics"]] == [topic]
    assert described["next_cursor"] is None

    (node,) = python_admin.describe_log_dirs({topic: [0]})
    (folder,) = node["log_dirs"]
    assert folder["topics"][0]["partitions"][0]["partition_size"] == len(encoded)

    producers = python_admin.describe_producers([here])
    assert str(producer_id) in str(producers)

    python_admin.elect_leaders(0, {topic: [0]})
    assert python_admin.alter_partition_reassignments({here: [1]}) == {here: None}
    refused = python_admin.alter_partition_reassignments({here: None})[here]
    assert refused.errno == NO_REASSIGNMENT_IN_PROGRESS
    assert python_admin.list_partition_reassignments() == {}
