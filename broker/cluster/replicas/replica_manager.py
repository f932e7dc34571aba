"""The partitions of this broker: made, led, followed and removed as the metadata image demands.

Reads of the tables are synchronous and cheap. Changes come from one place, `follow`, called with
one image after the other. Creating and deleting folders blocks on fsync, so that runs in the
folders' threads; the tables change on the loop, after it.

    topic appears           create folders        attach to tiering   serve
    topic changes           configs to the log, new partitions as above; tiering begins or ends
    topic disappears        stop serving          detach, remove folders; tiering empties the bucket

    replicas name this broker       as a partition that appears; without, as one that disappears,
                                    but its topic stays
    leader is this broker           requests are served, under the leader epoch
    another one, or nobody          NOT_LEADER_OR_FOLLOWER with the current leader (KIP-951); the
                                    log is fetched from the leader

If a partition is in no folder at start-up while a log folder is offline, it is assumed to be there:
requests get KAFKA_STORAGE_ERROR, and it is not created again in another folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from strandline.broker.cluster.in_sync.leading import LeaderContext
from strandline.broker.cluster.metadata.image import (
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.cluster.replicas.log_creations import CREATION_WAIT_S, LogCreations
from strandline.broker.cluster.replicas.log_deletions import LogDeletions
from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.cluster.replicas.tiers import LocalTier
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.local.log_dirs.revival import RevivedLog
from strandline.storage.model import NO_EPOCH, ZERO_TOPIC_ID, Epoch, TopicId, TopicPartition

log = logging.getLogger(__name__)


class Followers(Protocol):
    """Fetches the partitions that other brokers lead."""

    def follow(self, partition: Partition, image: PartitionImage) -> None:
        """Another broker leads it, or nobody (-1). Called for each change of its metadata."""
        ...

    def stop(self, partition: Partition) -> None:
        """This broker leads it, or has it no more; nothing is appended from now on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """What a broker needs whose partitions have replicas elsewhere."""

    cluster: LeaderContext
    followers: Followers


