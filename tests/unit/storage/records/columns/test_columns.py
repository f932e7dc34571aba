"""Both decoders, compiled and plain, against `iter_records`, which is slow and trusted."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import (
    Header,
    Record,
    encode_batch,
    iter_records,
    with_crc,
)
from strandline.storage.records.columns import columns
from strandline.storage.records.columns.columns import (
    PLAIN_BYTES_MAX,
    SLOW_BYTES,
    BatchRow,
    BinaryColumn,
    DecodedRecords,
    Decoder,
    RowLimits,
    Run,
    RunBuilder,
    WantedColumns,
    decode,
)
from strandline.storage.records.compression import Codec
from tests.unit.storage.records.made_records import MALFORMED, batch_of, bounds_of, records

# The fixture decides in its place.
is_plain = Decoder.is_plain
EVERYTHING = WantedColumns(headers=True)
BATCHES = st.lists(st.tuples(records(), st.sampled_from(Codec)), min_size=1, max_size=4)


@pytest.fixture(autouse=True, scope="module", params=["compiled", "plain"])
def decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiling is counted here and not in the first test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "is_plain", lambda _self, _run: request.param == "plain")
        use_once()
        yield


def use_once() -> None:
    encoded = encode_batch([Record(offset=0, timestamp_ms=0, key=None, value=None)])
    decoded_records(encoded)
    bounds_of(encoded)


def decoded_outputs(
    buffer: bytes | memoryview,
    *,
    limits: RowLimits | None = None,
    wanted: WantedColumns = EVERYTHING,
    rows_max: int = 1000,
    bytes_max: int = 1 << 20,
    run_bytes_max: int = 1 << 20,
) -> list[DecodedRecords]:
    builder = RunBuilder(buffer, run_bytes_max=run_bytes_max)
    runs = [run for row in walk(buffer) for run in builder.add(row)]
    return [
        output
        for run in [*runs, *builder.finish()]
        for output in decode(
            run,
            limits=limits or RowLimits(),
            wanted=wanted,
            rows_max=rows_max,
            bytes_max=bytes_max,
        )
    ]


def decoded_records(buffer: bytes | memoryview, **options: int) -> list[Record]:
    return [
        record for output in decoded_outputs(buffer, **options) for record in as_records(output)
    ]


def as_records(output: DecodedRecords) -> list[Record]:
    assert output.key is not None
    assert output.value is not None
    assert output.headers is not None
    keys, values = cells(output.key), cells(output.value)
    header_keys, header_values = cells(output.headers.keys), cells(output.headers.values)
    ends = output.headers.ends.tolist()
    made = []
    for row in range(output.row_count):
        headers = tuple(
            Header((header_keys[at] or b"").decode("utf-8", "replace"), header_values[at])
            for at in range(ends[row], ends[row + 1])
        )
        made.append(
            Record(
                offset=int(output.offsets[row]),
                timestamp_ms=int(output.timestamps_ms[row]),
                key=keys[row],
                value=values[row],
                headers=headers,
            )
        )
    return made


def cells(column: BinaryColumn) -> list[bytes | None]:
    ends = column.ends.tolist()
    content = column.content.tobytes()
    valid = column.valid
    found = [
        content[start:end] if valid is None or valid[row >> 3] >> (row & 7) & 1 else None
        for row, (start, end) in enumerate(pairwise(ends))
    ]
    assert found.count(None) == column.null_count
    return found


def slowly(buffer: bytes) -> list[Record]:
    return [
        record
        for batch in walk(buffer)
        for record in iter_records(buffer, batch.header, batch.position)
    ]


# --- the same rows ---------------------------------------------------------------------------


@pytest.mark.slow
@given(BATCHES, st.integers(1, 9), st.integers(1, 300), st.integers(1, 400))
def test_rows_are_those_of_the_oracle_however_they_are_cut(
    batches: list[tuple[list[Record], Codec]], rows_max: int, bytes_max: int, run_bytes_max: int
) -> None:
    buffer = b"".join(encode_batch(made, codec=codec) for made, codec in batches)
    found = decoded_records(
        buffer, rows_max=rows_max, bytes_max=bytes_max, run_bytes_max=run_bytes_max
    )
    assert found == slowly(buffer)


@pytest.mark.slow
@given(records(), st.data())
def test_limits_leave_out_exactly_the_rows_outside(made: list[Record], data: st.DataObject) -> None:
    offsets = st.integers(made[0].offset - 1, made[-1].offset + 2)
    times = st.integers(-(2**41), 2**51)
    limits = RowLimits(
        start_offset=data.draw(offsets),
        end_offset=data.draw(offsets),
        start_timestamp_ms=data.draw(times),
        last_timestamp_ms=data.draw(times),
    )
    outputs = decoded_outputs(encode_batch(made), limits=limits, rows_max=3)
    assert [record for output in outputs for record in as_records(output)] == [
        record
        for record in made
        if limits.start_offset <= record.offset < limits.end_offset
        and limits.start_timestamp_ms <= record.timestamp_ms <= limits.last_timestamp_ms
    ]


def test_log_append_time_is_the_brokers_for_every_row() -> None:
    made = [Record(offset=n, timestamp_ms=100 + n, key=None, value=b"v") for n in range(4)]
    stamped = encode_batch(made, timestamp_type=TimestampType.LOG_APPEND_TIME)
    (output,) = decoded_outputs(stamped)
    assert output.timestamps_ms.tolist() == [103] * 4
    assert output.timestamp_types.tolist() == [1] * 4
    assert not decoded_outputs(stamped, limits=RowLimits(last_timestamp_ms=102))


def test_columns_that_are_not_wanted_are_not_decoded() -> None:
    made = [Record(offset=0, timestamp_ms=1, key=b"k", value=b"v", headers=(Header("h", None),))]
    (output,) = decoded_outputs(
        encode_batch(made), wanted=WantedColumns(key=False, value=False, headers=False)
    )
    assert (output.key, output.value, output.headers) == (None, None, None)
    assert output.offsets.tolist() == [0]


def test_rows_without_headers_are_null_and_ascii_is_recognised() -> None:
    made = [
        Record(offset=0, timestamp_ms=0, key=None, value=None),
        Record(offset=1, timestamp_ms=0, key=None, value=None, headers=(Header("a", b""),)),
    ]
    (output,) = decoded_outputs(encode_batch(made))
    assert output.headers is not None
    assert output.headers.null_count == 1
    assert output.headers.valid is not None
    assert output.headers.valid[0] == 0b10
    assert output.headers.keys_are_ascii
    made[1] = Record(offset=1, timestamp_ms=0, key=None, value=None, headers=(Header("é", None),))
    (output,) = decoded_outputs(encode_batch(made))
    assert output.headers is not None
    assert not output.headers.keys_are_ascii


def test_outputs_keep_their_byte_limit_and_large_records_come_alone() -> None:
    sizes = [10, 10, 500, 10, 10]
    made = [
        Record(offset=n, timestamp_ms=0, key=None, value=bytes(size))
        for n, size in enumerate(sizes)
    ]
    outputs = decoded_outputs(encode_batch(made), bytes_max=60)
    assert [output.row_count for output in outputs] == [2, 1, 2]
    assert [len(output.value.content) for output in outputs if output.value] == [20, 500, 20]


def test_batches_of_all_codecs_come_in_order_in_bounded_runs() -> None:
    made = [Record(offset=n, timestamp_ms=n, key=b"k", value=bytes(50)) for n in range(60)]
    codecs = [Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4, Codec.NONE, Codec.GZIP]
    buffer = b"".join(
        encode_batch(made[at * 10 : at * 10 + 10], codec=codec) for at, codec in enumerate(codecs)
    )
    builder = RunBuilder(buffer, run_bytes_max=1300)
    runs = [run for row in walk(buffer) for run in builder.add(row)]
    runs += builder.finish()
    assert [len(run.batches) for run in runs] == [2, 2, 1, 1]
    assert decoded_records(buffer) == made


def test_any_kind_of_buffer_is_read() -> None:
    made = [Record(offset=0, timestamp_ms=0, key=b"k", value=b"v")]
    encoded = encode_batch(made)
    assert decoded_records(encoded) == made
    assert decoded_records(memoryview(bytearray(encoded))) == made


def test_a_batch_emptied_by_compaction_has_no_rows() -> None:
    encoded, _ = batch_of(b"", count=0, last_delta=9)
    assert decoded_outputs(encoded) == []


# --- hostile bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_records_are_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptRecords):
        decoded_records(batch_of(payload)[0])


@pytest.mark.slow
@settings(max_examples=100)
@given(records(), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_records_are_refused_exactly_where_the_oracle_refuses_them(
    made: list[Record], damages: list[tuple[int, int]]
) -> None:
    damaged = bytearray(encode_batch(made))
    payload_bytes = len(damaged) - batch_format.HEADER_BYTES
    for place, byte in damages:
        damaged[batch_format.HEADER_BYTES + place % payload_bytes] = byte
    assert outcome(bytes(damaged), decoded_records) == outcome(bytes(damaged), slowly)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.binary(max_size=80), st.integers(0, 6), st.integers(0, 8))
def test_random_bytes_are_refused_exactly_where_the_oracle_refuses_them(
    payload: bytes, count: int, last_delta: int
) -> None:
    encoded, _ = batch_of(payload, count=min(count, last_delta + 1), last_delta=last_delta)
    assert outcome(encoded, decoded_records) == outcome(encoded, slowly)


def outcome(encoded: bytes, reader: object) -> list[Record] | str:
    assert callable(reader)
    try:
        found: list[Record] = reader(encoded)
    except CorruptRecords:
        return "corrupt"
    return found


def test_a_record_count_that_cannot_be_does_not_allocate() -> None:
    encoded, _ = batch_of(b"\x00" * 20, count=2**31 - 1, last_delta=2**31 - 2)
    with pytest.raises(CorruptRecords, match="2147483647 records"):
        decoded_records(encoded)


def test_rows_in_front_of_a_bad_batch_come_first() -> None:
    good = encode_batch([Record(offset=0, timestamp_ms=0, key=None, value=b"v")])
    bad, _ = batch_of(MALFORMED["null header key"])
    builder = RunBuilder(good + bad)
    runs = [run for row in walk(good + bad) for run in builder.add(row)]
    outputs = (
        output
        for run in [*runs, *builder.finish()]
        for output in decode(run, limits=RowLimits(), wanted=EVERYTHING, rows_max=1)
    )
    with pytest.raises(CorruptRecords, match="record 0 of the batch at offset 0"):
        list(outputs)


# --- headers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "field"),
    [
        (16, b"\x03"),
        (8, (-1).to_bytes(4, "big", signed=True)),
        (8, (48).to_bytes(4, "big")),
        (0, (-5).to_bytes(8, "big", signed=True)),
        (0, (2**63 - 1).to_bytes(8, "big")),
        (23, (-1).to_bytes(4, "big", signed=True)),
        (57, (-1).to_bytes(4, "big", signed=True)),
        (57, (9).to_bytes(4, "big")),
    ],
    ids=[
        "magic",
        "length",
        "short",
        "offset",
        "far",
        "delta",
        "count",
        "more records than offsets",
    ],
)
def test_impossible_headers_are_corrupt(position: int, field: bytes) -> None:
    good = encode_batch([Record(offset=0, timestamp_ms=0, key=None, value=None)])
    damaged = bytearray(good)
    damaged[position : position + len(field)] = field
    rows = walk(good + bytes(damaged))
    assert next(rows).position == 0
    with pytest.raises(CorruptRecords, match=f"position {len(good)}"):
        next(rows)


def test_a_wrong_crc_is_corrupt() -> None:
    damaged = bytearray(encode_batch([Record(offset=3, timestamp_ms=0, key=None, value=b"v")]))
    damaged[-2] ^= 1
    with pytest.raises(CorruptRecords, match="offset 3"):
        list(walk(bytes(damaged), verify_crc=True))


# --- the compiler ----------------------------------------------------------------------------


@pytest.mark.slow
def test_importing_loads_neither_numba_nor_numpy() -> None:
    program = (
        "import sys, strandline.storage.records.columns.survey;"
        "sys.exit(bool({'numba', 'numpy'} & set(sys.modules)))"
    )
    path = [path for path in sys.path if path]
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {program}"],
        check=True,
        timeout=60,
    )


def test_the_compiled_loop_is_loaded_when_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    load = functools.cache(lambda: None)
    monkeypatch.setattr(columns, "load_kernels", load)
    decoder, run = Decoder(), run_of(PLAIN_BYTES_MAX - 1)
    assert is_plain(decoder, run)
    assert is_plain(decoder, run)
    assert not is_plain(decoder, run)
    load()
    assert not is_plain(Decoder(), run), "it is loaded"


def test_a_long_scan_without_numba_says_once_that_it_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(columns, "available", lambda: False)
    decoder, run = Decoder(), run_of(SLOW_BYTES // 2)
    assert is_plain(decoder, run)
    with pytest.warns(UserWarning, match="install numba"):
        assert is_plain(decoder, run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_plain(decoder, run)


def run_of(size_bytes: int) -> Run:
    return Run(payloads=b"", batches=(BatchRow(0, size_bytes, 0, 0, 0, 0, 1, 0),))


def test_large_batches_agree_with_the_oracle() -> None:
    source = random.Random(11)
    made: Sequence[Record] = [
        Record(
            offset=n,
            timestamp_ms=source.randrange(2**42),
            key=None if n % 9 == 0 else source.randbytes(source.randrange(30)),
            value=None if n % 13 == 0 else source.randbytes(source.randrange(400)),
            headers=(Header("h", source.randbytes(3)),) if n % 4 == 0 else (),
        )
        for n in range(3000)
    ]
    encoded = encode_batch(made, codec=Codec.ZSTD)
    assert decoded_records(encoded, rows_max=700) == made
    assert np.array_equal(
        np.concatenate([output.offsets for output in decoded_outputs(encoded, rows_max=512)]),
        np.arange(3000),
    )
    assert with_crc(bytearray(encoded)) == encoded
