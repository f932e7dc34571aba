"""Creates, changes and removes the partitions of this broker as the metadata image demands.

Reads of the tables are synchronous and cheap. Changes come from one place, `follow`, called with
one image after the other. Creating and deleting folders blocks on fsync, so that runs in the disk
worker; the tables change on the loop, after it.

    topic appears      create folders        attach to tiering   serve
    topic changes      configs to the log, new partitions as above; tiering begins or ends
    topic disappears   stop serving          detach, remove folders; tiering empties the bucket

If a partition is in no folder at start-up while a log folder is offline, it is assumed to be there:
requests get KAFKA_STORAGE_ERROR, and it is not created again in another folder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from strandline.broker.cluster.metadata.image import (
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.cluster.replicas.tiers import LocalTier
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.creation import spread
from strandline.storage.local.log_dirs.folder_work import HANGS_AFTER_S, FolderWork
from strandline.storage.local.log_dirs.log_dir import LogDir
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.local.log_dirs.revival import RevivedLog
from strandline.storage.model import NO_EPOCH, ZERO_TOPIC_ID, Epoch, TopicId, TopicPartition

log = logging.getLogger(__name__)


# How long a change of the metadata waits for the folders of new partitions: others wait behind it.
CREATION_WAIT_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Creation:
    """New logs of a topic that a folder's thread makes."""

    topic_id: TopicId
    folder: LogDir
    keys: Sequence[TopicPartition]
    outcomes: asyncio.Future[list[LocalLog | DiskError]]


