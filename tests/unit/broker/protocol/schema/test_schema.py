"""The table language and the code it generates, on tables made up for the purpose."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.codec.codegen import make_decoder, make_encoder
from strandline.broker.protocol.codec.decoder_source import DecoderSource
from strandline.broker.protocol.messages.fetch import (
    FetchCurrentLeader,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from strandline.broker.protocol.messages.produce import ProduceResponse
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import Struct


class Point(Struct):
    x: int = wire.int32()
    y: int = wire.int32("2+", default=-1)


class Everything(Struct):
    flag: bool = wire.boolean()
    small: int = wire.int8()
    port: int = wire.uint16()
    big: int = wire.uint32()
    share: float = wire.float64()
    ids: Sequence[uuid.UUID] = wire.array(wire.uuid_)
    numbers: Sequence[int] | None = wire.array(wire.int64, nullable="1+")
    names: Sequence[str] = wire.array(wire.string)
    blob: wire.Buffer = wire.byte_string()
    cursor: Point | None = wire.struct(Point, nullable="0+", default=None)
    nested: Sequence[Sequence[int]] = wire.array(wire.ArrayOf(wire.int8), default=())
    origin: Point | None = wire.optional_struct(Point, "3+", tag=0, default=None)
    title: str | None = wire.string("3+", nullable="3+", tag=5, default=None)
    level: int = wire.int32("3+", tag=200, default=7)


def encode(message: Struct, version: int, *, flexible: bool) -> bytes:
    return codec.join(make_encoder(type(message), version, flexible=flexible)(message))


def decode(cls: type[Struct], version: int, body: bytes, *, flexible: bool) -> Struct:
    message, position = make_decoder(cls, version, flexible=flexible)(
        memoryview(body), 0, len(body)
    )
    assert position == len(body)
    return message


EXAMPLE = Everything(
    flag=True,
    small=-1,
    port=65_535,
    big=2**32 - 1,
    share=0.5,
    ids=[uuid.UUID(int=1), wire.ZERO_UUID],
    numbers=[1, -(2**63)],
    names=["", "ä"],
    blob=b"\x00\xff",
    cursor=Point(x=1, y=2),
    nested=[[], [1, 2]],
    origin=Point(x=3, y=4),
    title="t",
    level=8,
)


@pytest.mark.parametrize(("version", "flexible"), [(3, True), (2, False), (2, True)])
def test_every_wire_type_survives(version: int, flexible: bool) -> None:
    read = decode(
        Everything, version, encode(EXAMPLE, version, flexible=flexible), flexible=flexible
    )
    assert isinstance(read, Everything)
    if version < 3:
        assert (read.origin, read.title, read.level) == (None, None, 7)
    else:
        assert read == EXAMPLE
    assert (read.flag, read.share, read.names) == (True, 0.5, ["", "ä"])
    assert [list(inner) for inner in read.nested] == [[], [1, 2]]


def test_a_nullable_struct_has_a_byte_in_front() -> None:
    class Page(Struct):
        cursor: Point | None = wire.struct(Point, nullable="0+")

    assert encode(Page(cursor=None), 2, flexible=True) == b"\xff\x00"
    there = encode(Page(cursor=Point(x=1, y=2)), 2, flexible=True)
    assert there == b"\x01" + b"\x00\x00\x00\x01\x00\x00\x00\x02\x00" + b"\x00"
    assert decode(Page, 2, b"\xff\x00", flexible=True) == Page(cursor=None)
    assert decode(Page, 2, there, flexible=True) == Page(cursor=Point(x=1, y=2))


def test_fields_outside_of_a_version_are_not_sent_and_read_as_defaults() -> None:
    assert encode(Point(x=1, y=2), 1, flexible=False) == b"\x00\x00\x00\x01"
    assert decode(Point, 1, b"\x00\x00\x00\x01", flexible=False) == Point(x=1)


class Tagged(Struct):
    level: int = wire.int32(tag=1, default=7)
    name: str = wire.string(tag=3, default="")


def test_tags_are_sent_only_where_they_differ_from_the_default() -> None:
    assert encode(Tagged(), 0, flexible=True) == b"\x00"
    assert encode(Tagged(level=8), 0, flexible=True) == b"\x01\x01\x04\x00\x00\x00\x08"
    assert encode(Tagged(name="x"), 0, flexible=True) == b"\x01\x03\x02\x02x"


def test_unknown_tags_between_known_ones_are_skipped() -> None:
    body = b"\x04\x00\x01?\x01\x04\x00\x00\x00\x08\x02\x02??\x03\x02\x02x"
    assert decode(Tagged, 0, body, flexible=True) == Tagged(level=8, name="x")


@pytest.mark.parametrize(
    "body",
    [
        b"\x02\x01\x04\x00\x00\x00\x08\x01\x04\x00\x00\x00\x09",  # twice
        b"\x02\x03\x02\x02x\x01\x04\x00\x00\x00\x08",  # descending
        b"\x01\x01\x05\x00\x00\x00\x08\x00",  # larger than its value
        b"\x01\x01\x03\x00\x00\x00\x08",  # smaller than its value
        b"\x01\x03\x7f\x02x",  # past the end
        b"\x02\x09\x00\x09\x00",  # unknown, twice
    ],
)
def test_tags_that_repeat_descend_or_lie_about_their_size_are_malformed(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode(Tagged, 0, body, flexible=True)


def test_null_is_refused_where_the_version_does_not_allow_it() -> None:
    with pytest.raises(MalformedRequest, match=r"MetadataRequest\.topics must not be null"):
        codec.decode(MetadataRequest, 0, memoryview(b"\xff\xff\xff\xff"))
    with pytest.raises(MalformedRequest, match="name must not be null"):
        codec.decode(MetadataRequest, 9, memoryview(b"\x02\x00\x00\x00\x00\x00\x00"))
    request = codec.decode(MetadataRequest, 1, memoryview(b"\xff\xff\xff\xff"))
    assert request.topics is None


def test_strings_longer_than_kafka_allows_are_malformed() -> None:
    name = b"a" * 32_768
    body = b"\x02" + b"\x81\x80\x02" + name + b"\x00\x01\x00\x00\x00"
    with pytest.raises(MalformedRequest, match="length 32768"):
        codec.decode(MetadataRequest, 9, memoryview(body))


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    """As in Kafka: the name is then simply not found, and the connection lives."""
    body = b"\x00\x00\x00\x01\x00\x02\xc3\x28"
    request = codec.decode(MetadataRequest, 0, memoryview(body))
    assert request == MetadataRequest(topics=[MetadataRequestTopic(name="\ufffd(")])


def test_a_value_that_does_not_fit_is_our_mistake_and_named() -> None:
    with pytest.raises(AssertionError, match="ProduceResponse"):
        codec.encode(ProduceResponse(topics=[], throttle_time_ms=2**31), 9)
    too_long = MetadataResponse(brokers=[], topics=[], cluster_id="x" * 40_000)
    with pytest.raises(AssertionError):
        codec.encode(too_long, 9)
    with pytest.raises(AssertionError):
        codec.encode(too_long, 2)


def test_records_of_a_fetch_response_are_passed_on_untouched() -> None:
    first, second = memoryview(b"first batch"), memoryview(b"second")
    partitions = [
        FetchResponsePartition(
            index=0, high_watermark=9, records=[first, second], records_bytes=17
        ),
        FetchResponsePartition(index=1, high_watermark=9),
        FetchResponsePartition(
            index=2, high_watermark=9, error_code=6, current_leader=FetchCurrentLeader(leader_id=3)
        ),
    ]
    response = FetchResponse(topics=[FetchResponseTopic(name="t", partitions=partitions)])
    for version in (4, 11, 12):
        parts = codec.encode(response, version)
        assert parts[1] is first
        assert parts[2] is second
        read = codec.decode(FetchResponse, version, memoryview(codec.join(parts)))
        assert isinstance(read, FetchResponse)
        assert [part.records_bytes for part in read.topics[0].partitions] == [17, 0, 0]


def test_messages_show_and_compare_their_fields() -> None:
    one = MetadataRequestTopic(name="a")
    assert repr(one) == f"MetadataRequestTopic(topic_id={wire.ZERO_UUID!r}, name='a')"
    assert one == MetadataRequestTopic(name="a")
    assert one != MetadataRequestTopic(name="b")
    assert one != "a"
    assert MetadataRequest(topics=[]) == MetadataRequest(topics=())


def test_a_missing_or_unknown_field_is_refused_by_the_constructor() -> None:
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Point(x=1, z=2)  # type: ignore[call-arg]


def test_the_generated_source_can_be_read() -> None:
    text = DecoderSource(2, flexible=True).write(Point)
    assert text.startswith("def decode(data, p, limit):")
    assert "unpack_ii" in text
