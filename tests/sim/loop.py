"""A loop of virtual time: it never waits, its time moves to the next timer when nobody is ready.

    ready callbacks ──► all run at one time ──► none left ──► time = the next timer's ──► ready ...

There is no selector and no thread. What would take time takes it by a timer: a read from a socket
(`network.py`), a job of a pool (`pools.py`). Callbacks of one time run in the order in which they
became ready, and tasks are numbered, so two runs of the same seed are the same run.

If nobody is ready and no timer is left, nothing will ever happen again; or somebody asks again and
again for what never happens. Such a run fails with Stuck.

    clock.monotonic_s() == loop.time()     always; now_ms() may be off, and jump
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from tests.sim.pools import InlinePool

T = TypeVar("T")

BEGIN_MS = 1_700_000_000_000
READ, WRITE = "read", "write"
# Below are those of the process.
FIRST_DESCRIPTOR = 20
# Turns of a run; a million take some ten seconds.
TURNS_MAX = 2_000_000


class Stuck(AssertionError):
    """Tasks wait, and what they wait for never happens."""


class _NumberedTask(asyncio.Task[Any]):
    """A TaskGroup cancels its tasks in the order of a set: by their numbers, not by addresses."""

    def __init__(self, *args: Any, number: int, **more: Any) -> None:
        self._number = number
        super().__init__(*args, **more)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time passes only while nobody is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._task_numbers = count()
        self.set_task_factory(self._numbered)
        self._now_s = 0.0
        self.turns_left = TURNS_MAX
        # BaseEventLoop asks these two when nothing is ready.
        self._selector = self
        self._inline = InlinePool()
        # By descriptor: who watches it for reading and for writing, and what it is ready for.
        self._descriptors = count(FIRST_DESCRIPTOR)
        self._free_descriptors: list[int] = []
        self._watched: dict[tuple[int, str], asyncio.Handle] = {}
        self._ready_for: dict[int, tuple[str, ...]] = {}
        # Who is told in the next turn.
        self._to_tell: set[tuple[int, str]] = set()

    def _numbered(
        self, _: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **more: Any
    ) -> asyncio.Task[Any]:
        return _NumberedTask(coroutine, loop=self, number=next(self._task_numbers), **more)

    def time(self) -> float:
        return self._now_s

    def pass_s(self, seconds: float) -> None:
        """Moves the time within a turn, as code that computes for so long."""
        assert seconds >= 0, seconds
        self._now_s += seconds

    def select(self, timeout: float | None) -> list[Any]:
        """In place of a selector: what would wait for `timeout` moves the time instead."""
        if timeout is None:
            raise Stuck(f"nothing will ever happen: {_waiting(self)}")
        self.turns_left -= 1
        if self.turns_left == 0:
            # The tasks that are cancelled now have turns of their own.
            self.turns_left = TURNS_MAX
            raise Stuck(f"it never ends: {_waiting(self)}")
        if timeout > 0:
            # Not `+= timeout`, which rounds, and is cut to a day by the base class.
            self._now_s = max(self._now_s, self._scheduled[0].when())
        return []

    def pass_if_idle(self) -> None:
        """Moves the time to the next timer if nobody else is ready."""
        if not self._ready and self._scheduled:
            self._now_s = max(self._now_s, self._scheduled[0].when())

    # --- descriptors -------------------------------------------------------------------------

    def new_descriptor(self) -> int:
        """Returns the lowest number that is free, as the system does."""
        if self._free_descriptors:
            return heappop(self._free_descriptors)
        return next(self._descriptors)

    def drop_descriptor(self, descriptor: int) -> None:
        for direction in (READ, WRITE):
            self._unwatch(descriptor, direction)
        self._ready_for.pop(descriptor, None)
        heappush(self._free_descriptors, descriptor)

    def set_ready(self, descriptor: int, *, readable: bool, writable: bool = False) -> None:
        """Says what a simulated socket is ready for; its watchers are called in each turn."""
        before = self._ready_for.get(descriptor, ())
        ready = {READ: readable, WRITE: writable}
        now = tuple(direction for direction in ready if ready[direction])
        self._ready_for[descriptor] = now
        for direction in [one for one in now if one not in before]:
            self._tell_later(descriptor, direction)

    def _tell_later(self, descriptor: int, direction: str) -> None:
        key = descriptor, direction
        if key in self._watched and key not in self._to_tell:
            self._to_tell.add(key)
            self.call_soon(self._tell, descriptor, direction)

    def _tell(self, descriptor: int, direction: str) -> None:
        """Calls the watcher, and again in the next turn while the descriptor stays ready."""
        self._to_tell.discard((descriptor, direction))
        handle = self._watched.get((descriptor, direction))
        if handle is None or direction not in self._ready_for.get(descriptor, ()):
            return
        handle._run()
        if direction in self._ready_for.get(descriptor, ()):
            self._tell_later(descriptor, direction)

    def _watch(
        self, descriptor: int, direction: str, callback: Callable[..., Any], args: Any
    ) -> None:
        self._watched[descriptor, direction] = asyncio.Handle(callback, args, self, None)
        if direction in self._ready_for.get(descriptor, ()):
            self._tell_later(descriptor, direction)

    def _unwatch(self, descriptor: int, direction: str) -> bool:
        return self._watched.pop((descriptor, direction), None) is not None

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._watch(fd, READ, callback, args)

    def remove_reader(self, fd: Any) -> bool:
        return self._unwatch(fd, READ)

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._watch(fd, WRITE, callback, args)

    def remove_writer(self, fd: Any) -> bool:
        return self._unwatch(fd, WRITE)

    def _process_events(self, _events: list[Any]) -> None:
        """There are none: sockets are simulated with timers."""

    def _write_to_self(self) -> None:
        """Nobody waits in a selector."""

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]  # BaseEventLoop's has no types
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        pool = self._inline if executor is None else executor
        return asyncio.wrap_future(pool.submit(func, *args), loop=self)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """It has no threads."""


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    return ", ".join(sorted(repr(task) for task in asyncio.all_tasks(loop)))


class VirtualClock:
    """The clock of a virtual loop; its wall time may also jump."""

    def __init__(self, loop: VirtualLoop | None = None, *, begin_ms: int = BEGIN_MS) -> None:
        """Without a `loop` it is the running one's."""
        found = loop or asyncio.get_running_loop()
        assert isinstance(found, VirtualLoop), found
        self._loop = found
        self._begin_ms = begin_ms

    def now_ms(self) -> int:
        return self._begin_ms + round(self._loop.time() * 1000)

    def monotonic_s(self) -> float:
        return self._loop.time()

    def jump_ms(self, delta_ms: int) -> None:
        """Moves the wall time alone, as an operator or an NTP daemon does."""
        self._begin_ms += delta_ms

    def advance_ms(self, delta_ms: int) -> None:
        """As ManualClock: a positive delta is time that passes, also for the loop's timers."""
        if delta_ms > 0:
            self._loop.pass_s(delta_ms / 1000)
        else:
            self.jump_ms(delta_ms)


async def next_turn() -> None:
    """Lets all others have a turn; if nobody is ready, time passes.

    For tests that look after each turn: with `sleep(0)` they are always ready, and no time passes.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), loop
    await asyncio.sleep(0)
    loop.pass_if_idle()


def run(begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs `begin()` to its end in a new loop of virtual time. Raises Stuck, and what it raises."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(begin())
