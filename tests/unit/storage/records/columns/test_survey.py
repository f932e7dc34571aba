"""What a look at compressed records finds of their times, whatever the header says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.storage.records.batch.record import (
    Record,
    encode_batch,
)
from strandline.storage.records.compression import Codec
from tests.unit.storage.records.made_records import MALFORMED, batch_of, bounds_of, records

# --- bounds ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(records(), st.sampled_from(Codec))
def test_bounds_are_those_of_the_records_not_of_the_header(
    made: list[Record], codec: Codec
) -> None:
    assert bounds_of(encode_batch(made, codec=codec)) == (
        min(record.timestamp_ms for record in made),
        max(record.timestamp_ms for record in made),
    )


@pytest.mark.parametrize(
    "name",
    [
        "no bytes at all",
        "record longer than the batch",
        "negative record length",
        "empty record",
        "spare byte behind the last record",
        "varint without an end",
        "varint of eleven bytes",
    ],
)
def test_records_that_do_not_fill_their_batch_have_no_bounds(name: str) -> None:
    encoded, _ = batch_of(MALFORMED[name])
    assert bounds_of(encoded) is None


def test_a_batch_without_records_has_no_bounds() -> None:
    encoded, _ = batch_of(b"", count=0)
    assert bounds_of(encoded) is None


@settings(max_examples=200)
@given(st.binary(max_size=60), st.integers(1, 5))
def test_bounds_of_random_bytes_are_corrupt_or_found(payload: bytes, count: int) -> None:
    encoded, _ = batch_of(payload, count=count, last_delta=9)
    assert bounds_of(encoded) is None or len(payload) >= 3 * count
