"""Random messages made from our own tables: any API, any version, from one seed.

Tests draw the seed with hypothesis, which prints it when it fails; drawing every field with it
would take ten times as long.

Values stay inside what all codecs can hold: error codes are known ones, and times are what fits
into the `datetime` and `timedelta` that kio turns them into.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from typing import Any, TypeVar

from hypothesis import strategies as st

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.schema.api import EVERY_SPEC, ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import (
    OWN_TAG_MIN,
    ArrayOf,
    Field,
    Fixed,
    Message,
    Struct,
    StructOf,
    WireType,
    boolean,
    float64,
    optional_uuid,
    record_parts,
    records,
    string,
    uuid_,
)
from tests.support.response_class import response_class

M = TypeVar("M", bound=Struct)

ELEMENTS_MAX = 3
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
# Those of Kafka 4.4 are unknown to kio.
_CODES = [int(code) for code in ErrorCode if code < ErrorCode.GROUP_DELETION_FAILED]
# Lengths around the places where a varint grows a byte.
_LENGTHS = [0, 0, 1, 2, 7, 7, 7, 20, 126, 127, 128, 300]
_LONG = [16_382, 16_383, 20_000]
_LETTERS = "abcxyz0189._- äß€\U0001f30a\x00"
_INTEGER_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
# The first version of an API that Kafka 4 still has, where that is not 0.
DROPPED_BELOW = {
    ApiKey.PRODUCE: 3,
    ApiKey.FETCH: 4,
    ApiKey.LIST_OFFSETS: 1,
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.OFFSET_FETCH: 1,
    ApiKey.CREATE_TOPICS: 2,
    ApiKey.DELETE_TOPICS: 1,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 2,
    ApiKey.DESCRIBE_ACLS: 1,
    ApiKey.CREATE_ACLS: 1,
    ApiKey.DELETE_ACLS: 1,
    ApiKey.DESCRIBE_CONFIGS: 1,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 1,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.CREATE_DELEGATION_TOKEN: 1,
    ApiKey.RENEW_DELEGATION_TOKEN: 1,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 1,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 1,
}


# Versions of Kafka 4.4, which neither kio nor kafka-python knows: see `test_kafka_4_4_bytes.py`.
NEWEST_VERSIONS = {ApiKey.API_VERSIONS: 5, ApiKey.TXN_OFFSET_COMMIT: 6, ApiKey.DELETE_GROUPS: 3}


def every_message() -> list[tuple[type[Message], int]]:
    """All classes and versions that we have tables for."""
    return [
        (cls, version)
        for key, row in EVERY_SPEC.items()
        for version in row.supported
        for cls in (codec.request_class(key), response_class(key))
    ]


def is_known_to_libraries(cls: type[Message], version: int) -> bool:
    return version != NEWEST_VERSIONS.get(cls.spec.key)


def messages_of_kio() -> list[tuple[type[Message], int]]:
    """kio follows Kafka 4, which dropped versions (KIP-896); those kafka-python knows alone."""
    return [
        (cls, version)
        for cls, version in every_message()
        if version >= DROPPED_BELOW.get(cls.spec.key, 0) and is_known_to_libraries(cls, version)
    ]


Versions = tuple[int, ...]


def by_class(messages: Iterable[tuple[type[Message], int]]) -> list[tuple[type[Message], Versions]]:
    """Each class once: three thousand tests cost more by their number than by what they do."""
    versions: dict[type[Message], Versions] = {}
    for cls, version in messages:
        versions[cls] = (*versions.get(cls, ()), version)
    return list(versions.items())


def label(case: object) -> str:
    if isinstance(case, tuple):
        return f"v{case[0]}-v{case[-1]}"
    return case.__name__ if isinstance(case, type) else str(case)


def random_message(seed: int, cls: type[M], version: int) -> M:
    """An instance whose fields outside of `version` have their defaults."""
    assert issubclass(cls, Message)
    return random_struct(seed, cls, version, flexible=cls.spec.is_flexible(version))


def random_struct(seed: int, cls: type[M], version: int, *, flexible: bool) -> M:
    """The same for a table that is no message."""
    return _struct(random.Random(seed), cls, version, flexible)


def _struct(rng: random.Random, cls: type[M], version: int, flexible: bool) -> M:
    values: dict[str, Any] = {}
    for name, field in cls.fields.items():
        if field.is_in(version) and (field.tag is None or flexible):
            values[name] = _field(rng, field, version, flexible)
        else:
            values[name] = field.default
    if "records_bytes" in values:
        values["records_bytes"] = sum(len(part) for part in values["records"])
    return cls(**values)


def is_own(field: Field) -> bool:
    """Whether no other library can know the field."""
    return field.tag is not None and field.tag >= OWN_TAG_MIN


def _field(rng: random.Random, field: Field, version: int, flexible: bool) -> object:
    if field.name.endswith("error_code"):
        return rng.choice(_CODES)
    if field.name in (
        "log_append_time_ms",
        "retention_time_ms",
        "session_lifetime_ms",
    ):
        return rng.choice([-1, rng.randrange(2**40)])
    if field.name in (
        # kio does not know that there may be none.
        "transaction_start_time_ms",
        "issue_timestamp_ms",
        "expiry_timestamp_ms",
        "max_timestamp_ms",
        "issue_timestamp",
        "expiry_timestamp",
        "max_timestamp",
        "max_lifetime_ms",
        "renew_period_ms",
        "expiry_time_period_ms",
    ):
        return rng.randrange(2**40)
    if field.tag is not None and (is_own(field) or rng.random() < 0.5):
        return field.default
    if field.is_nullable(version) and rng.random() < 0.3:
        return None
    value = _value(rng, field.kind, version, flexible)
    # Others do not send a tagged struct of zeros; ours are None then.
    is_nothing = field.tag is not None and isinstance(value, Struct) and _is_zero(value)
    return field.default if is_nothing else value


def _is_zero(value: Struct) -> bool:
    return not any(inner for _, inner in value.values())


def _value(rng: random.Random, kind: WireType[object], version: int, flexible: bool) -> object:
    if isinstance(kind, ArrayOf):
        count = rng.randrange(ELEMENTS_MAX + 1)
        return [_value(rng, kind.element, version, flexible) for _ in range(count)]
    if isinstance(kind, StructOf):
        return _struct(rng, kind.struct, version, flexible)
    if kind is string:
        return "".join(rng.choices(_LETTERS, k=rng.choice(_LENGTHS)))
    if isinstance(kind, Fixed):
        return _fixed(rng, kind)
    raw = memoryview(rng.randbytes(rng.choice(_LENGTHS + _LONG)))
    if kind is record_parts:
        return [raw] if raw else []
    if kind is records and rng.random() < 0.1:
        return None
    return raw


def _fixed(rng: random.Random, kind: Fixed[object]) -> object:
    if kind is uuid_ or kind is optional_uuid:
        return uuid.UUID(int=rng.randrange(1, 2**128))
    if kind is boolean:
        return rng.random() < 0.5
    if kind is float64:
        return rng.uniform(-1e9, 1e9)
    bits = _INTEGER_BITS[kind.code.lower()]
    lowest = 0 if kind.code.isupper() else -(2 ** (bits - 1))
    highest = lowest + 2**bits - 1
    return rng.choice([lowest, highest, 0, rng.randint(max(lowest, -1), min(highest, 100))])


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
