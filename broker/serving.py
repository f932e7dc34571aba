"""The process around a broker: its signals, its file descriptors, its end."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Callable
from contextlib import suppress

from strandline.broker.app import Broker
from strandline.broker.handlers.wiring import load_late_handlers
from strandline.storage.crash_points import check_environment

# A start loads only what it needs.
AFTER_START_S = 1.0


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

    Raises StrandlineError if it cannot start.
    """
    check_environment()
    _raise_descriptor_limit()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stopping.set)
    broker = make_broker()
    try:
        await broker.start()
        settling = loop.call_later(AFTER_START_S, _settle, loop)
        try:
            await broker.run(stopping)
        finally:
            settling.cancel()
    finally:
        await broker.stop()
    return 0


def _raise_descriptor_limit() -> None:
    """Takes as many file descriptors as the system lets us: each segment and connection has one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _settle(loop: asyncio.AbstractEventLoop) -> None:
    """What a start left out."""
    _get_in_soon()
    # In a thread: the loop gets the interpreter back every 5 ms, and has the modules in the end.
    with suppress(RuntimeError, MemoryError):  # no thread: who needs one of them loads it
        loop.run_in_executor(None, load_late_handlers)


def _get_in_soon() -> None:
    """Lets the loop have a core soon after it wakes up: everybody waits for it.

    Many turns of it are shorter than the slice of a process that computes, and a broker shares its
    machine with those, its own children among them.
    """
    from strandline.storage.scheduling import SHORT_SLICE_NS, ask_for_slice

    ask_for_slice(SHORT_SLICE_NS)
