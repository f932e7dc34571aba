"""A loop of virtual time: it never waits, its time moves to the next timer when nobody is ready.

    ready callbacks ──► all run at one time ──► none left ──► time = the next timer's ──► ready ...

There is no selector and no thread. What would take time takes it by a timer: a read from a socket
(`network.py`), a job of a pool (`pools.py`). Callbacks of one time run in the order in which they
became ready, and tasks are numbered, so two runs of the same seed are the same run.

A callback belongs to the simulated process in whose context it was made (`Process`), as do all
that it makes. While a process stands still, its callbacks wait, and what comes for it stays where
it is: as with SIGSTOP, its timers are due when it goes on, before it has read anything.

If nobody is ready and no timer is left, nothing will ever happen again; or somebody asks again and
again for what never happens. Such a run fails with Stuck.

    clock.monotonic_s() == loop.time()     always; now_ms() may be off, and jump
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from tests.sim.pools import InlinePool

if TYPE_CHECKING:
    from tests.sim.network import VirtualNetwork

T = TypeVar("T")

BEGIN_MS = 1_700_000_000_000
READ, WRITE = "read", "write"
# Below are those of the process.
FIRST_DESCRIPTOR = 20
# Turns of a run; a million take some ten seconds.
TURNS_MAX = 2_000_000


class Stuck(AssertionError):
    """Tasks wait, and what they wait for never happens."""


class Process:
    """One of the processes that share a loop: what is made in its context is part of it."""

    def __init__(self, host: str = "") -> None:
        """`host` is its address."""
        self.host = host
        self.is_dead = False
        # Its tasks have ended; what timers and sockets still call is nobody's.
        self.is_buried = False
        # Whether it was told to end.
        self.is_leaving = False
        self.stop_count = 0
        # When it began to stand still; None while it runs.
        self._stopped_s: float | None = None
        # How long it stood still before.
        self._stood_s = 0.0
        self._held: deque[asyncio.Handle] = deque()
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "stopped" if self.is_stopped else "running"
        return f"<Process at {self.host}, {state}>"

    @property
    def is_stopped(self) -> bool:
        return self._stopped_s is not None

    def ran_s(self) -> float:
        """Returns for how long it ran since the beginning of the world."""
        now_s = asyncio.get_running_loop().time()
        return (now_s if self._stopped_s is None else self._stopped_s) - self._stood_s

    def stop(self) -> None:
        """It stands still, as by SIGSTOP."""
        if self._stopped_s is None:
            self.stop_count += 1
            self._stopped_s = asyncio.get_running_loop().time()

    def go_on(self) -> None:
        """Whatever became ready meanwhile runs in its order, as by SIGCONT."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if self._stopped_s is not None:
            self._stood_s += loop.time() - self._stopped_s
            self._stopped_s = None
        held, self._held = self._held, deque()
        loop.add_ready(held)

    def hold(self, handle: asyncio.Handle) -> None:
        self._held.append(handle)


# The process whose code runs; None for the simulation itself, and for clients.
PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
# In which the world does what no process does.
OUTSIDE = contextvars.Context()


class _Ready(deque[asyncio.Handle]):
    """The callbacks that are ready; those of a process that stands still are taken aside, and those
    of one that is buried are dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._nothing = asyncio.Handle(lambda: None, (), loop, None)
        self._nothing.cancel()

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        process: Process | None = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is None or handle.cancelled():
            return handle
        if not process.is_buried:
            if not process.is_stopped:
                return handle
            process.hold(handle)
        return self._nothing


@dataclass(frozen=True, slots=True)
class _Watcher:
    """Who is called when a descriptor is ready, and as part of which process."""

    call: Callable[[], object]
    context: contextvars.Context


class _NumberedTask(asyncio.Task[Any]):
    """A TaskGroup cancels its tasks in the order of a set: by their numbers, not by addresses."""

    def __init__(self, *args: Any, **more: Any) -> None:
        loop = more["loop"]
        assert isinstance(loop, VirtualLoop), loop
        self._number = next(loop.task_numbers)
        context: contextvars.Context | None = more.get("context")
        self.process = PROCESS.get() if context is None else context.get(PROCESS)
        super().__init__(*args, **more)

    def __hash__(self) -> int:
        return self._number


def _numbered(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **more: Any
) -> asyncio.Task[Any]:
    return _NumberedTask(coroutine, loop=loop, **more)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time passes only while nobody is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._ready = _Ready(self)
        self.task_numbers = count()
        self.set_task_factory(_numbered)
        self._now_s = 0.0
        self.turns_left = TURNS_MAX
        # BaseEventLoop asks these two when nothing is ready.
        self._selector = self
        self._inline = InlinePool()
        # By descriptor: who watches it for reading and for writing, and what it is ready for.
        self._descriptors = count(FIRST_DESCRIPTOR)
        self._free_descriptors: list[int] = []
        self._watched: dict[tuple[int, str], _Watcher] = {}
        self._ready_for: dict[int, tuple[str, ...]] = {}
        # Who is told in the next turn.
        self._to_tell: set[tuple[int, str]] = set()
        # Where connections of brokers lead; of a simulation that has one.
        self.network: VirtualNetwork

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

    def add_ready(self, handles: deque[asyncio.Handle]) -> None:
        self._ready.extend(handles)

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
        watched = self._watched.get(key)
        if watched is not None and key not in self._to_tell:
            self._to_tell.add(key)
            # It is the watcher's callback, whoever made it ready.
            self.call_soon(self._tell, descriptor, direction, context=watched.context)

    def _tell(self, descriptor: int, direction: str) -> None:
        """Calls the watcher, and again in the next turn while the descriptor stays ready."""
        self._to_tell.discard((descriptor, direction))
        watcher = self._watched.get((descriptor, direction))
        if watcher is None or direction not in self._ready_for.get(descriptor, ()):
            return
        watcher.call()
        if direction in self._ready_for.get(descriptor, ()):
            self._tell_later(descriptor, direction)

    def _watch(
        self, descriptor: int, direction: str, callback: Callable[..., Any], args: Any
    ) -> None:
        called = partial(callback, *args)
        self._watched[descriptor, direction] = _Watcher(called, contextvars.copy_context())
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

    async def create_connection(  # type: ignore[override]  # BaseEventLoop's has no types
        self,
        protocol_factory: Callable[[], asyncio.BufferedProtocol],
        host: str,
        port: int,
        *,
        ssl: None = None,
        server_hostname: None = None,
    ) -> tuple[asyncio.Transport, asyncio.BufferedProtocol]:
        assert ssl is None is server_hostname, "it is not encrypted"
        return await self.network.open(protocol_factory, host, port)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """It has no threads."""


def tasks_of(process: Process) -> list[asyncio.Task[Any]]:
    """Returns the tasks of a process, in the order in which they began."""
    found = [one for one in asyncio.all_tasks() if isinstance(one, _NumberedTask)]
    return sorted((one for one in found if one.process is process), key=hash)


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
    # Tasks that are made without the factory, which start eagerly, are numbered as well.
    with (
        patch.object(asyncio, "Task", _NumberedTask),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        return runner.run(begin())
