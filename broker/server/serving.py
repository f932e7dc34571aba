"""The process around a broker: its signals, its file descriptors, its end."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
from collections.abc import Awaitable, Callable

from strandline.broker.server.app import Broker
from strandline.storage.crash_points import check_environment

log = logging.getLogger(__name__)


def run(make_broker: Callable[[], Broker]) -> int:
    """`serve` in an event loop of its own."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(serve(make_broker))


class _Loop(asyncio.SelectorEventLoop):
    """asyncio's, which ends without another thread: the system may have none to give."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """`Broker.stop` ends it, with all other pools."""


async def serve(make_broker: Callable[[], Broker]) -> int:
    """Runs the broker until SIGTERM, SIGINT or SIGHUP; the exit code.

    SIGHUP as in Java: a terminal that is closed stops the broker, and `nohup` keeps it.

    A start that is not over is given up, whether it waits for a store or for logs that are
    recovered. What it did is what a kill leaves, and the next start recovers again.

    Raises StrandlineError if it cannot start.
    """
    check_environment()
    _raise_descriptor_limit()
    loop = asyncio.get_running_loop()
    stopping = _Stopping()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stopping.begin)
    broker = make_broker()
    try:
        if not await stopping.unless_begun(broker.start):
            log.info("stopping before the start is over")
            return 0
        await broker.run(stopping.event)
    finally:
        await broker.stop()
    return 0


class _Stopping:
    """Whether the broker is to stop; ends a start that it comes in the middle of."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._starting: asyncio.Task[int] | None = None

    def begin(self) -> None:
        self.event.set()
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()

    async def unless_begun(self, start: Callable[[], Awaitable[None]]) -> bool:
        """Whether `start` came to its end. Raises what it raises."""
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
    """Takes as many file descriptors as the system lets us: each segment and connection has one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
