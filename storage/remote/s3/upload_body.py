"""Reads request bodies block by block, with a deadline, a minimum rate and a checksum.

    file --pread, BLOCK_BYTES--> CRC-32C of the block --> socket

The SDK sends bytes in one call, whose socket timeout spans the whole body, but a file in blocks,
each with its own timeout. So every body that is not tiny is a `BodyReader`: a file over a window of
a file or of memory. It stops at the deadline, and when the connection is too slow: the next attempt
gets another one.

The same pass compares the checksum of the sent bytes with the caller's: a file that changed must
not be archived with a fresh checksum.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from strandline.storage.clock import Clock
from strandline.storage.errors import ObjectCorrupt
from strandline.storage.remote.object_store.interface import (
    BodyUnreadable,
    FileBody,
    PutBody,
    checksum,
)
from strandline.storage.remote.s3.attempts import DeadlineError
from strandline.storage.remote.silence import SLOW_BYTES_PER_S
from strandline.storage.system import crc32c

_READ_BYTES = 1024 * 1024
# The size of one send. The SDK's 16 KiB cost more CPU than the bytes themselves. A block that takes
# longer than the socket's timeout (10 s) ends the attempt, so less than 26 KB/s counts as hung.
BLOCK_BYTES = 256 * 1024
# The block size that http.client and urllib3 request from a file.
SDK_BLOCK_BYTES = 16 * 1024
# A body slower than this, for as long as a socket may be silent, has stalled. The deadline of a
# request allows four times as much, so time is left for further attempts.
PROGRESS_BYTES_PER_S_MIN = SLOW_BYTES_PER_S // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyPart:
    """Bytes [position, position + size_bytes) of a body, and their CRC-32C."""

    position: int
    size_bytes: int
    crc32c: int


def measure_body(key: str, body: PutBody, *, part_bytes: int) -> tuple[BodyPart, ...]:
    """Returns the parts of `body`; one if it is not larger than `part_bytes`.

    Several parts need checksums of their own, so the file is read. Raises ObjectCorrupt if its
    checksum is not the caller's, BodyUnreadable if it cannot be opened or read.
    """
    if not isinstance(body, FileBody):
        return (BodyPart(position=0, size_bytes=len(body), crc32c=checksum(body)),)
    if body.size_bytes <= part_bytes:
        return (BodyPart(position=0, size_bytes=body.size_bytes, crc32c=body.crc32c),)
    parts: list[BodyPart] = []
    whole_crc = position = 0
    with body.open() as file:
        while position < body.size_bytes:
            size_bytes = min(part_bytes, body.size_bytes - position)
            part_crc, left = 0, size_bytes
            while left and (
                block := body.read(file, min(left, _READ_BYTES), position + size_bytes - left)
            ):
                part_crc = crc32c.crc32c(block, part_crc)
                left -= len(block)
            if left:
                raise ObjectCorrupt(key, "put", f"{body.path} is shorter than it was said to be")
            whole_crc = crc32c.joined(whole_crc, part_crc, size_bytes)
            parts.append(BodyPart(position=position, size_bytes=size_bytes, crc32c=part_crc))
            position += size_bytes
    if whole_crc != body.crc32c:
        raise ObjectCorrupt(
            key, "put", f"{body.path} has checksum {whole_crc:08x}, not {body.crc32c:08x}"
        )
    return tuple(parts)


class StalledError(Exception):
    """A body was sent too slowly; another attempt may be faster."""


class BodyReader(io.RawIOBase):
    """A read-only file over a window of `body`, for use in a `with` block.

    Reading raises DeadlineError after `deadline_s`, and StalledError if it was too slow for
    `progress_s`. The block raises ObjectCorrupt if the bytes are not those of `part`, and
    BodyUnreadable if the disk cannot read them: the SDK turns either into a failed request.
    """

    def __init__(
        self,
        key: str,
        body: PutBody,
        part: BodyPart,
        *,
        clock: Clock,
        deadline_s: float,
        progress_s: float,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._key = key
        self._body = body
        # Set first: `close` also runs if opening fails.
        self._file: BinaryIO | None = None
        if isinstance(body, FileBody):
            self._file = body.open()
        self._part = part
        self._position = 0
        self._clock = clock
        self._deadline_s = deadline_s
        self._progress_s = progress_s
        self._on_progress = on_progress
        self._looked_s = clock.monotonic_s()
        self._looked_position = 0
        # The checksum of the first `_summed_bytes` bytes.
        self._summed_bytes = self._crc32c = 0
        self._fault: str | None = None
        self._unreadable: BodyUnreadable | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        size_bytes = self._part.size_bytes
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: size_bytes}
        self._position = min(max(origin[whence] + offset, 0), size_bytes)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Returns the next bytes; BLOCK_BYTES if the SDK asks for its own block size.

        It sends blocks of any size, and 16 KiB at a time would cost 0.5 s per GB.
        """
        self._watch()
        self._on_progress()
        left = self._part.size_bytes - self._position
        wanted = BLOCK_BYTES if size == SDK_BLOCK_BYTES else size
        count = left if wanted is None or wanted < 0 else min(wanted, left)
        block = self._block(self._part.position + self._position, count)
        if len(block) < count:
            self._fault = f"it ends {count - len(block)} bytes early"
            raise DeadlineError(self._fault)
        if self._position == self._summed_bytes:
            self._crc32c = crc32c.crc32c(block, self._crc32c)
            self._summed_bytes += count
        self._position += count
        return block

    def _watch(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s > self._deadline_s:
            raise DeadlineError("the time for this request is over")
        if not self._position:
            self._looked_s, self._looked_position = now_s, 0
        elif now_s - self._looked_s > self._progress_s:
            gone = self._position - self._looked_position
            if gone < PROGRESS_BYTES_PER_S_MIN * (now_s - self._looked_s):
                raise StalledError(f"{gone} bytes went in {now_s - self._looked_s:.0f} s")
            self._looked_s, self._looked_position = now_s, self._position

    def _block(self, start: int, count: int) -> bytes:
        body = self._body
        if not isinstance(body, FileBody):
            return bytes(memoryview(body)[start : start + count])
        assert self._file is not None
        try:
            return body.read(self._file, count, start)
        except BodyUnreadable as error:
            self._unreadable = error
            raise

    def __exit__(self, *failure: object) -> None:
        self.close()
        if self._unreadable is not None:
            raise self._unreadable
        is_sent = self._summed_bytes == self._part.size_bytes
        if is_sent and self._crc32c != self._part.crc32c:
            self._fault = f"checksum {self._crc32c:08x}, not {self._part.crc32c:08x}"
        if self._fault is not None:
            raise ObjectCorrupt(self._key, "put", f"the source has changed: {self._fault}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()
