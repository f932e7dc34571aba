"""The record of who did what, with the file that keeps it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor

from strandline.broker.audit.file import RecordFile
from strandline.broker.audit.line import line_of
from strandline.broker.audit.record import AuditRecord
from strandline.broker.audit.waiting import WaitingLines
from strandline.broker.authorization.denials import Denials
from strandline.storage.clock import Clock
from strandline.storage.errors import InvalidConfig


class KeptRecord:
    """A record and its file."""

    def __init__(
        self, lines: WaitingLines, file: RecordFile, clock: Clock, denials: Denials | None
    ) -> None:
        self.lines = lines
        self._file = file
        self.record = AuditRecord(lines.add, clock)
        self._denials = denials
        if denials is not None:
            denials.record_in(self.record)

    @classmethod
    def open(cls, path: str, clock: Clock, worker: Executor, denials: Denials | None) -> KeptRecord:
        """Opens the file, which `worker` will write. Raises InvalidConfig if it cannot."""
        lines = WaitingLines(lambda count: line_of(clock.now_ms(), "lost", {"lines": count}))
        try:
            file = RecordFile(path, lines, clock, worker)
        except OSError as error:
            raise InvalidConfig(
                f"strandline.audit.file={path!r}: {os.strerror(error.errno or 0)}"
            ) from error
        return cls(lines, file, clock, denials)

    @property
    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {"record": self.record.run, "lines of the record": self._file.run}

    async def close(self) -> None:
        """Records what is known by now, and writes all of it."""
        if self._denials is not None:
            self._denials.tell_counts()
        self.record.tell()
        await self._file.close()
