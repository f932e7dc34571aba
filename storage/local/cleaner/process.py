"""Runs a cleaning in a child process, which shares no interpreter with the broker's event loop.

    broker   --- CleaningRequest --->    child
             <-- CleanedGroup ---                   a group is on disk, as .cleaned files
             --- True --->                          it was swapped in, go on
             ...
             <-- CleaningStatistics, or the error ---

A request may have the child ask for each segment (SegmentWanted); True says that it is there.

One child per cleaner thread. It is started with the first request and ended after `IDLE_S` without
one, so an idle broker is small. To abort a cleaning the child is killed: its files so far have
names that are ignored. A child that hangs is killed, too.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import StorageError, StrandlineError
from strandline.storage.local.cleaner.cleaning import Cleaning
from strandline.storage.local.cleaner.messages import (
    CleanedGroup,
    CleaningRequest,
    CleaningStatistics,
    SegmentWanted,
)
from strandline.storage.system.child_process import (
    ChildFailed,
    ChildProcess,
    connect_to_parent,
    program_of,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Long enough to serve a burst of logs with one child, short enough to give the memory back.
IDLE_S = 60.0
# How soon a caller that waits for the child sees that it was abandoned.
POLL_S = 0.5
# A child without any activity for this long was stopped, or hangs with its disk: a working child
# shows some now and then, however large the log and however slow the disk or the throttle.
STILL_S_MAX = 300.0
# Kafka's throttle checks as often.
THROTTLE_SLEEP_S_MAX = 1.0


class CleaningFailed(StorageError):
    """The cleaning failed for a reason that lies neither in the disk nor in the records."""


class CleanerProcess:
    """Owner of one child. One cleaning at a time; the methods block and belong in a worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._child: ChildProcess | None = None
        self._used_s = clock.monotonic_s()
        self._closed = threading.Event()

    def begin(self, request: CleaningRequest) -> None:
        """Starts a cleaning. Raises ChildFailed."""
        if self._closed.is_set():
            raise ChildFailed("the broker stops")
        if self._child is None:
            self._child = ChildProcess(program_of(__name__))
            self._child.bound_sends(STILL_S_MAX)
        self._send(self._child, request)

    def next(self) -> CleanedGroup | CleaningStatistics | SegmentWanted:
        """Waits for the next group, segment request, or the end.

        Raises its error: CorruptRecords, DiskError, CleaningFailed, ChildFailed.
        """
        child = self._child
        assert child is not None, "no cleaning was begun"
        try:
            since_s, activity = self._clock.monotonic_s(), child.activity()
            while not child.connection.poll(POLL_S):
                if self._closed.is_set():
                    raise ChildFailed("the broker stops")
                seen, now_s = child.activity(), self._clock.monotonic_s()
                if seen is None or seen != activity:
                    since_s, activity = now_s, seen
                elif now_s - since_s >= STILL_S_MAX:
                    self._child = None
                    child.give_up()
                    raise ChildFailed(f"the child process did not move for {STILL_S_MAX:g} s")
            answer = child.connection.recv()
        except (EOFError, OSError) as error:
            self._child = None
            died = child.died()
            child.give_up()
            raise died from error
        self._used_s = self._clock.monotonic_s()
        if isinstance(answer, StrandlineError):
            raise answer
        assert isinstance(answer, CleanedGroup | CleaningStatistics | SegmentWanted), answer
        return answer

    def proceed(self) -> None:
        """Tells the child that the group is swapped in and it may go on. Raises ChildFailed."""
        child = self._child
        assert child is not None, "no cleaning was begun"
        self._send(child, True)

    def _send(self, child: ChildProcess, message: object) -> None:
        try:
            child.connection.send(message)
        except BlockingIOError as error:
            self.stop()
            raise ChildFailed(f"the child process took nothing for {STILL_S_MAX:g} s") from error
        except OSError as error:
            self._child = None
            died = child.died()
            child.give_up()
            raise died from error

    def stop(self) -> None:
        """Aborts a cleaning; the next one gets a new child."""
        child, self._child = self._child, None
        if child is not None:
            child.give_up()

    def abandon(self) -> None:
        """Like `stop`, while another thread is waiting in `next`, which then raises."""
        child = self._child
        if child is not None:
            child.abandon()

    def end_if_idle(self) -> None:
        """Ends the child if it was idle for `IDLE_S`."""
        if self._child is not None and self._clock.monotonic_s() - self._used_s >= IDLE_S:
            child, self._child = self._child, None
            child.end()

    def close(self) -> None:
        """Ends the child for good; a running cleaning fails at once."""
        self._closed.set()
        self.abandon()

    def __repr__(self) -> str:
        return f"<CleanerProcess child={self._child}>"


class _Orphaned(Exception):
    """The broker is gone, or has abandoned this cleaning."""


class _Throttle:
    """Throttles reads and writes to log.cleaner.io.max.bytes.per.second."""

    def __init__(self, connection: Connection, bytes_per_s: float, clock: Clock) -> None:
        self._connection = connection
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._begun_s = clock.monotonic_s()
        self._spent_bytes = 0

    def spend(self, size_bytes: int) -> None:
        """Waits until this many bytes are allowed. Raises _Orphaned."""
        self._spent_bytes += size_bytes
        due_s = self._begun_s + self._spent_bytes / self._bytes_per_s
        while True:
            wait_s = due_s - self._clock.monotonic_s()
            # The broker sends nothing meanwhile: a readable socket means that it was closed.
            if self._connection.poll(max(0.0, min(wait_s, THROTTLE_SLEEP_S_MAX))):
                raise _Orphaned
            if wait_s <= 0:
                return


def serve(connection: Connection, clock: Clock) -> None:
    """The child's loop: answers requests until the broker closes the socket."""
    while True:
        try:
            request = connection.recv()
            assert isinstance(request, CleaningRequest), request
            connection.send(_clean(connection, request, clock))
        except (EOFError, OSError, _Orphaned):
            return


def _clean(
    connection: Connection, request: CleaningRequest, clock: Clock
) -> CleaningStatistics | StrandlineError:
    throttle = _Throttle(connection, request.io_bytes_per_s, clock)
    try:
        cleaning = Cleaning(request, spend=throttle.spend, fetch=partial(_fetch, connection))
        for group in cleaning.groups():
            connection.send(group)
            connection.recv()
    except StrandlineError as error:
        return error
    except (EOFError, OSError, _Orphaned):
        raise
    except Exception as error:  # any error: the broker must be told, and goes on
        return CleaningFailed(f"{type(error).__name__}: {error}")
    return cleaning.statistics


def _fetch(connection: Connection, wanted: SegmentWanted) -> None:
    connection.send(wanted)
    connection.recv()


def main() -> None:
    """The main function of the child process."""
    serve(connect_to_parent(), SystemClock())
