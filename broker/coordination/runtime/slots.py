"""The partitions of a coordinator's topic that this broker leads, and their replayed state.

    no topic             there is no state; the first request that has some creates it
    led by another       NOT_COORDINATOR
    led, but offline     COORDINATOR_NOT_AVAILABLE
    a slot, not active   COORDINATOR_LOAD_IN_PROGRESS
    a slot, active       served

    on_lead --> UNLOADED --> LOADING --> ACTIVE       LOADING --> FAILED --> LOADING, after a while
    on_resign, from each state: the slot is gone, and whoever waits in it gets NOT_COORDINATOR

The metadata says what this broker leads (`follow`). A group, or a transactional id, lies where
Kafka puts it (`coordinating_partition`). An empty log is active at once, and so a new topic.

The topics (`__consumer_offsets`, `__transaction_state`) are compacted: they keep the latest record
of each key, so loading reads little more than the live state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from strandline.broker.cluster.metadata.controller_messages import (
    Controller,
    CreateTopics,
    NewTopic,
)
from strandline.broker.cluster.metadata.image import MetadataDelta, TopicImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.model.classic_messages import CoordinatorFault, Instant
from strandline.broker.coordination.records.replay_chunk import DecodeRecords, read_chunk
from strandline.broker.coordination.runtime.journal import Journal
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.model import Epoch, TopicPartition
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

MIN_IN_SYNC = "min.insync.replicas"
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


class SlotState(Enum):
    """How far the log of a slot is replayed."""

    UNLOADED = auto()
    LOADING = auto()
    ACTIVE = auto()
    FAILED = auto()  # could not be read, and waits for `retry_s`


class Slot(Generic[S]):
    """One partition of the topic, and the state replayed from it."""

    __slots__ = ("epoch", "journal", "partition", "retry_s", "shard", "state")

    def __init__(self, partition: Partition, epoch: Epoch, shard: S, journal: Journal) -> None:
        """`epoch` is the leader epoch under which this broker leads the partition."""
        self.partition = partition
        self.epoch = epoch
        self.shard = shard
        self.journal = journal
        self.retry_s = 0.0
        is_empty = partition.log.end_offset <= partition.log.log_start_offset
        self.state = SlotState.ACTIVE if is_empty else SlotState.UNLOADED

    def __repr__(self) -> str:
        return f"<Slot {self.partition.topic_partition} {self.state.name} {self.shard!r}>"

    @property
    def is_loaded(self) -> bool:
        return self.state is SlotState.ACTIVE


class Slots(Generic[S]):
    """The slots of this broker. Used on the event loop only."""

    def __init__(
        self,
        topic: NewTopic,
        new_shard: Callable[[], S],
        decode: DecodeRecords[Any],
        metadata: MetadataView,
        controller: Controller,
        replicas: ReplicaManager,
        *,
        node_id: int,
        clock: Clock,
        reads: Executor,
        content: str,
    ) -> None:
        """`reads` runs the blocking part of loading; `content` names the state in log messages."""
        self._topic = topic
        self.new_shard = new_shard
        self._decode = decode
        self._content = content
        self._metadata = metadata
        self._controller = controller
        self._replicas = replicas
        self._node_id = node_id
        self._clock = clock
        self._reads = reads
        # Set when there is something to load.
        self.found = asyncio.Event()
        self._slots: dict[int, Slot[S]] = {}
        # Requests that create the topic now.
        self._creating = 0
        self._quiet_log = QuietLog(log, clock)

    # --- finding -----------------------------------------------------------------------------

    def topic(self) -> TopicImage | None:
        return self._metadata.image.topics.get(self._topic.name)

    def present(self) -> list[Slot[S]]:
        """Returns the existing slots, in any state."""
        return list(self._slots.values())

    def all(self) -> list[Slot[S]]:
        """Returns the slots of all partitions that this broker leads and has."""
        topic = self.topic()
        if topic is None:
            return []
        slots = (self._slot(topic, index) for index in range(topic.partition_count))
        return [slot for slot in slots if slot is not None]

    def loaded(self) -> list[Slot[S]]:
        """As `all`. Raises CoordinatorFault while any is loaded."""
        slots = self.all()
        if not all(slot.is_loaded for slot in slots):
            raise CoordinatorFault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return slots

    def of(self, name: str) -> Slot[S] | None:
        """Returns the loaded slot of an id, None without the topic. Raises CoordinatorFault."""
        topic = self.topic()
        if topic is None:
            return None
        index = coordinating_partition(name, topic.partition_count)
        slot = self._slot(topic, index)
        if slot is None:
            is_here = topic.partitions[index].leader == self._node_id
            raise CoordinatorFault(
                ErrorCode.COORDINATOR_NOT_AVAILABLE if is_here else ErrorCode.NOT_COORDINATOR
            )
        if slot.state is not SlotState.ACTIVE:
            raise CoordinatorFault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return slot

    async def made_for(self, name: str) -> Slot[S]:
        """As `of`; creates the topic if necessary, and waits for a slow disk to have the log."""
        await self.ensure_topic()
        topic, where = self.topic(), self.place_of(name)
        # A change of the metadata does not wait long for it.
        if topic is not None and where is not None and self._replicas.is_coming(where):
            await self._replicas.created([topic.topic_id])
        slot = self.of(name)
        if slot is None:
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return slot

    async def partition_of(self, name: str) -> TopicPartition:
        """Returns where an id lies, whoever leads that; creates the topic if necessary.

        Raises CoordinatorFault.
        """
        await self.ensure_topic()
        where = self.place_of(name)
        if where is None:
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return where

    def place_of(self, name: str) -> TopicPartition | None:
        """Returns where an id lies, whoever leads that; None without the topic."""
        topic = self.topic()
        if topic is None:
            return None
        return TopicPartition(topic.name, coordinating_partition(name, topic.partition_count))

    def at(self, index: int) -> Slot[S] | None:
        """Returns the slot of a partition, in any state; None if it is not on this broker."""
        topic = self.topic()
        if topic is None or not 0 <= index < topic.partition_count:
            return None
        return self._slot(topic, index)

    def _slot(self, topic: TopicImage, index: int) -> Slot[S] | None:
        slot = self._slots.get(index)
        if slot is not None:
            return slot
        led = topic.partitions[index]
        # It may have been offline when the metadata said that it is led here.
        return self.on_lead(index, led.leader_epoch) if led.is_led_by(self._node_id) else None

    # --- leading -----------------------------------------------------------------------------

    def follow(self, delta: MetadataDelta) -> list[Slot[S]]:
        """Leads and resigns as the metadata says; returns the slots that are gone."""
        is_gone = any(topic.name == self._topic.name for topic in delta.topics.gone())
        resigned = self.drop() if is_gone else []
        for topic in delta.topics.changed():
            if topic.name == self._topic.name:
                for led in topic.partitions:
                    if led.is_led_by(self._node_id):
                        self.on_lead(led.partition, led.leader_epoch)
                    else:
                        resigned += self.on_resign(led.partition)
        return resigned

    def on_lead(self, index: int, epoch: Epoch) -> Slot[S] | None:
        """This broker leads a partition under `epoch`; None if the partition is not here."""
        slot = self._slots.get(index)
        if slot is not None:
            slot.epoch = epoch
            return slot
        partition = self._replicas.partition(self._topic.name, index)
        if partition is None:
            return None
        journal = Journal(partition, self._content.removesuffix("s"), self._quiet_log)
        slot = self._slots[index] = Slot(partition, epoch, self.new_shard(), journal)
        if not slot.is_loaded:
            self.found.set()
        return slot

    def on_resign(self, index: int) -> list[Slot[S]]:
        """Another broker leads the partition; returns the slot that is gone, if there was one."""
        slot = self._slots.pop(index, None)
        if slot is None:
            return []
        slot.journal.resign()
        return [slot]

    def drop(self) -> list[Slot[S]]:
        """Resigns from all: the topic was replaced, or all is to be loaded anew."""
        return [slot for index in tuple(self._slots) for slot in self.on_resign(index)]

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

    def _new_topic(self) -> NewTopic:
        """Returns the topic with a replica on each of a few brokers, or of all there are."""
        topic = self._topic
        replicas = max(1, min(topic.replication_factor, len(self._metadata.image.brokers)))
        properties = dict(topic.properties)
        if replicas == 1:
            # No minimum applies to it.
            properties.pop(MIN_IN_SYNC, None)
        elif replicas < topic.replication_factor:
            fields = {"replicas": replicas, "wanted": topic.replication_factor}
            log.warning(
                "topic of the %s has fewer replicas than wanted: so few brokers are registered",
                self._content,
                extra={"fields": fields},
            )
        return replace(topic, replication_factor=replicas, properties=properties)

    async def _create_topic(self) -> None:
        try:
            (result,) = await self._controller.ask(CreateTopics([self._new_topic()]))
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
        return next(
            (s for s in self.all() if s.state is not SlotState.ACTIVE and s.retry_s <= now_s), None
        )

    async def load(
        self, slot: Slot[S], now: Callable[[], Instant], on_loaded: Callable[[Slot[S]], None]
    ) -> None:
        """Replays the log of one slot; `on_loaded` may serve it from then on."""
        slot.state = SlotState.LOADING
        try:
            await self._load_slot(slot, now, on_loaded)
        except (RecordsRejected, StorageError) as error:
            # Its state stays unavailable: losing it would be worse.
            slot.retry_s = self._clock.monotonic_s() + LOAD_RETRY_S
            slot.state, slot.shard = SlotState.FAILED, self.new_shard()
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
        slot.state = SlotState.ACTIVE
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
