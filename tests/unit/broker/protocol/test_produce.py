"""Produce: its bounds, records that are not copied, and the answer that is encoded by hand."""

from __future__ import annotations

import struct
import tracemalloc
import uuid

import pytest

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import (
    frame_response,
)
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)
from strandline.broker.protocol.produce import frame_appended
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.primitives import uvarint

PRODUCE_V9_HEAD = b"\x00" + bytes(6)


@pytest.mark.parametrize("version", list(SPECS[ApiKey.PRODUCE].supported))
@pytest.mark.parametrize("name", ["t", "x" * 126, "x" * 127, "x" * 249])
def test_the_quick_answer_equals_the_generated_one(version: int, name: str) -> None:
    topic_id = uuid.uuid4() if version >= 13 else None
    topic = ProduceTopic(name="" if topic_id else name, topic_id=topic_id, partitions=())
    quick = frame_appended(version, 77, topic, 3, 2**40, -1, 12)
    if quick is None:
        assert version < 9 or len(name) > 126
        return
    response = ProduceResponse(
        topics=[
            ProduceResponseTopic(
                name=topic.name,
                topic_id=topic_id,
                partitions=[
                    ProduceResponsePartition(
                        index=3, base_offset=2**40, log_append_time_ms=-1, log_start_offset=12
                    )
                ],
            )
        ]
    )
    body = codec.encode(response, version)
    assert quick == codec.join(frame_response(ApiKey.PRODUCE, version, 77, body))


@pytest.mark.parametrize(
    "body",
    [
        # One topic of five million partitions, each without records.
        PRODUCE_V9_HEAD + b"\x02\x02a" + uvarint(5_000_001) + bytes(30_000_000),
        # As many topics; their partitions are none.
        PRODUCE_V9_HEAD + uvarint(5_000_001) + b"\x02a\x01\x00" * 5_000_000 + b"\x00",
        # A thousand topics of a thousand partitions each.
        PRODUCE_V9_HEAD
        + uvarint(1_001)
        + (b"\x02a" + uvarint(1_001) + (bytes(4) + b"\x00\x00") * 1_000 + b"\x00") * 1_000
        + b"\x00",
        # Tags that nobody knows, behind the only partition.
        PRODUCE_V9_HEAD + b"\x02\x02a\x02" + bytes(4) + b"\x00" + uvarint(5_000_000)
        + b"".join(uvarint(tag) + b"\x00" for tag in range(50_000))
        + bytes(20_000_000),
    ],
    ids=["partitions", "topics", "both", "tags"],
)  # fmt: skip
def test_a_produce_request_of_very_many_parts_is_given_up_before_they_are_made(
    body: bytes,
) -> None:
    """It is decoded on the event loop: millions of partitions would hold up everybody."""
    tracemalloc.start()
    with pytest.raises(MalformedRequest, match="more elements"):
        codec.decode_request(ProduceRequest, 9, memoryview(body))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20 * 1024 * 1024


def test_a_produce_request_of_twenty_thousand_topics_is_not() -> None:
    count = 20_000
    topic = b"\x02a\x02" + bytes(4) + b"\x00\x00\x00"
    body = PRODUCE_V9_HEAD + uvarint(count + 1) + topic * count + b"\x00"
    assert len(codec.decode_request(ProduceRequest, 9, memoryview(body)).topics) == count


def test_a_large_produce_request_is_not_bounded_here() -> None:
    """`socket.request.max.bytes` is the only limit for records."""
    size_bytes = codec.PLAIN_BODY_BYTES_MAX + 1
    head = struct.pack(">hhiih1sii", -1, 1, 0, 1, 1, b"t", 1, 0) + struct.pack(">i", size_bytes)
    request = codec.decode_request(ProduceRequest, 7, memoryview(head + bytes(size_bytes)))
    assert isinstance(request, ProduceRequest)
    assert len(request.topics[0].partitions[0].records or b"") == size_bytes


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional_id", [None, "", "t", "x" * 126, "x" * 127])
def test_produce_requests_of_any_size_are_read_without_copying(
    version: int, transactional_id: str | None
) -> None:
    for size_bytes in (0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_150, 2_200_000):
        request = _one_batch(version, memoryview(bytes(size_bytes)), transactional_id)
        body = memoryview(bytearray(codec.join(codec.encode(request, version))))
        decoded = codec.decode_request(ProduceRequest, version, body)
        assert decoded == request
        records = decoded.topics[0].partitions[0].records
        assert records is not None
        assert len(records) == size_bytes
        assert records.obj is body.obj


def _one_batch(version: int, batch: memoryview, transactional_id: str | None) -> ProduceRequest:
    partition = ProducePartition(index=3, records=batch)
    topic = (
        ProduceTopic(topic_id=uuid.UUID(int=7), partitions=[partition])
        if version >= 13
        else ProduceTopic(name="flights", partitions=[partition])
    )
    return ProduceRequest(
        transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topics=[topic]
    )
