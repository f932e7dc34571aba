"""Inspection in a process of its own: the broker's loop shares no interpreter with it.

    broker   --- InspectionRequest --->  child
             <-- SegmentFacts, or the error ---

There is one child, started with the first request and ended after `IDLE_S` without one, so an idle
broker is small. A request that takes too long, or a child that dies (out of memory, SIGBUS from a
file that shrank), ends in InspectionFailed and the next request starts a new child. The child ends
by itself when the broker does, however that happens: its end of the socket closes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.storage.clock import Clock
from strandline.storage.errors import StorageError, StrandlineError
from strandline.storage.model import Offset
from strandline.storage.system.child_process import (
    ChildFailed,
    ChildProcess,
    connect_to_parent,
    program_of,
)
from strandline.storage.tiering.copy.inspection import Offsets, SegmentFacts, inspect_segment
from strandline.storage.tiering.copy.recompression import Recompression, recompress_segment
from strandline.storage.tiering.copy.segment_walk import AdaptiveWalk, Walk, plain_walk

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Long enough to serve a burst of segments with one child, short enough to give the memory back.
IDLE_S = 60.0
CHILD_PROGRAM = program_of(__name__)


class InspectionFailed(StorageError):
    """The pass did not end in time, or its process died; says nothing about the segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionRequest:
    """A sealed segment file, and the offsets it must hold: [base_offset, end_offset).

    With `recompression` it is rewritten first, and the facts are of the rewritten file.
    """

    path: Path
    base_offset: Offset
    end_offset: Offset
    offsets: Offsets = Offsets.EVERY
    recompression: Recompression | None = None


class SegmentInspector:
    """Owner of the child process. Thread-safe; one inspection at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        self._used_s = clock.monotonic_s()
        self._closed = False

    def inspect(self, request: InspectionRequest, *, timeout_s: float) -> SegmentFacts:
        """Blocks until the facts are there.

        Raises CorruptRecords or DiskError about the segment, InspectionFailed about the pass.
        """
        with self._lock:
            if self._closed:
                raise InspectionFailed("the broker stops")
            child = self._child = self._child or _start()
            try:
                answer = _ask(child, request, timeout_s=timeout_s)
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


def _start() -> ChildProcess:
    try:
        return ChildProcess(CHILD_PROGRAM)
    except ChildFailed as error:
        raise InspectionFailed(str(error)) from error


def _ask(
    child: ChildProcess, request: InspectionRequest, *, timeout_s: float
) -> SegmentFacts | StrandlineError:
    """Raises InspectionFailed."""
    try:
        child.connection.send(request)
        if not child.connection.poll(timeout_s):
            raise InspectionFailed(f"{request.path} took longer than {timeout_s:g} s")
        answer = child.connection.recv()
    except (EOFError, OSError) as error:
        raise InspectionFailed(str(child.died())) from error
    assert isinstance(answer, SegmentFacts | StrandlineError), answer
    return answer


def carry_out(request: InspectionRequest, walk: Walk = plain_walk) -> SegmentFacts:
    """Does what is asked for, in this process. Raises CorruptRecords, DiskError."""
    path, rewritten = request.path, None
    if request.recompression is not None:
        done = recompress_segment(request.path, request.recompression)
        if done.batch_count:
            path, rewritten = request.recompression.path, done.source_size_bytes
    facts = inspect_segment(
        path,
        base_offset=request.base_offset,
        end_offset=request.end_offset,
        walk=walk,
        offsets=request.offsets,
    )
    return facts if rewritten is None else replace(facts, recompressed_from_bytes=rewritten)


def serve(connection: Connection) -> None:
    """The child: answers requests until the other end is gone."""
    walk = AdaptiveWalk()
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            return
        assert isinstance(request, InspectionRequest), request
        answer: SegmentFacts | StrandlineError
        try:
            answer = carry_out(request, walk)
        except StrandlineError as error:
            answer = error
        try:
            connection.send(answer)
        except OSError:
            return


def main() -> None:
    """The child's program."""
    serve(connect_to_parent())
