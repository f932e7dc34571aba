"""The index of an archived segment: the batch positions that cold reads need. Pure.

STATISTICS of the `.meta` cuts a log object into pieces of about 1 MiB at batch borders. Runs of
them make the chunks that are downloaded and cached:

    log object  │▒▒▒▒│▒▒▒▒▒│▒▒▒│▒▒▒▒│▒▒▒▒▒│▒▒▒│      pieces: position, base offset, time bounds
    chunks      │◄──── chunk 0 ────►│◄ chunk 1 ►│      `chunk_bytes` and the rest of a piece

So a chunk holds whole batches and can be checked on its own, and an offset or a time leads to its
piece by bisection, without an index lookup in the log. The same object cut with the same
`chunk_bytes` gives the same chunks, in every process and after every restart.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strandline.storage.errors import CorruptFile
from strandline.storage.model import Offset, Position, TimestampMs
from strandline.storage.remote.segment.meta import ChunkStatistics


class ChunkKey(NamedTuple):
    """Bytes [position, end_position) of a log object, downloaded and cached as one."""

    log_key: str
    position: Position
    end_position: Position

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.position


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The pieces of one log object and their chunks."""

    log_key: str
    size_bytes: int
    # Of the pieces; arrays, because a thousand of these indexes are kept.
    _positions: array[int]
    _base_offsets: array[int]
    _max_timestamps_ms: array[int]
    # Number of the first piece of each chunk.
    _chunk_pieces: array[int]
    # Of the segment; -1 if unknown.
    _end_offset: Offset

    @classmethod
    def build(
        cls,
        log_key: str,
        size_bytes: int,
        pieces: Sequence[ChunkStatistics],
        *,
        chunk_bytes: int,
        end_offset: Offset = -1,
    ) -> SegmentIndex:
        """Raises CorruptFile if the pieces cannot belong to an object of `size_bytes`."""
        if not pieces or pieces[-1].position >= size_bytes:
            raise CorruptFile(f"{log_key}: statistics do not fit {size_bytes} bytes of log")
        chunk_pieces = array("q")
        chunk_end = 0
        for number, piece in enumerate(pieces):
            # At least `chunk_bytes`, so that there is never more than one request for as many.
            if piece.position >= chunk_end:
                chunk_pieces.append(number)
                chunk_end = piece.position + chunk_bytes
        return cls(
            log_key,
            size_bytes,
            array("q", (piece.position for piece in pieces)),
            array("q", (piece.base_offset for piece in pieces)),
            array("q", (piece.max_timestamp_ms for piece in pieces)),
            chunk_pieces,
            end_offset,
        )

    @property
    def chunk_count(self) -> int:
        return len(self._chunk_pieces)

    @property
    def piece_count(self) -> int:
        return len(self._positions)

    def chunk_for(self, offset: Offset) -> int:
        """Number of the last chunk whose batches begin at or before `offset`."""
        piece = max(0, bisect.bisect_right(self._base_offsets, offset) - 1)
        return self._chunk_of_piece(piece)

    def chunk_key(self, number: int) -> ChunkKey:
        following = number + 1
        if following < self.chunk_count:
            end_position = self._positions[self._chunk_pieces[following]]
        else:
            end_position = self.size_bytes
        return ChunkKey(self.log_key, self._positions[self._chunk_pieces[number]], end_position)

    def chunk_base_offset(self, number: int) -> Offset:
        """Base offset of the chunk's first batch."""
        return self._base_offsets[self._chunk_pieces[number]]

    def chunk_end_offset(self, number: int) -> Offset:
        """Upper bound on the end of the chunk's batches; -1 if unknown."""
        following = number + 1
        if following < self.chunk_count:
            return self._base_offsets[self._chunk_pieces[following]]
        return self._end_offset

    def piece_end_offset(self, piece: int) -> Offset:
        """As `chunk_end_offset`, for a single piece."""
        following = piece + 1
        return self._base_offsets[following] if following < self.piece_count else self._end_offset

    def piece_key(self, piece: int) -> ChunkKey:
        """The key of a single piece, for readers that need no whole chunk."""
        end = self._positions[piece + 1] if piece + 1 < self.piece_count else self.size_bytes
        return ChunkKey(self.log_key, self._positions[piece], end)

    def piece_base_offset(self, piece: int) -> Offset:
        return self._base_offsets[piece]

    def chunk_of_piece(self, piece: int) -> int:
        return self._chunk_of_piece(piece)

    def find_piece_by_timestamp(self, timestamp_ms: TimestampMs, *, first_piece: int) -> int | None:
        """The first piece from `first_piece` on with a record at or after `timestamp_ms`."""
        for piece in range(first_piece, self.piece_count):
            if self._max_timestamps_ms[piece] >= timestamp_ms:
                return piece
        return None

    def piece_for(self, offset: Offset) -> int:
        """Number of the piece that holds `offset`."""
        return max(0, bisect.bisect_right(self._base_offsets, offset) - 1)

    def _chunk_of_piece(self, piece: int) -> int:
        return bisect.bisect_right(self._chunk_pieces, piece) - 1
