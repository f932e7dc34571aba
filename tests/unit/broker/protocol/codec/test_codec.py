"""Whatever a message holds survives; whatever bytes arrive are a message or MalformedRequest."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import decode_request_header
from strandline.broker.protocol.messages.create_topics import CreateTopicsRequest
from strandline.broker.protocol.messages.join_group import JoinGroupRequest
from strandline.broker.protocol.messages.metadata import MetadataRequest
from strandline.broker.protocol.messages.produce import (
    ProduceRequest,
)
from strandline.broker.protocol.schema.api import SPECS
from strandline.broker.protocol.schema.errors import MalformedRequest, ProtocolError
from strandline.broker.protocol.schema.primitives import uvarint
from strandline.broker.protocol.schema.schema import Message
from tests.unit.broker.protocol.message_values import (
    SEEDS,
    Versions,
    by_class,
    every_message,
    label,
    mutated,
    random_message,
)


@pytest.mark.parametrize(("cls", "versions"), by_class(every_message()), ids=label)
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_damaged_and_random_bytes_raise_one_exception_only(
    cls: type[Message], versions: Versions, seed: int
) -> None:
    for version in versions:
        rng = random.Random(seed)
        body = codec.join(codec.encode(random_message(seed, cls, version), version))
        for attempt in [mutated(rng, body) for _ in range(6)] + [rng.randbytes(rng.randrange(80))]:
            try:
                message = codec.decode(cls, version, memoryview(attempt))
            except MalformedRequest:
                continue
            assert type(message) is cls


@pytest.mark.parametrize(("cls", "versions"), by_class(every_message()), ids=label)
def test_a_message_cut_anywhere_or_with_bytes_behind_it_is_malformed(
    cls: type[Message], versions: Versions
) -> None:
    for version in versions:
        for seed in range(3):
            body = codec.join(codec.encode(random_message(seed, cls, version), version))
            rng = random.Random(seed)
            for end in {rng.randrange(len(body)) for _ in range(40)} if body else ():
                with pytest.raises(MalformedRequest):
                    codec.decode(cls, version, memoryview(body[:end]))
            with pytest.raises(MalformedRequest):
                codec.decode(cls, version, memoryview(body + b"\x00"))


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_random_frames_have_a_header_or_a_protocol_error(seed: int) -> None:
    rng = random.Random(seed)
    key = rng.choice([*SPECS, 4, 999, -1])
    version = rng.randrange(-1, 20)
    frame = struct.pack(">hh", key, version) + rng.randbytes(rng.randrange(30))
    try:
        header = decode_request_header(memoryview(frame))
    except ProtocolError:
        return
    assert header.body_position <= len(frame)
    assert header.api_version in SPECS[header.api_key].supported


@pytest.mark.parametrize(
    ("cls", "version", "body"),
    [
        # The fifteen bytes that make kio reserve 34 GB.
        (MetadataRequest, 12, b"\xff\xff\xff\xff\x0f" + bytes(10)),
        (MetadataRequest, 1, b"\x7f\xff\xff\xff" + bytes(10)),
        (MetadataRequest, 9, uvarint(2**31 - 1) + bytes(100)),
        (CreateTopicsRequest, 2, b"\x7f\xff\xff\xff" + bytes(1000)),
        # A count of int32 that the rest could not hold.
        (CreateTopicsRequest, 5, b"\x02\x02a" + bytes(6) + b"\x02" + bytes(4) + uvarint(2**28)),
        (ProduceRequest, 9, b"\x00" + bytes(6) + uvarint(2**31 - 1) + bytes(1000)),
        (ProduceRequest, 9, b"\x00" + bytes(6) + b"\x02\x02a\x02" + bytes(4) + b"\xff" * 5),
    ],
)
def test_announced_sizes_are_never_allocated(cls: type[Message], version: int, body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        codec.decode(cls, version, memoryview(body))
    tracemalloc.start()
    with pytest.raises(MalformedRequest):
        codec.decode(cls, version, memoryview(body))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000


def test_the_smallest_elements_take_a_small_multiple_of_their_bytes() -> None:
    """Empty names in Metadata v9: two bytes each, the best ratio an attacker can get."""
    count = 10_000
    body = uvarint(count + 1) + b"\x01\x00" * count + b"\x01\x00\x00\x00"
    codec.decode_request(MetadataRequest, 9, memoryview(body))
    tracemalloc.start()
    request = codec.decode_request(MetadataRequest, 9, memoryview(body))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(request, MetadataRequest)
    assert request.topics is not None
    assert len(request.topics) == count
    assert peak_bytes < 40 * len(body)


@pytest.mark.parametrize("metadata", [b"\x01", b"\x02m"])
def test_the_smallest_protocols_of_a_member_take_a_small_multiple_too(metadata: bytes) -> None:
    """A slice object per protocol would be sixty times what was sent for it."""
    count = 10_000
    head = b"\x02g" + bytes(8) + b"\x01\x00\x01" + uvarint(count + 1)
    body = head + (b"\x01" + metadata + b"\x00") * count + b"\x00\x00"
    codec.decode_request(JoinGroupRequest, 9, memoryview(body))
    tracemalloc.start()
    request = codec.decode_request(JoinGroupRequest, 9, memoryview(body))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(request, JoinGroupRequest)
    assert len(request.protocols) == count
    assert peak_bytes < 40 * len(body)


def test_a_body_without_records_has_a_bound_of_its_own() -> None:
    body = memoryview(bytes(codec.PLAIN_BODY_BYTES_MAX + 1))
    with pytest.raises(MalformedRequest, match="without records"):
        codec.decode_request(MetadataRequest, 9, body)


@pytest.mark.parametrize(("cls", "versions"), by_class(every_message()), ids=label)
@settings(max_examples=8, deadline=None)
@given(seed=SEEDS)
def test_every_message_survives_encoding_and_decoding(
    cls: type[Message], versions: Versions, seed: int
) -> None:
    for version in versions:
        message = random_message(seed, cls, version)
        body = codec.join(codec.encode(message, version))
        decoded = codec.decode(cls, version, memoryview(body))
        assert decoded == message
        assert codec.join(codec.encode(decoded, version)) == body