class ReplicaManager:
    """Owner of this broker's partitions: tables of them by name and by id."""

    def __init__(
        self,
        log_dirs: LogDirs,
        tiers: LocalTier,
        *,
        topic_defaults: Callable[[], Mapping[str, str]],
        folders: FolderWork,
        syncs: Callable[[LocalLog], Executor],
    ) -> None:
        """`folders` runs what blocks in the log folders, `syncs` the flushes of a log.

        `topic_defaults` is read again each time: it may be altered.
        """
        self._syncs = syncs
        self._log_dirs = log_dirs
        self._tiers = tiers
        self._topic_defaults = topic_defaults
        self._folders = folders
        # What removes the folders of deleted topics, by topic.
        self._deleting: dict[TopicId, set[asyncio.Future[None]]] = {}
        self._partitions: dict[TopicPartition, Partition] = {}
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[TopicId, dict[int, Partition]] = {}
        self._configs: dict[TopicId, LogConfig] = {}
        # The defaults that all topics have.
        self._followed_defaults: Mapping[str, str] = {}
        self._traffic: dict[TopicId, TopicTraffic] = {}
        # Traffic of deleted topics, kept so that totals never decrease.
        self._departed = TopicTraffic()
        # What `follow` has reached, with its present change.
        self._image = MetadataImage()
        # Until the image of start-up is followed, a missing folder may be a lost disk.
        self._is_starting = True
        # Topics with a partition that was in no folder at start-up: its records are lost.
        self.topics_with_loss: set[str] = set()
        # Partitions that were in no folder at start-up, while some folder was offline.
        self._offline: set[TopicPartition] = set()
        # Partitions whose folder could not be created since the start.
        self._uncreated: set[TopicPartition] = set()
        # Partitions whose folder is being created, on a disk that is slow or hangs.
        self._coming: dict[TopicPartition, Creation] = {}
        # Partitions by topic whose failed creation was logged.
        self._logged_uncreated: dict[str, set[int]] = {}
        # The topics of both.
        self._unserved_names: dict[TopicId, str] = {}

    # --- reading -----------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition | None:
        partitions = self._by_name.get(topic)
        return None if partitions is None else partitions.get(index)

    def topic_names(self) -> tuple[str, ...]:
        """Names of the topics with a partition on this broker."""
        return tuple(self._by_name)

    def leader(
        self, topic: str | TopicId | None, index: int, epoch: Epoch = NO_EPOCH
    ) -> Partition | LeaderRefusal:
        """Returns a partition that this broker leads, or why it does not serve the request.

        `topic` is a name or an id. `epoch` is the leader epoch that the client knows; -1 if it does
        not check.
        """
        if isinstance(topic, str):
            partitions = self._by_name.get(topic)
        else:
            partitions = None if topic is None else self._by_id.get(topic)
        partition = None if partitions is None else partitions.get(index)
        if partition is None:
            return self.refusal_of_missing(topic, index)
        return partition if epoch == NO_EPOCH else partition.refusal(epoch) or partition

    def refusal_of_missing(self, topic: str | TopicId | None, index: int) -> LeaderRefusal:
        """Returns why a partition is not among `partitions_of` its topic."""
        by_name = isinstance(topic, str)
        name = topic if isinstance(topic, str) else self._unserved_names.get(topic or ZERO_TOPIC_ID)
        key = None if name is None else TopicPartition(name, index)
        if key in self._offline or key in self._uncreated or key in self._coming:
            return LeaderRefusal(ErrorCode.KAFKA_STORAGE_ERROR)
        if by_name or topic in self._by_id:
            return LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_ID)

    def partitions_of(self, topic: str | TopicId | None) -> Mapping[int, Partition]:
        """Returns the partitions of a topic, by its name or its id."""
        if isinstance(topic, str):
            return self._by_name.get(topic, {})
        return {} if topic is None else self._by_id.get(topic, {})

    @property
    def unserved_count(self) -> int:
        """Returns the number of partitions that lie in an offline folder, or got no folder yet."""
        return len(self._offline) + len(self._uncreated) + len(self._coming)

    @property
    def has_uncreated(self) -> bool:
        """Whether partitions wait for a writable folder; `follow` retries."""
        return bool(self._uncreated)

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(self._partitions.values())

    def traffic_of(self, topic: str) -> TopicTraffic | None:
        """Returns the traffic of a topic; None if none of its partitions is on this broker."""
        partitions = self._by_name.get(topic)
        return None if not partitions else next(iter(partitions.values())).traffic

    def all_traffic(self) -> tuple[TopicTraffic, ...]:
        """Returns the traffic since the start, of every topic and of all deleted ones."""
        return (self._departed, *self._traffic.values())

    def config_of(self, topic: TopicImage) -> LogConfig:
        """Returns the topic's typed configuration; properties were checked when they were set."""
        return LogConfig.resolve(topic.properties, self._topic_defaults())

    # --- following the metadata --------------------------------------------------------------

    def take_over(self, logs: Mapping[TopicPartition, LocalLog], image: MetadataImage) -> None:
        """Start-up: serves the logs that were found on disk; `follow` creates the missing ones."""
        for topic in image.topics.values():
            for partition in topic.partitions:
                local = logs.get(TopicPartition(topic.name, partition.partition))
                if local is not None:
                    self._serve(topic, partition, local, is_new=False)

    async def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Brings folders, tables and tiers in line with `image`.

        The first call is start-up's. A folder that is missing then belonged to a partition that may
        have an archive, so it must not be taken for a new one and begin at offset 0 again.
        """
        for topic in delta.topics.gone():
            self._remove_topic(topic)
        self._image = image
        defaults = self._topic_defaults()
        changed = delta.topics.changed()
        if self._followed_defaults != defaults:
            changed = list(image.topics.values())
        waiting = (image.topics[name] for name in self._logged_uncreated)
        # A changed default concerns all topics, and so does a folder that comes back.
        concerned = {topic.topic_id: topic for topic in (*changed, *waiting)}
        async for topic in in_turns(concerned.values()):
            await self._follow_topic(topic)
        self._followed_defaults = defaults
        self._unserved_names = {
            image.topics[key.topic].topic_id: key.topic
            for key in (*self._offline, *self._uncreated, *self._coming)
        }
        self._is_starting = False
        self._tiers.follow(delta)

    async def _follow_topic(self, topic: TopicImage) -> None:
        config = self.config_of(topic)
        changed = self._configs.get(topic.topic_id) != config
        self._configs[topic.topic_id] = config
        present = self._by_id.get(topic.topic_id, {})
        missing = [
            p
            for p in topic.partitions
            if p.partition not in present
            and TopicPartition(topic.name, p.partition) not in self._offline
            and TopicPartition(topic.name, p.partition) not in self._coming
        ]
        if missing and self._is_starting and self._log_dirs.failures:
            self._leave_offline(topic, missing)
            missing = []
        if missing:
            created = await self._create_logs(topic, missing, config)
            for partition, local in zip(missing, created, strict=True):
                key = TopicPartition(topic.name, partition.partition)
                if local is None:
                    if key not in self._coming:
                        self._uncreated.add(key)
                else:
                    self._uncreated.discard(key)
                    if self._is_starting:
                        self.topics_with_loss.add(topic.name)
                    self._serve(topic, partition, local, is_new=not self._is_starting)
        for partition in topic.partitions:
            served = self._by_id.get(topic.topic_id, {}).get(partition.partition)
            if served is None:
                continue
            if served.leader_epoch != partition.leader_epoch:
                served.leader_epoch, served.leader_id = partition.leader_epoch, partition.leader
                self._tiers.lead(served.log, partition.leader_epoch)
            if changed:
                served.log.local.update_config(config)
        if changed and not self._is_starting:
            await self._change_tiers(topic)

    async def _change_tiers(self, topic: TopicImage) -> None:
        # Empty if none of its partitions got a folder.
        served = self._by_id.get(topic.topic_id, {}).values()
        logs = [(partition.log, partition.leader_epoch) for partition in served]
        if self._tiers.change(topic, logs):
            await self.checkpoint_log_starts()
            self._tiers.changed(topic)

    def _leave_offline(self, topic: TopicImage, missing: list[PartitionImage]) -> None:
        self._offline |= {TopicPartition(topic.name, p.partition) for p in missing}
        fields = {
            "topic": topic.name,
            "partitions": [p.partition for p in missing],
            "folders": [str(path) for path in self._log_dirs.failures],
        }
        event = "partitions offline: they may be in an offline log folder"
        log.error(event, extra={"fields": fields})

    def replace_logs(self, revived: Iterable[RevivedLog]) -> None:
        """Serves logs again that stopped with their folder; see LogDirs.revive."""
        for pair in revived:
            served = self._partitions.get(pair.new.topic_partition)
            if served is not None and served.log.local is pair.old:
                served.replace_local(pair.new)

    async def _create_logs(
        self, topic: TopicImage, missing: list[PartitionImage], config: LogConfig
    ) -> list[LocalLog | None]:
        """Creates a log for each; None where no folder is writable: `follow` retries.

        None also where a disk has not answered after CREATION_WAIT_S: it is served when it comes.
        """
        keys = [TopicPartition(topic.name, partition.partition) for partition in missing]
        created: dict[TopicPartition, LocalLog | DiskError] = {}
        left: Sequence[TopicPartition] = keys
        while left:
            shares = self._shares(left)
            if not shares:
                created |= dict.fromkeys(left, DiskError("every log folder is offline"))
                break
            create = partial(
                self._log_dirs.create_logs,
                topic_id=topic.topic_id,
                config=config,
                may_be_archived=self._is_starting and config.remote_storage_enable,
            )
            is_late = {one.folder for one in self._coming.values()}
            creations = [
                Creation(
                    topic.topic_id,
                    folder,
                    share,
                    self._folders.start(folder, partial(create, share, within=(folder,))),
                )
                for folder, share in shares.items()
            ]
            # Nobody waits a second time for a disk that is late already.
            prompt = [one.outcomes for one in creations if one.folder not in is_late]
            if prompt:
                wait_s = None if self._is_starting else CREATION_WAIT_S
                await asyncio.wait(prompt, timeout=wait_s)
            left = []
            for one in creations:
                if not one.outcomes.done():
                    self._coming |= dict.fromkeys(one.keys, one)
                    one.outcomes.add_done_callback(partial(self._take_late, one))
                    continue
                made = dict(zip(one.keys, one.outcomes.result(), strict=True))
                created |= made
                if one.folder.failure is not None:
                    # The share of a folder that turned out to be offline goes to the others.
                    left += [key for key, log in made.items() if isinstance(log, DiskError)]
        failed = {
            key.partition: outcome
            for key, outcome in created.items()
            if isinstance(outcome, DiskError)
        }
        self._note_uncreated(topic.name, failed)
        outcomes_in_order = [created.get(key) for key in keys]
        return [None if isinstance(one, DiskError) else one for one in outcomes_in_order]

    def _take_late(
        self, creation: Creation, outcomes: asyncio.Future[list[LocalLog | DiskError]]
    ) -> None:
        """Serves logs of a disk that has answered late, or removes those that nobody wants now."""
        for key in creation.keys:
            if self._coming.get(key) is creation:
                del self._coming[key]
        if outcomes.cancelled():
            return
        topic = self._image.topics_by_id.get(creation.topic_id)
        unwanted: list[LocalLog] = []
        failed: dict[int, DiskError] = {}
        for key, local in zip(creation.keys, outcomes.result(), strict=True):
            if topic is None:
                if not isinstance(local, DiskError):
                    unwanted.append(local)
            elif isinstance(local, DiskError):
                self._uncreated.add(key)
                failed[key.partition] = local
            else:
                local.update_config(self._configs[topic.topic_id])
                self._serve(topic, topic.partitions[key.partition], local, is_new=True)
        if topic is not None:
            self._note_uncreated(topic.name, failed)
        if unwanted:
            self._start_deleting(creation.topic_id, creation.folder, unwanted)

    async def created(self, topic_ids: Iterable[TopicId]) -> None:
        """Returns when the partitions of these topics are served, or after HANGS_AFTER_S.

        A change of the metadata does not wait as long: a disk may hang.
        """
        wanted = set(topic_ids)
        coming = [one.outcomes for one in self._coming.values() if one.topic_id in wanted]
        if coming:
            await asyncio.wait(set(coming), timeout=HANGS_AFTER_S)

    def _shares(self, keys: Sequence[TopicPartition]) -> dict[LogDir, list[TopicPartition]]:
        """Returns the folder of each new log; none if all are offline."""
        usable = [
            one
            for one in self._log_dirs.directories
            if one.failure is None and not self._folders.hangs(one)
        ]
        is_late = {one.folder for one in self._coming.values()}
        usable = [one for one in usable if one not in is_late] or usable
        shares: dict[LogDir, list[TopicPartition]] = {}
        if usable:
            for folder, key in zip(spread(usable, len(keys)), keys, strict=True):
                shares.setdefault(folder, []).append(key)
        return shares

    def _note_uncreated(self, topic: str, failed: Mapping[int, DiskError]) -> None:
        """Logs failed creations once per topic until all succeed: `follow` retries them."""
        if not failed:
            self._logged_uncreated.pop(topic, None)
            return
        if self._logged_uncreated.get(topic) == set(failed):
            return
        self._logged_uncreated[topic] = set(failed)
        first = min(failed)
        fields = {"topic": topic, "partitions": len(failed), "first": first}
        log.error(
            "partitions not created, will be tried again",
            extra={"fields": {**fields, "reason": str(failed[first])}},
        )

    def _serve(
        self, topic: TopicImage, partition: PartitionImage, local: LocalLog, *, is_new: bool
    ) -> None:
        topic_partition = TopicPartition(topic.name, partition.partition)
        served = Partition(
            topic_partition,
            topic.topic_id,
            self._tiers.join(local, topic, partition, is_new=is_new),
            partition.leader_epoch,
            leader_id=partition.leader,
            syncs=self._syncs,
            traffic=self._traffic.setdefault(topic.topic_id, TopicTraffic()),
        )
        self._partitions[topic_partition] = served
        self._by_name.setdefault(topic.name, {})[partition.partition] = served
        self._by_id.setdefault(topic.topic_id, {})[partition.partition] = served

    def _remove_topic(self, topic: TopicImage) -> None:
        self._logged_uncreated.pop(topic.name, None)
        for unserved in (self._offline, self._uncreated):
            unserved -= {key for key in unserved if key.topic == topic.name}
        for partition in topic.partitions:
            self._coming.pop(TopicPartition(topic.name, partition.partition), None)
        self._configs.pop(topic.topic_id, None)
        self._departed.add(self._traffic.pop(topic.topic_id, TopicTraffic()))
        gone = tuple(self._by_id.pop(topic.topic_id, {}).values())
        # All at once, whatever happens to their folders: a deleted partition takes no writes.
        for served in gone:
            del self._partitions[served.topic_partition]
            by_name = self._by_name[served.topic_partition.topic]
            del by_name[served.topic_partition.partition]
            if not by_name:
                del self._by_name[served.topic_partition.topic]
            served.gone()
            self._tiers.leave(served.log)
        by_folder: dict[Path, list[LocalLog]] = {}
        for served in gone:
            local = served.log.local
            by_folder.setdefault(local.directory.parent, []).append(local)
        for path, logs in by_folder.items():
            folder = self._log_dirs.directory_at(path)
            assert folder is not None, path
            self._start_deleting(topic.topic_id, folder, logs)

    def _start_deleting(self, topic_id: TopicId, folder: LogDir, logs: list[LocalLog]) -> None:
        deleting = self._folders.start(folder, partial(self._delete_logs, logs))
        self._deleting.setdefault(topic_id, set()).add(deleting)
        deleting.add_done_callback(partial(self._note_deleted, topic_id))

    def _delete_logs(self, logs: Iterable[LocalLog]) -> None:
        """Removes logs of a deleted topic; blocks."""
        for local in logs:
            try:
                self._log_dirs.delete_log(local)
            except DiskError as error:
                fields = {"partition": str(local.topic_partition), "reason": str(error)}
                log.error(
                    "folder of a deleted partition stays until the next start",
                    extra={"fields": fields},
                )

    def _note_deleted(self, topic_id: TopicId, deleting: asyncio.Future[None]) -> None:
        self._deleting[topic_id].discard(deleting)
        if not self._deleting[topic_id]:
            del self._deleting[topic_id]

    async def deleted(self, topic_ids: Iterable[TopicId] | None = None) -> None:
        """Returns when the folders of these deleted topics, or of all, are put aside durably.

        A change of the metadata does not wait for that: a disk may hang, or have hundreds of them.
        """
        of_topics = tuple(self._deleting) if topic_ids is None else topic_ids
        deleting = [one for topic_id in of_topics for one in self._deleting.get(topic_id, ())]
        if deleting:
            await asyncio.wait(deleting)

    # --- durability --------------------------------------------------------------------------

    async def checkpoint_log_starts(self) -> frozenset[Path]:
        """Checkpoints log starts and high watermarks; returns when they are durable.

        The result is the set of folders where that failed: offline, full and hanging ones.
        """
        log_starts = {
            one.topic_partition: one.log.log_start_offset
            async for one in in_turns(self.partitions())
        }
        written = await self._folders.on_each(
            self._log_dirs.directories, partial(self._log_dirs.write_checkpoint, log_starts)
        )
        return frozenset(
            one.path for one in self._log_dirs.directories if not written.get(one, False)
        )
