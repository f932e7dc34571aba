"""SIGTERM ends a command that works by itself as Ctrl-C does: it says what it leaves.

    1 the main thread stops where it is      what was done is noted, as after Ctrl-C
    2 threads are waited for                 LEAVE_S at most: each may wait for a store that hangs
    3 one line, and exit code 143            what a shell makes of a process that SIGTERM ended

A command may die at any moment, so 2 and 3 are no more than good manners.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
# Docker waits ten seconds before it kills.
LEAVE_S = 2.0


class Terminated(KeyboardInterrupt):
    """SIGTERM came. Who gets over Ctrl-C gets over this."""

    exit_code = TERMINATED


@contextmanager
def ended_by_sigterm(say: Callable[[], None]) -> Iterator[None]:
    """Raises Terminated in here when SIGTERM comes; then `say`, if the threads take too long.

    Outside of the main thread nothing is different.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(_number: int, _frame: FrameType | None) -> None:
        # One that comes again finds everything under way.
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
