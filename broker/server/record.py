"""The record of who did what, with the file that keeps it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor

from strandline.broker.audit.file import RecordFile
from strandline.broker.audit.line import line_of
from strandline.broker.audit.record import AuditRecord
from strandline.storage.clock import Clock
from strandline.storage.errors import InvalidConfig


class KeptRecord:
    """A record and its file."""

    def __init__(self, file: RecordFile, clock: Clock) -> None:
        self.file = file
        self.record = AuditRecord(file.add, clock)

    @classmethod
    def open(cls, path: str, clock: Clock, worker: Executor) -> KeptRecord:
        """Opens the file, which `worker` will write. Raises InvalidConfig if it cannot."""

        def lost_line(count: int) -> str:
            return line_of(clock.now_ms(), "lost", {"lines": count})

        try:
            file = RecordFile(path, clock, worker, lost_line=lost_line)
        except OSError as error:
            raise InvalidConfig(
                f"strandline.audit.file={path!r}: {os.strerror(error.errno or 0)}"
            ) from error
        return cls(file, clock)

    @property
    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {"record": self.record.run, "lines of the record": self.file.run}

    async def close(self) -> None:
        """Records what is known by now, and writes all of it."""
        self.record.tell()
        await self.file.close()
