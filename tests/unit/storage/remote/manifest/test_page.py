"""Sealed pages of a manifest: they take the oldest entries and give them back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.storage.errors import CorruptFile
from strandline.storage.remote.manifest.page import decode_page, encode_page, page_ref
from tests.unit.storage.remote.manifests import (
    EMPTY,
    PAGE,
    entry,
    keys_of,
    with_segments,
)


def test_a_sealed_page_takes_the_oldest_entries_and_gives_them_back() -> None:
    manifest = with_segments((0, 10), (10, 20), (20, 30), (30, 40))
    sealed = manifest.segments[:2]
    content = encode_page(manifest.topic_id_partition, sealed)
    page = page_ref(PAGE, sealed, crc32c=5)
    paged = manifest.with_sealed_page(page)
    assert decode_page(content, page) == sealed
    assert (paged.first_offset, paged.end_offset) == (0, 40)
    assert (paged.size_bytes, paged.segment_count) == (400, 4)
    assert paged.find(15) is None
    assert paged.find_page(15) == page
    assert paged.find_page(20) is None
    assert (page.min_timestamp_ms, page.max_timestamp_ms) == (0, 19)


def test_a_page_outlives_its_first_entries_and_goes_with_its_last() -> None:
    manifest = with_segments((0, 10), (10, 20), (20, 30), (30, 40))
    sealed = manifest.segments[:2]
    content = encode_page(manifest.topic_id_partition, sealed)
    paged = manifest.with_sealed_page(page_ref(PAGE, sealed, crc32c=5)).with_log_start(30)
    once = paged.with_deleting(sealed[:1], marked_ms=1)
    assert decode_page(content, once.pages[0]) == sealed[1:]
    assert (once.first_offset, once.size_bytes, once.segment_count) == (10, 300, 3)
    twice = once.with_deleting([sealed[1], manifest.segments[2]], marked_ms=2)
    assert twice.pages == ()
    assert [mark.keys for mark in twice.deleting] == [
        keys_of(0),
        keys_of(10),
        (PAGE,),
        keys_of(20),
    ]


def test_a_page_of_other_entries_is_corrupt() -> None:
    manifest = with_segments((0, 10), (10, 20), (20, 30))
    page = page_ref(PAGE, manifest.segments[:2], crc32c=5)
    for wrong in (manifest.segments[1:], manifest.segments[:1], manifest.segments):
        with pytest.raises(CorruptFile, match="page"):
            decode_page(encode_page(manifest.topic_id_partition, wrong), page)


def test_a_page_without_entries_is_corrupt() -> None:
    manifest = with_segments((0, 10), (10, 20))
    page = replace(page_ref(PAGE, manifest.segments, crc32c=5), segment_count=0, dropped_count=2)
    with pytest.raises(CorruptFile, match="page"):
        decode_page(encode_page(manifest.topic_id_partition, manifest.segments), page)


def test_a_page_whose_entries_leave_a_gap_is_damage() -> None:
    good = with_segments((0, 10), (10, 20), (20, 30)).segments
    page = page_ref(PAGE, good, crc32c=5)
    for middle in (entry(11, 20), entry(10, 19), entry(5, 20), entry(10, 10)):
        content = encode_page(EMPTY.topic_id_partition, (good[0], middle, good[2]))
        with pytest.raises(CorruptFile, match="leave gaps"):
            decode_page(content, page)
