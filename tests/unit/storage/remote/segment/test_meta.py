"""The `.meta` object: sections behind a directory at the end."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.storage.errors import (
    CorruptFile,
    ObjectCorrupt,
    ObjectNotFound,
    UnsupportedFormat,
)
from strandline.storage.model import EpochStart
from strandline.storage.remote.manifest.json_document import encode_document
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import (
    ChunkStatistics,
    MetaReader,
    Section,
    SegmentStatistics,
    decode,
    decode_directory,
    decode_leader_epochs,
    encode,
    encode_leader_epochs,
    read_section,
)
from tests.support.memory_store import MemoryStore

sections_dicts = st.dictionaries(st.sampled_from(list(Section)), st.binary(max_size=50))


def statistics(chunk_count: int) -> SegmentStatistics:
    return SegmentStatistics(
        record_count=10 * chunk_count,
        batch_count=5 * chunk_count,
        control_batch_count=1,
        min_timestamp_ms=1,
        max_timestamp_ms=2,
        chunks=tuple(
            ChunkStatistics(
                position=1_000_000 * n,
                base_offset=10 * n,
                record_count=10,
                min_timestamp_ms=n,
                max_timestamp_ms=n + 1,
            )
            for n in range(chunk_count)
        ),
    )


@settings(max_examples=40)
@given(sections_dicts)
def test_sections_are_read_as_they_were_written(sections: dict[Section, bytes]) -> None:
    assert decode(encode(sections)) == sections


@settings(max_examples=40)
@given(sections_dicts, st.sampled_from(list(Section)))
def test_each_section_is_read_alone(sections: dict[Section, bytes], wanted: Section) -> None:
    store = MemoryStore()
    content = encode(sections)
    store.put("m", content)
    assert read_section(store, "m", len(content), wanted) == sections.get(wanted)


def test_a_small_object_is_read_with_one_request() -> None:
    store = MemoryStore()
    content = encode({Section.STATISTICS: statistics(3).encode(), Section.TXN_INDEX: b"x" * 99})
    store.put("m", content)
    store.requests.clear()
    reader = MetaReader(store, "m", len(content))
    assert reader.read(Section.TXN_INDEX) == b"x" * 99
    assert reader.read(Section.STATISTICS) == statistics(3).encode()
    assert store.count_requests() == 1


def test_a_large_object_is_not_read_for_one_section() -> None:
    store = MemoryStore()
    key_filter, snapshot = os.urandom(300_000), os.urandom(200_000)
    content = encode(
        {
            Section.KEY_FILTER: key_filter,
            Section.PRODUCER_SNAPSHOT: snapshot,
            Section.STATISTICS: statistics(64).encode(),
        }
    )
    store.put("m", content)
    store.requests.clear()
    reader = MetaReader(store, "m", len(content))
    assert reader.read(Section.STATISTICS) == statistics(64).encode()
    assert [request.start for request in store.requests] == [len(content) - segment_meta.TAIL_BYTES]
    assert reader.read(Section.PRODUCER_SNAPSHOT) == snapshot
    assert sum(request.end - request.start for request in store.requests) < 300_000


def test_a_directory_outside_the_tail_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_meta, "TAIL_BYTES", segment_meta.FOOTER_BYTES + 5)
    store = MemoryStore()
    content = encode({section: section.value.encode() for section in Section})
    store.put("m", content)
    for section in Section:
        assert read_section(store, "m", len(content), section) == section.value.encode()


@settings(max_examples=60)
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_no_flipped_bit_changes_what_is_read(place: float, bit: int) -> None:
    sections = {section: section.value.encode() * 3 for section in Section}
    content = bytearray(encode(sections))
    content[int(place * len(content))] ^= 1 << bit
    try:
        assert decode(bytes(content)) == sections  # the first magic is only for people
    except (CorruptFile, UnsupportedFormat):
        return


@given(st.binary(max_size=200))
def test_foreign_bytes_are_corrupt(content: bytes) -> None:
    with pytest.raises((CorruptFile, UnsupportedFormat)):
        decode(content)


def test_a_cut_object_is_corrupt() -> None:
    content = encode({Section.STATISTICS: statistics(3).encode()})
    for size_bytes in (0, 5, 20, len(content) // 2, len(content) - 1):
        with pytest.raises(CorruptFile):
            decode(content[:size_bytes])


@pytest.mark.parametrize(
    "row",
    [[8.0, 1, 0], [8, float("nan"), 0], [8, 1e400, 0], [8, True, 0], [8, 1, None], [8, 1, []]],
)
@pytest.mark.parametrize("name", ["key_filter", "of a later release"])
def test_a_directory_of_what_are_no_positions_is_corrupt(name: str, row: list[Any]) -> None:
    directory = json.dumps([[name, *row]]).encode()
    footer = struct.pack(
        ">IIH8s", len(directory), segment_meta.crc32c.crc32c(directory), 1, segment_meta.MAGIC
    )
    with pytest.raises(CorruptFile):
        decode(segment_meta.MAGIC + b"x" * 50 + directory + footer)


def test_a_later_version_is_unsupported() -> None:
    content = bytearray(encode({}))
    struct.pack_into(">H", content, len(content) - 10, 2)
    with pytest.raises(UnsupportedFormat, match="version 2"):
        decode(bytes(content))


def test_a_section_of_a_later_release_is_passed_over() -> None:
    content = encode({Section.TXN_INDEX: b"abc"})
    grown = content.replace(b'"txn_index"', b'"new_index"')
    crc_position = len(grown) - segment_meta.FOOTER_BYTES + 4
    directory = grown[11 : len(grown) - segment_meta.FOOTER_BYTES]
    patched = bytearray(grown)
    struct.pack_into(">I", patched, crc_position, segment_meta.crc32c.crc32c(directory))
    assert decode(bytes(patched)) == {}


def test_damage_and_absence_stay_different_errors() -> None:
    store = MemoryStore()
    content = encode({Section.STATISTICS: statistics(3).encode()})
    store.put("m", content)
    with pytest.raises(ObjectNotFound):
        read_section(store, "gone", len(content), Section.STATISTICS)
    for damage in (
        lambda c: c[:20] + b"?" + c[21:],  # a section
        lambda c: c[:-30] + b"?" + c[-29:],  # the directory
        lambda c: c[:-1] + b"?",  # the magic
        lambda c: c[:-1],  # cut
    ):
        store.put("m", content)
        store.damage("m", damage)
        with pytest.raises(ObjectCorrupt, match="m"):
            read_section(store, "m", len(content), Section.STATISTICS)


def test_the_directory_names_where_sections_lie() -> None:
    content = encode({Section.LEADER_EPOCHS: b"epochs", Section.STATISTICS: b"facts"})
    directory = decode_directory(content[-200:], size_bytes=len(content))
    found = directory.get(Section.STATISTICS)
    assert found is not None
    assert content[found.position : found.position + found.length] == b"facts"
    assert found.check(b"facts") == b"facts"
    with pytest.raises(CorruptFile):
        found.check(b"fakes")
    assert directory.get(Section.TXN_INDEX) is None


# --- sections --------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_count", [0, 1, 100])
def test_statistics_are_read_as_they_were_written(chunk_count: int) -> None:
    assert SegmentStatistics.decode(statistics(chunk_count).encode()) == statistics(chunk_count)


def test_statistics_have_a_checksum_for_each_chunk_or_none() -> None:
    plain = statistics(3)
    assert plain == plain.without_checksums()
    chunks = tuple(replace(chunk, crc32c=n) for n, chunk in enumerate(plain.chunks))
    summed = replace(plain, chunks=chunks)
    decoded = SegmentStatistics.decode(summed.encode())
    assert decoded == summed
    assert decoded.has_checksums
    assert decoded.without_checksums() == plain
    fields = json.loads(summed.encode())
    for name in ("format", "version", "crc32c"):
        fields.pop(name)
    damaged: tuple[Any, ...] = ([1, 2], [1, 2, "3"], {})
    for wrong in damaged:
        content = encode_document(
            segment_meta.STATISTICS_FORMAT_NAME, 1, {**fields, "chunk_checksums": wrong}
        )
        with pytest.raises(CorruptFile, match="checksums"):
            SegmentStatistics.decode(content)


def test_statistics_out_of_order_are_corrupt() -> None:
    good = statistics(3)
    first, second, third = good.chunks
    for chunks in ((second, first), (first, first), (second, third)):
        encoded = SegmentStatistics(
            record_count=1,
            batch_count=1,
            control_batch_count=0,
            min_timestamp_ms=0,
            max_timestamp_ms=0,
            chunks=chunks,
        ).encode()
        with pytest.raises(CorruptFile):
            SegmentStatistics.decode(encoded)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))))
def test_leader_epochs_are_read_as_they_were_written(pairs: list[tuple[int, int]]) -> None:
    epochs = tuple(EpochStart(*pair) for pair in pairs)
    assert decode_leader_epochs(encode_leader_epochs(epochs)) == epochs


def test_leader_epochs_are_kafkas_checkpoint_text() -> None:
    assert encode_leader_epochs([EpochStart(0, 0), EpochStart(2, 50)]) == b"0\n2\n0 0\n2 50\n"


@pytest.mark.parametrize("content", [b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\nx y\n", b"\xff"])
def test_damaged_leader_epochs_are_corrupt(content: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode_leader_epochs(content)
