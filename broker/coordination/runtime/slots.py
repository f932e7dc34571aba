"""The partitions of `__consumer_offsets` that this broker leads, and their replayed state.

    no topic          there are no groups; the first join or commit creates it
    a slot, loading   COORDINATOR_LOAD_IN_PROGRESS until `load` has replayed its log
    a slot, loaded    served

A group's slot is the partition (Java's String.hashCode of its id, without its sign bit) mod
partition count, as in every Kafka broker. An empty log counts as loaded, so a new topic is served
at once.

The topic is compacted: it keeps the latest record of each group and committed offset, so loading
reads little more than the live state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import NewTopic, TopicDefaults
from strandline.broker.cluster.metadata.image import TopicImage
from strandline.broker.cluster.metadata.metadata import Metadata
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.model.classic_messages import CoordinatorFault, Instant
from strandline.broker.coordination.model.offset_messages import CoordinatorRecord
from strandline.broker.coordination.records.offset_records import (
    LoadedMarker,
    LoadedRecord,
    TransactionalRecord,
    TransactionEnd,
    read_chunk,
)
from strandline.broker.coordination.runtime.shard import GroupShard
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# Delay until a partition that cannot be read is retried.
LOAD_RETRY_S = 30.0


def coordinating_partition(group_id: str, partition_count: int) -> int:
    """Returns the partition that holds the records of this group."""
    return (java_hash(group_id) & 0x7FFFFFFF) % partition_count


def java_hash(text: str) -> int:
    """Java's String.hashCode, as an unsigned number: over UTF-16 units, not characters."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for position in range(0, len(units), 2):
        result = (31 * result + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return result


class Slot:
    """One partition of the topic, and the state replayed from it."""

    __slots__ = ("is_loaded", "partition", "quiet_log", "retry_s", "shard")

    def __init__(
        self, partition: Partition, shard: GroupShard, *, is_loaded: bool, quiet_log: QuietLog
    ) -> None:
        """`quiet_log` logs failed writes."""
        self.partition = partition
        self.shard = shard
        self.is_loaded = is_loaded
        self.retry_s = 0.0
        self.quiet_log = quiet_log

    def __repr__(self) -> str:
        return f"<Slot {self.partition.topic_partition} loaded={self.is_loaded} {self.shard!r}>"


class Slots:
    """The slots of this broker. Used on the event loop only."""

    def __init__(
        self,
        topic: NewTopic,
        new_shard: Callable[[], GroupShard],
        metadata: Metadata,
        replicas: ReplicaManager,
        *,
        node_id: int,
        topic_defaults: TopicDefaults,
        clock: Clock,
        reads: Executor,
        on_found: Callable[[], None],
    ) -> None:
        """`reads` runs the blocking part of loading; `on_found` is called when there is any."""
        self._topic = topic
        self._new_shard = new_shard
        self._metadata = metadata
        self._replicas = replicas
        self._node_id = node_id
        self._topic_defaults = topic_defaults
        self._clock = clock
        self._reads = reads
        self._on_found = on_found
        self._slots: dict[int, Slot] = {}
        self._quiet_log = QuietLog(log, clock)

    # --- finding -----------------------------------------------------------------------------

    def topic(self) -> TopicImage | None:
        return self._metadata.image.topics.get(self._topic.name)

    def present(self) -> list[Slot]:
        """Returns the existing slots, loaded or not."""
        return list(self._slots.values())

    def all(self) -> list[Slot]:
        """Returns the slots of all partitions."""
        topic = self.topic()
        if topic is None:
            return []
        slots = (self._slot(index) for index in range(topic.partition_count))
        return [slot for slot in slots if slot is not None]

    def of(self, group_id: str) -> Slot | None:
        """Returns the loaded slot of a group, None without the topic. Raises CoordinatorFault."""
        topic = self.topic()
        if topic is None:
            return None
        slot = self._slot(coordinating_partition(group_id, topic.partition_count))
        if slot is None:
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not slot.is_loaded:
            raise CoordinatorFault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return slot

    def drop(self) -> list[Slot]:
        """Drops all slots: the topic has been replaced."""
        slots, self._slots = self._slots, {}
        return list(slots.values())

    def _slot(self, index: int) -> Slot | None:
        slot = self._slots.get(index)
        if slot is not None:
            return slot
        partition = self._replicas.partition(self._topic.name, index)
        if partition is None:
            return None
        is_empty = partition.log.end_offset <= partition.log.log_start_offset
        slot = self._slots[index] = Slot(
            partition, self._new_shard(), is_loaded=is_empty, quiet_log=self._quiet_log
        )
        if not is_empty:
            self._on_found()
        return slot

    # --- creating ----------------------------------------------------------------------------

    async def create_topic(self) -> None:
        """Creates the topic. Raises CoordinatorFault."""
        try:
            decision = await self._metadata.change(
                lambda image: controller.create_topics(
                    image,
                    [self._topic],
                    node_ids=(self._node_id,),
                    defaults=self._topic_defaults,
                )
            )
        except StorageError as error:
            self._say_not_created(str(error))
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        (result,) = decision.results
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._say_not_created(result.error_message)
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _say_not_created(self, reason: str | None) -> None:
        """Logs once: every join and commit retries the creation."""
        self._quiet_log.say(
            logging.WARNING,
            "offsets topic not created",
            self._topic.name,
            {"error": reason},
        )

    # --- loading -----------------------------------------------------------------------------

    def next_to_load(self) -> Slot | None:
        """Returns a slot whose log is to be replayed now, None if there is none."""
        now_s = self._clock.monotonic_s()
        return next((s for s in self.all() if not s.is_loaded and s.retry_s <= now_s), None)

    async def load(
        self, slot: Slot, now: Callable[[], Instant], on_loaded: Callable[[Slot], None]
    ) -> None:
        """Replays the log of one slot; `on_loaded` may serve it from then on."""
        try:
            await self._load_slot(slot, now, on_loaded)
        except (RecordsRejected, StorageError) as error:
            # Its groups stay unavailable: losing their offsets would be worse.
            slot.retry_s = self._clock.monotonic_s() + LOAD_RETRY_S
            slot.shard = self._new_shard()
            log.error(
                "groups not loaded",
                extra={
                    "fields": {
                        "partition": str(slot.partition.topic_partition),
                        "error": str(error),
                        "retry_s": LOAD_RETRY_S,
                    }
                },
            )

    async def _load_slot(
        self, slot: Slot, now: Callable[[], Instant], on_loaded: Callable[[Slot], None]
    ) -> None:
        """Replays the log of one partition. Raises RecordsRejected, StorageError."""
        began_s = self._clock.monotonic_s()
        unified_log = slot.partition.log
        offset, end_offset = unified_log.log_start_offset, slot.partition.high_watermark
        loop = asyncio.get_running_loop()
        replay = _Replay(slot.shard)
        while offset < end_offset:
            chunk = await loop.run_in_executor(
                self._reads, read_chunk, unified_log, offset, end_offset
            )
            moment = now()
            for record in chunk.records:
                replay.take(record, moment)
            offset = chunk.next_offset
        if self._slots.get(slot.partition.topic_partition.partition) is not slot:
            return
        slot.is_loaded = True
        on_loaded(slot)
        log.info(
            "groups loaded",
            extra={
                "fields": {
                    "partition": str(slot.partition.topic_partition),
                    "groups": slot.shard.group_count,
                    "offsets": slot.shard.offset_count,
                    "ms": int((self._clock.monotonic_s() - began_s) * 1000),
                }
            },
        )


class _Replay:
    """Applies records in log order; those of a transaction when it is committed."""

    def __init__(self, shard: GroupShard) -> None:
        self._shard = shard
        self._open: dict[int, list[CoordinatorRecord]] = {}

    def take(self, record: LoadedRecord, now: Instant) -> None:
        if isinstance(record, TransactionalRecord):
            self._open.setdefault(record.producer_id, []).append(record.record)
        elif isinstance(record, LoadedMarker):
            ended = self._open.pop(record.producer_id, [])
            if record.end is TransactionEnd.COMMIT:
                for kept in ended:
                    self._shard.replay(kept, now)
        else:
            self._shard.replay(record, now)
