"""Cutting a log object into chunks of whole pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.errors import CorruptFile
from strandline.storage.remote.segment.index import SegmentIndex
from strandline.storage.remote.segment.meta import ChunkStatistics


def pieces_of(sizes: list[int]) -> tuple[list[ChunkStatistics], int]:
    """One piece per size, 10 offsets and 10 ms each; and the size of all of them."""
    pieces, position = [], 0
    for number, size in enumerate(sizes):
        pieces.append(
            ChunkStatistics(
                position=position,
                base_offset=100 + 10 * number,
                record_count=10,
                min_timestamp_ms=10 * number,
                max_timestamp_ms=10 * number + 9,
            )
        )
        position += size
    return pieces, position


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=50), st.integers(1, 5000))
def test_chunks_cover_the_object_and_end_with_the_piece_that_fills_them(
    sizes: list[int], chunk_bytes: int
) -> None:
    pieces, size_bytes = pieces_of(sizes)
    index = SegmentIndex.build("k", size_bytes, pieces, chunk_bytes=chunk_bytes)
    keys = [index.chunk_key(number) for number in range(index.chunk_count)]
    assert keys[0].position == 0
    assert keys[-1].end_position == size_bytes
    assert [key.end_position for key in keys[:-1]] == [key.position for key in keys[1:]]
    starts = {piece.position for piece in pieces}
    for key in keys:
        assert key.position in starts
        last_piece = max(start for start in starts if start < key.end_position)
        assert last_piece - key.position < chunk_bytes
    assert all(key.size_bytes >= chunk_bytes for key in keys[:-1])


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=50), st.data())
def test_an_offset_leads_to_its_chunk_and_piece(sizes: list[int], data: st.DataObject) -> None:
    pieces, size_bytes = pieces_of(sizes)
    index = SegmentIndex.build("k", size_bytes, pieces, chunk_bytes=4000)
    offset = data.draw(st.integers(100, 100 + 10 * len(sizes) - 1))
    piece = (offset - 100) // 10
    assert index.piece_for(offset) == piece
    assert index.piece_base_offset(piece) == 100 + 10 * piece
    chunk = index.chunk_key(index.chunk_for(offset))
    assert chunk.position <= index.piece_key(piece).position
    assert index.piece_key(piece).end_position <= chunk.end_position
    assert index.chunk_of_piece(piece) == index.chunk_for(offset)
    assert index.chunk_base_offset(index.chunk_for(offset)) <= offset


def test_a_time_leads_to_the_first_piece_that_reaches_it() -> None:
    pieces, size_bytes = pieces_of([10, 10, 10])
    index = SegmentIndex.build("k", size_bytes, pieces, chunk_bytes=100)
    assert index.find_piece_by_timestamp(0, first_piece=0) == 0
    assert index.find_piece_by_timestamp(10, first_piece=0) == 1
    assert index.find_piece_by_timestamp(0, first_piece=2) == 2
    assert index.find_piece_by_timestamp(30, first_piece=0) is None


def test_an_offset_below_the_first_batch_leads_to_the_first_chunk() -> None:
    pieces, size_bytes = pieces_of([10, 10])
    index = SegmentIndex.build("k", size_bytes, pieces, chunk_bytes=10)
    assert index.chunk_for(0) == 0


def test_pieces_that_exceed_the_object_are_corrupt() -> None:
    pieces, size_bytes = pieces_of([10, 10, 10])
    for wrong in (20, 19, 5):
        with pytest.raises(CorruptFile):
            SegmentIndex.build("k", wrong, pieces, chunk_bytes=10)
    with pytest.raises(CorruptFile):
        SegmentIndex.build("k", size_bytes, [], chunk_bytes=10)
