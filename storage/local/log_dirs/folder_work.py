"""Blocking work in the log folders: each folder has a thread of its own.

A disk that hangs holds up what is for itself alone. Work for all folders waits HANGS_AFTER_S for
it, and then goes on without it until it has answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TypeVar

from strandline.storage.local.log_dirs.log_dir import LogDir

log = logging.getLogger(__name__)

T = TypeVar("T")

# A disk under load takes seconds for a sync; a client waits 30 s for its answer.
HANGS_AFTER_S = 15.0


class FolderWork:
    """Runs work in the threads of the folders. Used on the event loop only."""

    def __init__(self, executor_of: Callable[[Path], Executor]) -> None:
        """`executor_of` returns the executor of a log folder, which has one worker."""
        self._executor_of = executor_of
        # What a folder did not answer in time.
        self._unanswered: dict[LogDir, asyncio.Future[object]] = {}

    def hangs(self, directory: LogDir) -> bool:
        unanswered = self._unanswered.get(directory)
        if unanswered is not None and unanswered.done():
            del self._unanswered[directory]
            log.info("log folder answers again", extra={"fields": {"folder": str(directory.path)}})
        return directory in self._unanswered

    def start(self, directory: LogDir, work: Callable[[], T]) -> asyncio.Future[T]:
        """Runs `work` behind what is queued for the folder."""
        executor = self._executor_of(directory.path)
        return asyncio.get_running_loop().run_in_executor(executor, work)

    async def on_each(
        self, directories: Iterable[LogDir], work: Callable[[LogDir], T]
    ) -> dict[LogDir, T]:
        """Runs `work` in the folders side by side; returns the results of those that answer.

        Raises the first error, once all have answered or had their time.
        """
        asked = {
            one: self.start(one, partial(work, one)) for one in directories if not self.hangs(one)
        }
        if asked:
            await asyncio.wait(asked.values(), timeout=HANGS_AFTER_S)
        for directory, answer in asked.items():
            if not answer.done():
                self._unanswered[directory] = answer  # type: ignore[assignment]  # read-only
                answer.add_done_callback(_note_failure)
                log.error(
                    "log folder does not answer: its disk hangs",
                    extra={"fields": {"folder": str(directory.path)}},
                )
        return {one: answer.result() for one, answer in asked.items() if answer.done()}


def _note_failure(late: asyncio.Future[T]) -> None:
    """Nobody waits for its error any more."""
    if not late.cancelled():
        late.exception()
