"""Whatever a message holds, decoding what was encoded gives it back: every API, every version."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.fetch import decode_fetch_request, encode_fetch_response
from strandline.broker.protocol.messages.fetch import FetchRequest, FetchResponse
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from strandline.broker.protocol.produce import decode_produce_request, encode_produce_response
from strandline.broker.protocol.schema.schema import Message
from tests.unit.broker.protocol.message_values import every_message, label, random_message

SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize(("cls", "version"), every_message(), ids=label)
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_every_message_survives_encoding_and_decoding(
    cls: type[Message], version: int, seed: int
) -> None:
    message = random_message(seed, cls, version)
    body = codec.join(codec.encode(message, version))
    decoded = codec.decode(cls, version, memoryview(body))
    assert decoded == message
    assert codec.join(codec.encode(decoded, version)) == body


@pytest.mark.parametrize("version", range(3, 14))
@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_the_quick_produce_decoder_reads_what_the_general_one_reads(
    version: int, seed: int
) -> None:
    request = random_message(seed, ProduceRequest, version)
    body = memoryview(codec.join(codec.encode(request, version)))
    assert decode_produce_request(version, body) == request


@pytest.mark.parametrize("version", range(3, 14))
def test_usual_produce_requests_of_any_size_are_read_without_copying(version: int) -> None:
    for size_bytes in (0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_150, 2_200_000):
        request = _one_batch(version, memoryview(bytes(size_bytes)))
        body = memoryview(bytearray(codec.join(codec.encode(request, version))))
        decoded = decode_produce_request(version, body)
        assert decoded == request
        records = decoded.topics[0].partitions[0].records
        assert records is not None
        assert len(records) == size_bytes
        assert records.obj is body.obj


def _one_batch(version: int, batch: memoryview) -> ProduceRequest:
    partition = ProducePartition(index=3, records=batch)
    topic = (
        ProduceTopic(topic_id=uuid.UUID(int=7), partitions=[partition])
        if version >= 13
        else ProduceTopic(name="flights", partitions=[partition])
    )
    return ProduceRequest(acks=-1, timeout_ms=30_000, topics=[topic])


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, version=st.integers(4, 18))
def test_the_typed_entrances_of_fetch_agree_with_the_codec(seed: int, version: int) -> None:
    request = random_message(seed, FetchRequest, version)
    body = memoryview(codec.join(codec.encode(request, version)))
    assert decode_fetch_request(version, body) == request
    response = random_message(seed, FetchResponse, version)
    assert encode_fetch_response(version, response) == codec.encode(response, version)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, version=st.integers(3, 13))
def test_the_typed_entrance_of_produce_responses_agrees_with_the_codec(
    seed: int, version: int
) -> None:
    response = random_message(seed, ProduceResponse, version)
    assert encode_produce_response(version, response) == codec.encode(response, version)
