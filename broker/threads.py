"""Threads of a pool, whose start ends although the new thread does not begin.

    start ──► the system makes a thread ──► it tells that it has begun ──► start ends
                                       └──► it finds no memory, and dies ──► RuntimeError, in time

`Thread.start` waits until the new thread says that it has begun. One that finds no memory for its
first frame never does, nor can it say anything else: the event loop, which starts the threads of
its pools, stood still for good. Here that is, after BEGIN_TURNS, what it is where the system gives
no thread at all. One that begins later does no harm: its pool was given up, and tells it to end.
Neither class has a seam for this, so it works with what they keep to themselves, where that is what
it was in Python 3.11 to 3.13. Later ones have their own pool.
"""

from __future__ import annotations

import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as pools

_IS_KNOWN = sys.version_info < (3, 14)
# A thread begins within a ms. In turns, so that a process that stood still in between (a debugger,
# a machine that slept) takes no thread for dead that had no time to begin.
BEGIN_TURNS = 10
BEGIN_TURN_S = 0.3


class Threads(ThreadPoolExecutor):
    """A ThreadPoolExecutor of such threads. `submit` raises RuntimeError where there is none."""

    def _adjust_thread_count(self) -> None:
        if not _IS_KNOWN:
            super()._adjust_thread_count()
            return
        if self._idle_semaphore.acquire(timeout=0) or len(self._threads) >= self._max_workers:
            return
        thread = _Thread(
            name=f"{self._thread_name_prefix}_{len(self._threads)}",
            target=pools._worker,  # noqa: SLF001
            args=(weakref.ref(self), self._work_queue, None, ()),
        )
        thread.start()
        self._threads.add(thread)  # type: ignore[attr-defined]
        # By this the interpreter waits for them at its end.
        pools._threads_queues[thread] = self._work_queue  # type: ignore[index]  # noqa: SLF001


class _Begun(threading.Event):
    def wait(self, _timeout: float | None = None) -> bool:
        return any(threading.Event.wait(self, BEGIN_TURN_S) for _ in range(BEGIN_TURNS))


class _Thread(threading.Thread):
    def start(self) -> None:
        self._started = _Begun()
        super().start()
        if not self._started.is_set():
            threading._limbo.pop(self, None)  # type: ignore[attr-defined]  # noqa: SLF001
            raise RuntimeError("can't start new thread: it finds no memory")
