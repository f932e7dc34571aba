"""The newest record of a payload, however it is cut into blocks, and what is no payload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.errors import CorruptRecords
from strandline.storage.records.batch.record import Record, encode_records
from strandline.storage.records.batch.stepper import newest_delta
from tests.unit.storage.records.made_records import GOOD, MALFORMED, records, varint

# The faults of what is not read: offsets, keys, values and headers.
INSIDE = tuple(
    fault
    for fault in MALFORMED
    if any(word in fault for word in ("key", "value", "header", "offset", "inside"))
)


def payload_of(made: list[Record]) -> bytes:
    return bytes(encode_records(made, base_offset=made[0].offset, base_timestamp_ms=0))


@pytest.mark.slow
@given(records(), st.integers(1, 40))
def test_the_newest_is_found_in_whatever_blocks_the_records_come(
    made: list[Record], block_bytes: int
) -> None:
    payload = payload_of(made)
    newest_ms = max(record.timestamp_ms for record in made)
    blocks = [payload[at : at + block_bytes] for at in range(0, len(payload), block_bytes)]
    assert newest_delta(blocks, len(made)) == newest_ms
    assert newest_delta([memoryview(payload)], len(made)) == newest_ms


@pytest.mark.parametrize("size_bytes", [0, 50, 60, 100, 8100, 8190, 8200, 70_000, 3_000_000])
@pytest.mark.parametrize("newest_ms", [-(2**40), -65, -64, -1, 0, 63, 64, 8191, 8192, 2**60])
def test_lengths_and_times_of_every_width_are_read(size_bytes: int, newest_ms: int) -> None:
    made = [
        Record(offset=offset, timestamp_ms=newest_ms - ago_ms, key=None, value=bytes(size_bytes))
        for offset, ago_ms in enumerate((1, 0, 70, 9000))
    ]
    assert newest_delta([payload_of(made)], 4) == newest_ms


@pytest.mark.parametrize("count", [-1, 0, 1, 3])
def test_another_number_of_records_is_an_error(count: int) -> None:
    with pytest.raises(CorruptRecords):
        newest_delta([GOOD * 2], count)


@pytest.mark.parametrize("cut_bytes", range(1, len(GOOD)))
def test_records_that_end_early_are_an_error(cut_bytes: int) -> None:
    with pytest.raises(CorruptRecords):
        newest_delta([GOOD, GOOD[:-cut_bytes]], 2)
    with pytest.raises(CorruptRecords):
        newest_delta([GOOD, GOOD, bytes(cut_bytes)], 2)


@pytest.mark.parametrize("fault", [fault for fault in MALFORMED if fault not in INSIDE])
def test_lengths_and_times_that_cannot_be_are_an_error(fault: str) -> None:
    with pytest.raises(CorruptRecords):
        newest_delta([MALFORMED[fault]], 1)


@pytest.mark.parametrize("length", [-1, -70, -10_000, -(2**40)])
def test_a_negative_length_of_any_width_is_an_error(length: int) -> None:
    with pytest.raises(CorruptRecords):
        newest_delta([GOOD + varint(length) + bytes(40)], 2)


@pytest.mark.parametrize("fault", INSIDE)
def test_what_else_is_wrong_inside_of_a_record_is_not_looked_at(fault: str) -> None:
    assert newest_delta([MALFORMED[fault]], 1) == 0
