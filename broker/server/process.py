"""The process around a broker: its signals, descriptors, standard streams, manager and garbage.

The broker also serves if its parent closed the standard streams, if their reader has ended, or if
the disk behind them is full.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.server.broker import Broker, Role
from strandline.broker.server.environment import process_environment
from strandline.broker.server.standard_streams import drop_unwritable_output
from strandline.broker.server.supervised import SupervisorChannel, is_supervised
from strandline.storage.concurrency.resizable_pool import DefaultPool
from strandline.storage.crash_points import check_environment
from strandline.storage.files import private_files

log = logging.getLogger(__name__)

# A scan of 30,000 objects takes 3 ms.
OLD_MAX = 30_000
# With a lower bound complete scans would not be rare: a thousand partitions have as many objects.
FROZEN_MAX = 500_000
_FULL = 2
# For what asyncio runs in a thread: names of hosts, and what has no pool of its own.
OTHER_THREADS = 2


def run(config: BrokerConfig, role: Role) -> int:
    """Runs `serve` in a new event loop; returns the exit code."""
    with private_files(), asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(serve(config, role))


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that ends without a new thread, which the system may refuse."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Does nothing: `serve` ends all pools."""


async def serve(config: BrokerConfig, role: Role) -> int:
    """Runs the broker until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    As in Java, a closed terminal stops the broker (SIGHUP), unless `nohup` started it.

    A signal aborts an unfinished start, also one that waits for a store or for log recovery. The
    disk is then as after a kill, and the next start recovers it. Raises StrandlineError.
    """
    check_environment()
    _raise_descriptor_limit()
    loop = asyncio.get_running_loop()
    stopping = _Stopping()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stopping.begin)
    others, collector = DefaultPool(OTHER_THREADS, "default"), GarbageCollector()
    loop.set_default_executor(others)
    environment = process_environment(config, is_supervised=is_supervised())
    broker = Broker(environment, config, role)
    if environment.is_supervised:
        channel = SupervisorChannel(sys.stdin.fileno(), observe=broker.observe, end=stopping.begin)
        loop.add_reader(channel.descriptor, channel.read)

    def tell_ready() -> None:
        collector.start()
        listener = broker.listener
        print_or_log(
            f"strandline ready: {'controller' if config.membership.is_controller else 'broker'}"
            f" {config.node_id} at "
            f"{listener.host or '0.0.0.0'}:{listener.port}"
        )
        notify_manager("READY=1")

    try:
        if not await stopping.unless_begun(broker.start):
            log.info("stopping before the start is over")
            return 0
        await broker.run(stopping.event, tell_ready)
    finally:
        collector.stop()
        try:
            await broker.stop()
        finally:
            environment.workers.stop()
            others.shutdown(wait=False, cancel_futures=True)
    return 0


class _Stopping:
    """The stop request of a process; it cancels an unfinished start."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._starting: asyncio.Task[int] | None = None

    def begin(self) -> None:
        if self.event.is_set():
            return
        self.event.set()
        notify_manager("STOPPING=1")
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()

    async def unless_begun(self, start: Callable[[], Awaitable[None]]) -> bool:
        """Returns whether `start` finished before a stop. Raises as `start`."""
        task = self._starting = asyncio.current_task()
        assert task is not None
        try:
            await start()
        except asyncio.CancelledError:
            if not self.event.is_set():
                raise
            task.uncancel()
            return False
        finally:
            self._starting = None
        return True


def _raise_descriptor_limit() -> None:
    """Raises the descriptor limit to the system's maximum: segments and connections need many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- standard output -------------------------------------------------------------------------


def print_or_log(line: str) -> None:
    """Writes a line to standard output, or to the log if that fails."""
    try:
        print(line, flush=True)  # noqa: T201
    except OSError as error:
        log.warning(
            "standard output cannot be written",
            extra={"fields": {"line": line, "reason": str(error)}},
        )
        drop_unwritable_output()


# --- the service manager ---------------------------------------------------------------------


def notify_manager(state: str) -> None:
    """Sends a state (`READY=1`, `STOPPING=1`) to the service manager, as sd_notify(3) does.

    Does nothing unless `$NOTIFY_SOCKET` names its socket; a first `@` is an abstract address.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
            manager.sendto(state.encode(), re.sub(r"^@", "\0", address))
    except OSError as error:
        log.warning(
            "service manager not notified",
            extra={"fields": {"state": state, "socket": address, "reason": str(error)}},
        )


def flush() -> None:
    """Flushes the standard streams, and ignores errors."""
    for stream in (sys.stdout, sys.stderr):
        # None if it was closed from the beginning.
        if stream is not None:
            with suppress(OSError):
                stream.flush()


# --- garbage ---------------------------------------------------------------------------------


class GarbageCollector:
    """Python's garbage collector, with full collections that stay short.

    A full collection scans all old objects and blocks the event loop meanwhile: 51 ms with a
    thousand partitions. Most of them live as long as the process. Frozen are the objects of the
    start, and the survivors of a large full collection:

        young ──► old ──more than OLD_MAX survive a full collection──► frozen, not scanned
         ▲                                                               │
         └────as many frozen as the last complete scan found alive───────┘   one complete scan

    A frozen object may become part of a garbage cycle. So when as many objects were frozen as the
    last complete scan found alive, there is another. That is rare, because the heap must double for
    it, and it bounds garbage by live objects. Invariant: any other collection scans at most OLD_MAX
    objects and those made since.
    """

    def __init__(self, *, old_max: int = OLD_MAX, frozen_max: int = FROZEN_MAX) -> None:
        self._old_max = old_max
        self._frozen_max = frozen_max
        self._loop = asyncio.get_running_loop()
        # Frozen since the last complete scan, and found alive by it.
        self._frozen = 0
        self._alive = 0
        self._is_due = False
        self.complete_scans = 0

    def start(self) -> None:
        """Freezes all live objects, without a collection: a start leaves little garbage."""
        gc.freeze()
        gc.callbacks.append(self._on_collection)
        gc.enable()

    def stop(self) -> None:
        """Restores Python's own collector."""
        with suppress(ValueError):  # it never started
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """A callback of `gc.callbacks`; runs in the thread that allocated the last object."""
        if phase != "stop" or info["generation"] != _FULL or self._is_due:
            return
        survivors = _count_old()
        if survivors <= self._old_max:
            return
        gc.freeze()
        self._frozen += survivors
        if self._frozen > max(self._frozen_max, self._alive) and not self._loop.is_closed():
            # A collection cannot start inside another one.
            self._is_due = True
            self._loop.call_soon_threadsafe(self._scan_all)

    def _scan_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._alive, self._frozen = gc.get_freeze_count(), 0
        self._is_due = False
        self.complete_scans += 1


def _count_old() -> int:
    """Returns how many objects the oldest generation has.

    The list of them also has each tuple that another thread is still filling from an iterator, whom
    a second reference makes fail (SystemError): no thread may run before the list is gone. None
    does, because no bytecode is between.
    """
    return sum(map(len, map(gc.get_objects, (_FULL,))))
