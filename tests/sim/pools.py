"""Executors without threads.

`InlinePool` runs a job at once. `TimedPool` is a thread pool in virtual time: `size` jobs run, the
others wait, and each takes the time that is drawn for it. A job has its effect at the begin or at
the end of its time, and its caller learns the result at the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from strandline.storage.concurrency.resizable_pool import Pool
from strandline.storage.crash_points import SimulatedCrash

P = ParamSpec("P")
T = TypeVar("T")


def run_into(future: Future[Any], call: Callable[[], Any]) -> None:
    """Runs a job whose error is its caller's, but not what ends a test or a simulated process."""
    try:
        result = call()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class InlinePool(Executor):
    """Runs each job within `submit`."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        run_into(future, partial(fn, *args, **kwargs))
        return future


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTime:
    """How long a job takes, and whether its effect comes only at the end of it."""

    seconds: float
    is_late: bool = False


class TimedPool(Pool):
    """A pool of `size` places over the running loop's time."""

    def __init__(
        self,
        size: int,
        name: str,
        draw: Callable[[str], JobTime],
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        """`draw` is asked with the pool's name when a job begins; `on_crash` is called when one
        comes to a crash point where the process is to die.
        """
        self.name = name
        self._on_crash = on_crash
        self._size = size
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._is_closed = False
        self._is_dead = False

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
        self._size = size
        self._begin_due()

    def die(self) -> None:
        """Whatever runs or waits has no effect any more, and no end."""
        self._is_dead = self._is_closed = True
        self._waiting.clear()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()
        self._waiting.append((future, partial(fn, *args, **kwargs)))
        self._begin_due()
        return future

    def _begin_due(self) -> None:
        while self._waiting and self._running < self._size:
            future, call = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            self._running += 1
            time = self._draw(self.name)
            if time.is_late:
                self._loop.call_later(time.seconds, self._end_late, future, call)
                continue
            done = self._run(call)
            self._loop.call_later(time.seconds, self._end, future, done)

    def _run(self, call: Callable[[], Any]) -> Future[Any]:
        """The result, which is never there if the process died."""
        done: Future[Any] = Future()
        try:
            run_into(done, call)
        except SimulatedCrash:
            self.die()
            self._on_crash()
        return done

    def _end_late(self, future: Future[Any], call: Callable[[], Any]) -> None:
        if self._is_dead:
            return
        self._end(future, self._run(call))

    def _end(self, future: Future[Any], done: Future[Any]) -> None:
        if self._is_dead:
            return
        self._running -= 1
        if (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())
        self._begin_due()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """A wait does not wait: what runs has had its effect, or ends later in the loop's time."""
        del wait
        self._is_closed = True
        if cancel_futures:
            for future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()
