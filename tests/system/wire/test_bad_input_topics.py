"""CreateTopics, CreatePartitions and DeleteTopics refuse what cannot be, in Kafka's codes."""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import (
    MakeTopic,
    append,
    ask_to_create,
    assert_serves,
    batch,
    create_topic,
    delete_topic,
    describe_topic,
    end_offset,
    new_topic,
    produce,
)

pytestmark = pytest.mark.slow

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
UNKNOWN_TOPIC_ID = 100

CREATE_VERSIONS = range(2, 8)


# --- names -----------------------------------------------------------------------------------

INVALID_NAMES = {
    "empty": "",
    "dot": ".",
    "two dots": "..",
    "a slash": "a/b",
    "a way out": "../../etc/passwd",
    "a space": "a b",
    "a colon": "a:b",
    "a nul": "a\0b",
    "a newline": "a\nb",
    "an umlaut": "tür",
    "250 characters": "x" * 250,
    "32767 characters": "x" * 32767,
}


@pytest.mark.parametrize("name", INVALID_NAMES.values(), ids=INVALID_NAMES.keys())
def test_an_invalid_topic_name_is_refused(client: WireClient, name: str) -> None:
    for version in CREATE_VERSIONS:
        (result,) = ask_to_create(client, new_topic(name), version=version)
        assert (result.name, result.error_code) == (name, INVALID_TOPIC)
        assert result.error_message


def test_the_longest_name_is_249_characters(client: WireClient) -> None:
    name = uuid.uuid4().hex.ljust(249, "x")
    create_topic(client, name)
    assert append(client, name, batch()) == 0


def test_names_that_metrics_cannot_tell_apart_collide(client: WireClient, topic_name: str) -> None:
    create_topic(client, f"{topic_name}.a")
    (result,) = ask_to_create(client, new_topic(f"{topic_name}_a"))
    assert result.error_code == INVALID_TOPIC
    assert f"{topic_name}.a" in (result.error_message or "")


def test_a_topic_that_exists_is_not_created_again(client: WireClient, topic: str) -> None:
    append(client, topic, batch(3))
    (result,) = ask_to_create(client, new_topic(topic, 5))
    assert result.error_code == TOPIC_ALREADY_EXISTS
    assert len(describe_topic(client, topic).partitions) == 1
    assert end_offset(client, topic) == 3


def test_a_topic_named_twice_in_a_request_is_not_created_at_all(
    client: WireClient, topic_name: str
) -> None:
    other = f"{topic_name}-other"
    results = ask_to_create(
        client, new_topic(topic_name), new_topic(other), new_topic(topic_name, 2)
    )
    assert {(r.name, r.error_code) for r in results} == {
        (topic_name, INVALID_REQUEST),
        (other, 0),
    }
    assert describe_topic(client, topic_name).error_code == UNKNOWN_TOPIC_OR_PARTITION


# --- counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [0, -2, -(2**31)])
def test_a_topic_has_at_least_one_partition(
    client: WireClient, topic_name: str, partitions: int
) -> None:
    (result,) = ask_to_create(client, new_topic(topic_name, partitions))
    assert result.error_code == INVALID_PARTITIONS
    assert describe_topic(client, topic_name).error_code == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("partitions", [10_001, 2**31 - 1])
def test_one_request_makes_at_most_ten_thousand_partitions(
    client: WireClient, topic_name: str, partitions: int
) -> None:
    (result,) = ask_to_create(client, new_topic(topic_name, partitions))
    assert result.error_code == POLICY_VIOLATION


def test_more_topics_than_partitions_may_be_are_refused_unseen(
    broker: BrokerProcess, client: WireClient, topic_name: str
) -> None:
    wanted = [new_topic(f"{topic_name}-{n}", configs={"retention.mz": "1"}) for n in range(10_001)]
    results = ask_to_create(client, *wanted)
    # Had anybody looked, it would be INVALID_CONFIG, after seconds of looking for nearest names.
    assert {result.error_code for result in results} == {POLICY_VIOLATION}
    assert_serves(broker.port)


@pytest.mark.parametrize("factor", [3, 2, 0, -2])
def test_one_broker_holds_one_replica(client: WireClient, topic_name: str, factor: int) -> None:
    (result,) = ask_to_create(client, new_topic(topic_name, replication_factor=factor))
    assert result.error_code == INVALID_REPLICATION_FACTOR
    assert describe_topic(client, topic_name).error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_counts_of_minus_1_mean_the_defaults(client: WireClient, topic_name: str) -> None:
    (result,) = ask_to_create(client, new_topic(topic_name, -1, replication_factor=-1))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 1, 1)


# --- assignments -----------------------------------------------------------------------------


