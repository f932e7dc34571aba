"""Versions that only Kafka 4.4 has, as its own classes (kafka-clients 4.4.0) encode them."""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.messages.api_versions import (
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from strandline.broker.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from strandline.broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from strandline.broker.protocol.schema.schema import Message
from tests.unit.broker.protocol.message_values import NEWEST_VERSIONS

TOPIC_ID = uuid.UUID(bytes=bytes(range(16)))
ENCODED = {
    "056a61766106342e342e3008636c75737465720000000700": ApiVersionsRequest(
        client_software_name="java",
        client_software_version="4.4.0",
        cluster_id="cluster",
        node_id=7,
    ),
    "056a61766106342e342e3000ffffffff00": ApiVersionsRequest(
        client_software_name="java", client_software_version="4.4.0"
    ),
    "0081010000000000": ApiVersionsResponse(error_code=129, api_keys=()),
    "00000200120000000500000000000101080000000000000009": ApiVersionsResponse(
        api_keys=[ApiVersionRange(api_key=18, min_version=0, max_version=5)],
        finalized_features_epoch=9,
    ),
    (
        "03747802670000000000000005000200000003026d026902000102030405060708090a0b0c0d0e0f02"
        "00000001000000000000000c000000040278000000"
    ): TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        producer_id=5,
        producer_epoch=2,
        generation_id_or_member_epoch=3,
        member_id="m",
        group_instance_id="i",
        topics=[
            TxnOffsetCommitRequestTopic(
                topic_id=TOPIC_ID,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=1,
                        committed_offset=12,
                        committed_leader_epoch=4,
                        committed_metadata="x",
                    )
                ],
            )
        ],
    ),
    "0000000602000102030405060708090a0b0c0d0e0f02000000010071000000": TxnOffsetCommitResponse(
        throttle_time_ms=6,
        topics=[
            TxnOffsetCommitResponseTopic(
                topic_id=TOPIC_ID,
                partitions=[TxnOffsetCommitResponsePartition(partition_index=1, error_code=113)],
            )
        ],
    ),
    "030261026200": DeleteGroupsRequest(groups_names=["a", "b"]),
    "000000060302610000000002620044047768790000": DeleteGroupsResponse(
        throttle_time_ms=6,
        results=[
            DeletableGroupResult(group_id="a"),
            DeletableGroupResult(group_id="b", error_code=68, error_message="why"),
        ],
    ),
}


def test_each_version_that_no_library_knows_is_here() -> None:
    assert {message.spec.key for message in ENCODED.values()} == NEWEST_VERSIONS.keys()


@pytest.mark.parametrize(("encoded", "message"), ENCODED.items())
def test_the_bytes_are_those_of_kafka(encoded: str, message: Message) -> None:
    version = NEWEST_VERSIONS[message.spec.key]
    body = bytes.fromhex(encoded)
    assert codec.join(codec.encode(message, version)) == body
    decoded = codec.decode(type(message), version, memoryview(body))
    assert decoded == message
