"""kio and kafka-python read what we write, and write what we read, value for value."""

from __future__ import annotations

import io
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from strandline.broker.protocol.codec import codec, source
from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.schema.schema import Field, Message, Struct
from tests.unit.broker.protocol.message_values import (
    Versions,
    by_class,
    is_own,
    label,
    messages_of_kio,
    random_message,
)
from tests.unit.broker.protocol.oracle_tables import (
    KAFKA_PYTHON_OPERATIONS,
    kafka_name,
    kafka_python_class,
    kio_class,
    kio_fields,
    messages_of_kafka_python,
    plain,
)

SEEDS = st.integers(0, 2**32)
QUICK = settings(max_examples=5, deadline=None)


@pytest.mark.parametrize(("cls", "versions"), by_class(messages_of_kio()), ids=label)
@QUICK
@given(seed=SEEDS)
def test_kio_and_we_understand_each_other(
    cls: type[Message], versions: Versions, seed: int
) -> None:
    for version in versions:
        message = random_message(seed, cls, version)
        body = codec.join(codec.encode(message, version))
        entity = kio_class(cls, version)
        theirs, size_bytes = entity_reader(entity)(body, 0)
        assert size_bytes == len(body)
        _compare(message, theirs, version, cls.spec.is_flexible(version), kio_values)
        written = io.BytesIO()
        entity_writer(entity)(written, theirs)
        assert written.getvalue() == body
        assert codec.decode(cls, version, memoryview(written.getvalue())) == message


@pytest.mark.parametrize(("cls", "versions"), by_class(messages_of_kafka_python()), ids=label)
@QUICK
@given(seed=SEEDS)
def test_kafka_python_and_we_understand_each_other(
    cls: type[Message], versions: Versions, seed: int
) -> None:
    for version in versions:
        message = random_message(seed, cls, version)
        if cls is ApiVersionsResponse:
            # kafka-python reads one with an error as v0 always, because brokers answer so.
            message = cls(**{**dict(message.values()), "error_code": 0})
        body = codec.join(codec.encode(message, version))
        theirs = kafka_python_class(cls).decode(body, version=version)
        _compare(message, theirs, version, cls.spec.is_flexible(version), kafka_python_values)
        theirs._header = None  # a decoded message lacks it, and cannot be encoded without
        written = bytes(theirs.encode(version=version))
        assert codec.decode(cls, version, memoryview(written)) == message


def kio_values(theirs: Any, cls: type[Struct], version: int, flexible: bool) -> list[Any]:
    """By place: kio leaves units out of names, and `test_oracle_tables` has compared the names."""
    del cls, version, flexible
    return [getattr(theirs, field.name) for field in kio_fields(theirs)]


def kafka_python_values(theirs: Any, cls: type[Struct], version: int, flexible: bool) -> list[Any]:
    return [
        _operations(theirs, kafka_name(cls, field.name))
        for field in our_fields(cls, version, flexible)
    ]


def _operations(theirs: Any, name: str) -> Any:
    if hasattr(theirs, name) and name != KAFKA_PYTHON_OPERATIONS:
        return getattr(theirs, name)
    # A set of bit numbers; None for "not asked", which is the lowest number there is.
    bits = theirs.authorized_operations
    return sum(1 << bit if bit < 31 else -(2**31) for bit in ({31} if bits is None else bits))


def our_fields(cls: type[Struct], version: int, flexible: bool) -> list[Field]:
    fields = source.wire_fields(cls, version, flexible=flexible)
    tagged = source.tagged_fields(cls, version, flexible=flexible)
    return fields + [field for field in tagged if not is_own(field)]


def _compare(ours: Struct, theirs: Any, version: int, flexible: bool, values: Any) -> None:
    fields = our_fields(type(ours), version, flexible)
    others = values(theirs, type(ours), version, flexible)
    for field, other in zip(fields, others, strict=True):
        _compare_value(getattr(ours, field.name), other, version, flexible, values)


def _compare_value(own: Any, other: Any, version: int, flexible: bool, values: Any) -> None:
    if isinstance(own, Struct):
        _compare(own, other, version, flexible, values)
    elif isinstance(own, list) and own and isinstance(own[0], memoryview):
        assert bytes(own[0]) == bytes(other)
    elif isinstance(own, list | tuple) and own:
        for one, another in zip(own, other, strict=True):
            _compare_value(one, another, version, flexible, values)
    elif own is None and not isinstance(other, type(None)):
        # A tagged struct that was not sent is a struct of defaults elsewhere.
        assert hasattr(other, "__slots__"), other
    elif isinstance(own, uuid.UUID) and own.int == 0:
        assert other is None or other == own
    elif isinstance(own, list | tuple | memoryview):
        assert len(other or ()) == len(own)
        assert bytes(other or b"") == bytes(own) or not isinstance(own, memoryview)
    elif own == -1 and other is None:
        return  # kio's word for a time that is not known.
    else:
        assert plain(other) == own
