"""The controller decides as Kafka's does, in its codes and words, and changes nothing itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import (
    Intent,
    NewPartitions,
    NewTopic,
    Refusal,
    TopicDefaults,
    TopicReference,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.topic_names import collision_key
from strandline.broker.config.loading import load_config
from strandline.broker.protocol.formats.metadata_records import RemoveTopicRecord, TopicRecord
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.log_config import LONG_MAX
from strandline.storage.errors import StorageError
from strandline.storage.model import ZERO_TOPIC_ID
from tests.unit.broker.cluster.controlled import (
    DEFAULTS,
    TIERED,
    UNKNOWN,
    A,
    create,
    refusal,
    registered,
    with_brokers,
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


def test_a_name_that_exists_is_refused() -> None:
    assert refusal(NewTopic(name="a"), image=with_topic("a")) == (
        ErrorCode.TOPIC_ALREADY_EXISTS,
        "Topic 'a' already exists.",
    )


def test_a_topic_named_twice_is_not_created_and_answered_once() -> None:
    decision = create(NewTopic(name="a"), NewTopic(name="b"), NewTopic(name="a"))
    duplicate, good = decision.results
    assert (duplicate.name, duplicate.error_code) == ("a", ErrorCode.INVALID_REQUEST)
    assert duplicate.error_message == "Duplicate topic name."
    assert (good.name, good.error_code) == ("b", ErrorCode.NONE)
    assert [record.name for record in decision.records if isinstance(record, TopicRecord)] == ["b"]


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


# --- delete ------------------------------------------------------------------------------------


def test_a_topic_is_deleted_by_name_or_by_id_and_answered_with_both() -> None:
    image = with_topic("a", A, remote_storage_enable="true")
    for reference in (TopicReference(name="a"), TopicReference(topic_id=A)):
        decision = controller.delete_topics(image, [reference], defaults=DEFAULTS)
        (result,) = decision.results
        assert (result.name, result.topic_id, result.error_code) == ("a", A, ErrorCode.NONE)
        after = image.apply_entry(decision.records)
        assert not after.topics
        assert A in after.pending_purges


@pytest.mark.parametrize(
    ("references", "answers"),
    [
        ([TopicReference(name="b")], [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)]),
        ([TopicReference(topic_id=UNKNOWN)], [(ErrorCode.UNKNOWN_TOPIC_ID, None)]),
        (
            [TopicReference(name="a", topic_id=A)],
            [(
                ErrorCode.INVALID_REQUEST,
                "You may not specify both topic name and topic id.",
            )],
        ),
        (
            [TopicReference()],
            [(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")],
        ),
        (
            [TopicReference(name="a")] * 2,
            [(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")],
        ),
        (
            [TopicReference(topic_id=A)] * 2,
            [(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")],
        ),
        (
            [TopicReference(name="a"), TopicReference(topic_id=A)],
            [(
                ErrorCode.INVALID_REQUEST,
                "The provided topic name maps to an ID that was already supplied.",
            )] * 2,
        ),
    ],
)  # fmt: skip
def test_a_reference_that_is_not_clear_deletes_nothing(
    references: list[TopicReference], answers: list[tuple[ErrorCode, str | None]]
) -> None:
    decision = controller.delete_topics(with_topic("a", A), references, defaults=DEFAULTS)
    assert decision.records == ()
    assert [result.error_code for result in decision.results] == [code for code, _ in answers]
    for result, (_, message) in zip(decision.results, answers, strict=True):
        assert message is None or result.error_message == message


def test_deletion_can_be_turned_off() -> None:
    decision = controller.delete_topics(
        with_topic("a"),
        [TopicReference(name="a")],
        defaults=TopicDefaults(deletion_enabled=False),
    )
    assert decision.records == ()
    assert decision.results[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED


def test_a_topic_that_never_had_an_archive_is_not_purged() -> None:
    image = with_topic("a", A)
    decision = controller.delete_topics(image, [TopicReference(name="a")], defaults=DEFAULTS)
    assert decision.records == (RemoveTopicRecord(topic_id=A),)
    assert not image.apply_entry(decision.records).pending_purges


def test_a_purge_is_noted_once() -> None:
    image = with_topic("a", A, remote_log_delete_on_disable="true")
    image = image.apply_entry(
        controller.delete_topics(image, [TopicReference(name="a")], defaults=DEFAULTS).records
    )
    image = image.apply_entry(controller.finish_purges(image, (A,)).records)
    assert not image.pending_purges
    assert controller.finish_purges(image, (A,)).records == ()


# --- partitions --------------------------------------------------------------------------------


def test_new_partitions_follow_the_old_ones() -> None:
    image = with_topic("a", partitions=2)
    decision = controller.create_partitions(image, [NewPartitions(name="a", partition_count=5)])
    assert decision.results[0].error_code == ErrorCode.NONE
    assert image.apply_entry(decision.records).topics["a"].partition_count == 5


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        (NewPartitions(name="b", partition_count=3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (
            NewPartitions(name="a", partition_count=2),
            ErrorCode.INVALID_PARTITIONS,
            "Topic already has 2 partition(s).",
        ),
        (
            NewPartitions(name="a", partition_count=1),
            ErrorCode.INVALID_PARTITIONS,
            "The topic a currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            NewPartitions(name="a", partition_count=4, assignments=((1,),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            NewPartitions(name="a", partition_count=3, assignments=((2,),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            None,
        ),
        (
            NewPartitions(name="a", partition_count=2**31 - 1),
            ErrorCode.POLICY_VIOLATION,
            None,
        ),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(
    asked: NewPartitions, code: ErrorCode, message: str | None
) -> None:
    decision = controller.create_partitions(with_topic("a"), [asked])
    assert decision.records == ()
    assert decision.results[0].error_code == code
    assert message is None or decision.results[0].error_message == message


def test_partitions_of_a_topic_named_twice_or_only_validated_stay_as_they_are() -> None:
    image = with_topic("a")
    asked = NewPartitions(name="a", partition_count=3)
    twice = controller.create_partitions(image, [asked, asked])
    assert twice.records == ()
    assert [result.error_code for result in twice.results] == [ErrorCode.INVALID_REQUEST]
    checked = controller.create_partitions(image, [asked], intent=Intent.VALIDATE)
    assert checked.records == ()
    assert checked.results[0].error_code == ErrorCode.NONE


# --- properties --------------------------------------------------------------------------------


def test_properties_are_replaced_as_a_whole_and_only_if_they_differ() -> None:
    image = with_topic("a", retention_ms="5")
    topic = image.topics["a"]
    assert controller.topic_config_records(topic, {"retention.ms": "5"}, DEFAULTS) == []
    changed = controller.topic_config_records(topic, {"segment.ms": "7"}, DEFAULTS)
    assert dict(image.apply_entry(changed).topics["a"].properties) == {"segment.ms": "7"}


def test_turning_tiering_off_must_say_what_becomes_of_the_data() -> None:
    topic = with_topic("a", remote_storage_enable="true").topics["a"]

    def change(**properties: str) -> ErrorCode:
        texts = {key.replace("_", "."): text for key, text in properties.items()}
        try:
            controller.topic_config_records(topic, texts, TIERED)
        except Refusal as refusal:
            return refusal.error_code
        return ErrorCode.NONE

    assert change() == ErrorCode.INVALID_CONFIG
    assert change(remote_storage_enable="false") == ErrorCode.INVALID_CONFIG
    assert change(remote_log_delete_on_disable="true") == ErrorCode.NONE
    assert change(remote_storage_enable="true", remote_log_copy_disable="true") == ErrorCode.NONE
    assert change(retention_ms="x") == ErrorCode.INVALID_CONFIG


# --- brokers and producers ---------------------------------------------------------------------


def test_every_start_of_a_broker_raises_its_leader_epochs() -> None:
    image = with_topic("a")
    for expected in (1, 2):
        image = image.apply_entry(controller.register_broker(image, registered()).records)
        assert {p.leader_epoch for p in image.topics["a"].partitions} == {expected}
        assert {p.partition_epoch for p in image.topics["a"].partitions} == {expected}


def test_the_epoch_of_a_broker_is_the_offset_of_its_record_and_rises_with_each_start() -> None:
    image, epochs = with_topic("a", partitions=3), []
    for _ in range(3):
        offset = image.next_offset
        image = image.apply_entry(controller.register_broker(image, registered()).records)
        epochs.append(image.brokers[1].broker_epoch)
        assert epochs[-1] == offset
    assert epochs == sorted(set(epochs))


def test_producer_ids_are_never_given_away_twice() -> None:
    image, seen = with_brokers(1), set[int]()
    for _ in range(3):
        decision = controller.allocate_producer_ids(image, 1, 10)
        (block,) = decision.results
        assert seen.isdisjoint(block)
        seen.update(block)
        image = image.apply_entry(decision.records)
    assert seen == set(range(30))


def test_running_out_of_producer_ids_is_an_error_and_no_wrap_around() -> None:
    image = replace(with_brokers(1), next_producer_id=LONG_MAX - 5)
    with pytest.raises(StorageError, match="given away"):
        controller.allocate_producer_ids(image, 1, 10)


def test_a_new_topic_costs_no_key_for_each_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (NewTopic(name=f"t.{number}") for number in range(100))
    image = with_brokers(1).apply_entry(create(*names).records)
    keys: list[str] = []

    def counted(name: str) -> str:
        keys.append(name)
        return collision_key(name)

    monkeypatch.setattr(controller, "collision_key", counted)
    (result,) = create(NewTopic(name="t_7"), image=image).results
    assert result.error_message == "Topic 't_7' collides with existing topic: t.7"
    assert keys == ["t_7"]
