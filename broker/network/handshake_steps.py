"""Steps of handshakes in threads, on a way that is as short as can be.

    take ──► due ──► a thread ──► taken ──► told: the loop, once for all that are taken

A job of the pool and a future of asyncio for each step would cost as much as the step: they change
between threads two dozen times. Here the threads stay, and each takes the next step itself.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeAlias

from strandline.storage.concurrency.resizable_pool import Pool
from strandline.storage.errors import OutOfResources

# Gets whether the handshake is done, or why it failed.
OnTaken: TypeAlias = Callable[[Exception | bool], None]


class Steps:
    """The threads that take steps; they begin with the first one."""

    def __init__(self, workers: Pool, loop: asyncio.AbstractEventLoop) -> None:
        """`workers` are for this alone: all of them."""
        self._workers = workers
        self._loop = loop
        # At most one for each handshake, whose number is bounded.
        self._due: SimpleQueue[tuple[ssl.SSLObject, OnTaken] | None] = SimpleQueue()
        self._taken: deque[tuple[OnTaken, Exception | bool]] = deque()
        self._is_told = False
        self._thread_count = 0

    def __repr__(self) -> str:
        return f"<Steps {self._due.qsize()} due, {len(self._taken)} taken>"

    def take(self, tls: ssl.SSLObject, on_taken: OnTaken) -> None:
        """Calls `on_taken` in the loop when the step is taken. Raises OutOfResources if there is no
        thread, RuntimeError after the end of the pool.
        """
        if self._thread_count < self._workers.size:
            self._begin_thread()
        self._due.put((tls, on_taken))

    def _begin_thread(self) -> None:
        try:
            self._workers.submit(self._work)
        except OutOfResources:
            if not self._thread_count:
                raise
            return
        self._thread_count += 1

    def _work(self) -> None:
        while (due := self._due.get()) is not None:
            tls, on_taken = due
            self._taken.append((on_taken, next_step(tls)))
            # What a thread appends before the loop clears this is seen by the loop afterwards.
            if not self._is_told:
                self._is_told = True
                with suppress(RuntimeError):  # The loop is closed.
                    self._loop.call_soon_threadsafe(self._tell)
            del due, tls, on_taken

    def _tell(self) -> None:
        self._is_told = False
        while self._taken:
            on_taken, found = self._taken.popleft()
            on_taken(found)

    def close(self) -> None:
        """Ends the threads."""
        for _ in range(self._thread_count):
            self._due.put(None)


def next_step(tls: ssl.SSLObject) -> Exception | bool:
    """Goes on with a handshake; returns whether it is done, or why it failed."""
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    except Exception as error:
        return error
    return True
