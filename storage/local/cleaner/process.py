"""Runs a cleaning in a child process, which shares no interpreter with the broker's event loop.

    broker   --- CleaningRequest --->    child
             <-- CleanedGroup ---                   a group is on disk, as .cleaned files
             --- Proceed --->                       it was swapped in, go on
             ...
             <-- CleaningStatistics, or the error ---

If the request says so, the child asks for each segment (SegmentWanted); Proceed says that it is
there. While the broker waits it sends each altered rate (RateAltered), which the child takes when
it looks at its rate, or for a message.

Each cleaner thread has one child (`ChildOwner`). To abort a cleaning, the broker kills the child:
the names of its unfinished files are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import StorageError, StrandlineError
from strandline.storage.local.cleaner.cleaning import Cleaning
from strandline.storage.local.cleaner.messages import (
    CleanedGroup,
    CleaningRequest,
    CleaningStatistics,
    Proceed,
    RateAltered,
    SegmentWanted,
)
from strandline.storage.system.child_process import (
    ChildOwner,
    ChildProcess,
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

    def __init__(self, clock: Clock, start: Callable[[str], ChildProcess] = ChildProcess) -> None:
        super().__init__(__name__, clock, start)
        self._io_bytes_per_s = float("inf")

    def begin(self, request: CleaningRequest) -> None:
        """Starts a cleaning. Raises ChildFailed."""
        self._io_bytes_per_s = request.io_bytes_per_s
        self.send(request)

    def next(
        self, *, io_bytes_per_s: Callable[[], float] | None = None
    ) -> CleanedGroup | CleaningStatistics | SegmentWanted:
        """Waits for the next group, segment request, or the end.

        `io_bytes_per_s` is asked meanwhile, in this thread; None: the rate stays that of the
        request. Raises its error: CorruptRecords, DiskError, CleaningFailed, ChildFailed.
        """
        answer = self.receive(
            meanwhile=partial(self._tell_rate, io_bytes_per_s) if io_bytes_per_s else None
        )
        assert isinstance(answer, CleanedGroup | CleaningStatistics | SegmentWanted), answer
        return answer

    def proceed(self) -> None:
        """The group is swapped in; the child goes on with the next one. Raises ChildFailed."""
        self.send(Proceed())

    def _tell_rate(self, io_bytes_per_s: Callable[[], float]) -> None:
        wanted = io_bytes_per_s()
        if wanted != self._io_bytes_per_s:
            self.send(RateAltered(io_bytes_per_s=wanted))
            self._io_bytes_per_s = wanted


class _Orphaned(Exception):
    """The broker has exited, or has abandoned this cleaning."""


class _Throttle:
    """Throttles reads and writes to log.cleaner.io.max.bytes.per.second."""

    def __init__(self, connection: Connection, bytes_per_s: float, clock: Clock) -> None:
        self._connection = connection
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._since_s = clock.monotonic_s()
        # Of what was spent since then at this rate.
        self._spent_bytes = 0

    def spend(self, size_bytes: int) -> None:
        """Waits until this many bytes are allowed. Raises _Orphaned."""
        self._spent_bytes += size_bytes
        while True:
            due_s = self._since_s + self._spent_bytes / self._bytes_per_s
            wait_s = due_s - self._clock.monotonic_s()
            if self._connection.poll(max(0.0, min(wait_s, THROTTLE_SLEEP_S_MAX))):
                # All that the broker sends meanwhile, unless it closed the socket.
                self._alter(self._connection.recv(), size_bytes)
            elif wait_s <= 0:
                return

    def wait_for_go(self) -> None:
        """Waits until the broker lets the cleaning go on. Raises EOFError, _Orphaned."""
        while not isinstance(message := self._connection.recv(), Proceed):
            self._alter(message, 0)

    def _alter(self, message: object, unspent_bytes: int) -> None:
        """Adopts a rate from now on: what waits for it, and nothing before, goes by it."""
        if not isinstance(message, RateAltered):
            raise _Orphaned
        self._bytes_per_s = message.io_bytes_per_s
        self._since_s, self._spent_bytes = self._clock.monotonic_s(), unspent_bytes


def serve(connection: Connection, clock: Clock) -> None:
    """The child's loop: answers requests until the broker closes the socket."""
    while True:
        try:
            request = connection.recv()
            if isinstance(request, RateAltered):
                # Sent while the last cleaning ended: the next one's request has the rate.
                continue
            assert isinstance(request, CleaningRequest), request
            connection.send(_clean(connection, request, clock))
        except (EOFError, OSError, _Orphaned):
            return


def _clean(
    connection: Connection, request: CleaningRequest, clock: Clock
) -> CleaningStatistics | StrandlineError:
    throttle = _Throttle(connection, request.io_bytes_per_s, clock)
    try:
        cleaning = Cleaning(
            request, spend=throttle.spend, fetch=partial(_fetch, connection, throttle)
        )
        for group in cleaning.groups():
            connection.send(group)
            throttle.wait_for_go()
    except StrandlineError as error:
        return error
    except (EOFError, OSError, _Orphaned):
        raise
    except Exception as error:  # any error: the broker must be told, and goes on
        return CleaningFailed(f"{type(error).__name__}: {error}")
    return cleaning.statistics


def _fetch(connection: Connection, throttle: _Throttle, wanted: SegmentWanted) -> None:
    connection.send(wanted)
    throttle.wait_for_go()


def main() -> None:
    """The main function of the child process."""
    serve(connect_to_parent(), SystemClock())
