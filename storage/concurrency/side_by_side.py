"""Work that goes on side by side, and ends together.

Of a `gather` that fails the others go on, with nobody who knows of them: whoever begins it again
then has them twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


async def side_by_side(*works: Coroutine[object, object, None]) -> None:
    """Returns when all have ended; if one fails, the others are cancelled, and it raises that."""
    try:
        async with asyncio.TaskGroup() as together:
            for work in works:
                together.create_task(work)
    except BaseExceptionGroup as failed:
        # One fails first; what others had to say about being cancelled is of less interest.
        raise failed.exceptions[0] from None
