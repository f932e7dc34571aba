"""Sleeps whose length may be altered while they last.

    alter a key ──> the parts have the new value ──> note() ──> each sleep asks for its length again

A wait keeps since when it lasts, and asks for its limit whenever it looks; a sum of both would keep
the limit of the time at which it was made. What looks by itself, each second or at each request,
needs no more. What sleeps until its limit is over sleeps by `sleep`, and the owner of the
configuration calls `note` after each alteration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Alterations:
    """Wakes sleeps by limits that may be altered. Used on the event loop only."""

    def __init__(self) -> None:
        self._noted = asyncio.Event()

    def note(self) -> None:
        """Called when an altered configuration is in force: each sleep asks for its limit again."""
        self._noted.set()
        self._noted = asyncio.Event()

    async def sleep(self, limit_s: Callable[[], float]) -> None:
        """Returns when `limit_s()` seconds have passed since the call."""
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        while (left_s := since_s + limit_s() - loop.time()) > 0:
            noted = self._noted
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await noted.wait()
        # A limit of 0 must not keep the loop from everybody else.
        await asyncio.sleep(0)

    def __repr__(self) -> str:
        return "<Alterations>"
