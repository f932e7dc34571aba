"""A bounded pool of threads whose bound may change while it works, as Kafka's thread pools.

    submit --> waiting ──► at most `size` drains, each a job of the pool beneath, which makes
                           threads as they are needed and keeps them

A pool that shrinks lets what runs end; no more than `size` jobs run from then on. Where the system
gives no thread, the drains that there are do the work; where there is none, the job is refused.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from strandline.broker.threads import Threads
from strandline.storage.errors import OutOfResources

P = ParamSpec("P")
T = TypeVar("T")

# The largest that any pool of threads may be configured to.
SIZE_MAX = 1000


class _Drain:
    """One that was asked for."""

    __slots__ = ("is_given_up",)

    def __init__(self) -> None:
        self.is_given_up = False


class ResizablePool(Executor):
    """See the top of this file. Thread-safe."""

    def __init__(self, size: int, name: str) -> None:
        assert 1 <= size <= SIZE_MAX, size
        self._name = name
        self._threads = Threads(SIZE_MAX, name)
        self._size = size
        self._drains = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_closed = False
        self._lock = threading.Lock()
        # Told of each drain that ends.
        self._ended = threading.Condition(self._lock)

    @property
    def size(self) -> int:
        """How many jobs may run at the same time."""
        return self._size

    @property
    def idle_part(self) -> float:
        """The part of it that has no work just now, 0 to 1."""
        return max(0.0, 1 - self._drains / self._size)

    @property
    def waiting_count(self) -> int:
        """Jobs that wait for room."""
        return len(self._waiting)

    def resize(self, size: int) -> None:
        """Takes effect at once for jobs that wait; what runs goes on."""
        assert 1 <= size <= SIZE_MAX, size
        with self._lock:
            self._size = size
            if not self._is_closed:
                # What waits has a drain already: it is only slower.
                with suppress(OutOfResources):
                    self._start_drains(len(self._waiting))

    def submit(self, fn: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """As `Executor.submit`. Raises RuntimeError after `shutdown`, OutOfResources where there is
        no thread for it.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append((future, partial(fn, *arguments, **named)))
            try:
                self._start_drains(1)
            except OutOfResources:
                if self._drains == 0:
                    self._waiting.pop()
                    raise
        return future

    def _start_drains(self, count_max: int) -> None:
        """With the lock held. One that finds nothing to do ends. Raises OutOfResources."""
        for _ in range(min(count_max, self._size - self._drains)):
            drain = _Drain()
            try:
                self._threads.submit(self._drain, drain)
            except (RuntimeError, MemoryError) as error:
                # It lies in the queue of the pool beneath nevertheless, until there is a thread.
                drain.is_given_up = True
                self._begin_anew()
                raise OutOfResources(f"cannot begin another thread: {error}") from error
            self._drains += 1

    def _begin_anew(self) -> None:
        """With the lock held.

        The pool beneath counts each that it could not begin as a thread that has no work, and would
        not begin others for so many. What runs in it goes on, and takes what waits.
        """
        # Nothing is cancelled: a drain that no thread has taken yet has one, and would be missed.
        self._threads.shutdown(wait=False)
        self._threads = Threads(SIZE_MAX, self._name)

    def _drain(self, drain: _Drain) -> None:
        while True:
            with self._lock:
                if drain.is_given_up:
                    return
                if self._drains > self._size or not self._waiting:
                    self._drains -= 1
                    self._ended.notify_all()
                    return
                future, call = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            # Neither is to live until the next job comes.
            del future, call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`."""
        with self._lock:
            self._is_closed = True
            cancelled = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
        for future, _ in cancelled:
            future.cancel()
        self._threads.shutdown(wait=wait)
        if wait:
            # Some may run in a pool that was given up.
            with self._ended:
                self._ended.wait_for(lambda: self._drains == 0)

    def __repr__(self) -> str:
        return f"<ResizablePool {self._drains} of {self._size} run, {len(self._waiting)} wait>"
