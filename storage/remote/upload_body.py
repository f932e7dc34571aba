"""Request bodies that are read block by block, with a deadline.

An SDK sends bytes in one call, whose socket timeout then spans the whole body; a file it sends in
small blocks, each with its own. So everything that is not tiny is a `BodyReader`: a window of a
file or of memory that can be read, told, and rewound, and that stops when the time is over.
"""

from __future__ import annotations

import io

from strandline.storage import crc32c
from strandline.storage.clock import Clock
from strandline.storage.errors import ObjectCorrupt
from strandline.storage.remote.attempts import DeadlineError
from strandline.storage.remote.object_store import FileBody, PutBody, checksum
from strandline.storage.values import dataclass

_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyPart:
    """Bytes [position, position + size_bytes) of a body, and their CRC-32C."""

    position: int
    size_bytes: int
    crc32c: int


def measure_body(key: str, body: PutBody, *, part_bytes: int) -> tuple[BodyPart, ...]:
    """The parts that `body` is sent in; one if it is not larger than `part_bytes`.

    Raises ObjectCorrupt if a file is no longer what its caller knows it to be: sending it would
    archive the damage with a fresh checksum. Raises DiskError if it cannot be opened.
    """
    if not isinstance(body, FileBody):
        return (BodyPart(position=0, size_bytes=len(body), crc32c=checksum(body)),)
    parts: list[BodyPart] = []
    whole_crc = position = 0
    with body.open() as file:
        while position < body.size_bytes or not parts:
            size_bytes = min(part_bytes, body.size_bytes - position)
            part_crc, left = 0, size_bytes
            while left and (block := file.read(min(left, _READ_BYTES))):
                part_crc = crc32c.crc32c(block, part_crc)
                whole_crc = crc32c.crc32c(block, whole_crc)
                left -= len(block)
            if left:
                raise ObjectCorrupt(key, "put", f"{body.path} is shorter than it was said to be")
            parts.append(BodyPart(position=position, size_bytes=size_bytes, crc32c=part_crc))
            position += size_bytes
    if whole_crc != body.crc32c:
        raise ObjectCorrupt(
            key, "put", f"{body.path} has checksum {whole_crc:08x}, not {body.crc32c:08x}"
        )
    return tuple(parts)


class BodyReader(io.RawIOBase):
    """A read-only file over a window of `body`; raises DeadlineError after `deadline_s`."""

    def __init__(self, body: PutBody, part: BodyPart, *, clock: Clock, deadline_s: float) -> None:
        super().__init__()
        self._file = body.open() if isinstance(body, FileBody) else None
        self._view = None if isinstance(body, FileBody) else memoryview(body)
        self._start = part.position
        self._size_bytes = part.size_bytes
        self._position = 0
        self._clock = clock
        self._deadline_s = deadline_s

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}
        self._position = min(max(origin[whence] + offset, 0), self._size_bytes)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        if self._clock.monotonic_s() > self._deadline_s:
            raise DeadlineError("the time for this request is over")
        left = self._size_bytes - self._position
        count = left if size is None or size < 0 else min(size, left)
        start = self._start + self._position
        self._position += count
        if self._file is None:
            assert self._view is not None
            return bytes(self._view[start : start + count])
        self._file.seek(start)
        return self._file.read(count)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()
