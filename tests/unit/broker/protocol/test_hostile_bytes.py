"""Whatever bytes arrive, decoding gives a message or MalformedRequest, in little memory."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import decode_request_header, decode_response_header
from strandline.broker.protocol.messages.create_topics import CreateTopicsRequest
from strandline.broker.protocol.messages.join_group import JoinGroupRequest
from strandline.broker.protocol.messages.metadata import MetadataRequest
from strandline.broker.protocol.messages.produce import ProduceRequest
from strandline.broker.protocol.produce import decode_produce_request
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.broker.protocol.schema.errors import MalformedRequest, ProtocolError
from strandline.broker.protocol.schema.primitives import uvarint
from strandline.broker.protocol.schema.schema import Message
from tests.unit.broker.protocol.message_values import every_message, label, random_message

SEEDS = st.integers(0, 2**32)
# Numbers that break length arithmetic, in every width.
NASTY = [
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff",
    b"\x7f\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x80\x01",
    b"\x00",
    b"\x01",
]


def mutated(rng: random.Random, body: bytes) -> bytes:
    """A message with a few wounds."""
    wounded = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(wounded) + 1)
        match rng.randrange(5):
            case 0:
                wounded[at : at + 1] = rng.randbytes(1)
            case 1:
                wounded[at:at] = rng.choice(NASTY)
            case 2:
                nasty = rng.choice(NASTY)
                wounded[at : at + len(nasty)] = nasty
            case 3:
                del wounded[at : at + rng.randint(1, 8)]
            case _:
                wounded[at:at] = wounded[: rng.randint(0, 40)]
    return bytes(wounded)


@pytest.mark.parametrize(("cls", "version"), every_message(), ids=label)
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_damaged_and_random_bytes_raise_one_exception_only(
    cls: type[Message], version: int, seed: int
) -> None:
    rng = random.Random(seed)
    body = codec.join(codec.encode(random_message(seed, cls, version), version))
    for attempt in [mutated(rng, body) for _ in range(6)] + [rng.randbytes(rng.randrange(80))]:
        try:
            message = codec.decode(cls, version, memoryview(attempt))
        except MalformedRequest:
            continue
        assert type(message) is cls


@pytest.mark.parametrize(("cls", "version"), every_message(), ids=label)
def test_a_message_cut_anywhere_or_with_bytes_behind_it_is_malformed(
    cls: type[Message], version: int
) -> None:
    for seed in range(3):
        body = codec.join(codec.encode(random_message(seed, cls, version), version))
        rng = random.Random(seed)
        for end in {rng.randrange(len(body)) for _ in range(40)} if body else ():
            with pytest.raises(MalformedRequest):
                codec.decode(cls, version, memoryview(body[:end]))
        with pytest.raises(MalformedRequest):
            codec.decode(cls, version, memoryview(body + b"\x00"))


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS, version=st.integers(3, 13))
def test_the_quick_produce_decoder_judges_damaged_bytes_like_the_general_one(
    seed: int, version: int
) -> None:
    rng = random.Random(seed)
    body = codec.join(codec.encode(random_message(seed, ProduceRequest, version), version))
    for attempt in [mutated(rng, body) for _ in range(5)]:
        view = memoryview(attempt)
        try:
            expected = codec.decode_request(ApiKey.PRODUCE, version, view)
        except MalformedRequest:
            with pytest.raises(MalformedRequest):
                decode_produce_request(version, view)
        else:
            assert decode_produce_request(version, view) == expected


@settings(max_examples=300, deadline=None)
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
    assert decode_response_header(ApiKey.API_VERSIONS, 3, memoryview(frame))[1] == 4


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
    codec.decode_request(ApiKey.METADATA, 9, memoryview(body))
    tracemalloc.start()
    request = codec.decode_request(ApiKey.METADATA, 9, memoryview(body))
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
    codec.decode_request(ApiKey.JOIN_GROUP, 9, memoryview(body))
    tracemalloc.start()
    request = codec.decode_request(ApiKey.JOIN_GROUP, 9, memoryview(body))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(request, JoinGroupRequest)
    assert len(request.protocols) == count
    assert peak_bytes < 40 * len(body)


PRODUCE_V9_HEAD = b"\x00" + bytes(6)


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
        decode_produce_request(9, memoryview(body))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20 * 1024 * 1024


def test_a_produce_request_of_twenty_thousand_topics_is_not() -> None:
    count = 20_000
    topic = b"\x02a\x02" + bytes(4) + b"\x00\x00\x00"
    body = PRODUCE_V9_HEAD + uvarint(count + 1) + topic * count + b"\x00"
    assert len(decode_produce_request(9, memoryview(body)).topics) == count


def test_a_body_without_records_has_a_bound_of_its_own() -> None:
    body = memoryview(bytes(codec.PLAIN_BODY_BYTES_MAX + 1))
    with pytest.raises(MalformedRequest, match="without records"):
        codec.decode_request(ApiKey.METADATA, 9, body)


def test_a_large_produce_request_is_not_bounded_here() -> None:
    """`socket.request.max.bytes` is the only limit for records."""
    size_bytes = codec.PLAIN_BODY_BYTES_MAX + 1
    head = struct.pack(">hhiih1sii", -1, 1, 0, 1, 1, b"t", 1, 0) + struct.pack(">i", size_bytes)
    request = codec.decode_request(ApiKey.PRODUCE, 7, memoryview(head + bytes(size_bytes)))
    assert isinstance(request, ProduceRequest)
    assert len(request.topics[0].partitions[0].records or b"") == size_bytes
