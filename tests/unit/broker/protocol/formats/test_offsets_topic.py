"""Records of `__consumer_offsets`, byte for byte as Kafka's own classes write them."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.broker.protocol.formats.offsets_topic import (
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    decode_group_metadata,
    decode_key,
    decode_offset_commit,
    encode_group_metadata,
    encode_key,
    encode_offset_commit,
)
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import ZERO_UUID

VERSIONS = range(5)
# Written by the classes of Apache Kafka 4.1 from the values below.
LEGACY_OFFSET_KEY = bytes.fromhex("000000056772c3bc6e0007666c696768747300000007")
OFFSET_KEY = bytes.fromhex("000100056772c3bc6e0007666c696768747300000007")
GROUP_KEY = bytes.fromhex("000200056772c3bc6e")
CONSUMER_GROUP_KEY = bytes.fromhex("0003000167")
OFFSETS = [
    "00000000011f71fb04cb00056dc3a974610000018bcfe5687b",
    "00010000011f71fb04cb00056dc3a974610000018bcfe5687b0000018bcfe6ee9f",
    "00020000011f71fb04cb00056dc3a974610000018bcfe5687b",
    "00030000011f71fb04cb0000000500056dc3a974610000018bcfe5687b",
    (
        "00040000011f71fb04cb00000005066dc3a974610000018bcfe5687b"
        "01001001020304050607081112131415161718"
    ),
]
GROUPS = [
    (
        "00000008636f6e73756d657200000003000572616e676500036d2d310000000200036d2d310001630"
        "00a2f3132372e302e302e310000afc800000003000102000000010300036d2d32000000042f3a3a31"
        "000027100000000000000000"
    ),
    (
        "00010008636f6e73756d657200000003000572616e676500036d2d310000000200036d2d310001630"
        "00a2f3132372e302e302e31000493e00000afc800000003000102000000010300036d2d3200000004"
        "2f3a3a310000ea60000027100000000000000000"
    ),
    (
        "00020008636f6e73756d657200000003000572616e676500036d2d310000018bcfe569c8000000020"
        "0036d2d31000163000a2f3132372e302e302e31000493e00000afc800000003000102000000010300"
        "036d2d32000000042f3a3a310000ea60000027100000000000000000"
    ),
    (
        "00030008636f6e73756d657200000003000572616e676500036d2d310000018bcfe569c8000000020"
        "0036d2d310003692d31000163000a2f3132372e302e302e31000493e00000afc80000000300010200"
        "0000010300036d2d32ffff000000042f3a3a310000ea60000027100000000000000000"
    ),
    (
        "000409636f6e73756d6572000000030672616e6765046d2d310000018bcfe569c803046d2d3104692"
        "d3102630b2f3132372e302e302e31000493e00000afc804000102020300046d2d320001052f3a3a31"
        "0000ea600000271001010000"
    ),
]
EMPTY_GROUP = "0003000000000000ffffffffffffffffffffffff00000000"
COMMIT = OffsetCommitValue(
    offset=1_234_567_890_123,
    leader_epoch=5,
    metadata="méta",
    committed_ms=1_700_000_000_123,
    expires_ms=1_700_000_099_999,
    topic_id=uuid.UUID("01020304-0506-0708-1112-131415161718"),
)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=3,
    protocol_name="range",
    leader="m-1",
    state_since_ms=1_700_000_000_456,
    members=(
        GroupMember(
            member_id="m-1",
            group_instance_id="i-1",
            client_id="c",
            client_host="/127.0.0.1",
            rebalance_timeout_ms=300_000,
            session_timeout_ms=45_000,
            metadata=b"\x00\x01\x02",
            assignment=b"\x03",
        ),
        GroupMember(
            member_id="m-2",
            client_id="",
            client_host="/::1",
            rebalance_timeout_ms=60_000,
            session_timeout_ms=10_000,
            metadata=b"",
            assignment=b"",
        ),
    ),
)


def commit_as_told_by(version: int) -> OffsetCommitValue:
    return COMMIT.replaced(
        leader_epoch=COMMIT.leader_epoch if version >= 3 else -1,
        expires_ms=COMMIT.expires_ms if version == 1 else -1,
        topic_id=COMMIT.topic_id if version >= 4 else ZERO_UUID,
    )


def group_as_told_by(version: int) -> GroupMetadataValue:
    return GROUP.replaced(
        state_since_ms=GROUP.state_since_ms if version >= 2 else -1,
        members=tuple(
            member.replaced(
                rebalance_timeout_ms=member.rebalance_timeout_ms if version >= 1 else -1,
                group_instance_id=member.group_instance_id if version >= 3 else None,
            )
            for member in GROUP.members
        ),
    )


# --- keys ------------------------------------------------------------------------------------


def test_keys_are_those_of_kafka() -> None:
    offset_key = OffsetCommitKey(group="grün", topic="flights", partition=7)
    assert encode_key(offset_key) == OFFSET_KEY
    assert decode_key(OFFSET_KEY) == offset_key
    assert encode_key(GroupMetadataKey(group="grün")) == GROUP_KEY
    assert decode_key(GROUP_KEY) == GroupMetadataKey(group="grün")


def test_a_legacy_key_names_the_same_offset() -> None:
    assert decode_key(LEGACY_OFFSET_KEY) == decode_key(OFFSET_KEY)


def test_other_kinds_of_groups_are_told_by_their_type() -> None:
    assert decode_key(CONSUMER_GROUP_KEY) == UnknownKey(record_type=3)
    assert decode_key(b"\xff\xff") == UnknownKey(record_type=-1)


@pytest.mark.parametrize("raw", [b"", b"\x00", GROUP_KEY[:-1], GROUP_KEY + b"\x00", OFFSET_KEY[:9]])
def test_a_key_that_is_cut_or_too_long_is_unreadable(raw: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_key(raw)


# --- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_committed_offsets_are_those_of_kafka(version: int) -> None:
    golden = bytes.fromhex(OFFSETS[version])
    assert encode_offset_commit(COMMIT, version) == golden
    assert decode_offset_commit(golden) == commit_as_told_by(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_are_those_of_kafka(version: int) -> None:
    golden = bytes.fromhex(GROUPS[version])
    assert encode_group_metadata(GROUP, version) == golden
    assert decode_group_metadata(golden) == group_as_told_by(version)


def test_an_empty_group_is_that_of_kafka() -> None:
    empty = GroupMetadataValue(protocol_type="", generation=0)
    assert encode_group_metadata(empty).hex() == EMPTY_GROUP
    assert decode_group_metadata(bytes.fromhex(EMPTY_GROUP)) == empty


@pytest.mark.parametrize(
    ("commit", "version"),
    [
        (COMMIT.replaced(expires_ms=-1, topic_id=ZERO_UUID), 3),
        (COMMIT.replaced(expires_ms=-1), 4),
        (COMMIT, 1),
    ],
)
def test_an_offset_is_written_in_the_version_that_it_needs(
    commit: OffsetCommitValue, version: int
) -> None:
    raw = encode_offset_commit(commit)
    assert raw == encode_offset_commit(commit, version)
    if version != 1:
        assert decode_offset_commit(raw) == commit


def test_what_is_read_does_not_hold_the_buffer() -> None:
    buffer = bytearray(bytes.fromhex(GROUPS[3]))
    read = decode_group_metadata(buffer)
    # Raises BufferError as long as anybody looks into it.
    buffer.clear()
    assert read == GROUP


@settings(max_examples=60, deadline=None)
@given(
    version=st.sampled_from(VERSIONS),
    text=st.text(max_size=200),
    number=st.integers(-(2**31), 2**31 - 1),
    raw=st.binary(max_size=300),
    count=st.integers(0, 3),
)
def test_everything_survives_writing_and_reading(
    version: int, text: str, number: int, raw: bytes, count: int
) -> None:
    key = OffsetCommitKey(group=text, topic=text[::-1], partition=number)
    assert decode_key(encode_key(key)) == key
    commit = OffsetCommitValue(offset=number << 31, metadata=text, committed_ms=number)
    assert decode_offset_commit(encode_offset_commit(commit, version)) == commit
    member = GroupMember(
        member_id=text,
        client_id=text,
        client_host="",
        session_timeout_ms=number,
        metadata=raw,
        assignment=raw[::-1],
    )
    group = GroupMetadataValue(
        protocol_type=text, generation=number, protocol_name=text or None, members=(member,) * count
    )
    assert decode_group_metadata(encode_group_metadata(group, version)) == group


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_a_value_of_an_unknown_version_is_unreadable(version: int) -> None:
    raw = version.to_bytes(2, "big", signed=True) + bytes(60)
    with pytest.raises(MalformedRequest, match="version"):
        decode_offset_commit(raw)
    with pytest.raises(MalformedRequest, match="version"):
        decode_group_metadata(raw)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_value_cut_anywhere_or_with_bytes_behind_it_is_unreadable(version: int) -> None:
    raw = bytes.fromhex(GROUPS[version])
    for end in range(len(raw)):
        with pytest.raises(MalformedRequest):
            decode_group_metadata(raw[:end])
    with pytest.raises(MalformedRequest):
        decode_offset_commit(bytes.fromhex(OFFSETS[version]) + b"\x00")


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_records_raise_one_exception_only(seed: int) -> None:
    rng = random.Random(seed)
    raw = bytearray(bytes.fromhex(rng.choice(GROUPS + OFFSETS)))
    for _ in range(rng.randint(1, 3)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    for decode in (decode_key, decode_offset_commit, decode_group_metadata):
        for attempt in (bytes(raw), rng.randbytes(rng.randrange(60))):
            try:
                decode(attempt)
            except MalformedRequest:
                continue
