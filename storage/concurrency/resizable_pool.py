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
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
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


class _Job:
    __slots__ = ("call", "future")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.future: Future[Any] = Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.call()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class _Start:
    """The start of one worker, which the pool waits for."""

    __slots__ = ("_told", "is_given_up")

    def __init__(self) -> None:
        self.is_given_up = False
        # Empty once it has begun, else why it has not. No exception, which would keep its frames.
        self._told: SimpleQueue[str | None] = SimpleQueue()

    def begun(self) -> None:
        self._told.put(None)

    def start(self, worker: threading.Thread) -> str | None:
        """Starts the worker; why the system has no thread for it, or None: the worker has begun."""
        try:
            start_new_thread(self._start, (worker,))
        except (RuntimeError, MemoryError) as error:
            return str(error)
        for _ in range(BEGIN_TURNS):
            with suppress(Empty):
                return self._told.get(timeout=BEGIN_TURN_S)
        return "can't start new thread: it finds no memory"

    def _start(self, worker: threading.Thread) -> None:
        try:
            worker.start()
        except (RuntimeError, MemoryError) as error:
            self._told.put(str(error))


class ResizablePool(Executor):
    """An executor whose number of threads may change. Thread-safe."""

    def __init__(self, size: int, name: str) -> None:
        assert 1 <= size <= SIZE_MAX, size
        self._name = name
        self._size = size
        self._workers = 0
        self._running = 0
        self._waiting: deque[_Job] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._is_closed = False
        self._lock = threading.Lock()
        # Called for each worker that ends.
        self._ended = threading.Condition(self._lock)

    @property
    def size(self) -> int:
        """How many jobs may run at the same time."""
        return self._size

    @property
    def idle_part(self) -> float:
        """The idle share of the pool, 0 to 1."""
        return max(0.0, 1 - self._running / self._size)

    @property
    def waiting_count(self) -> int:
        """The number of queued jobs."""
        return len(self._waiting)

    def resize(self, size: int) -> None:
        """Changes the size, at once for queued jobs; running ones go on."""
        assert 1 <= size <= SIZE_MAX, size
        with self._lock:
            self._size = size
            for _ in range(self._workers - size):
                self._tokens.put(None)
            # Queued jobs have a worker already: they only run later.
            with suppress(OutOfResources):
                self._start_workers()

    def submit(self, fn: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """As `Executor.submit`. Raises RuntimeError after `shutdown`, OutOfResources where there is
        no thread for it.
        """
        job = _Job(partial(fn, *arguments, **named))
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(job)
            try:
                self._start_workers()
            except OutOfResources:
                if self._workers == 0:
                    self._waiting.pop()
                    raise
            self._tokens.put(None)
        return job.future

    def _start_workers(self) -> None:
        """With the lock held: one for each job without a free worker. Raises OutOfResources."""
        wanted = min(self._size, self._running + len(self._waiting))
        while self._workers < wanted:
            start = _Start()
            worker = threading.Thread(
                target=self._work, args=(start,), name=f"{self._name}_{self._workers}", daemon=True
            )
            if (reason := start.start(worker)) is not None:
                start.is_given_up = True
                raise OutOfResources(f"cannot begin another thread: {reason}")
            self._workers += 1

    def _work(self, start: _Start) -> None:
        start.begun()
        with self._lock:
            if start.is_given_up:
                return
        while self._take_turn():
            pass

    def _take_turn(self) -> bool:
        """Whether this worker stays in the pool."""
        self._tokens.get()
        with self._lock:
            if self._workers > self._size or (self._is_closed and not self._waiting):
                self._end_worker()
                return False
            if not self._waiting:
                return True
            job = self._waiting.popleft()
            self._running += 1
        try:
            job.run()
        finally:
            with self._lock:
                self._running -= 1
        return True

    def _end_worker(self) -> None:
        """With the lock held."""
        self._workers -= 1
        if self._waiting:
            # The token that this worker took may have been meant for a job.
            self._tokens.put(None)
        self._ended.notify_all()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`."""
        with self._lock:
            self._is_closed = True
            cancelled = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            for _ in range(self._workers):
                self._tokens.put(None)
        for job in cancelled:
            job.future.cancel()
        if wait:
            with self._ended:
                self._ended.wait_for(lambda: self._workers == 0)

    def __repr__(self) -> str:
        return f"<ResizablePool {self._running} of {self._size} run, {len(self._waiting)} wait>"


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
