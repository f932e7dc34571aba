"""A future that several wait for, or that has to come to its end whoever waits.

`asyncio.shield` is for this too, but from Python 3.14 on it logs a traceback for a future that
fails after its waiter was cancelled. That is an everyday thing here: a fetch gave up, and the store
failed later.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def result_of(future: asyncio.Future[T]) -> T:
    """Its result; raises what it raises. A waiter who is cancelled does not cancel the future."""
    if not future.done():
        await asyncio.wait((future,))
    try:
        return future.result()
    finally:
        # The error's traceback has this frame, and would keep the future that has the error.
        del future