class ReplicaManager:
    """Owner of this broker's partitions: tables of them by name and by id."""

    def __init__(
        self,
        log_dirs: LogDirs,
        tiers: LocalTier,
        *,
        node_id: NodeId,
        found: Mapping[TopicPartition, LocalLog] | None = None,
        topic_defaults: Callable[[], Mapping[str, str]],
        folders: FolderWork,
        syncs: Callable[[LocalLog], Executor],
        replication: Replication | None = None,
    ) -> None:
        """`folders` runs what blocks in the log folders, `syncs` the flushes of a log.

        Without `replication` each partition has one replica.

        `found` are the logs that a start found on disk. `topic_defaults` is read again each time:
        it may be altered.
        """
        self._node_id = node_id
        self._syncs = syncs
        self._replication = replication
        self._log_dirs = log_dirs
        self._tiers = tiers
        self._topic_defaults = topic_defaults
        self._folders = folders
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
        # Logs of the start that `follow` has not served yet.
        self._found = dict(found or {})
        # Until the image of start-up is followed, a missing folder may be a lost disk.
        self._is_starting = True
        # Topics with a partition that was in no folder at start-up: its records are lost.
        self.topics_with_loss: set[str] = set()
        # Partitions that were in no folder at start-up, while some folder was offline.
        self._offline: set[TopicPartition] = set()
        # Partitions without a log here that had one on other brokers, and so may have an archive.
        self._moved_here: set[TopicPartition] = set()
        self._deletions = LogDeletions(log_dirs, folders)
        self._creations = LogCreations(
            log_dirs, folders, take_late=self._take_late, leaves=self._deletions.folder_of
        )
        # What removes the folders of these topics, or of all; see LogDeletions.done.
        self.deleted = self._deletions.done
        # What waits for the partitions of these topics; see LogCreations.came.
        self.created = self._creations.came
        self.is_coming = self._creations.is_coming

    # --- reading -----------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition | None:
        """Returns the replica of this broker, which need not lead."""
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
        if epoch == NO_EPOCH and partition.is_leader:
            return partition
        return partition.refusal(epoch) or partition

    def refusal_of_missing(self, topic: str | TopicId | None, index: int) -> LeaderRefusal:
        """Returns why a partition is not among `partitions_of` its topic."""
        image = self._image
        known = (
            image.topics.get(topic)
            if isinstance(topic, str)
            else image.topics_by_id.get(topic or ZERO_TOPIC_ID)
        )
        if known is not None:
            key = TopicPartition(known.name, index)
            if key in self._offline or key in self._creations:
                return LeaderRefusal(ErrorCode.KAFKA_STORAGE_ERROR)
            if 0 <= index < known.partition_count:
                # Another broker's, or one that is not made yet.
                led = known.partitions[index]
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                return LeaderRefusal(code, led.leader, led.leader_epoch)
        if isinstance(topic, str) or topic in self._by_id:
            return LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_ID)

    def partitions_of(self, topic: str | TopicId | None) -> Mapping[int, Partition]:
        """Returns the replicas of a topic on this broker, by its name or its id."""
        if isinstance(topic, str):
            return self._by_name.get(topic, {})
        return {} if topic is None else self._by_id.get(topic, {})

    @property
    def unserved_count(self) -> int:
        """Returns the number of partitions that lie in an offline folder, or could get none."""
        return len(self._offline) + self._creations.unserved_count

    @property
    def has_uncreated(self) -> bool:
        """Whether partitions wait for a writable folder; `follow` retries."""
        return self._creations.has_uncreated

    def partitions(self) -> tuple[Partition, ...]:
        """Returns the replicas of this broker."""
        return tuple(self._partitions.values())

    def led(self) -> tuple[Partition, ...]:
        """Returns the partitions that this broker leads."""
        return tuple(one for one in self._partitions.values() if one.is_leader)

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
        has_new_defaults = self._followed_defaults != defaults
        if has_new_defaults:
            changed = list(image.topics.values())
        waiting = (image.topics[name] for name in self._creations.topics_to_retry())
        # A changed default concerns all topics, and so does a folder that comes back.
        concerned = {topic.topic_id: topic for topic in (*changed, *waiting)}
        async for topic in in_turns(concerned.values()):
            before = delta.before.topics_by_id.get(topic.topic_id)
            config = None if has_new_defaults else self._unchanged_config(topic, before)
            await self._follow_topic(topic, before, config or self.config_of(topic))
        self._followed_defaults = defaults
        self._is_starting = False
        self._tiers.follow(delta)
        if delta.brokers:
            # A lead waits no longer for a replica whose broker, or folder, is away.
            async for one in in_turns(self.led()):
                if one.leading is not None:
                    one.leading.advance()

    def _unchanged_config(self, topic: TopicImage, before: TopicImage | None) -> LogConfig | None:
        """Returns the configuration if only partitions of the topic changed: most entries do so."""
        if before is None or before.properties is not topic.properties:
            return None
        return self._configs.get(topic.topic_id)

    async def _follow_topic(
        self, topic: TopicImage, before: TopicImage | None, config: LogConfig
    ) -> None:
        changed = self._configs.get(topic.topic_id) != config
        self._configs[topic.topic_id] = config
        here = {
            TopicPartition(topic.name, one.partition): one
            for one in topic.partitions
            if self._node_id in one.replicas
        }
        self._remove_moved(topic)
        self._note_moved_here(topic, before, here)
        for key, one in here.items():
            if key in self._found:
                self._serve(topic, one, self._found.pop(key), is_new=False)
        await self._make_missing(topic, here, config)
        for key, one in here.items():
            served = self._partitions.get(key)
            if served is None:
                continue
            if changed:
                # Before who is in sync: by a raised min.insync.replicas the controller lets those
                # lead who leave the set, and have nothing of what is acknowledged without them.
                served.log.local.update_config(config)
            elected = (one.leader_epoch, one.leader, one.is_led_by(self._node_id))
            if (served.leader_epoch, served.leader_id, served.is_leader) != elected:
                self._elect(served, one)
            self._replicate(served, one)
            if changed and served.leading is not None:
                served.leading.advance()
        if changed and not self._is_starting:
            await self._change_tiers(topic)

    async def _make_missing(
        self, topic: TopicImage, here: Mapping[TopicPartition, PartitionImage], config: LogConfig
    ) -> None:
        missing = [
            key
            for key in here
            if key not in self._partitions
            and key not in self._offline
            and not self._creations.is_coming(key)
        ]
        if missing and self._is_starting and self._log_dirs.failures:
            self._leave_offline(topic, missing)
            return
        new = [key for key in missing if not self._may_be_archived(key)]
        for keys in (new, [key for key in missing if self._may_be_archived(key)]):
            if keys:
                created = await self._creations.create(
                    topic.topic_id,
                    keys,
                    config,
                    are_new=keys is new,
                    wait_s=None if self._is_starting else CREATION_WAIT_S,
                )
                if keys is not new:
                    # A replica with others has their records, at their offsets.
                    alone = {
                        key: local
                        for key, local in created.items()
                        if self._has_one_replica(here[key])
                    }
                    await self._tiers.fill(alone, must_be_read=not self._is_starting)
                for key, local in created.items():
                    if self._is_starting:
                        self.topics_with_loss.add(topic.name)
                    self._serve(topic, here[key], local, is_new=keys is new)

    def _may_be_archived(self, key: TopicPartition) -> bool:
        return self._is_starting or key in self._moved_here

    def _note_moved_here(
        self,
        topic: TopicImage,
        before: TopicImage | None,
        here: Mapping[TopicPartition, PartitionImage],
    ) -> None:
        if self._is_starting:
            return
        known = () if before is None else before.partitions
        for key, one in here.items():
            was = known[one.partition] if one.partition < len(known) else None
            is_moved = one.partition_epoch > 0 if was is None else self._node_id not in was.replicas
            if is_moved and key not in self._partitions:
                self._moved_here.add(key)

    def _elect(self, served: Partition, led: PartitionImage) -> None:
        """Follows an election: this broker leads, or not any more, or under another epoch."""
        if led.is_led_by(self._node_id):
            if self._replication is not None:
                self._replication.followers.stop(served)
            has_one_replica = self._has_one_replica(led)
            served.begin_leading(led.leader, led.leader_epoch, has_one_replica=has_one_replica)
            self._tiers.begin_leading(served.log, led)
        else:
            had_lead = served.is_leader
            served.end_leading(led.leader, led.leader_epoch)
            if had_lead:
                self._tiers.end_leading(served.log)

    def _has_one_replica(self, image: PartitionImage) -> bool:
        return self._replication is None or len(image.replicas) == 1

    def _replicate(self, served: Partition, image: PartitionImage) -> None:
        """Follows the followers of a partition that is led here, or the leader of another one."""
        if self._replication is None or served.partition_epoch == image.partition_epoch:
            return
        served.partition_epoch = image.partition_epoch
        if served.is_leader:
            served.replicate(image, self._replication.cluster)
        else:
            self._replication.followers.follow(served, image)

    async def _change_tiers(self, topic: TopicImage) -> None:
        # Empty if none of its partitions got a folder.
        served = tuple(self._by_id.get(topic.topic_id, {}).values())
        if self._tiers.change(topic, served):
            await self.checkpoint_log_starts()
            self._tiers.changed(topic)

    def _leave_offline(self, topic: TopicImage, missing: Iterable[TopicPartition]) -> None:
        self._offline |= set(missing)
        fields = {
            "topic": topic.name,
            "partitions": [key.partition for key in missing],
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

    def _take_late(self, topic_id: TopicId, key: TopicPartition, local: LocalLog) -> None:
        """Serves the log of a disk that has answered late, or removes it if nobody wants it now."""
        topic = self._image.topics_by_id.get(topic_id)
        led = None if topic is None else topic.partitions[key.partition]
        if topic is None or led is None or self._node_id not in led.replicas:
            self._deletions.start(topic_id, [local])
            return
        self._creations.forget([key])
        local.update_config(self._configs[topic_id])
        self._serve(topic, led, local, is_new=key not in self._moved_here)

    def _serve(
        self, topic: TopicImage, partition: PartitionImage, local: LocalLog, *, is_new: bool
    ) -> None:
        topic_partition = TopicPartition(topic.name, partition.partition)
        self._moved_here.discard(topic_partition)
        is_leader = partition.is_led_by(self._node_id)
        served = Partition(
            topic_partition,
            topic.topic_id,
            self._tiers.join(local, topic, partition, is_leader=is_leader, is_new=is_new),
            partition.leader_epoch,
            leader_id=partition.leader,
            is_leader=is_leader,
            has_one_replica=self._has_one_replica(partition),
            syncs=self._syncs,
            traffic=self._traffic.setdefault(topic.topic_id, TopicTraffic()),
        )
        self._partitions[topic_partition] = served
        self._by_name.setdefault(topic.name, {})[partition.partition] = served
        self._by_id.setdefault(topic.topic_id, {})[partition.partition] = served
        self._replicate(served, partition)

    def _remove_topic(self, topic: TopicImage) -> None:
        self._offline -= {key for key in self._offline if key.topic == topic.name}
        self._moved_here -= {key for key in self._moved_here if key.topic == topic.name}
        self._creations.forget_topic(topic.name)
        self._configs.pop(topic.topic_id, None)
        self._departed.add(self._traffic.pop(topic.topic_id, TopicTraffic()))
        self._remove(topic.topic_id, tuple(self._by_id.get(topic.topic_id, {}).values()))

    def _remove_moved(self, topic: TopicImage) -> None:
        """Removes the partitions that were moved to other brokers."""
        moved = [
            TopicPartition(topic.name, one.partition)
            for one in topic.partitions
            if self._node_id not in one.replicas
        ]
        if moved:
            self._offline.difference_update(moved)
            self._moved_here.difference_update(moved)
            self._creations.forget(moved)
            served = (self._partitions.get(key) for key in moved)
            self._remove(topic.topic_id, [one for one in served if one is not None])

    def _remove(self, topic_id: TopicId, gone: Sequence[Partition]) -> None:
        # All at once, whatever happens to their folders: a deleted partition takes no writes.
        for served in gone:
            key = served.topic_partition
            assert served.topic_id == topic_id == served.log.topic_id, (served, topic_id)
            del self._partitions[key]
            by_name, by_id = self._by_name[key.topic], self._by_id[topic_id]
            del by_name[key.partition], by_id[key.partition]
            if not by_name:
                del self._by_name[key.topic]
            if not by_id:
                del self._by_id[topic_id]
            if self._replication is not None:
                self._replication.followers.stop(served)
            served.gone()
            self._tiers.leave(served.log)
        self._deletions.start(topic_id, [served.log.local for served in gone])

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
