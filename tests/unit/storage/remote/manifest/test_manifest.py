"""The manifest's transitions and its bytes."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.remote.manifest.entries import DeletedEntry, SegmentEntry
from strandline.storage.remote.manifest.json_document import encode_document
from strandline.storage.remote.manifest.manifest import FORMAT_NAME, Manifest
from strandline.storage.remote.manifest.page import decode_page, encode_page, page_ref
from tests.unit.storage.remote.manifests import (
    EMPTY,
    FOLDER,
    PAGE,
    TOPIC_ID,
    entry,
    keys_of,
    part,
    with_segments,
)


def test_an_empty_manifest_ends_where_the_log_starts() -> None:
    manifest = EMPTY.with_log_start(50)
    assert (manifest.first_offset, manifest.end_offset) == (50, 50)
    assert (manifest.size_bytes, manifest.segment_count, manifest.is_empty) == (0, 0, True)
    assert manifest.find(50) is None


def test_offsets_lead_to_their_segment() -> None:
    manifest = with_segments((0, 10), (10, 25), (25, 30))
    found = {offset: manifest.find(offset) for offset in (0, 9, 10, 24, 29, 30, -1)}
    assert {offset: got and got.base_offset for offset, got in found.items()} == {
        0: 0,
        9: 0,
        10: 10,
        24: 10,
        29: 25,
        30: None,
        -1: None,
    }


@pytest.mark.parametrize("ranges", [[(0, 10), (11, 20)], [(0, 10), (9, 20)], [(0, 10), (0, 10)]])
def test_gaps_and_overlaps_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match=r"gap|overlaps"):
        with_segments(*ranges)


def test_an_empty_segment_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        EMPTY.with_segment(entry(0, 0))


def test_the_first_segment_may_begin_at_or_below_the_log_start_only() -> None:
    assert with_segments((100, 200), log_start=150).end_offset == 200
    with pytest.raises(ValueError, match="gap"):
        with_segments((100, 200), log_start=99)


def test_a_gap_below_the_log_start_is_fine() -> None:
    """Records were deleted by request before they were ever copied."""
    manifest = with_segments((0, 50)).with_log_start(150).with_segment(entry(100, 200))
    assert Manifest.decode(manifest.encode()) == manifest
    assert manifest.find(70) is None
    with pytest.raises(ValueError, match="gap"):
        with_segments((0, 50)).with_log_start(99).with_segment(entry(100, 200))


def test_log_start_and_epoch_never_go_back() -> None:
    with pytest.raises(ValueError, match="log start"):
        EMPTY.with_log_start(5).with_log_start(4)
    with pytest.raises(ValueError, match="epoch"):
        EMPTY.with_leader_epoch(5).with_leader_epoch(4)


def test_only_the_oldest_segments_below_the_log_start_can_go() -> None:
    manifest = with_segments((0, 10), (10, 20), (20, 30)).with_log_start(20)
    first, second, third = manifest.segments
    with pytest.raises(ValueError, match="not below the log start"):
        manifest.with_deleting([first, second, third], marked_ms=1)
    with pytest.raises(ValueError, match="is not first"):
        manifest.with_deleting([second], marked_ms=1)
    gone = manifest.with_deleting([first, second], marked_ms=1)
    assert gone.segments == (third,)
    assert [mark.keys for mark in gone.deleting] == [keys_of(0), keys_of(10)]


def test_marks_are_dropped_once_their_objects_are_gone() -> None:
    manifest = with_segments((0, 10), (10, 20)).with_log_start(20)
    manifest = manifest.with_deleting(manifest.segments, marked_ms=1)
    left = manifest.without_deleting(manifest.deleting[:1])
    assert left.deleting == manifest.deleting[1:]
    assert left.without_deleting(manifest.deleting).deleting == ()


@pytest.mark.parametrize("field", ["size_bytes", "record_count", "meta_size_bytes", "end_offset"])
def test_numbers_that_nothing_can_have_make_a_manifest_corrupt(field: str) -> None:
    impossible = replace(entry(0, 10), **{field: 2**63 if field == "end_offset" else -1})
    content = replace(with_segments((0, 10)), segments=(impossible,)).encode()
    with pytest.raises(CorruptFile, match=field):
        Manifest.decode(content)


def test_a_manifest_out_of_order_is_corrupt() -> None:
    good = with_segments((0, 10), (10, 20))
    for segments in (
        (entry(10, 20), entry(0, 10)),
        (entry(0, 10), entry(5, 20)),
        (entry(0, 10), entry(11, 20)),
        (entry(0, 0),),
        (entry(5, 20),),
    ):
        with pytest.raises(CorruptFile, match=r"m\.json"):
            Manifest.decode(replace(good, segments=segments).encode(), source="m.json")


def test_a_segment_without_bytes_is_damage() -> None:
    """A reader that believed it would ask for nothing, and miss its records."""
    empty = replace(entry(10, 20), size_bytes=0)
    good = with_segments((0, 10), (10, 20), (20, 30))
    changed = replace(good, segments=(good.segments[0], empty, good.segments[2]))
    with pytest.raises(CorruptFile, match=r"m\.json: segment \[10, 20\) is empty"):
        Manifest.decode(changed.encode(), source="m.json")
    page = page_ref(PAGE, good.segments, crc32c=5)
    with pytest.raises(CorruptFile, match="one of them is empty"):
        decode_page(encode_page(EMPTY.topic_id_partition, changed.segments), page)


def test_a_manifest_of_a_later_release_is_refused() -> None:
    with pytest.raises(UnsupportedFormat):
        Manifest.decode(encode_document(FORMAT_NAME, 2, {}))


def test_the_bytes_are_stable() -> None:
    """Golden: an archive written today is read by every later release."""
    manifest = replace(
        with_segments((0, 10), log_start=3),
        revision=9,
        leader_epoch=4,
        deleting=(DeletedEntry(log_key=f"{FOLDER}l.log", meta_key=f"{FOLDER}m.meta", marked_ms=1),),
    )
    assert manifest.encode() == GOLDEN
    assert Manifest.decode(GOLDEN) == manifest


ELSEWHERE = [
    "",
    "/etc/passwd.log",
    "https://elsewhere/0.log",
    "0.log",
    f"/{FOLDER}0.log",
    f"{FOLDER}../1/0.log",
    f"{FOLDER}../../0.log",
    f"{FOLDER}./0.log",
    f"{FOLDER}/0.log",
    f"{FOLDER}.log",
    f"{FOLDER}0.log/",
    f"{FOLDER}deeper/0.log",
    f"{FOLDER}\u00e9.log",
    f"{FOLDER}{'0' * 201}.log",
    f"topics/orders-{TOPIC_ID}/1/0.log",
    f"topics/orders-{TOPIC_ID}/00/0.log",
    f"topics/other-{TOPIC_ID}/0/0.log",
    f"topics/orders-{TOPIC_ID}/0",
    f"{FOLDER}manifest.json",
    "cluster.json",
]


def damaged(content: bytes, path: str, key: str) -> bytes:
    """A manifest, or a page of one, with `key` at the place `path`, and its checksum right."""
    document = json.loads(content)
    del document["crc32c"]
    where, name = path.split(".")
    document[where][0][name] = key
    return encode_document(document.pop("format"), document.pop("version"), document)


@pytest.mark.parametrize("key", ELSEWHERE)
def test_an_object_elsewhere_than_in_the_partitions_folder_is_damage(key: str) -> None:
    """Else it would be read as the partition's, or deleted as the partition's."""
    sealed, *_ = full = with_segments((0, 10), (10, 20), (20, 30)).segments
    page = page_ref(PAGE, [sealed], crc32c=5)
    mark = DeletedEntry(log_key=f"{FOLDER}l.log", meta_key=f"{FOLDER}m.meta", marked_ms=1)
    manifest = replace(EMPTY, segments=full, tail=(part(30, 31),)).with_sealed_page(page)
    manifest = replace(manifest, deleting=(mark,))
    content = manifest.encode()
    assert Manifest.decode(content) == manifest
    for path in (
        "segments.log_key",
        "segments.meta_key",
        "pages.key",
        "tail.key",
        "deleting.log_key",
        "deleting.meta_key",
    ):
        with pytest.raises(CorruptFile, match=rf"m\.json: {path.replace('.', '.*')} is "):
            Manifest.decode(damaged(content, path, key), source="m.json")
    sealed_content = encode_page(manifest.topic_id_partition, [sealed])
    assert decode_page(sealed_content, page) == (sealed,)
    for path in ("segments.log_key", "segments.meta_key"):
        with pytest.raises(CorruptFile, match=re.escape(PAGE)):
            decode_page(damaged(sealed_content, path, key), page)


def test_no_kind_of_object_stands_for_another() -> None:
    manifest = with_segments((0, 10))
    for path, key in (
        ("segments.log_key", f"{FOLDER}0.meta"),
        ("segments.meta_key", f"{FOLDER}0.log"),
        ("segments.log_key", f"{FOLDER}0.tail"),
    ):
        with pytest.raises(CorruptFile, match="expected an object"):
            Manifest.decode(damaged(manifest.encode(), path, key))


def test_what_is_named_is_not_marked_for_deletion() -> None:
    manifest = with_segments((0, 10), (10, 20))
    mark = DeletedEntry(log_key=f"{FOLDER}l.log", meta_key=f"{FOLDER}10.meta", marked_ms=1)
    with pytest.raises(CorruptFile, match=r"10\.meta is marked for deletion"):
        Manifest.decode(replace(manifest, deleting=(mark,)).encode())


GOLDEN = (
    b'{"crc32c":"6ef0945e","deleting":[{"log_key":"topics/orders-00000000-0000-4000-8000-0'
    b'0000000002a/0/l.log","marked_ms":1,"meta_key":"topics/orders-00000000-0000-4000-8000'
    b'-00000000002a/0/m.meta"}],"format":"strandline-manifest","leader_epoch":4,"log_start'
    b'_offset":3,"pages":[],"partition":0,"revision":9,"segments":[{"base_offset":0,"end_o'
    b'ffset":10,"has_transactions":false,"leader_epochs":[[1,0],[4,0]],"log_crc32c":"deadb'
    b'eef","log_key":"topics/orders-00000000-0000-4000-8000-00000000002a/0/0.log","max_tim'
    b'estamp_ms":9,"meta_crc32c":"00000001","meta_key":"topics/orders-00000000-0000-4000-8'
    b'000-00000000002a/0/0.meta","meta_size_bytes":10,"min_timestamp_ms":0,"record_count":'
    b'10,"size_bytes":100,"uploaded_ms":7}],"topic":"orders","topic_id":"00000000-0000-400'
    b'0-8000-00000000002a","version":1}\n'
)


class ManifestMachine(RuleBasedStateMachine):
    """Any order of copying, sealing, moving the log start and deleting keeps the promises."""

    def __init__(self) -> None:
        super().__init__()
        self.manifest = EMPTY
        self.page_contents: dict[str, bytes] = {}
        self.all_keys: set[str] = set()
        self.dropped_keys: set[str] = set()

    def entries(self) -> list[SegmentEntry]:
        paged = [
            found
            for page in self.manifest.pages
            for found in decode_page(self.page_contents[page.key], page)
        ]
        return paged + list(self.manifest.segments)

    @rule(length=st.integers(1, 50))
    def copy(self, length: int) -> None:
        base = self.manifest.end_offset
        added = replace(
            entry(base, base + length),
            log_key=f"{FOLDER}{uuid.uuid4().hex}.log",
            meta_key=f"{FOLDER}{uuid.uuid4().hex}.meta",
        )
        self.manifest = self.manifest.with_segment(added)
        self.all_keys |= {added.log_key, added.meta_key}

    @precondition(lambda self: len(self.manifest.segments) > 2)
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.manifest.segments) - 1))
        sealed = self.manifest.segments[:count]
        key = f"{FOLDER}manifest/{uuid.uuid4().hex}.json"
        self.page_contents[key] = encode_page(self.manifest.topic_id_partition, sealed)
        self.all_keys.add(key)
        self.manifest = self.manifest.with_sealed_page(page_ref(key, sealed, crc32c=0))

    @rule(data=st.data())
    def move_log_start(self, data: st.DataObject) -> None:
        low, high = self.manifest.log_start_offset, self.manifest.end_offset
        self.manifest = self.manifest.with_log_start(data.draw(st.integers(low, max(low, high))))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        start = self.manifest.log_start_offset
        dead = [found for found in self.entries() if found.end_offset <= start]
        count = data.draw(st.integers(0, len(dead)))
        self.manifest = self.manifest.with_deleting(dead[:count], marked_ms=1)

    @rule(data=st.data())
    def drop_marks(self, data: st.DataObject) -> None:
        marks = self.manifest.deleting[: data.draw(st.integers(0, len(self.manifest.deleting)))]
        self.manifest = self.manifest.without_deleting(marks)
        self.dropped_keys |= {key for mark in marks for key in mark.keys}

    @invariant()
    def it_reads_as_it_was_written(self) -> None:
        assert Manifest.decode(self.manifest.encode()) == self.manifest

    @invariant()
    def no_object_is_forgotten_and_none_is_named_twice(self) -> None:
        named = [key for found in self.entries() for key in (found.log_key, found.meta_key)]
        named += [page.key for page in self.manifest.pages]
        named += [key for mark in self.manifest.deleting for key in mark.keys]
        assert len(named) == len(set(named))
        assert set(named) | self.dropped_keys == self.all_keys

    @invariant()
    def every_offset_above_the_log_start_is_found(self) -> None:
        for offset in range(self.manifest.log_start_offset, self.manifest.end_offset, 7):
            page = self.manifest.find_page(offset)
            found = self.manifest.find(offset)
            assert (page is None) != (found is None), offset


TestManifestMachine = ManifestMachine.TestCase
TestManifestMachine.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(0, 20_000))
def test_find_is_the_entry_that_holds_the_offset(lengths: list[int], offset: int) -> None:
    manifest, base = EMPTY, 0
    for length in lengths:
        manifest = manifest.with_segment(entry(base, base + length))
        base += length
    expected = [e for e in manifest.segments if e.base_offset <= offset < e.end_offset]
    assert manifest.find(offset) == (expected[0] if expected else None)
