"""Removes the folders of partitions that left this broker, beside other work.

A change of the metadata does not wait for that: a disk may hang, or have hundreds of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.local.log_dirs.log_dir import LogDir
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicId, TopicPartition

log = logging.getLogger(__name__)


class LogDeletions:
    """The removals under way, by topic. Used on the event loop only."""

    def __init__(self, log_dirs: LogDirs, folders: FolderWork) -> None:
        self._log_dirs = log_dirs
        self._folders = folders
        self._deleting: dict[TopicId, set[asyncio.Future[Sequence[LocalLog]]]] = {}
        # The log folders of partitions whose own folder has its name still.
        self._folder_of: dict[tuple[TopicId, TopicPartition], LogDir] = {}

    def start(self, topic_id: TopicId, logs: Iterable[LocalLog]) -> None:
        """Removes logs of one topic, which nobody serves any more: each folder at its own pace."""
        by_folder: dict[Path, list[LocalLog]] = {}
        for local in logs:
            by_folder.setdefault(local.directory.parent, []).append(local)
        for path, of_folder in by_folder.items():
            folder = self._log_dirs.directory_at(path)
            assert folder is not None, path
            self._folder_of |= {(topic_id, one.topic_partition): folder for one in of_folder}
            deleting = self._folders.start(folder, partial(self._delete, of_folder))
            self._deleting.setdefault(topic_id, set()).add(deleting)
            deleting.add_done_callback(partial(self._note_done, topic_id))

    def folder_of(self, topic_id: TopicId, key: TopicPartition) -> LogDir | None:
        """Returns the log folder in which the removed log of a partition may have its name still.

        The thread of that folder renames it before whatever is asked of it next.
        """
        return self._folder_of.get((topic_id, key))

    def _delete(self, logs: Iterable[LocalLog]) -> Sequence[LocalLog]:
        """Renames the folders, and returns the logs whose folder is away; blocks."""
        away: list[LocalLog] = []
        for local in logs:
            try:
                self._log_dirs.delete_log(local)
                away.append(local)
            except DiskError as error:
                fields = {"partition": str(local.topic_partition), "reason": str(error)}
                log.error(
                    "folder of a deleted partition stays until the next start",
                    extra={"fields": fields},
                )
        return away

    def _note_done(self, topic_id: TopicId, deleting: asyncio.Future[Sequence[LocalLog]]) -> None:
        self._deleting[topic_id].discard(deleting)
        if not self._deleting[topic_id]:
            del self._deleting[topic_id]
        if not deleting.cancelled() and deleting.exception() is None:
            for one in deleting.result():
                self._folder_of.pop((topic_id, one.topic_partition), None)

    async def done(self, topic_ids: Iterable[TopicId] | None = None) -> None:
        """Returns when the folders of these topics, or of all, are put aside durably."""
        of_topics = tuple(self._deleting) if topic_ids is None else topic_ids
        deleting = [one for topic_id in of_topics for one in self._deleting.get(topic_id, ())]
        if deleting:
            await asyncio.wait(deleting)
