"""The key filter: never a wrong "no", rarely a wrong "maybe", the same with and without numba."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.records.batch.batch import HEADER_BYTES, read_header
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.columns import key_filter
from strandline.storage.records.columns.key_filter import KeyFilter, KeyFilterBuilder
from strandline.storage.records.columns.survey import SurveyedRecords, survey
from strandline.storage.records.compression import Codec, decompress


def made_of(keys: list[bytes]) -> KeyFilter:
    builder = KeyFilterBuilder()
    for key in keys:
        builder.add(key)
    made = builder.finish()
    assert made is not None
    return made


def encoded(keys: list[bytes | None], codec: Codec = Codec.NONE) -> bytes:
    return encode_batch(
        [Record(offset=n, timestamp_ms=n, key=key, value=b"v") for n, key in enumerate(keys)],
        codec=codec,
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=90), max_size=200))
def test_a_key_that_was_added_is_never_denied(keys: list[bytes]) -> None:
    made = KeyFilter.decode(made_of(keys).encode())
    assert made.record_count == len(keys)
    assert all(made.may_have(key) for key in keys)


@pytest.mark.parametrize("count", [10, 1000, 30_000])
def test_other_keys_are_mostly_denied_and_the_filter_is_small(count: int) -> None:
    made = made_of([b"customer-%d" % n for n in range(count)])
    wrong = sum(made.may_have(b"customer-%d" % n) for n in range(count, count + 10_000))
    assert wrong < 300
    assert len(made.blocks) <= max(32, 4 * count)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=300)), min_size=1, max_size=40),
    st.sampled_from(list(Codec)),
)
def test_compiled_loops_make_the_same_filter(keys: list[bytes | None], codec: Codec) -> None:
    batch = encoded(keys, codec)
    builder = KeyFilterBuilder()
    add_compiled(batch, builder)
    assert builder.finish() == made_of([key for key in keys if key is not None])


def add_compiled(batch: bytes, builder: KeyFilterBuilder) -> None:
    header = read_header(batch)
    payload = decompress(header.codec, batch[HEADER_BYTES:])
    survey(payload, [SurveyedRecords(0, len(payload), 0, header.record_count)], builder)


def test_plain_keys_and_compiled_ones_share_a_filter() -> None:
    builder = KeyFilterBuilder()
    for key in (b"a", b"b"):
        builder.add(key)
    add_compiled(encoded([b"c", None]), builder)
    assert builder.finish() == made_of([b"a", b"b", b"c"])


def test_too_many_keys_make_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "CHECK_KEYS", 1000)
    monkeypatch.setattr(key_filter, "FALSE_SHARE_MAX", 1e-9)
    builder = KeyFilterBuilder()
    source = random.Random(1)
    for _ in range(60_000):
        if not builder.is_complete:
            break
        builder.add(source.randbytes(8))
    assert builder.finish() is None
    assert not builder.is_complete


def test_a_filter_that_lacks_a_key_is_none() -> None:
    builder = KeyFilterBuilder()
    builder.add(b"k")
    builder.abandon()
    assert builder.finish() is None


def test_damaged_filters_are_refused() -> None:
    content = made_of([b"k"]).encode()
    for bad in (b"", content[:5], content[:-1], b"x" + content[1:]):
        with pytest.raises(CorruptFile):
            KeyFilter.decode(bad)
    with pytest.raises(UnsupportedFormat, match="version 9"):
        KeyFilter.decode(content[:4] + b"\x09" + content[5:])
