"""Inspects segments in a child process, which leaves the broker's interpreter to its event loop.

    broker   --- InspectionRequest --->  child
             <-- SegmentFacts, or the error ---

There is one child (`ChildOwner`). A request that takes too long, or a child that dies (out of
memory, SIGBUS from a file that shrank), ends in InspectionFailed; the next one starts a new child.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.storage.clock import Clock
from strandline.storage.errors import StrandlineError
from strandline.storage.model import Offset, Position
from strandline.storage.system.child_process import (
    ChildFailed,
    ChildOwner,
    ChildProcess,
    connect_to_parent,
)
from strandline.storage.tiering.copy.inspection import Offsets, SegmentFacts, inspect_segment
from strandline.storage.tiering.copy.recompression import Recompression, recompress_segment
from strandline.storage.tiering.copy.segment_walk import AdaptiveWalk, Walk

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class InspectionFailed(ChildFailed):
    """The inspection timed out or its process died; the segment may be good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionRequest:
    """A closed segment file, and the offsets it must hold from `position` to its end: [base_offset,
    end_offset).

    With `recompression` it is rewritten first, and the facts describe the rewritten file.
    """

    path: Path
    base_offset: Offset
    end_offset: Offset
    position: Position = 0
    offsets: Offsets = Offsets.EVERY
    recompression: Recompression | None = None


class SegmentInspector(ChildOwner):
    """Owner of the inspecting child process. Thread-safe; one inspection at a time."""

    def __init__(self, clock: Clock, start: Callable[[str], ChildProcess] = ChildProcess) -> None:
        super().__init__(__name__, clock, start)
        self._lock = threading.Lock()

    def inspect(self, request: InspectionRequest, *, timeout_s: float) -> SegmentFacts:
        """Returns the facts of the segment; blocks.

        Raises CorruptRecords or DiskError about the segment, InspectionFailed about the pass.
        """
        with self._lock:
            try:
                self.send(request)
                facts = self.receive(timeout_s=timeout_s, work=str(request.path))
            except ChildFailed as error:
                raise InspectionFailed(str(error)) from error
        assert isinstance(facts, SegmentFacts), facts
        return facts

    def end_if_idle(self) -> None:
        """Ends the child if it was idle for a while; never waits for an inspection."""
        if self._lock.acquire(blocking=False):
            try:
                super().end_if_idle()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Ends the child for good; an inspection that is running fails at once."""
        super().close()
        with self._lock:
            self.stop()


def carry_out(request: InspectionRequest, walk: Walk | None = None) -> SegmentFacts:
    """Inspects in this process. Raises CorruptRecords, DiskError."""
    path, position, rewritten = request.path, request.position, None
    if request.recompression is not None:
        done = recompress_segment(path, request.recompression, position=position)
        if done.batch_count:
            path, position, rewritten = request.recompression.path, 0, done.source_size_bytes
    facts = inspect_segment(
        path,
        position=position,
        base_offset=request.base_offset,
        end_offset=request.end_offset,
        walk=walk,
        offsets=request.offsets,
    )
    return facts if rewritten is None else replace(facts, recompressed_from_bytes=rewritten)


def serve(connection: Connection) -> None:
    """Answers requests in the child until the parent closes the connection."""
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
    """Runs the child process."""
    serve(connect_to_parent())
