"""Inspection in a process of its own: the broker's loop shares no interpreter with it.

    broker   --- InspectionRequest --->  child
             <-- SegmentFacts, or the error ---

There is one child, started with the first request and ended after `IDLE_S` without one, so an idle
broker is small. A request that takes too long, or a child that dies (out of memory, SIGBUS from a
file that shrank), ends in InspectionFailed and the next request starts a new child. The child ends
by itself when the broker does, however that happens: its end of the socket closes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from strandline.storage.clock import Clock
from strandline.storage.errors import StorageError, StrandlineError
from strandline.storage.model import Offset
from strandline.storage.tiering.inspection import AdaptiveBounds, SegmentFacts, inspect_segment

# Long enough to serve a burst of segments with one child, short enough to give the memory back.
IDLE_S = 60.0
# A child that does not end within this after its socket is closed is killed.
GOODBYE_S = 2.0
# Reading and decompressing yields to everything that serves clients.
NICENESS = 10
# Not `-m`: the module would be `__main__` in the child, and its classes others than ours.
CHILD_PROGRAM = f"from {__name__} import main; main()"


class InspectionFailed(StorageError):
    """The pass did not end in time, or its process died; says nothing about the segment."""

    retriable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionRequest:
    """A sealed segment file, and the offsets it must hold: [base_offset, end_offset)."""

    path: Path
    base_offset: Offset
    end_offset: Offset


class SegmentInspector:
    """Owner of the child process. Thread-safe; one inspection at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._used_s = clock.monotonic_s()
        self._closed = False

    def inspect(self, request: InspectionRequest, *, timeout_s: float) -> SegmentFacts:
        """Blocks until the facts are there.

        Raises CorruptRecords or DiskError about the segment, InspectionFailed about the pass.
        """
        with self._lock:
            if self._closed:
                raise InspectionFailed("the broker stops")
            child = self._child = self._child or _Child()
            try:
                answer = child.ask(request, timeout_s=timeout_s)
            except InspectionFailed:
                self._child = None
                child.kill()
                raise
            self._used_s = self._clock.monotonic_s()
        if isinstance(answer, SegmentFacts):
            return answer
        raise answer

    def close_if_idle(self) -> None:
        """Ends the child if nobody needed it for a while; never waits for an inspection."""
        if self._child is not None and self._lock.acquire(blocking=False):
            try:
                if self._clock.monotonic_s() - self._used_s >= IDLE_S:
                    self._end_child()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Ends the child for good; an inspection that is running fails at once."""
        self._closed = True
        child = self._child
        if child is not None:
            child.abandon()
        with self._lock:
            self._end_child()

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def __repr__(self) -> str:
        return f"<SegmentInspector child={self._child}>"


class _Child:
    """One process and our end of the socket to it."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe(duplex=True)
        # The child must find the same code, also where the package is on a path of the caller's.
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", CHILD_PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        except OSError as error:
            self._connection.close()
            raise InspectionFailed(f"cannot start the inspection process: {error}") from error
        finally:
            theirs.close()

    def ask(
        self, request: InspectionRequest, *, timeout_s: float
    ) -> SegmentFacts | StrandlineError:
        try:
            self._connection.send(request)
            if not self._connection.poll(timeout_s):
                raise InspectionFailed(f"{request.path} took longer than {timeout_s:g} s")
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise InspectionFailed(
                f"the inspection process died with status {self._process.poll()}"
            ) from error
        assert isinstance(answer, SegmentFacts | StrandlineError), answer
        return answer

    def end(self) -> None:
        self._connection.close()
        try:
            self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def abandon(self) -> None:
        """Kills the process while somebody may be waiting for its answer: he gets EOF."""
        self._process.kill()

    def kill(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def __repr__(self) -> str:
        return f"pid {self._process.pid}"


def serve(connection: Connection) -> None:
    """The child: answers requests until the other end is gone."""
    bounds_of_batch = AdaptiveBounds()
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            return
        assert isinstance(request, InspectionRequest), request
        answer: SegmentFacts | StrandlineError
        try:
            answer = inspect_segment(
                request.path,
                base_offset=request.base_offset,
                end_offset=request.end_offset,
                bounds_of_batch=bounds_of_batch,
            )
        except StrandlineError as error:
            answer = error
        try:
            connection.send(answer)
        except OSError:
            return


def main() -> None:
    """The child's program; its argument is the descriptor of its end of the socket."""
    # Ctrl-C reaches the whole terminal; the broker decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    serve(Connection(int(sys.argv[1])))
