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
    # Of the pieces; arrays, because a thousand of these indexes are kept. The first two have one
    # more element: the end of the object, and of the segment (-1 if unknown).
    _positions: array[int]
    _base_offsets: array[int]
    _max_timestamps_ms: array[int]
    # Number of the first piece of each chunk, and the number of pieces.
    _chunk_pieces: array[int]

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
        chunk_pieces.append(len(pieces))
        return cls(
            log_key,
            array("q", (*(piece.position for piece in pieces), size_bytes)),
            array("q", (*(piece.base_offset for piece in pieces), end_offset)),
            array("q", (piece.max_timestamp_ms for piece in pieces)),
            chunk_pieces,
        )

    @property
    def chunk_count(self) -> int:
        return len(self._chunk_pieces) - 1

    @property
    def piece_count(self) -> int:
        return len(self._max_timestamps_ms)

    def piece_for(self, offset: Offset) -> int:
        """Number of the last piece whose batches begin at or before `offset`."""
        return max(0, bisect.bisect_right(self._base_offsets, offset, hi=self.piece_count) - 1)

    def chunk_of_piece(self, piece: int) -> int:
        return bisect.bisect_right(self._chunk_pieces, piece) - 1

    def chunk_for(self, offset: Offset) -> int:
        """Number of the last chunk whose batches begin at or before `offset`."""
        return self.chunk_of_piece(self.piece_for(offset))

    def chunk_key(self, number: int) -> ChunkKey:
        first, end = self._chunk_pieces[number : number + 2]
        return ChunkKey(self.log_key, self._positions[first], self._positions[end])

    def piece_key(self, piece: int) -> ChunkKey:
        """Returns the key of a single piece, for readers that need no whole chunk."""
        return ChunkKey(self.log_key, self._positions[piece], self._positions[piece + 1])

    def chunk_base_offset(self, number: int) -> Offset:
        """Base offset of the chunk's first batch."""
        return self._base_offsets[self._chunk_pieces[number]]

    def piece_base_offset(self, piece: int) -> Offset:
        return self._base_offsets[piece]

    def chunk_end_offset(self, number: int) -> Offset:
        """Upper bound on the end of the chunk's batches; -1 if unknown."""
        return self._base_offsets[self._chunk_pieces[number + 1]]

    def piece_end_offset(self, piece: int) -> Offset:
        """As `chunk_end_offset`, for a single piece."""
        return self._base_offsets[piece + 1]

    def find_piece_by_timestamp(self, timestamp_ms: TimestampMs, *, first_piece: int) -> int | None:
        """The first piece from `first_piece` on with a record at or after `timestamp_ms`."""
        for piece in range(first_piece, self.piece_count):
            if self._max_timestamps_ms[piece] >= timestamp_ms:
                return piece
        return None
