"""The partitions of a coordinator's topic that this broker leads, and their replayed state.

    no topic          there is no state; the first request that has some creates it
    a slot, loading   COORDINATOR_LOAD_IN_PROGRESS until `load` has replayed its log
    a slot, loaded    served

A group, or a transactional id, lies where Kafka puts it (`coordinating_partition`). An empty log
counts as loaded, so a new topic is served at once.

The topics (`__consumer_offsets`, `__transaction_state`) are compacted: they keep the latest record
of each key, so loading reads little more than the live state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from strandline.broker.cluster.metadata.active_controller import ControllerClient
from strandline.broker.cluster.metadata.controller_messages import NewTopic
from strandline.broker.cluster.metadata.image import TopicImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.model.classic_messages import CoordinatorFault, Instant
from strandline.broker.coordination.records.replay_chunk import DecodeRecords, read_chunk
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# Delay until a partition that cannot be read is retried.
LOAD_RETRY_S = 30.0


# Each request of a transaction asks. Names may be of 32 KB.
@lru_cache(maxsize=1000)
def coordinating_partition(name: str, partition_count: int) -> int:
    """Returns the partition of a group or of a transactional id (Kafka's `partitionFor`)."""
    hashed = java_hash(name)
    # The absolute value of a signed number, and 0 for the lowest, which has none.
    return min(hashed, 0x100000000 - hashed) % 0x80000000 % partition_count


def java_hash(text: str) -> int:
    """Java's String.hashCode, as an unsigned number: over UTF-16 units, not characters."""
    # The first unit of this codec says the order of the bytes, which is the machine's.
    units = memoryview(text.encode("utf-16", "surrogatepass")).cast("H")[1:]
    result = 0
    for unit in units:
        result = (31 * result + unit) & 0xFFFFFFFF
    return result


class Shard(Protocol):
    """The state replayed from one partition."""

    def take(self, record: Any, now: Instant) -> None:
        """Applies one record of the log, of the kind that the topic has."""

    def counts(self) -> Mapping[str, int]:
        """Returns what it holds, for the log."""


S = TypeVar("S", bound=Shard)


class Slot(Generic[S]):
    """One partition of the topic, and the state replayed from it."""

    __slots__ = ("is_loaded", "partition", "quiet_log", "retry_s", "shard")

    def __init__(
        self, partition: Partition, shard: S, *, is_loaded: bool, quiet_log: QuietLog
    ) -> None:
        """`quiet_log` logs failed writes."""
        self.partition = partition
        self.shard = shard
        self.is_loaded = is_loaded
        self.retry_s = 0.0
        self.quiet_log = quiet_log

    def __repr__(self) -> str:
        return f"<Slot {self.partition.topic_partition} loaded={self.is_loaded} {self.shard!r}>"


class Slots(Generic[S]):
    """The slots of this broker. Used on the event loop only."""

    def __init__(
        self,
        topic: NewTopic,
        new_shard: Callable[[], S],
        decode: DecodeRecords[Any],
        metadata: MetadataView,
        controller: ControllerClient,
        replicas: ReplicaManager,
        *,
        clock: Clock,
        reads: Executor,
        on_found: Callable[[], None],
        content: str = "groups",
    ) -> None:
        """`reads` runs the blocking part of loading; `on_found` is called when there is any.

        `content` names the state in log messages.
        """
        self._topic = topic
        self._new_shard = new_shard
        self._decode = decode
        self._content = content
        self._metadata = metadata
        self._controller = controller
        self._replicas = replicas
        self._clock = clock
        self._reads = reads
        self._on_found = on_found
        self._slots: dict[int, Slot[S]] = {}
        # Requests that create the topic now.
        self._creating = 0
        self._quiet_log = QuietLog(log, clock)

    # --- finding -----------------------------------------------------------------------------

    def topic(self) -> TopicImage | None:
        return self._metadata.image.topics.get(self._topic.name)

    def present(self) -> list[Slot[S]]:
        """Returns the existing slots, loaded or not."""
        return list(self._slots.values())

    def all(self) -> list[Slot[S]]:
        """Returns the slots of all partitions."""
        topic = self.topic()
        if topic is None:
            return []
        slots = (self._slot(index) for index in range(topic.partition_count))
        return [slot for slot in slots if slot is not None]

    def of(self, name: str) -> Slot[S] | None:
        """Returns the loaded slot of an id, None without the topic. Raises CoordinatorFault."""
        topic = self.topic()
        if topic is None:
            return None
        return self._loaded(coordinating_partition(name, topic.partition_count))

    def _loaded(self, index: int) -> Slot[S]:
        """Returns the loaded slot of a partition. Raises CoordinatorFault."""
        slot = self._slot(index)
        if slot is None:
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not slot.is_loaded:
            raise CoordinatorFault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return slot

    def at(self, index: int) -> Slot[S] | None:
        """Returns the slot of a partition, loaded or not; None if it is not on this broker."""
        topic = self.topic()
        if topic is None or not 0 <= index < topic.partition_count:
            return None
        return self._slot(index)

    def drop(self) -> list[Slot[S]]:
        """Drops all slots: the topic has been replaced."""
        slots, self._slots = self._slots, {}
        return list(slots.values())

    def _slot(self, index: int) -> Slot[S] | None:
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

    async def ensure_topic(self) -> None:
        """Creates the topic if necessary, or waits until it is created. Raises CoordinatorFault."""
        # The image has a new topic before its partitions are there; a second change waits for them.
        if self.topic() is not None and not self._creating:
            return
        self._creating += 1
        try:
            await self._create_topic()
        finally:
            self._creating -= 1

    async def _create_topic(self) -> None:
        try:
            (result,) = await self._controller.create_topics([self._topic])
        except StorageError as error:
            self._say_not_created(str(error))
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._say_not_created(result.error_message)
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _say_not_created(self, reason: str | None) -> None:
        """Logs once: every request that needs the topic retries the creation."""
        self._quiet_log.say(
            logging.WARNING,
            f"topic of the {self._content} not created",
            self._topic.name,
            {"error": reason},
        )

    # --- loading -----------------------------------------------------------------------------

    def next_to_load(self) -> Slot[S] | None:
        """Returns a slot whose log is to be replayed now, None if there is none."""
        now_s = self._clock.monotonic_s()
        return next((s for s in self.all() if not s.is_loaded and s.retry_s <= now_s), None)

    async def load(
        self, slot: Slot[S], now: Callable[[], Instant], on_loaded: Callable[[Slot[S]], None]
    ) -> None:
        """Replays the log of one slot; `on_loaded` may serve it from then on."""
        try:
            await self._load_slot(slot, now, on_loaded)
        except (RecordsRejected, StorageError) as error:
            # Its state stays unavailable: losing it would be worse.
            slot.retry_s = self._clock.monotonic_s() + LOAD_RETRY_S
            slot.shard = self._new_shard()
            where = slot.partition.topic_partition
            self._quiet_log.say(
                logging.ERROR,
                f"{self._content} not loaded",
                where,
                {"partition": str(where), "error": str(error), "retry_s": LOAD_RETRY_S},
            )

    async def _load_slot(
        self, slot: Slot[S], now: Callable[[], Instant], on_loaded: Callable[[Slot[S]], None]
    ) -> None:
        """Replays the log of one partition, to its end. Raises RecordsRejected, StorageError.

        What is not replicated yet is state too, as in Kafka's CoordinatorLoaderImpl: the leader
        keeps it.
        """
        began_s = self._clock.monotonic_s()
        unified_log = slot.partition.log
        offset, end_offset = unified_log.log_start_offset, unified_log.end_offset
        loop = asyncio.get_running_loop()
        while offset < end_offset:
            chunk = await loop.run_in_executor(
                self._reads, read_chunk, unified_log, offset, end_offset, self._decode
            )
            moment = now()
            for record in chunk.records:
                slot.shard.take(record, moment)
            offset = chunk.next_offset
        if self._slots.get(slot.partition.topic_partition.partition) is not slot:
            return
        slot.is_loaded = True
        on_loaded(slot)
        log.info(
            "%s loaded",
            self._content,
            extra={
                "fields": {
                    "partition": str(slot.partition.topic_partition),
                    **slot.shard.counts(),
                    "ms": int((self._clock.monotonic_s() - began_s) * 1000),
                }
            },
        )
