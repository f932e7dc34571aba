"""The controller decides as Kafka's does, in its codes and words, and changes nothing itself."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.decisions import (
    Intent,
    NewTopic,
    ReplicaAssignment,
    TopicDefaults,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import TopicCreated
from strandline.broker.config.loading import load_config
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import ZERO_TOPIC_ID
from tests.unit.broker.cluster.controlled import (
    TIERED,
    assigned,
    create,
    refusal,
    with_topic,
)

# --- create ------------------------------------------------------------------------------------


def test_a_topic_without_counts_gets_the_defaults() -> None:
    decision = create(NewTopic(name="a"), defaults=TopicDefaults(partition_count=3))
    (result,) = decision.results
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    assert (result.partition_count, result.replication_factor) == (3, 1)
    image = MetadataImage().apply_entry(decision.records)
    assert image.topics["a"].topic_id == result.topic_id
    assert image.topics["a"].partition_count == 3


def test_a_topic_keeps_exactly_what_was_set_on_it() -> None:
    decision = create(NewTopic(name="a", properties={"retention.ms": "5"}))
    assert dict(decision.results[0].properties) == {"retention.ms": "5"}
    image = MetadataImage().apply_entry(decision.records)
    assert dict(image.topics["a"].properties) == {"retention.ms": "5"}


def test_what_is_right_is_done_beside_what_is_wrong() -> None:
    decision = create(NewTopic(name="a"), NewTopic(name="b", partition_count=0), NewTopic(name="c"))
    assert [result.error_code for result in decision.results] == [0, 37, 0]
    image = MetadataImage().apply_entry(decision.records)
    assert sorted(image.topics) == ["a", "c"]


def test_validation_answers_like_the_deed_and_leaves_no_record() -> None:
    decision = create(NewTopic(name="a", partition_count=3), intent=Intent.VALIDATE)
    assert decision.records == ()
    (result,) = decision.results
    assert (result.error_code, result.partition_count) == (ErrorCode.NONE, 3)
    assert result.topic_id == ZERO_TOPIC_ID
    bad = create(NewTopic(name="a", partition_count=0), intent=Intent.VALIDATE)
    assert bad.results[0].error_code == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        (
            "x" * 250,
            f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed"
            " length 249",
        ),
        (
            "a b",
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII"
            " alphanumerics, '.', '_' and '-'",
        ),
    ],
)
def test_an_illegal_name_is_refused_in_kafkas_words(name: str, message: str) -> None:
    assert refusal(NewTopic(name=name)) == (ErrorCode.INVALID_TOPIC_EXCEPTION, message)


@pytest.mark.parametrize("name", ["a\n", "ä", "a/b", "a\x00", "a:b"])
def test_no_character_that_a_folder_name_could_stumble_over_gets_through(name: str) -> None:
    assert refusal(NewTopic(name=name))[0] == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["x" * 249, "a.b-C_9", "...", "__consumer_offsets"])
def test_every_legal_name_is_accepted(name: str) -> None:
    assert create(NewTopic(name=name)).results[0].error_code == ErrorCode.NONE


def test_a_name_that_exists_is_refused() -> None:
    assert refusal(NewTopic(name="a"), image=with_topic("a")) == (
        ErrorCode.TOPIC_ALREADY_EXISTS,
        "Topic 'a' already exists.",
    )


def test_names_that_metrics_cannot_tell_apart_collide() -> None:
    assert refusal(NewTopic(name="a.b"), image=with_topic("a_b")) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic 'a.b' collides with existing topic: a_b",
    )
    both = create(NewTopic(name="a.b"), NewTopic(name="a_b"))
    assert [result.error_code for result in both.results] == [0, 17]


def test_a_topic_named_twice_is_not_created_and_answered_once() -> None:
    decision = create(NewTopic(name="a"), NewTopic(name="b"), NewTopic(name="a"))
    duplicate, good = decision.results
    assert (duplicate.name, duplicate.error_code) == ("a", ErrorCode.INVALID_REQUEST)
    assert duplicate.error_message == "Duplicate topic name."
    assert (good.name, good.error_code) == ("b", ErrorCode.NONE)
    assert len(decision.records) == 1


@pytest.mark.parametrize("partition_count", [0, -2, -(2**31)])
def test_a_count_of_partitions_that_is_no_count_is_refused(partition_count: int) -> None:
    assert refusal(NewTopic(name="a", partition_count=partition_count)) == (
        ErrorCode.INVALID_PARTITIONS,
        "Number of partitions was set to an invalid non-positive value.",
    )


def test_more_partitions_than_a_request_may_have_are_refused_over_all_topics() -> None:
    decision = create(
        NewTopic(name="a", partition_count=6000),
        NewTopic(name="b", partition_count=6000),
        NewTopic(name="c", partition_count=2**31 - 1),
        NewTopic(name="d", partition_count=4000),
    )
    assert [result.error_code for result in decision.results] == [0, 44, 44, 0]


def test_more_replicas_than_brokers_are_refused() -> None:
    code, message = refusal(NewTopic(name="a", replication_factor=3))
    assert code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert message == (
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be"
        " reached because only 1 broker(s) are registered."
    )
    assert refusal(NewTopic(name="a", replication_factor=0))[0] == 38
    assert refusal(NewTopic(name="a", replication_factor=-2))[0] == 38


def test_leaders_go_round_the_brokers() -> None:
    decision = create(NewTopic(name="a", partition_count=4, replication_factor=2), nodes=(3, 1, 2))
    (record,) = decision.records
    assert isinstance(record, TopicCreated)
    assert record.replicas == ((1, 2), (2, 3), (3, 1), (1, 2))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"retention.m": "1"}, "unknown topic config 'retention.m'; did you mean retention.ms?"),
        ({"retention.ms": "x"}, "retention.ms='x': expected a whole number"),
        ({"segment.bytes": "10"}, "segment.bytes=10: must be at least 1048576"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        (
            {"retention.ms": "5", "local.retention.ms": "6", "remote.storage.enable": "true"},
            "Invalid value 6 for configuration local.retention.ms: it must not exceed"
            " retention.ms=5",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured"
            " with remote log storage.",
        ),
    ],
)
def test_a_bad_property_is_refused_with_its_name(
    properties: dict[str, str | None], message: str
) -> None:
    assert refusal(NewTopic(name="a", properties=properties)) == (ErrorCode.INVALID_CONFIG, message)


def test_tiered_topics_need_a_tier_and_may_be_compacted() -> None:
    tiered = NewTopic(name="a", properties={"remote.storage.enable": "true"})
    assert refusal(tiered)[0] == ErrorCode.INVALID_CONFIG
    assert create(tiered, defaults=TIERED).results[0].error_code == ErrorCode.NONE
    compacted = NewTopic(
        name="a", properties={"remote.storage.enable": "true", "cleanup.policy": "compact"}
    )
    assert create(compacted, defaults=TIERED).results[0].error_code == ErrorCode.NONE


# --- manual assignments ------------------------------------------------------------------------


def test_an_assignment_to_this_broker_is_taken_in_any_order() -> None:
    decision = create(NewTopic(name="a", assignments=tuple(reversed(assigned((1,), (1,))))))
    (result,) = decision.results
    assert (result.error_code, result.partition_count, result.replication_factor) == (0, 2, 1)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (assigned((2,)), "includes broker 2, but no such broker is registered."),
        (assigned((1,), ()), "includes an empty replica list."),
        (assigned((1, 1)), "includes the broker 1 more than once."),
        (
            (ReplicaAssignment(partition=1, replicas=(1,)),),
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            (ReplicaAssignment(partition=-1, replicas=(1,)),),
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            assigned((1,)) + assigned((1,)),
            "Found multiple manual partition assignments for partition 0",
        ),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(
    assignments: tuple[ReplicaAssignment, ...], message: str
) -> None:
    code, found = refusal(NewTopic(name="a", assignments=assignments))
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert found is not None
    assert message in found


def test_partitions_with_unequal_replicas_are_refused() -> None:
    code, message = refusal(NewTopic(name="a", assignments=assigned((1, 2), (2,))), nodes=(1, 2))
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert message == (
        "The manual partition assignment includes a partition with 1 replica(s), but this is not"
        " consistent with previous partitions, which have 2 replica(s)."
    )


@pytest.mark.parametrize(
    ("topic", "what"),
    [
        (
            NewTopic(name="a", assignments=assigned((1,)), replication_factor=1),
            "replication factor",
        ),
        (NewTopic(name="a", assignments=assigned((1,)), partition_count=1), "numPartitions"),
    ],
)
def test_an_assignment_and_a_count_exclude_each_other(topic: NewTopic, what: str) -> None:
    assert refusal(topic) == (
        ErrorCode.INVALID_REQUEST,
        f"A manual partition assignment was specified, but {what} was not set to -1.",
    )


# --- defaults -----------------------------------------------------------------------------------


def test_topics_without_settings_follow_the_brokers_configuration() -> None:
    config = load_config(None, ["num.partitions=2", "log.retention.hours=1"])
    defaults = config.topics
    decision = create(NewTopic(name="a"), defaults=defaults)
    image = MetadataImage().apply_entry(decision.records)
    assert image.topics["a"].partition_count == 2
    # Defaults are looked up when they are needed, so a changed default reaches old topics.
    assert not image.topics["a"].properties
    assert defaults.properties == {"retention.ms": "3600000"}
    assert (defaults.tiering_enabled, defaults.deletion_enabled) == (False, True)
