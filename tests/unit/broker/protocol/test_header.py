"""Headers and frames."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from kio.schema.request_header.v1.header import RequestHeader as KioHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioHeaderV2
from kio.serial import entity_reader

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import (
    decode_request_header,
    frame,
    frame_response,
    size_of,
)
from strandline.broker.protocol.messages.api_versions import ApiVersionRange, ApiVersionsResponse
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode, MalformedRequest, UnsupportedVersion
from tests.support.wire import decode_response_header, encode_request_header


@dataclass(frozen=True)
class Range:
    """Stands for a range of a file."""

    length: int


def test_every_served_version_has_the_header_that_kio_reads() -> None:
    for spec in SPECS.values():
        for version in spec.supported:
            raw = encode_request_header(spec.key, version, 77, "my client")
            kio_class = KioHeaderV2 if spec.is_flexible(version) else KioHeaderV1
            theirs, size_bytes = entity_reader(kio_class)(raw, 0)
            assert size_bytes == len(raw)
            assert (theirs.request_api_key, theirs.request_api_version) == (spec.key, version)
            ours = decode_request_header(memoryview(raw + b"body"))
            assert (ours.api_key, ours.api_version) == (spec.key, version)
            assert (ours.correlation_id, ours.client_id) == (77, "my client")
            assert ours.body_position == len(raw)


def test_a_null_client_id_is_the_empty_one() -> None:
    for client_id in (None, ""):
        raw = encode_request_header(ApiKey.METADATA, 9, 1, client_id)
        assert decode_request_header(memoryview(raw)).client_id == ""


def test_a_client_id_that_is_no_utf8_is_accepted() -> None:
    raw = struct.pack(">hhih", 3, 1, 5, 2) + b"\xff\xfe"
    assert decode_request_header(memoryview(raw)).client_id == "\ufffd\ufffd"


def test_unknown_tags_in_a_header_are_skipped() -> None:
    raw = struct.pack(">hhih", 3, 9, 5, -1) + b"\x02" + b"\x00\x01a" + b"\x07\x03bcd"
    assert decode_request_header(memoryview(raw + b"body")).body_position == len(raw)


@pytest.mark.parametrize(
    "tags", [b"\x02\x01\x00\x01\x00", b"\x02\x03\x00\x01\x00", b"\x01\x00\x05abcd", b"\xff" * 6]
)
def test_tags_that_repeat_descend_or_overrun_are_malformed(tags: bytes) -> None:
    raw = struct.pack(">hhih", 3, 9, 5, -1) + tags
    with pytest.raises(MalformedRequest):
        decode_request_header(memoryview(raw))


def test_a_header_cut_anywhere_is_malformed() -> None:
    raw = encode_request_header(ApiKey.METADATA, 9, 1, "client")
    for end in range(len(raw)):
        with pytest.raises(MalformedRequest):
            decode_request_header(memoryview(raw[:end]))


@pytest.mark.parametrize(
    ("key", "version"), [(18, 6), (18, -1), (0, 14), (3, 14), (4, 0), (999, 0)]
)
def test_an_unknown_api_or_version_says_what_an_answer_would_need(key: int, version: int) -> None:
    """Even if nothing readable follows: the layout of an unknown header is unknown."""
    for rest in (b"", b"\x7f\xff", b"\x00\x03abc\x00"):
        with pytest.raises(UnsupportedVersion) as caught:
            decode_request_header(memoryview(struct.pack(">hhi", key, version, 4711) + rest))
        assert (caught.value.api_key, caught.value.api_version) == (key, version)
        assert caught.value.correlation_id == 4711
        assert caught.value.kafka_code == ErrorCode.UNSUPPORTED_VERSION


def test_responses_of_flexible_versions_have_tags_except_those_of_api_versions() -> None:
    def header_of(key: ApiKey, version: int) -> bytes:
        return codec.join(frame_response(key, version, 7, []))[4:]

    assert header_of(ApiKey.METADATA, 8) == b"\x00\x00\x00\x07"
    assert header_of(ApiKey.METADATA, 9) == b"\x00\x00\x00\x07\x00"
    for version in (0, 3, 4):
        assert header_of(ApiKey.API_VERSIONS, version) == b"\x00\x00\x00\x07"
    for key, version in ((ApiKey.METADATA, 9), (ApiKey.METADATA, 8), (ApiKey.API_VERSIONS, 3)):
        raw = header_of(key, version)
        assert decode_response_header(key, version, memoryview(raw)) == (7, len(raw))


def test_the_answer_to_an_unknown_api_versions_version_is_the_one_of_kip_511() -> None:
    ours = SPECS[ApiKey.API_VERSIONS].supported
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[
            ApiVersionRange(
                api_key=ApiKey.API_VERSIONS, min_version=ours.lowest, max_version=ours.highest
            )
        ],
    )
    parts = frame_response(ApiKey.API_VERSIONS, 0, 4711, codec.encode(response, 0))
    assert codec.join(parts) == struct.pack(">iihihhh", 16, 4711, 35, 1, 18, 0, 5)


def test_frames_count_parts_that_are_not_in_memory_and_pass_them_through() -> None:
    parts = [b"abc", memoryview(b"de"), bytearray(b"f"), Range(1000)]
    assert size_of(parts) == 1006
    framed = frame(parts)
    assert framed[0] == struct.pack(">i", 1006)
    assert all(one is another for one, another in zip(framed[1:], parts, strict=True))


@pytest.mark.parametrize(
    ("version", "header"), [(12, b"\x00\x00\x00\x09\x00"), (11, b"\x00\x00\x00\x09")]
)
def test_a_framed_response_is_header_and_parts_in_a_frame(version: int, header: bytes) -> None:
    parts = [b"abc", Range(1000)]
    framed = frame_response(ApiKey.FETCH, version, 9, parts)
    plain = frame([header, *parts])
    assert framed[1:] == plain[2:]
    assert framed[0] == codec.join(plain[:2])
