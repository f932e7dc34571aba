"""Runs a cleaning in a child process, which shares no interpreter with the broker's event loop.

    broker   --- CleaningRequest --->    child
             <-- CleanedGroup ---                   a group is on disk, as .cleaned files
             --- True --->                          it was swapped in, go on
             ...
             <-- CleaningStatistics, or the error ---

If the request says so, the child asks for each segment (SegmentWanted); True says that it is there.

Each cleaner thread has one child (`ChildOwner`). To abort a cleaning, the broker kills the child:
the names of its unfinished files are ignored.
"""

from __future__ import annotations

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
    ChildOwner,
    connect_to_parent,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# As often as Kafka's throttler looks.
THROTTLE_SLEEP_S_MAX = 1.0


class CleaningFailed(StorageError):
    """The cleaning failed, but neither the disk nor the records are the reason."""


class CleanerProcess(ChildOwner):
    """The child process that cleans, one log at a time; its methods block."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(__name__, clock)

    def begin(self, request: CleaningRequest) -> None:
        """Starts a cleaning. Raises ChildFailed."""
        self.send(request)

    def next(self) -> CleanedGroup | CleaningStatistics | SegmentWanted:
        """Waits for the next group, segment request, or the end.

        Raises its error: CorruptRecords, DiskError, CleaningFailed, ChildFailed.
        """
        answer = self.receive()
        assert isinstance(answer, CleanedGroup | CleaningStatistics | SegmentWanted), answer
        return answer

    def proceed(self) -> None:
        """The group is swapped in; the child goes on with the next one. Raises ChildFailed."""
        self.send(True)


class _Orphaned(Exception):
    """The broker has exited, or has abandoned this cleaning."""


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
