"""Makes SIGTERM end a long-running command as Ctrl-C does: with a summary of its progress.

    1 the main thread stops where it is      its progress is noted, as after Ctrl-C
    2 it waits for threads                  LEAVE_S at most: each may wait for a hanging store
    3 one line, and exit code 143            a shell's code for a process that SIGTERM ended

A command may be killed at any moment, so 2 and 3 are only a courtesy.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
# Docker kills after ten seconds.
LEAVE_S = 2.0


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; handled wherever Ctrl-C is handled."""

    exit_code = TERMINATED


@contextmanager
def ended_by_sigterm(say: Callable[[], None]) -> Iterator[None]:
    """Raises Terminated inside when SIGTERM comes; then calls `say`, if the threads take too long.

    Outside of the main thread it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(_number: int, _frame: FrameType | None) -> None:
        # A second signal changes nothing.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, leave)
        signal.setitimer(signal.ITIMER_REAL, LEAVE_S)
        raise Terminated

    def leave(_number: int, _frame: FrameType | None) -> None:
        say()
        os._exit(TERMINATED)

    earlier = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except Terminated:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise
    finally:
        signal.signal(signal.SIGTERM, earlier)


@contextmanager
def told_by_sigterm(told: threading.Event) -> Iterator[None]:
    """The first SIGTERM sets the event; the second one ends as `ended_by_sigterm` says.

    Outside of the main thread nothing sets it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = signal.getsignal(signal.SIGTERM)

    def tell(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, earlier)
        told.set()

    signal.signal(signal.SIGTERM, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