def assigned(name: str, *replicas: tuple[int, list[int]], count: int = -1) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in replicas
        ],
    )


def test_a_manual_assignment_must_name_each_partition_once_and_brokers_that_exist(
    client: WireClient, topic_name: str
) -> None:
    wrong = {
        "a gap": assigned(topic_name, (0, [1]), (2, [1])),
        "a partition twice": assigned(topic_name, (0, [1]), (0, [1])),
        "an unknown broker": assigned(topic_name, (0, [7])),
        "a broker twice": assigned(topic_name, (0, [1, 1])),
        "no broker": assigned(topic_name, (0, [])),
        "a negative partition": assigned(topic_name, (-1, [1])),
    }
    codes = {what: ask_to_create(client, topic)[0].error_code for what, topic in wrong.items()}
    assert codes == dict.fromkeys(wrong, INVALID_REPLICA_ASSIGNMENT)
    (both,) = ask_to_create(client, assigned(topic_name, (0, [1]), count=1))
    assert both.error_code == INVALID_REQUEST
    (right,) = ask_to_create(client, assigned(topic_name, (1, [1]), (0, [1])))
    assert (right.error_code, right.num_partitions) == (0, 2)


# --- configs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no.such.config", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("retention.ms", "9" * 400),
        ("segment.bytes", "1"),
        ("cleanup.policy", "shred"),
        ("min.insync.replicas", "0"),
        ("leader.replication.throttled.replicas", "none"),
        ("leader.replication.throttled.replicas", "0:1,*"),
        ("follower.replication.throttled.replicas", "0:1:2"),
        ("follower.replication.throttled.replicas", "0:-1"),
        ("remote.storage.enable", "true"),
    ],
)
def test_a_bad_config_is_refused_and_a_message_names_it(
    client: WireClient, topic_name: str, name: str, value: str
) -> None:
    for version in CREATE_VERSIONS:
        (result,) = ask_to_create(client, new_topic(topic_name, 1, {name: value}), version=version)
        assert result.error_code == INVALID_CONFIG
        # Tiering is the exception: the message says that the broker has none.
        assert (name if value != "true" else "Tiered Storage") in (result.error_message or "")
    assert describe_topic(client, topic_name).error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_a_null_config_is_refused(client: WireClient, topic_name: str) -> None:
    topic = CreatableTopic(
        name=topic_name,
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="retention.ms", value=None)],
    )
    (result,) = ask_to_create(client, topic)
    assert result.error_code == INVALID_CONFIG
    assert "retention.ms" in (result.error_message or "")


def test_a_message_that_quotes_what_is_too_long_for_it_is_cut(
    client: WireClient, topic_name: str
) -> None:
    """A string of the protocol ends at 32,767 bytes; a message quotes one and says more."""
    longest = "é" * 16_383
    for configs in ({longest: "1"}, {"retention.ms": longest}, {"cleanup.policy": "\0" * 32_767}):
        (result,) = ask_to_create(client, new_topic(topic_name, 1, configs))
        assert result.error_code == INVALID_CONFIG
        assert 100 < len(result.error_message or "") <= 1000


def test_validate_only_says_what_would_be_and_does_nothing(
    client: WireClient, topic_name: str
) -> None:
    (good,) = ask_to_create(client, new_topic(topic_name, 4), validate_only=True)
    assert (good.error_code, good.num_partitions) == (0, 4)
    (bad,) = ask_to_create(client, new_topic(topic_name, 0), validate_only=True)
    assert bad.error_code == INVALID_PARTITIONS
    assert describe_topic(client, topic_name).error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_what_is_right_in_a_request_is_done_and_what_is_wrong_is_refused(
    client: WireClient, topic_name: str
) -> None:
    results = ask_to_create(
        client,
        new_topic(f"{topic_name}-a", 2),
        new_topic("not valid"),
        new_topic(f"{topic_name}-b", 0),
        new_topic(f"{topic_name}-c", 1),
    )
    assert [r.error_code for r in results] == [0, INVALID_TOPIC, INVALID_PARTITIONS, 0]
    assert len(describe_topic(client, f"{topic_name}-a").partitions) == 2
    assert describe_topic(client, f"{topic_name}-c").error_code == 0


# --- more partitions -------------------------------------------------------------------------


