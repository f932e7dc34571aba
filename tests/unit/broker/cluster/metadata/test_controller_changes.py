"""The controller changes what there is: deletion, partitions, properties, brokers and producers."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.decisions import (
    Intent,
    NewPartitions,
    NewProperties,
    TopicDefaults,
    TopicReference,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.log_config import LONG_MAX
from strandline.storage.errors import StorageError
from tests.unit.broker.cluster.controlled import (
    DEFAULTS,
    TIERED,
    UNKNOWN,
    A,
    with_topic,
)

# --- delete ------------------------------------------------------------------------------------


def test_a_topic_is_deleted_by_name_or_by_id_and_answered_with_both() -> None:
    image = with_topic("a", A)
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


def test_a_purge_is_noted_once() -> None:
    image = with_topic("a", A)
    image = image.apply_entry(
        controller.delete_topics(image, [TopicReference(name="a")], defaults=DEFAULTS).records
    )
    image = image.apply_entry(controller.finish_purges(image, (A,)).records)
    assert not image.pending_purges
    assert controller.finish_purges(image, (A,)).records == ()


# --- partitions --------------------------------------------------------------------------------


def test_new_partitions_follow_the_old_ones() -> None:
    image = with_topic("a", partitions=2)
    decision = controller.create_partitions(
        image, [NewPartitions(name="a", partition_count=5)], node_ids=(1,)
    )
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
    decision = controller.create_partitions(with_topic("a"), [asked], node_ids=(1,))
    assert decision.records == ()
    assert decision.results[0].error_code == code
    assert message is None or decision.results[0].error_message == message


def test_partitions_of_a_topic_named_twice_or_only_validated_stay_as_they_are() -> None:
    image = with_topic("a")
    asked = NewPartitions(name="a", partition_count=3)
    twice = controller.create_partitions(image, [asked, asked], node_ids=(1,))
    assert twice.records == ()
    assert [result.error_code for result in twice.results] == [ErrorCode.INVALID_REQUEST]
    checked = controller.create_partitions(image, [asked], node_ids=(1,), intent=Intent.VALIDATE)
    assert checked.records == ()
    assert checked.results[0].error_code == ErrorCode.NONE


# --- properties --------------------------------------------------------------------------------


def test_properties_are_replaced_as_a_whole_and_only_if_they_differ() -> None:
    image = with_topic("a", retention_ms="5")
    same = controller.set_topic_properties(
        image, [NewProperties(name="a", properties={"retention.ms": "5"})], defaults=DEFAULTS
    )
    assert (same.records, same.results[0].error_code) == ((), ErrorCode.NONE)
    changed = controller.set_topic_properties(
        image, [NewProperties(name="a", properties={"segment.ms": "7"})], defaults=DEFAULTS
    )
    assert dict(image.apply_entry(changed.records).topics["a"].properties) == {"segment.ms": "7"}


def test_turning_tiering_off_must_say_what_becomes_of_the_data() -> None:
    image = with_topic("a", remote_storage_enable="true")

    def change(**properties: str) -> ErrorCode:
        texts = {key.replace("_", "."): text for key, text in properties.items()}
        decision = controller.set_topic_properties(
            image, [NewProperties(name="a", properties=texts)], defaults=TIERED
        )
        return decision.results[0].error_code

    assert change() == ErrorCode.INVALID_CONFIG
    assert change(remote_storage_enable="false") == ErrorCode.INVALID_CONFIG
    assert change(remote_log_delete_on_disable="true") == ErrorCode.NONE
    assert change(remote_storage_enable="true", remote_log_copy_disable="true") == ErrorCode.NONE


def test_bad_properties_and_unknown_topics_are_refused() -> None:
    decision = controller.set_topic_properties(
        with_topic("a"),
        [
            NewProperties(name="a", properties={"retention.ms": "x"}),
            NewProperties(name="b", properties={}),
            NewProperties(name="c", properties={}),
            NewProperties(name="c", properties={}),
        ],
        defaults=DEFAULTS,
    )
    assert decision.records == ()
    assert [result.error_code for result in decision.results] == [40, 3, 42]


# --- brokers and producers ---------------------------------------------------------------------


def test_every_start_of_a_broker_raises_its_leader_epochs() -> None:
    image = with_topic("a")
    for expected in (1, 2):
        image = image.apply_entry(controller.start_broker(image, 1).records)
        assert {p.leader_epoch for p in image.topics["a"].partitions} == {expected}


def test_producer_ids_are_never_given_away_twice() -> None:
    image, seen = MetadataImage(), set[int]()
    for _ in range(3):
        decision = controller.allocate_producer_ids(image, 10)
        block = range(decision.first_producer_id, decision.first_producer_id + decision.count)
        assert seen.isdisjoint(block)
        seen.update(block)
        image = image.apply_entry(decision.records)
    assert seen == set(range(30))


def test_running_out_of_producer_ids_is_an_error_and_no_wrap_around() -> None:
    image = MetadataImage(next_producer_id=LONG_MAX - 5)
    with pytest.raises(StorageError, match="given away"):
        controller.allocate_producer_ids(image, 10)
