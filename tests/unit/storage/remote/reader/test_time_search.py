"""A time is found to the record in an archived segment, with small requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.storage.model import TimestampOffset
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import MAX_TIMESTAMP_POSITION, OFFSET_FIELD
from strandline.storage.records.batch.record import with_crc
from strandline.storage.records.compression import Codec
from tests.support.archived_segments import BASE_TIMESTAMP_MS, archive_segment, make_log
from tests.support.memory_store import MemoryStore
from tests.unit.storage.remote.cold_reading import (
    PARTITION,
    archive,
    make_reader,
    run,
)

# --- times -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_time_is_found_to_the_record(
    store: MemoryStore, executor: ThreadPoolExecutor, codec: Codec
) -> None:
    segment = archive(store, base_offset=100, codec=codec, leader_epoch=3)
    reader = make_reader(store, executor)
    for offset in (100, 101, 178, 259):
        found = run(reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS + offset))
        assert found == TimestampOffset(BASE_TIMESTAMP_MS + offset, offset, 3)
    first = run(reader.find_timestamp(segment.entry, 0))
    assert first is not None
    assert first.offset == 100
    assert run(reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS + 260)) is None


@pytest.mark.parametrize("said_ms", [-1, BASE_TIMESTAMP_MS - 1, BASE_TIMESTAMP_MS + 10**9])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_time_is_found_by_the_records_whatever_the_headers_of_an_earlier_release_say(
    store: MemoryStore, executor: ThreadPoolExecutor, codec: Codec, said_ms: int
) -> None:
    log = bytearray(make_log(batch_count=40, codec=codec))
    for found in list(walk(log)):
        header = memoryview(log)[found.position : found.end_position]
        OFFSET_FIELD.pack_into(header, MAX_TIMESTAMP_POSITION, said_ms)
        with_crc(header)
    segment = archive_segment(store, PARTITION, bytes(log), piece_bytes=len(log) // 20)
    reader = make_reader(store, executor)
    for offset in (0, 1, 78, 159):
        found_record = run(reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS + offset))
        assert found_record is not None
        assert found_record.offset == offset


def test_a_time_is_not_found_below_the_start_offset(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    found = run(
        make_reader(store, executor).find_timestamp(
            segment.entry, BASE_TIMESTAMP_MS, start_offset=42
        )
    )
    assert found is not None
    assert found.offset == 42


def test_a_time_costs_one_small_request(store: MemoryStore, executor: ThreadPoolExecutor) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor)
    run(reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS + 300))
    (request,) = [r for r in store.requests if r.operation == "get" and r.key.endswith(".log")]
    assert request.end - request.start <= 3 * len(segment.log) // 100
    run(reader.read(segment.entry, 300, bytes_max=500))
    store.requests.clear()
    run(reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS + 301))
    assert store.requests == []
