"""A thread pool whose size may change while it works, as Kafka's thread pools.

    submit ──► waiting ──► worker takes it ──► its future is done
           └─► a token for each job, and one for each worker that is to look whether it may stay

A worker begins when a job finds no free one, and stays until the pool shrinks or ends. A pool
that shrinks lets running jobs end; at most `size` jobs run from then on. Where the system gives
no thread, the workers that there are do the work; where there is none, the job is refused.

A job is taken under the lock, and never by a worker that is one too many. Workers wait for tokens
in a SimpleQueue, because that needs no memory.

`Thread.start` waits until the new thread says that it has begun. A thread that finds no memory for
its first frame never says so, and the event loop, which submits, would stand still for good. So a
thread of its own calls `start`, and `submit` waits for the worker's word for BEGIN_TURNS at most.
A worker that begins later than that is abandoned, and ends.

A ThreadPoolExecutor of the largest size with a semaphore does not do: it keeps a job that it was
refused the thread for, and its `submit` waits for a thread that never says that it has begun.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from strandline.storage.errors import OutOfResources

P = ParamSpec("P")
T = TypeVar("T")

# The largest size of any thread pool in the configuration.
SIZE_MAX = 1000
# A thread begins within a ms. In turns, so that after a pause of the process (a debugger, a
# machine that slept) a thread that had no time to begin is not taken for dead.
BEGIN_TURNS = 10
BEGIN_TURN_S = 0.3


class Pool(Executor, ABC):
    """An executor for so many jobs at a time, which tells how busy it is."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many jobs may run at the same time."""

    @property
    @abstractmethod
    def idle_part(self) -> float:
        """The idle share of the pool, 0 to 1."""

    @property
    @abstractmethod
    def waiting_count(self) -> int:
        """The number of queued jobs."""

    @abstractmethod
    def resize(self, size: int) -> None:
        """Changes the size, at once for queued jobs; running ones go on."""


class ResizablePool(Pool):
    """A pool whose number of threads may change. Thread-safe."""

    def __init__(self, size: int, name: str) -> None:
        assert 1 <= size <= SIZE_MAX, size
        self._name = name
        self._size = size
        self._workers: set[threading.Thread] = set()
        self._running = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        return self._size

    @property
    def idle_part(self) -> float:
        return max(0.0, 1 - self._running / self._size)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def resize(self, size: int) -> None:
        assert 1 <= size <= SIZE_MAX, size
        with self._lock:
            self._size = size
            for _ in range(len(self._workers) - size):
                self._tokens.put(None)
            # Queued jobs have a worker already: they only run later.
            with suppress(OutOfResources):
                self._start_workers()

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
                self._start_workers()
            except OutOfResources:
                if not self._workers:
                    self._waiting.pop()
                    raise
            self._tokens.put(None)
        return future

    def _start_workers(self) -> None:
        """With the lock held: one for each job without a free worker. Raises OutOfResources."""
        wanted = min(self._size, self._running + len(self._waiting))
        while len(self._workers) < wanted:
            # What the worker says: nothing once it has begun, else why it has not.
            told: SimpleQueue[str | None] = SimpleQueue()
            name = f"{self._name}_{len(self._workers)}"
            worker = threading.Thread(target=self._work, args=(told,), name=name, daemon=True)
            if (reason := _begin(worker, told)) is not None:
                raise OutOfResources(f"cannot begin another thread: {reason}")
            self._workers.add(worker)

    def _work(self, told: SimpleQueue[str | None]) -> None:
        told.put(None)
        with self._lock:
            is_given_up = threading.current_thread() not in self._workers
        while not is_given_up and self._take_turn():
            pass

    def _take_turn(self) -> bool:
        """Returns whether this worker stays in the pool."""
        self._tokens.get()
        with self._lock:
            if len(self._workers) > self._size or (self._is_closed and not self._waiting):
                self._workers.remove(threading.current_thread())
                if self._waiting:
                    # The token that this worker took may have been that of a job.
                    self._tokens.put(None)
                return False
            if not self._waiting:
                return True
            future, call = self._waiting.popleft()
            self._running += 1
        try:
            _run(future, call)
        finally:
            # As in `_run`, whose frame references this one.
            del future, call
            with self._lock:
                self._running -= 1
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`."""
        with self._lock:
            self._is_closed = True
            workers = list(self._workers)
            cancelled = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            for _ in workers:
                self._tokens.put(None)
        for future, _ in cancelled:
            future.cancel()
        for worker in workers if wait else ():
            worker.join()

    def __repr__(self) -> str:
        return f"<ResizablePool {self._running} of {self._size} run, {len(self._waiting)} wait>"


def _begin(worker: threading.Thread, told: SimpleQueue[str | None]) -> str | None:
    """Why the system has no thread for it, or None: the worker has begun."""

    def start() -> None:
        try:
            worker.start()
        except (RuntimeError, MemoryError) as error:
            # No exception, which would keep its frames.
            told.put(str(error))

    try:
        start_new_thread(start, ())
    except (RuntimeError, MemoryError) as error:
        return str(error)
    for _ in range(BEGIN_TURNS):
        with suppress(Empty):
            return told.get(timeout=BEGIN_TURN_S)
    return "can't start new thread: it finds no memory"


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
        # The error's traceback references this frame, and would keep the future that has the error,
        # and with it the call's arguments, until the next garbage collection.
        del future, call
    else:
        future.set_result(result)


class DefaultPool(ThreadPoolExecutor):
    """A ResizablePool as the event loop's default executor, which must be a ThreadPoolExecutor."""

    def __init__(self, size: int, name: str) -> None:
        super().__init__(size, name)
        self._pool = ResizablePool(size, name)

    def submit(self, fn: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """As `ResizablePool.submit`."""
        return self._pool.submit(fn, *arguments, **named)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)
