"""Encoding of a plan for the reader inside the JVM: compressed JSON in one option of its source.

    plan     -> columns, settings and texts, once; for each split its limits and slices
    slice    -> log and meta as [key, address, size], offsets, records, checksum, wanted chunks
    chunk    -> [start, end, base offset, end offset, records, checksum if it is known]

All planning is in Python; the JVM's reader decides nothing. The address of a file is its path, that
of an object in a bucket is a presigned URL, so that executors need neither credentials nor a
library. The plan has the texts of errors, so that both readers raise the same.

`spark_lake/jvm/src/Plan.scala` is the other side of this format; each change raises PLAN_FORMAT.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from strandline.spark_lake.archive.objects import (
    ATTEMPTS_MAX,
    CONNECT_TIMEOUT_S,
    DENIED_HINT,
    READ_TIMEOUT_S,
    RETENTION_HINT,
    SHORT_OBJECT_HINT,
)
from strandline.spark_lake.archive.segments import CORRUPT_REMEDY, META_REMEDY, offsets_of
from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.plan.splits import WINDOW_BYTES, SegmentSlice, Split
from strandline.spark_lake.query.pruning import is_worth_it
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.query.split_scan import DECODE_HINT
from strandline.storage.model import Isolation

PLAN_FORMAT = 3
# Higher levels save nothing: signatures do not compress.
_GZIP_LEVEL = 1

# The address of an object by its key.
Addresses = Callable[[str], str]


def encode_plan(
    query: Query,
    plan: ScanPlan,
    splits: Sequence[Split],
    addresses: Addresses,
    *,
    columns: Sequence[str],
    signed_until_ms: int = 0,
) -> str:
    """Returns the value of the option `plan` of the JVM's source, for some splits of a plan.

    `signed_until_ms` 0 means without end.
    """
    document = {
        "format": PLAN_FORMAT,
        "columns": list(columns),
        "description": str(plan),
        "bytes": plan.bytes_planned,
        "settings": {
            "url": query.options.url,
            "read_uncommitted": query.options.isolation is Isolation.READ_UNCOMMITTED,
            "window_bytes": WINDOW_BYTES,
            "connect_timeout_ms": CONNECT_TIMEOUT_S * 1000,
            "read_timeout_ms": READ_TIMEOUT_S * 1000,
            "attempts_max": ATTEMPTS_MAX,
            "signed_until_ms": signed_until_ms,
            "texts": _texts(),
        },
        "splits": [_split(one, addresses) for one in splits],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(text, _GZIP_LEVEL)).decode()


def _texts() -> Mapping[str, str]:
    return {
        "missing": f"it does not exist; {RETENTION_HINT}",
        "shorter": "the object is shorter than the manifest says",
        "fewer": SHORT_OBJECT_HINT,
        "denied": DENIED_HINT,
        "archived": "it must be restored from cold storage first",
        "expired": "the plan of this frame is too old: what it signed has expired. Make the frame"
        " anew, or plan for longer with the option urlExpiry",
        "remedy": CORRUPT_REMEDY,
        "metaRemedy": META_REMEDY,
        "decode": DECODE_HINT,
    }


def _split(split: Split, addresses: Addresses) -> dict[str, object]:
    limits = split.limits
    return {
        "topic": split.topic_partition.topic,
        "partition": split.topic_partition.partition,
        "limits": [
            limits.start_offset,
            limits.end_offset,
            limits.start_timestamp_ms,
            limits.last_timestamp_ms,
        ],
        "slices": [_slice(piece, split, addresses) for piece in split.slices],
    }


def keys_read(splits: Sequence[Split]) -> Iterator[str]:
    """Yields the keys of all objects that the reader of these splits may ask for."""
    for split in splits:
        for piece in split.slices:
            yield piece.entry.log_key
            if _needs_meta(piece, split):
                yield piece.entry.meta_key


def _asks_statistics(piece: SegmentSlice, split: Split) -> bool:
    """Returns whether a task reads the statistics, as in `pruning.prune` without keys."""
    return piece.ranges is None and (
        not piece.is_whole or is_worth_it(piece.entry, split.limits, keys=None)
    )


def _needs_meta(piece: SegmentSlice, split: Split) -> bool:
    return _asks_statistics(piece, split) or piece.entry.has_transactions


def _slice(piece: SegmentSlice, split: Split, addresses: Addresses) -> dict[str, object]:
    entry = piece.entry
    return {
        "log": [entry.log_key, addresses(entry.log_key), entry.size_bytes, offsets_of(entry)],
        "meta": [
            entry.meta_key,
            addresses(entry.meta_key) if _needs_meta(piece, split) else "",
            entry.meta_size_bytes,
            offsets_of(entry),
        ],
        "base_offset": entry.base_offset,
        "end_offset": entry.end_offset,
        "record_count": entry.record_count,
        "crc32c": entry.log_crc32c,
        "meta_crc32c": entry.meta_crc32c,
        "has_transactions": entry.has_transactions,
        "start": piece.start_position,
        "end": piece.end_position,
        "asks_statistics": _asks_statistics(piece, split),
        "ranges": [
            [
                part.start_position,
                part.end_position,
                part.base_offset,
                part.end_offset,
                part.record_count,
                *(one.crc32c for one in part.checksums),
            ]
            for part in piece.ranges or ()
        ],
    }
