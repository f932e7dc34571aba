"""Threads for manifests and other small objects, separate from those of long uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from strandline.storage.remote.object_store.interface import ObjectStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MetadataThreads:
    """Runs blocking calls for small objects of `store` in threads of its own."""

    store: ObjectStore
    executor: Executor

    async def run(self, call: Callable[[], T]) -> T:
        """Returns the result of `call`."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, call)
