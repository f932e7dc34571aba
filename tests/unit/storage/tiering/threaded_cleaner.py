"""The cleaner of archives in a thread of the test: its protocol without another interpreter."""

from __future__ import annotations

from multiprocessing.connection import Pipe
from threading import Thread

from strandline.storage.clock import Clock
from strandline.storage.local.cleaner.messages import CleaningRequest
from strandline.storage.local.cleaner.process import CleanerProcess, serve
from strandline.storage.system.child_process import ChildFailed, ChildProcess


class _ThreadChild(ChildProcess):
    """A thread in place of the child process."""

    def __init__(self, clock: Clock) -> None:
        self.connection, theirs = Pipe(duplex=True)
        Thread(target=serve, args=(theirs, clock), daemon=True).start()

    def died(self) -> ChildFailed:
        return ChildFailed("the thread ended")

    def end(self) -> None:
        self.connection.close()

    def abandon(self) -> None: ...

    def kill(self) -> None:
        self.connection.close()

    def activity(self) -> None:
        """A thread is never stopped."""


class ThreadedCleaner(CleanerProcess):
    """The cleaner's protocol without the start of an interpreter."""

    def begin(self, request: CleaningRequest) -> None:
        self._child = self._child or _ThreadChild(self._clock)
        super().begin(request)
