"""Requests under way to stores, and since when they have waited without any progress.

    Silence           of one store: opened with it, entered by each request
    silent_places()   the places of this process that are silent now
    SilenceWatch      tells which they are, for commands and functions that make someone wait

A large transfer that goes on is no silence: it notes its progress.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakSet

from strandline.storage.clock import Clock, SystemClock

# A transfer below this rate is as good as none.
SLOW_BYTES_PER_S = 1024 * 1024
# Nobody wonders about a shorter wait.
TOLD_AFTER_S = 2.0
LOOK_S = 0.25

_open: WeakSet[Silence] = WeakSet()
# Stores are opened while another thread looks.
_lock = threading.Lock()


class Silence:
    """For how long the requests to one place have been without progress; thread-safe."""

    def __init__(self, place: str, clock: Clock | None = None) -> None:
        self.place = place
        self._clock = clock or SystemClock()
        self._count_lock = threading.Lock()
        self._running_count = 0
        self._progress_s = 0.0
        with _lock:
            _open.add(self)

    @property
    def lasts_s(self) -> float:
        """0 while no request is under way."""
        with self._count_lock:
            if not self._running_count:
                return 0.0
            return self._clock.monotonic_s() - self._progress_s

    def note_progress(self, *, next_bytes: int = 0) -> None:
        """Notes that a part of a body was sent or received.

        A request of `next_bytes` that cannot note more is no silence while a slow network takes.
        """
        self._progress_s = self._clock.monotonic_s() + next_bytes / SLOW_BYTES_PER_S

    def __enter__(self) -> None:
        with self._count_lock:
            if not self._running_count:
                self.note_progress()
            self._running_count += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._count_lock:
            self._running_count -= 1
            if kind is None:
                self.note_progress()


def silent_places(after_s: float) -> set[str]:
    """The places whose requests have waited that long."""
    with _lock:
        opened = list(_open)
    return {one.place for one in opened if one.lasts_s >= after_s}


class SilenceWatch:
    """A thread that calls `tell(place)` once for each silence that lasts TOLD_AFTER_S.

    A request may take its store's time, half a minute with all attempts, before its caller gets the
    error; in a folder whose server is away it may take for ever.
    """

    def __init__(self, tell: Callable[[str], None], *, of: str | None = None) -> None:
        """`of` is the only place to watch; None: all of this process."""
        self._tell = tell
        self._of = of
        self._is_over = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="silence", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _watch(self) -> None:
        told: set[str] = set()
        while not self._is_over.wait(LOOK_S):
            silent = silent_places(TOLD_AFTER_S)
            if self._of is not None:
                silent &= {self._of}
            for place in sorted(silent - told):
                self._tell(place)
            told = silent
