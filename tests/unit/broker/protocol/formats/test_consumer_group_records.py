"""Records of KIP-848 groups, byte for byte as Kafka's own classes write them."""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.protocol.formats.consumer_group_records import (
    AssignedPartitions,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignmentValue,
    CurrentPartitions,
    GroupEpochValue,
    MemberMetadataValue,
    ResolvedRegexValue,
    SubscribedTopicMetadata,
    TargetAssignmentValue,
    TargetEpochValue,
    TopicMetadataValue,
    decode_consumer_key,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
)
from strandline.broker.protocol.schema.errors import MalformedRequest

TOPIC_ID = uuid.UUID(bytes=bytes(range(16)))


def member(classic: ClassicMemberMetadata | None) -> MemberMetadataValue:
    return MemberMetadataValue(
        instance_id="i",
        rack_id=None,
        client_id="c",
        client_host="/h",
        topic_names=["t", "u"],
        topic_regex="a.*",
        rebalance_timeout_ms=300_000,
        server_assignor="uniform",
        classic=classic,
    )


# Written by the classes of Apache Kafka 4.1 (where not said otherwise) from the values beside them.
KEYS = [
    ("0003000167", ConsumerGroupKey(record_type=3, group="g")),
    ("0004000167", ConsumerGroupKey(record_type=4, group="g")),
    ("000500016700016d", ConsumerGroupKey(record_type=5, group="g", name="m")),
    ("0006000167", ConsumerGroupKey(record_type=6, group="g")),
    ("000700016700016d", ConsumerGroupKey(record_type=7, group="g", name="m")),
    ("000800016700016d", ConsumerGroupKey(record_type=8, group="g", name="m")),
    ("00100001670003612e2a", ConsumerGroupKey(record_type=16, group="g", name="a.*")),
]
VALUES: list[tuple[int, str, ConsumerGroupValue]] = [
    (3, "000000000007010008fffffffffffffffb", GroupEpochValue(epoch=7, metadata_hash=-5)),
    (3, "00000000000700", GroupEpochValue(epoch=7)),
    (
        4,
        "000002000102030405060708090a0b0c0d0e0f027400000003010000",
        TopicMetadataValue(
            topics=[SubscribedTopicMetadata(topic_id=TOPIC_ID, topic_name="t", partition_count=3)]
        ),
    ),
    (
        5,
        # Of Apache Kafka 4.4's coordinator: a member that is none of the classic protocol says so.
        "00000269000263032f68030274027504612e2a000493e008756e69666f726d01000100",
        member(None),
    ),
    (
        5,
        "00000269000263032f68030274027504612e2a000493e008756e69666f726d"
        "010011010000afc8020672616e67650301020000",
        member(
            ClassicMemberMetadata(
                session_timeout_ms=45_000,
                protocols=[ClassicProtocol(name="range", metadata=b"\x01\x02")],
            )
        ),
    ),
    (6, "00000000000900", TargetEpochValue(epoch=9)),
    (
        7,
        "000002000102030405060708090a0b0c0d0e0f0300000000000000020000",
        TargetAssignmentValue(
            topic_partitions=[AssignedPartitions(topic_id=TOPIC_ID, partitions=[0, 2])]
        ),
    ),
    (
        8,
        "000000000009000000080102000102030405060708090a0b0c0d0e0f030000000000000002"
        "0002000102030405060708090a0b0c0d0e0f02000000010000",
        CurrentAssignmentValue(
            epoch=9,
            previous_epoch=8,
            state=1,
            assigned=[CurrentPartitions(topic_id=TOPIC_ID, partitions=[0, 2])],
            revoking=[CurrentPartitions(topic_id=TOPIC_ID, partitions=[1])],
        ),
    ),
    # By Kafka 4.3, which writes since when the member has had each partition.
    (
        8,
        "000000000009000000080102000102030405060708090a0b0c0d0e0f030000000000000002"
        "01000903000000050000000902000102030405060708090a0b0c0d0e0f020000000101000502"
        "0000000700",
        CurrentAssignmentValue(
            epoch=9,
            previous_epoch=8,
            state=1,
            assigned=[
                CurrentPartitions(topic_id=TOPIC_ID, partitions=[0, 2], assignment_epochs=[5, 9])
            ],
            revoking=[CurrentPartitions(topic_id=TOPIC_ID, partitions=[1], assignment_epochs=[7])],
        ),
    ),
    (
        16,
        "00000303616203616300000000000000050000018bcfe5680000",
        ResolvedRegexValue(topics=["ab", "ac"], version=5, timestamp_ms=1_700_000_000_000),
    ),
]


@pytest.mark.parametrize(("golden", "key"), KEYS)
def test_keys_are_those_of_kafka(golden: str, key: ConsumerGroupKey) -> None:
    assert encode_consumer_key(key).hex() == golden
    assert decode_consumer_key(bytes.fromhex(golden)) == key


@pytest.mark.parametrize(("record_type", "golden", "value"), VALUES)
def test_values_are_those_of_kafka(
    record_type: int, golden: str, value: ConsumerGroupValue
) -> None:
    assert encode_consumer_value(value).hex() == golden
    assert decode_consumer_value(record_type, bytes.fromhex(golden)) == value


def test_a_member_of_which_nothing_is_said_is_none_of_the_classic_protocol() -> None:
    """As this broker wrote it before it wrote null, where Apache Kafka reads an empty struct."""
    raw = "00000269000263032f68030274027504612e2a000493e008756e69666f726d00"
    assert decode_consumer_value(5, bytes.fromhex(raw)) == member(None)


def test_partitions_may_say_that_their_epochs_are_null() -> None:
    raw = (
        "000000000009000000080102000102030405060708090a0b0c0d0e0f030000000000000002"
        "0100010002000102030405060708090a0b0c0d0e0f02000000010100010000"
    )
    value = decode_consumer_value(8, bytes.fromhex(raw))
    assert isinstance(value, CurrentAssignmentValue)
    rows = (*value.assigned, *value.revoking)
    assert [(row.partitions, row.assignment_epochs) for row in rows] == [
        ([0, 2], None),
        ([1], None),
    ]


def test_a_value_of_a_newer_version_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="version 1"):
        decode_consumer_value(6, bytes.fromhex("00010000000900"))


def test_bytes_behind_a_key_are_refused() -> None:
    with pytest.raises(MalformedRequest, match="left"):
        decode_consumer_key(bytes.fromhex("000300016700"))


def test_a_value_that_ends_in_the_middle_is_refused() -> None:
    for record_type, golden, _ in VALUES:
        raw = bytes.fromhex(golden)
        for length in range(len(raw)):
            with pytest.raises(MalformedRequest):
                decode_consumer_value(record_type, raw[:length])
