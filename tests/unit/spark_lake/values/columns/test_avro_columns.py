"""The compiled loop over Avro values gives what fastavro gives, or leaves it to fastavro."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from strandline.spark_lake.values.decoders.avro_values import AvroValues
from strandline.spark_lake.values.decoders.decoder import UnparsableValue

WIDE = {
    "type": "record",
    "name": "Wide",
    "namespace": "shop",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["long", "null"]},
        {"name": "b", "type": "boolean"},
        {"name": "f", "type": ["null", "float"]},
        {"name": "d", "type": "double"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 3}},
        {"name": "kind", "type": ["null", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}]},
        {"name": "other", "type": "Kind"},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "micros", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {
            "name": "line",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "tags", "type": {"type": "array", "items": ["null", "int"]}},
                    ],
                },
            ],
        },
        {"name": "lines", "type": ["null", {"type": "array", "items": "Line"}]},
        {"name": "deep", "type": {"type": "array", "items": {"type": "array", "items": "string"}}},
        {"name": "map", "type": {"type": "map", "values": ["null", "Line"]}},
    ],
}


def made(source: random.Random) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return value if source.random() < 0.7 else None

    def text() -> str:
        return "".join(source.choices("aüß€𐍈", k=source.randrange(6)))

    def line() -> dict[str, Any]:
        tags = [maybe(source.randrange(-9, 9)) for _ in range(source.randrange(4))]
        return {"sku": text(), "tags": tags}

    return {
        "i": source.randrange(-(2**31), 2**31),
        "l": maybe(source.randrange(-(2**63), 2**63)),
        "b": source.random() < 0.5,
        "f": maybe(source.randrange(1000) / 8),
        "d": source.random(),
        "s": maybe(text()),
        "raw": source.randbytes(source.randrange(5)),
        "id": source.randbytes(3),
        "kind": maybe(source.choice("AB")),
        "other": source.choice("AB"),
        "day": maybe(source.randrange(-700_000, 2_000_000)),
        "at": source.randrange(-(10**13), 10**14),
        "micros": maybe(source.randrange(-(10**16), 10**17)),
        "line": maybe(line()),
        "lines": maybe([line() for _ in range(source.randrange(4))]),
        "deep": [[text() for _ in range(source.randrange(3))] for _ in range(source.randrange(3))],
        "map": {text(): maybe(line()) for _ in range(source.randrange(4))},
    }


def encoded(row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED, row)
    return out.getvalue()


PARSED = fastavro.parse_schema(WIDE)


def decoders() -> tuple[AvroValues, AvroValues]:
    """One with the loop, one without."""
    slow = AvroValues(json.dumps(WIDE), None)
    slow._columns = None
    return AvroValues(json.dumps(WIDE), None), slow


@pytest.mark.parametrize("seed", range(4))
def test_the_loop_gives_what_fastavro_gives(seed: int) -> None:
    source = random.Random(seed)
    fast, slow = decoders()
    rows = [encoded(made(source)) if source.random() < 0.9 else None for _ in range(200)]
    values = pa.array([b"in front", *rows], pa.binary()).slice(1)
    assert fast._columns is not None
    decoded = fast._columns.decode(values, skip=0)
    assert decoded is not None
    decoded.validate(full=True)
    assert decoded.equals(slow.decode(values))
    empty = pa.array([], pa.binary())
    assert fast.decode(empty).equals(slow.decode(empty))


def test_damaged_values_are_refused_by_both_or_the_same_for_both() -> None:
    source = random.Random(5)
    fast, slow = decoders()
    outcomes = set()
    for _ in range(1500):
        value = bytearray(encoded(made(source)))
        for _ in range(source.randrange(1, 3)):
            value[source.randrange(len(value))] = source.randrange(256)
        if source.random() < 0.3:
            del value[source.randrange(len(value)) :]
        array = pa.array([bytes(value)], pa.binary())
        found = []
        for decoder in (fast, slow):
            try:
                found.append(decoder.decode(array).to_pylist())
            except (UnparsableValue, OverflowError) as error:
                found.append(type(error))
        # NaN is not equal to itself, and its text is.
        assert repr(found[0]) == repr(found[1])
        outcomes.add(found[0] is UnparsableValue)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        ["int"],
    ],
)
def test_what_the_loop_does_not_know_is_left_to_fastavro(schema: Any) -> None:
    assert AvroValues(json.dumps(schema), None)._columns is None


def test_a_key_that_is_twice_in_a_map_counts_once() -> None:
    schema = json.dumps({"type": "map", "values": "int"})
    twice = bytes([4, 2, ord("k"), 2, 2, ord("k"), 4, 0])
    decoded = AvroValues(schema, None).decode(pa.array([twice], pa.binary()))
    assert decoded.to_pylist() == [[("k", 2)]]
