"""The file of the record: lines wait in memory, and a worker appends them.

    request ──add──► waiting ──► worker: written ──► gone
                        └─ more than WAITING_BYTES_MAX: lost, and counted

So no client waits for a disk that is slow, full or hangs, or for who reads a FIFO. What could not
be written stays and is tried again; a line says how many were lost in the meantime.

The file is opened again when it is not the one at its path any more: logrotate renamed it, or
somebody removed it. It is appended to, so it may also be truncated.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

from strandline.storage.clock import Clock
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

T = TypeVar("T")

STANDARD_ERROR = "-"
# Some 50,000 lines.
WAITING_BYTES_MAX = 16 * 1024 * 1024
# A pipe takes 64 KiB.
WRITTEN_AT_ONCE_BYTES = 1024 * 1024
RETRY_S = 1.0
# A broker that stops waits so long for the last lines.
CLOSE_S = 5.0
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
_MODE = 0o600


class RecordFile:
    """A file that lines are appended to. Used on the event loop, but for `write`."""

    def __init__(
        self, path: str, clock: Clock, worker: Executor, *, lost_line: Callable[[int], str]
    ) -> None:
        """Opens it; `worker` has one thread, `lost_line` tells of so many that were lost.

        Raises OSError.
        """
        self._path = path
        self._worker = worker
        self._lost_line = lost_line
        self._quiet_log = QuietLog(log, clock)
        self._news = asyncio.Event()
        # Guards the next four, which the worker changes too.
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._unsaid_lost_count = 0
        self.lost_count = 0
        # The worker's alone: the open file, and what it took and has not written yet.
        self._descriptor = -1
        self._taken = memoryview(b"")
        self._open()

    def add(self, line: str) -> None:
        """Adds a line of ASCII, without its end."""
        data = f"{line}\n".encode("ascii")
        with self._lock:
            if self._waiting_bytes + len(data) > WAITING_BYTES_MAX:
                self.lost_count += 1
                self._unsaid_lost_count += 1
                return
            self._waiting.append(data)
            self._waiting_bytes += len(data)
        self._news.set()

    async def run(self) -> None:
        """Writes lines when there are some."""
        while True:
            await self._news.wait()
            self._news.clear()
            if not await self._in_worker(self.write):
                await asyncio.sleep(RETRY_S)
                self._news.set()

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
            while self._take():
                while self._taken:
                    written = os.write(self._descriptor, self._taken[:WRITTEN_AT_ONCE_BYTES])
                    self._taken = self._taken[written:]
                    with self._lock:
                        self._waiting_bytes -= written
        except OSError as error:
            with self._lock:
                fields = {
                    "file": self._path,
                    "error": error.strerror,
                    "waiting_bytes": self._waiting_bytes,
                    "lost": self.lost_count,
                }
            self._quiet_log.say(logging.ERROR, "the record cannot be written", None, fields)
            return False
        return True

    def _take(self) -> bool:
        """Takes over what waits; False if nothing does."""
        if self._taken:
            return True
        with self._lock:
            # These were lost after all that waits was added.
            if self._unsaid_lost_count:
                line = f"{self._lost_line(self._unsaid_lost_count)}\n".encode("ascii")
                self._unsaid_lost_count = 0
                self._waiting.append(line)
                self._waiting_bytes += len(line)
            self._taken = memoryview(b"".join(self._waiting))
            self._waiting.clear()
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
