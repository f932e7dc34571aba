"""Records in every old message format and codec, for whoever reads them."""

from __future__ import annotations

from itertools import product

from strandline.storage.records.batch import any_batch
from strandline.storage.records.batch.record import Record
from tests.support.old_formats import CODECS

SHAPES = list(product((0, 1), CODECS.values()))


def some_records(magic: int, *, first: int = 40, count: int = 5) -> list[Record]:
    return [
        Record(
            offset=first + i,
            timestamp_ms=1_700_000_000_000 + 10 * (i % 3) if magic else -1,
            key=b"k%d" % i if i % 2 else None,
            value=b"v" * 50 if i != 3 else None,
        )
        for i in range(count)
    ]


def read_back(content: bytes) -> list[Record]:
    found = []
    for batch in any_batch.walk(content):
        any_batch.check_crc(content, batch.header, batch.position)
        found += any_batch.iter_records(content, batch.header, batch.position)
    return found
