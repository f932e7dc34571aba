"""Archives of values in each format, and what a query makes of them."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro

from strandline.spark_lake import scan
from strandline.storage.records.batch.record import Record, encode_batch
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder


def record_of(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "R", "namespace": "a.b", "fields": fields}


MOMENT = dt.datetime(2024, 2, 1, 10, 30, tzinfo=dt.UTC)


def archive_of(folder: Path, values: Sequence[bytes | None]) -> ArchiveBuilder:
    """Topic `t` with these values, at offsets 0, 1, ..."""
    archive = ArchiveBuilder(folder)
    archive.add_topic("t")
    records = [
        Record(offset=n, timestamp_ms=START_MS, key=b"k", value=value)
        for n, value in enumerate(values)
    ]
    archive.add_segment("t", [encode_batch(records[n : n + 3]) for n in range(0, len(records), 3)])
    return archive


def values_of(archive: ArchiveBuilder, **options: Any) -> list[Any]:
    named = {name.replace("registry", "schemaRegistry."): text for name, text in options.items()}
    return list(scan(archive.url, "t", options=named).read_all().column("value").to_pylist())


BAD = [b"{", b"nonsense", b"", b'{"a":1}{"a":2}', b'{"a":"x"}', b'{"a":1.5}', b"[1]", b"\xff", b"3"]
# --- Avro ------------------------------------------------------------------------------------

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "lines", "type": {"type": "array", "items": "double"}},
    ],
}
ORDER_ROW = {"id": 7, "note": "n", "kind": "B", "at": MOMENT, "tags": {"x": 1}, "lines": [0.5]}


def avro(row: dict[str, Any], schema: Any = ORDER) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def shown(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "tags": list(row["tags"].items())}


# --- a registry ------------------------------------------------------------------------------


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + payload
