"""The file of the record: lines wait in memory, and a worker appends them.

    request ──► WaitingLines ──► worker ──► file

So no client waits for a disk that is slow, full or hangs, or for who reads a FIFO. What could not
be written stays, and is tried again.

The file is opened again when it is not the one at its path any more: logrotate renamed it, or
somebody removed it. It is appended to, so it may also be truncated.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

from strandline.broker.audit.waiting import WaitingLines
from strandline.storage.clock import Clock
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

T = TypeVar("T")

STANDARD_ERROR = "-"
# A pipe takes 64 KiB.
WRITTEN_AT_ONCE_BYTES = 1024 * 1024
RETRY_S = 1.0
# A broker that stops waits so long for the last lines.
CLOSE_S = 5.0
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
_MODE = 0o600


class RecordFile:
    """A file that lines are appended to. Used on the event loop, but for `write`."""

    def __init__(self, path: str, lines: WaitingLines, clock: Clock, worker: Executor) -> None:
        """Opens it; `worker` has one thread. Raises OSError."""
        self._path = path
        self._lines = lines
        self._worker = worker
        self._quiet_log = QuietLog(log, clock)
        # The worker's alone: the open file, and what it took and has not written yet.
        self._descriptor = -1
        self._taken = memoryview(b"")
        # The file ends in the middle of a line.
        self._is_torn = False
        self._open()

    async def run(self) -> None:
        """Writes lines when there are some."""
        while True:
            await self._lines.news.wait()
            self._lines.news.clear()
            if not await self._in_worker(self.write):
                await asyncio.sleep(RETRY_S)
                self._lines.news.set()

    async def close(self) -> None:
        """Writes what waits, for CLOSE_S at most, and closes the file."""
        try:
            await asyncio.wait_for(self._in_worker(self._end), CLOSE_S)
        except TimeoutError:
            log.error(
                "the record cannot be written",
                extra={"fields": {"file": self._path, "error": f"not within {CLOSE_S:.0f} s"}},
            )

    def _end(self) -> None:
        self.write()
        if self._path != STANDARD_ERROR and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def _in_worker(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    def write(self) -> bool:
        """Writes all that waits; returns whether it could. For the worker."""
        try:
            self._open_if_moved()
            if self._is_torn and not self._taken:
                os.write(self._descriptor, b"\n")
            self._is_torn = False
            while self._taken or self._take():
                written = os.write(self._descriptor, self._taken[:WRITTEN_AT_ONCE_BYTES])
                self._taken = self._taken[written:]
                self._lines.written(written)
        except OSError as error:
            fields = {
                "file": self._path,
                "error": error.strerror,
                "waiting_bytes": self._lines.waiting_bytes,
                "lost": self._lines.lost_count,
            }
            self._quiet_log.say(logging.ERROR, "the record cannot be written", None, fields)
            return False
        return True

    def _take(self) -> bool:
        self._taken = memoryview(b"".join(self._lines.take()))
        return bool(self._taken)

    def _open_if_moved(self) -> None:
        if self._path == STANDARD_ERROR:
            return
        if self._descriptor >= 0:
            opened = os.fstat(self._descriptor)
            try:
                named = Path(self._path).stat()
            except FileNotFoundError:
                pass
            else:
                if os.path.samestat(opened, named):
                    return
            os.close(self._descriptor)
            self._descriptor = -1
        self._open()

    def _open(self) -> None:
        if self._path == STANDARD_ERROR:
            self._descriptor = 2
            return
        self._descriptor = os.open(self._path, _FLAGS, _MODE)
        self._is_torn = _is_torn(self._path, os.fstat(self._descriptor))


def _is_torn(path: str, status: os.stat_result) -> bool:
    """Returns whether a broker was killed while it wrote the last line, on a full disk mostly."""
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return False
    try:
        with Path(path).open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
    except OSError:
        return False
