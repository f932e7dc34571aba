"""Frames that real clients sent to a broker of these versions, and what they mean.

Recorded from confluent-kafka 2.16.1 (librdkafka 2.16.0), kafka-python 3.0.12 and aiokafka 0.14.0.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import pytest

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import decode_request_header
from strandline.broker.protocol.messages.api_versions import ApiVersionsRequest
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from strandline.broker.protocol.messages.delete_topics import DeleteTopicsRequest
from strandline.broker.protocol.messages.describe_cluster import DescribeClusterRequest
from strandline.broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from strandline.broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from strandline.broker.protocol.messages.find_coordinator import FindCoordinatorRequest
from strandline.broker.protocol.messages.init_producer_id import InitProducerIdRequest
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from strandline.broker.protocol.schema.schema import Request
from tests.support.wire import encode_request_header


class Captured(NamedTuple):
    what: str
    client_id: str
    frame: str
    message: Request


CAPTURED = [
    Captured(
        "librdkafka API_VERSIONS v3",
        "rdkafka",
        (
            "0012000300000001000772646b61666b610017636f6e666c75656e742d6b61666b612d707974686f"
            "6e16322e31362e312d72646b61666b612d322e31362e3000"
        ),
        ApiVersionsRequest(
            client_software_name="confluent-kafka-python",
            client_software_version="2.16.1-rdkafka-2.16.0",
        ),
    ),
    Captured(
        "librdkafka METADATA v13",
        "rdkafka",
        (
            "0003000d00000002000772646b61666b6100020000000000000000000000000000000008666c6967"
            "68747300010000"
        ),
        MetadataRequest(topics=[MetadataRequestTopic(name="flights")]),
    ),
    Captured(
        "librdkafka INIT_PRODUCER_ID v4",
        "rdkafka",
        ("0016000400000002000772646b61666b610000ffffffffffffffffffffffffffff00"),
        InitProducerIdRequest(transaction_timeout_ms=-1),
    ),
    Captured(
        "librdkafka PRODUCE v10",
        "rdkafka",
        (
            "0000000a00000003000772646b61666b610000ffff000075300208666c696768747302000000004b"
            "00000000000000000000003e00000000028108f1d5000000000000000001a1f9cdb37e000001a1f9"
            "cdb37e00000000000000070000000000000000000118000000026b02760202680231000000"
        ),
        ProduceRequest(
            acks=-1,
            timeout_ms=30000,
            topics=[
                ProduceTopic(
                    name="flights",
                    partitions=[
                        ProducePartition(
                            index=0,
                            records=memoryview(
                                bytes.fromhex(
                                    "00000000000000000000003e00000000028108f1d5000000000000000001a1f9cdb37e000001a1f9cdb37e00000000000000070000000000000000000118000000026b02760202680231"
                                )
                            ),
                        )
                    ],
                )
            ],
        ),
    ),
    Captured(
        "librdkafka FETCH v16",
        "rdkafka",
        (
            "0001001000000002000772646b61666b6100000001f400000001032000000100000000ffffffff02"
            "1234567890abcdef1234567890abcdef0200000000000000000000000000000000ffffffffffffff"
            "ffffffffff001000000000010100"
        ),
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=52428800,
            isolation_level=1,
            topics=[
                FetchTopic(
                    topic_id=uuid.UUID("12345678-90ab-cdef-1234-567890abcdef"),
                    partitions=[
                        FetchPartition(
                            partition=0,
                            current_leader_epoch=0,
                            fetch_offset=0,
                            partition_max_bytes=1048576,
                        )
                    ],
                )
            ],
        ),
    ),
    Captured(
        "librdkafka FIND_COORDINATOR v2",
        "rdkafka",
        ("000a000200000003000772646b61666b6100016700"),
        FindCoordinatorRequest(key="g"),
    ),
    Captured(
        "librdkafka CREATE_TOPICS v4",
        "rdkafka",
        (
            "0013000400000003000772646b61666b61000000010007666c696768747300000003000100000000"
            "00000001000c726574656e74696f6e2e6d7300022d310000ea6000"
        ),
        CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name="flights",
                    num_partitions=3,
                    replication_factor=1,
                    configs=[CreatableTopicConfig(name="retention.ms", value="-1")],
                )
            ]
        ),
    ),
    Captured(
        "librdkafka DESCRIBE_CONFIGS v1",
        "rdkafka",
        ("0020000100000004000772646b61666b6100000001020007666c6967687473ffffffff01"),
        DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=2, resource_name="flights")],
            include_synonyms=True,
        ),
    ),
    Captured(
        "librdkafka DELETE_TOPICS v4",
        "rdkafka",
        ("0014000400000005000772646b61666b61000208666c69676874730000ea6000"),
        DeleteTopicsRequest(topic_names=["flights"], timeout_ms=60000),
    ),
    Captured(
        "kafka-python PRODUCE v9",
        "kafka-python-producer-1",
        (
            "000000090000000400176b61666b612d707974686f6e2d70726f64756365722d310000ffff000075"
            "300208666c696768747302000000004700000000000000000000003a0000000002fb6fb706000000"
            "000000000001a1f9cde094000001a1f9cde094000000000000000700000000000000000001100000"
            "00026b027600000000"
        ),
        ProduceRequest(
            acks=-1,
            timeout_ms=30000,
            topics=[
                ProduceTopic(
                    name="flights",
                    partitions=[
                        ProducePartition(
                            index=0,
                            records=memoryview(
                                bytes.fromhex(
                                    "00000000000000000000003a0000000002fb6fb706000000000000000001a1f9cde094000001a1f9cde09400000000000000070000000000000000000110000000026b027600"
                                )
                            ),
                        )
                    ],
                )
            ],
        ),
    ),
    Captured(
        "kafka-python LIST_OFFSETS v11",
        "kafka-python-3.0.12",
        (
            "0002000b0000000300136b61666b612d707974686f6e2d332e302e313200ffffffff000208666c69"
            "676874730200000000fffffffffffffffffffffffe00000000000000"
        ),
        ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name="flights",
                    partitions=[ListOffsetsPartition(partition_index=0, timestamp=-2)],
                )
            ]
        ),
    ),
    Captured(
        "kafka-python FETCH v12",
        "kafka-python-3.0.12",
        (
            "0001000c0000000400136b61666b612d707974686f6e2d332e302e313200ffffffff000001f40000"
            "0001032000000000000000000000000208666c696768747302000000000000000000000000000000"
            "00ffffffffffffffffffffffff001000000000010100"
        ),
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=52428800,
            session_epoch=0,
            topics=[
                FetchTopic(
                    name="flights",
                    partitions=[
                        FetchPartition(
                            partition=0,
                            current_leader_epoch=0,
                            fetch_offset=0,
                            partition_max_bytes=1048576,
                        )
                    ],
                )
            ],
        ),
    ),
    Captured(
        "kafka-python DESCRIBE_CLUSTER v2",
        "kafka-python-3.0.12",
        ("003c00020000000200136b61666b612d707974686f6e2d332e302e31320001010100"),
        DescribeClusterRequest(
            include_cluster_authorized_operations=True, include_fenced_brokers=True
        ),
    ),
    Captured(
        "aiokafka API_VERSIONS v0",
        "aiokafka-producer-1",
        ("0012000000000001001361696f6b61666b612d70726f64756365722d31"),
        ApiVersionsRequest(),
    ),
    Captured(
        "aiokafka METADATA v5",
        "aiokafka-producer-1",
        ("0003000500000002001361696f6b61666b612d70726f64756365722d310000000001"),
        MetadataRequest(topics=[]),
    ),
    Captured(
        "aiokafka PRODUCE v7",
        "aiokafka-producer-1",
        (
            "0000000700000003001361696f6b61666b612d70726f64756365722d31ffff000100009c40000000"
            "010007666c696768747300000001000000000000004600000000000000000000003affffffff0218"
            "dde301000000000000000001a1f9cde204000001a1f9cde204ffffffffffffffffffff0000000000"
            "00000110000000026b027600"
        ),
        ProduceRequest(
            acks=1,
            timeout_ms=40000,
            topics=[
                ProduceTopic(
                    name="flights",
                    partitions=[
                        ProducePartition(
                            index=0,
                            records=memoryview(
                                bytes.fromhex(
                                    "00000000000000000000003affffffff0218dde301000000000000000001a1f9cde204000001a1f9cde204ffffffffffffffffffff000000000000000110000000026b027600"
                                )
                            ),
                        )
                    ],
                )
            ],
        ),
    ),
    Captured(
        "aiokafka FETCH v11",
        "aiokafka-0.14.0",
        (
            "0001000b00000004000f61696f6b61666b612d302e31342e30ffffffff000001f400000001032000"
            "000000000000ffffffff000000010007666c69676874730000000100000000ffffffff0000000000"
            "000000ffffffffffffffff00100000000000000000"
        ),
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=52428800,
            topics=[
                FetchTopic(
                    name="flights",
                    partitions=[
                        FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1048576)
                    ],
                )
            ],
        ),
    ),
]


@pytest.mark.parametrize("captured", CAPTURED, ids=lambda captured: captured.what)
def test_what_real_clients_send_is_understood_and_would_be_sent_alike(captured: Captured) -> None:
    frame = bytes.fromhex(captured.frame)
    header = decode_request_header(memoryview(frame))
    assert header.client_id == captured.client_id
    body = memoryview(frame)[header.body_position :]
    message = codec.decode_request(codec.request_class(header.api_key), header.api_version, body)
    assert message == captured.message
    head = encode_request_header(
        header.api_key, header.api_version, header.correlation_id, header.client_id
    )
    assert head + codec.join(codec.encode(message, header.api_version)) == frame
