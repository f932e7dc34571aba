"""Subscriptions and assignments: the bytes of Kafka's own consumer, and of kio and kafka-python."""

from __future__ import annotations

import importlib
import io
import random
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from strandline.broker.protocol.formats.consumer_protocol import (
    CONSUMER_PROTOCOL_VERSION_MAX,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_assignment,
    decode_subscribed_topics,
    decode_subscription,
    encode_assignment,
)
from strandline.broker.protocol.schema.errors import MalformedRequest
from tests.support.subscriptions import encode_subscription
from tests.unit.broker.protocol.message_values import random_struct

with warnings.catch_warnings():
    # kafka-python reads its definitions in a way that Python is going to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.protocol.consumer.metadata as kafka_python


SEEDS = st.integers(0, 2**32)
VERSIONS = range(CONSUMER_PROTOCOL_VERSION_MAX + 1)
# Written by the classes of Apache Kafka 4.1.
KAFKA_SUBSCRIPTIONS = [
    "0000000000020001610001620000000109",
    "000100000002000161000162000000010900000001000161000000020000000000000002",
    "00020000000200016100016200000001090000000100016100000002000000000000000200000006",
    "0003000000020001610001620000000109000000010001610000000200000000000000020000000600027231",
]
KAFKA_ASSIGNMENT_V0 = "0000" + "00000001000161000000020000000000000002ffffffff"
KAFKA_ASSIGNMENT_V3 = "0003" + KAFKA_ASSIGNMENT_V0[4:]
OWNED = ConsumerTopicPartitions(topic="a", partitions=[0, 2])
SUBSCRIPTION = ConsumerProtocolSubscription(
    topics=["a", "b"], user_data=b"\x09", owned_partitions=[OWNED], generation_id=6, rack_id="r1"
)
ASSIGNMENT = ConsumerProtocolAssignment(assigned_partitions=[OWNED])


@pytest.mark.parametrize("version", VERSIONS)
def test_subscriptions_are_those_of_kafka(version: int) -> None:
    golden = bytes.fromhex(KAFKA_SUBSCRIPTIONS[version])
    assert encode_subscription(SUBSCRIPTION, version) == golden
    read = decode_subscription(golden)
    assert (list(read.topics), read.user_data) == (["a", "b"], b"\x09")
    assert list(read.owned_partitions) == ([OWNED] if version >= 1 else [])
    assert read.generation_id == (6 if version >= 2 else -1)
    assert read.rack_id == ("r1" if version >= 3 else None)


def test_assignments_are_those_of_kafka() -> None:
    assert encode_assignment(ASSIGNMENT).hex() == KAFKA_ASSIGNMENT_V3
    assert encode_assignment(ASSIGNMENT, 0).hex() == KAFKA_ASSIGNMENT_V0
    for golden in (KAFKA_ASSIGNMENT_V0, KAFKA_ASSIGNMENT_V3):
        assert decode_assignment(bytes.fromhex(golden)) == ASSIGNMENT


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_kio_and_kafka_python_read_and_write_the_same_bytes(version: int, seed: int) -> None:
    subscription = random_struct(seed, ConsumerProtocolSubscription, version, flexible=False)
    raw = encode_subscription(subscription, version)
    assert _by_kio("consumer_protocol_subscription", version, raw) == raw
    assert _by_kafka_python(kafka_python.ConsumerProtocolSubscription, version, raw) == raw
    assert decode_subscription(raw) == subscription

    assignment = random_struct(seed, ConsumerProtocolAssignment, version, flexible=False)
    raw = encode_assignment(assignment, version)
    assert _by_kio("consumer_protocol_assignment", version, raw) == raw
    assert _by_kafka_python(kafka_python.ConsumerProtocolAssignment, version, raw) == raw
    assert decode_assignment(raw) == assignment


def _by_kio(name: str, version: int, raw: bytes) -> bytes:
    module = importlib.import_module(f"kio.schema.{name}.v{version}.data")
    entity: Any = getattr(module, "".join(word.capitalize() for word in name.split("_")))
    theirs, size_bytes = entity_reader(entity)(raw, 2)
    assert 2 + size_bytes == len(raw)
    written = io.BytesIO()
    entity_writer(entity)(written, theirs)
    return raw[:2] + written.getvalue()


def _by_kafka_python(cls: Any, version: int, raw: bytes) -> bytes:
    return bytes(cls.decode(raw).encode(version=version))


def test_a_newer_version_is_read_as_the_newest_we_know() -> None:
    newer = b"\x00\x09" + encode_subscription(SUBSCRIPTION)[2:] + b"what v9 brought"
    assert decode_subscription(newer) == SUBSCRIPTION
    assert decode_assignment(encode_assignment(ASSIGNMENT) + b"more") == ASSIGNMENT


@pytest.mark.parametrize("version", [-1, *VERSIONS, 9])
def test_the_topics_are_read_as_version_0_whatever_is_announced(version: int) -> None:
    announced = version.to_bytes(2, signed=True)
    for golden in KAFKA_SUBSCRIPTIONS:
        assert decode_subscribed_topics(announced + bytes.fromhex(golden)[2:]) == ["a", "b"]


@pytest.mark.parametrize(
    "raw", [b"", b"\x00", b"\xff\xff" + bytes(20), b"\x00\x00\x7f\xff\xff\xff"]
)
def test_what_is_no_subscription_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_subscription(raw)
    with pytest.raises(MalformedRequest):
        decode_assignment(raw)


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS)
def test_damaged_bytes_raise_one_exception_only(seed: int) -> None:
    rng = random.Random(seed)
    raw = bytearray(encode_subscription(SUBSCRIPTION, rng.choice(VERSIONS)))
    for _ in range(rng.randint(1, 3)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    for attempt in (raw, raw[: rng.randrange(len(raw))], rng.randbytes(rng.randrange(40))):
        for decode in (decode_subscription, decode_subscribed_topics, decode_assignment):
            try:
                decode(attempt)
            except MalformedRequest:
                continue