def ask_for_partitions(
    client: WireClient,
    *topics: CreatePartitionsTopic,
    version: int = 3,
    validate_only: bool = False,
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(topics=topics, timeout_ms=5000, validate_only=validate_only)
    return list(client.ask(request, CreatePartitionsResponse, version).results)


@pytest.mark.parametrize("version", range(4))
def test_partitions_can_only_be_added(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(3)
    for count in (3, 2, 0, -1):
        (result,) = ask_for_partitions(
            client, CreatePartitionsTopic(name=topic, count=count), version=version
        )
        assert (result.error_code, bool(result.error_message)) == (INVALID_PARTITIONS, True)
    (result,) = ask_for_partitions(
        client, CreatePartitionsTopic(name=topic, count=5), version=version
    )
    assert result.error_code == 0
    assert len(describe_topic(client, topic).partitions) == 5
    assert append(client, topic, batch(), partition=4) == 0


def test_partitions_of_an_unknown_topic_are_refused(client: WireClient, topic_name: str) -> None:
    (result,) = ask_for_partitions(client, CreatePartitionsTopic(name=topic_name, count=5))
    assert result.error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_partitions_with_a_wrong_assignment_are_refused(client: WireClient, topic: str) -> None:
    for replicas, wanted in (([[1]], 3), ([[7], [7]], 3), ([[1, 1]], 2), ([[]], 2)):
        (result,) = ask_for_partitions(
            client,
            CreatePartitionsTopic(
                name=topic,
                count=wanted,
                assignments=[CreatePartitionsAssignment(broker_ids=ids) for ids in replicas],
            ),
        )
        assert result.error_code == INVALID_REPLICA_ASSIGNMENT
    assert len(describe_topic(client, topic).partitions) == 1


def test_a_topic_named_twice_gets_no_partitions(client: WireClient, topic: str) -> None:
    twice = [CreatePartitionsTopic(name=topic, count=count) for count in (2, 3)]
    assert {r.error_code for r in ask_for_partitions(client, *twice)} == {INVALID_REQUEST}
    assert len(describe_topic(client, topic).partitions) == 1


def test_validated_partitions_are_not_made(client: WireClient, topic: str) -> None:
    (result,) = ask_for_partitions(
        client, CreatePartitionsTopic(name=topic, count=9), validate_only=True
    )
    assert result.error_code == 0
    assert len(describe_topic(client, topic).partitions) == 1


# --- deletion --------------------------------------------------------------------------------


def ask_to_delete(client: WireClient, *topics: DeleteTopicState) -> list[DeletableTopicResult]:
    request = DeleteTopicsRequest(topics=topics, timeout_ms=5000)
    return list(client.ask(request, DeleteTopicsResponse, 6).responses)


@pytest.mark.parametrize("version", range(1, 6))
def test_topics_are_deleted_by_name_in_every_version(
    client: WireClient, topic: str, topic_name: str, version: int
) -> None:
    request = DeleteTopicsRequest(topic_names=[topic, topic_name], timeout_ms=5000)
    results = client.ask(request, DeleteTopicsResponse, version).responses
    assert [(r.name, r.error_code) for r in results] == [
        (topic, 0),
        (topic_name, UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert describe_topic(client, topic).error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_is_deleted_by_id(client: WireClient, topic: str) -> None:
    topic_id = describe_topic(client, topic).topic_id
    unknown = uuid.uuid4()
    results = ask_to_delete(
        client, DeleteTopicState(topic_id=topic_id), DeleteTopicState(topic_id=unknown)
    )
    assert [(r.topic_id, r.error_code) for r in results] == [
        (topic_id, 0),
        (unknown, UNKNOWN_TOPIC_ID),
    ]
    assert produce(client, topic, batch()).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert produce(client, topic_id, batch()).error_code == UNKNOWN_TOPIC_ID


def test_a_topic_must_be_named_once_and_in_one_way_to_be_deleted(
    client: WireClient, topic: str
) -> None:
    topic_id = describe_topic(client, topic).topic_id
    wrong = {
        "both": [DeleteTopicState(name=topic, topic_id=topic_id)],
        "neither": [DeleteTopicState()],
        "twice by name": [DeleteTopicState(name=topic)] * 2,
        "by name and by id": [DeleteTopicState(name=topic), DeleteTopicState(topic_id=topic_id)],
    }
    codes = {
        what: {result.error_code for result in ask_to_delete(client, *states)}
        for what, states in wrong.items()
    }
    assert codes == {what: {INVALID_REQUEST} for what in wrong}
    assert describe_topic(client, topic).error_code == 0


def test_a_topic_created_again_is_empty(client: WireClient, topic: str) -> None:
    append(client, topic, batch(10))
    delete_topic(client, topic)
    create_topic(client, topic)
    assert end_offset(client, topic) == 0
    assert append(client, topic, batch()) == 0


def test_no_name_of_a_client_leaves_the_log_folder(broker: BrokerProcess) -> None:
    """Every folder is a partition of a topic that was created, or one of our own."""
    strange = [
        path.name for path in broker.folder.iterdir() if path.name not in {"data", "broker.log"}
    ]
    assert strange == []
