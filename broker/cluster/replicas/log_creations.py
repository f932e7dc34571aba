"""Makes the logs of new partitions, each in a folder of `log.dirs`, beside other work.

served      its folder answered in time
coming      a disk that is slow or hangs has it: it is served when it comes
uncreated   no folder was writable: the next change of the metadata tries again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Protocol

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.creation import spread
from strandline.storage.local.log_dirs.folder_work import HANGS_AFTER_S, FolderWork
from strandline.storage.local.log_dirs.log_dir import LogDir
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicId, TopicPartition

log = logging.getLogger(__name__)

# How long a change of the metadata waits for the folders of new partitions: others wait behind it.
CREATION_WAIT_S = 2.0


class LateLogs(Protocol):
    """Takes the log of a disk that has answered late."""

    def __call__(self, topic_id: TopicId, key: TopicPartition, local: LocalLog, /) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Creation:
    """New logs of a topic that a folder's thread makes."""

    topic_id: TopicId
    folder: LogDir
    keys: Sequence[TopicPartition]
    outcomes: asyncio.Future[list[LocalLog | DiskError]]


class LogCreations:
    """The partitions that have no log yet. Used on the event loop only."""

    def __init__(
        self,
        log_dirs: LogDirs,
        folders: FolderWork,
        *,
        take_late: LateLogs,
        leaves: Callable[[TopicId, TopicPartition], LogDir | None],
    ) -> None:
        """`leaves` returns where a log of the same partition, which was removed, may still be."""
        self._log_dirs = log_dirs
        self._folders = folders
        self._take_late = take_late
        self._leaves = leaves
        # Partitions whose folder is being created, on a disk that is slow or hangs.
        self._coming: dict[TopicPartition, Creation] = {}
        # Partitions whose folder could not be created since the start.
        self._uncreated: set[TopicPartition] = set()
        # Partitions by topic whose failed creation was logged.
        self._logged: dict[str, set[int]] = {}

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._coming or key in self._uncreated

    @property
    def unserved_count(self) -> int:
        """Returns how many are uncreated, or come from a disk that hangs.

        A disk that is slow will have them: that is no reason for an alert.
        """
        late = sum(self._folders.hangs(one.folder) for one in self._coming.values())
        return len(self._uncreated) + late

    def is_coming(self, key: TopicPartition) -> bool:
        """Whether a disk has yet to answer for it."""
        return key in self._coming

    @property
    def has_uncreated(self) -> bool:
        """Whether partitions wait for a writable folder."""
        return bool(self._uncreated)

    def topics_to_retry(self) -> tuple[str, ...]:
        """Returns the topics with partitions that wait for a writable folder."""
        return tuple(self._logged)

    def forget_topic(self, topic: str) -> None:
        """Its partitions are not wanted any more; logs that come are given to `take_late`."""
        self._logged.pop(topic, None)
        self.forget([key for key in (*self._uncreated, *self._coming) if key.topic == topic])

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """These partitions are not wanted any more."""
        for key in keys:
            self._uncreated.discard(key)
            self._coming.pop(key, None)

    async def create(
        self,
        topic_id: TopicId,
        keys: Sequence[TopicPartition],
        config: LogConfig,
        *,
        are_new: bool,
        wait_s: float | None = CREATION_WAIT_S,
    ) -> dict[TopicPartition, LocalLog]:
        """Creates the logs of partitions of one topic; those that lack are coming or uncreated.

        `are_new`: the partitions had no log anywhere, and so have no archive. A disk is waited for
        `wait_s` long, without a limit if that is None.
        """
        created: dict[TopicPartition, LocalLog | DiskError] = {}
        left = keys
        while left:
            shares = self._shares(topic_id, left)
            placed = set(chain.from_iterable(shares.values()))
            for key in left:
                if key not in placed:
                    created[key] = DiskError("every log folder is offline")
            if not shares:
                break
            create = partial(
                self._log_dirs.create_logs,
                topic_id=topic_id,
                config=config,
                may_be_archived=config.remote_storage_enable and not are_new,
            )
            is_late = {one.folder for one in self._coming.values()}
            creations = [
                Creation(
                    topic_id,
                    folder,
                    share,
                    self._folders.start(folder, partial(create, share, within=(folder,))),
                )
                for folder, share in shares.items()
            ]
            # Nobody waits a second time for a disk that is late already.
            prompt = [one.outcomes for one in creations if one.folder not in is_late]
            if prompt:
                await asyncio.wait(prompt, timeout=wait_s)
            left = []
            for one in creations:
                if not one.outcomes.done():
                    self._coming |= dict.fromkeys(one.keys, one)
                    one.outcomes.add_done_callback(partial(self._note_late, one))
                    continue
                made = dict(zip(one.keys, one.outcomes.result(), strict=True))
                created |= made
                if one.folder.failure is not None:
                    # The share of a folder that turned out to be offline goes to the others.
                    left += [key for key, log in made.items() if isinstance(log, DiskError)]
        self._note_failed(keys[0].topic, created)
        return {key: one for key, one in created.items() if isinstance(one, LocalLog)}

    def _note_late(
        self, creation: Creation, outcomes: asyncio.Future[list[LocalLog | DiskError]]
    ) -> None:
        wanted = {key for key in creation.keys if self._coming.get(key) is creation}
        for key in wanted:
            del self._coming[key]
        if outcomes.cancelled():
            return
        made = dict(zip(creation.keys, outcomes.result(), strict=True))
        if wanted:
            failed = {key: one for key, one in made.items() if key in wanted}
            self._note_failed(creation.keys[0].topic, failed)
        for key, one in made.items():
            if isinstance(one, LocalLog):
                self._take_late(creation.topic_id, key, one)

    def _note_failed(self, topic: str, created: Mapping[TopicPartition, object]) -> None:
        """Logs failed creations once per topic until all succeed."""
        failed = {key: one for key, one in created.items() if isinstance(one, DiskError)}
        self._uncreated -= created.keys()
        self._uncreated |= failed.keys()
        if not failed:
            self._logged.pop(topic, None)
            return
        indexes = {key.partition for key in failed}
        if self._logged.get(topic) == indexes:
            return
        self._logged[topic] = indexes
        first = min(failed, key=lambda key: key.partition)
        fields = {"topic": topic, "partitions": len(failed), "first": first.partition}
        log.error(
            "partitions not created, will be tried again",
            extra={"fields": {**fields, "reason": str(failed[first])}},
        )

    async def came(self, topic_ids: Iterable[TopicId]) -> None:
        """Returns when the partitions of these topics are served, or after HANGS_AFTER_S.

        A change of the metadata does not wait as long: a disk may hang. If it is known to, nobody
        waits for it.
        """
        wanted = set(topic_ids)
        coming = [
            one.outcomes
            for one in self._coming.values()
            if one.topic_id in wanted and not self._folders.hangs(one.folder)
        ]
        if coming:
            await asyncio.wait(set(coming), timeout=HANGS_AFTER_S)

    def _shares(
        self, topic_id: TopicId, keys: Sequence[TopicPartition]
    ) -> dict[LogDir, list[TopicPartition]]:
        """Returns the folder of each new log; none if all are offline.

        A log that was removed here and may still have its name is followed by one in its folder:
        after a kill the partition would lie in two, and no start could tell which one is true.
        """
        usable = [
            one
            for one in self._log_dirs.directories
            if one.failure is None and not self._folders.hangs(one)
        ]
        is_late = {one.folder for one in self._coming.values()}
        usable = [one for one in usable if one not in is_late] or usable
        shares: dict[LogDir, list[TopicPartition]] = {}
        free: list[TopicPartition] = []
        for key in keys:
            left = self._leaves(topic_id, key)
            if left is None or left.failure is not None:
                free.append(key)
            else:
                shares.setdefault(left, []).append(key)
        if usable and free:
            for folder, key in zip(spread(usable, len(free)), free, strict=True):
                shares.setdefault(folder, []).append(key)
        return shares
