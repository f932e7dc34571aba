"""Removes the folders of partitions that left this broker, beside other work.

A change of the metadata does not wait for that: a disk may hang, or have hundreds of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicId

log = logging.getLogger(__name__)


class LogDeletions:
    """The removals under way, by topic. Used on the event loop only."""

    def __init__(self, log_dirs: LogDirs, folders: FolderWork) -> None:
        self._log_dirs = log_dirs
        self._folders = folders
        self._deleting: dict[TopicId, set[asyncio.Future[None]]] = {}

    def start(self, topic_id: TopicId, logs: Iterable[LocalLog]) -> None:
        """Removes logs of one topic, which nobody serves any more: each folder at its own pace."""
        by_folder: dict[Path, list[LocalLog]] = {}
        for local in logs:
            by_folder.setdefault(local.directory.parent, []).append(local)
        for path, of_folder in by_folder.items():
            folder = self._log_dirs.directory_at(path)
            assert folder is not None, path
            deleting = self._folders.start(folder, partial(self._delete, of_folder))
            self._deleting.setdefault(topic_id, set()).add(deleting)
            deleting.add_done_callback(partial(self._note_done, topic_id))

    def _delete(self, logs: Iterable[LocalLog]) -> None:
        """Renames the folders; blocks."""
        for local in logs:
            try:
                self._log_dirs.delete_log(local)
            except DiskError as error:
                fields = {"partition": str(local.topic_partition), "reason": str(error)}
                log.error(
                    "folder of a deleted partition stays until the next start",
                    extra={"fields": fields},
                )

    def _note_done(self, topic_id: TopicId, deleting: asyncio.Future[None]) -> None:
        self._deleting[topic_id].discard(deleting)
        if not self._deleting[topic_id]:
            del self._deleting[topic_id]

    async def done(self, topic_ids: Iterable[TopicId] | None = None) -> None:
        """Returns when the folders of these topics, or of all, are put aside durably."""
        of_topics = tuple(self._deleting) if topic_ids is None else topic_ids
        deleting = [one for topic_id in of_topics for one in self._deleting.get(topic_id, ())]
        if deleting:
            await asyncio.wait(deleting)
