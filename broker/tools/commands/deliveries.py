"""What became of the records that `strandline produce` sent, and what the others wait for.

The client library repeats what may succeed later, such as a write to a partition with too few
replicas in sync, and says nothing until it gives up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from strandline.broker.tools.client.connection import failure_of
from strandline.storage.clock import Clock
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

# Nobody wonders about a shorter wait; as of a store that does not answer.
TOLD_AFTER_S = 2.0
LOOK_S = 0.25
# A leader that does not serve, in the client library.
NO_LEADER = -1
ASK_SECONDS_MAX = 2.0


class Deliveries:
    """Counts the delivery reports; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.delivered_count = 0
        self.failed_count = 0
        self.first_error: KafkaError | None = None

    @property
    def count(self) -> int:
        return self.delivered_count + self.failed_count

    def note(self, error: KafkaError | None, _message: Message) -> None:
        with self._lock:
            if error is None:
                self.delivered_count += 1
            else:
                self.failed_count += 1
                self.first_error = self.first_error or error

    def check(self, topic: str) -> None:
        """Raises ToolFailure, with the first reason, if a record was refused."""
        if self.first_error is not None:
            raise failure_of(
                self.first_error,
                f"could not write {self.failed_count:,} of"
                f" {counted(self.count, 'record')} to {topic}",
            )


class DeliveryWatch:
    """A thread that calls `tell(text)` once each time that nothing is delivered for TOLD_AFTER_S.

    It also takes the delivery reports, while whoever sends waits for input.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        deliveries: Deliveries,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._deliveries = deliveries
        self._clock = clock
        self._tell = tell
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="deliveries", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        seen_count, since_s, is_told = 0, self._clock.monotonic_s(), False
        while not self._is_over.wait(LOOK_S):
            self._producer.poll(0)
            count, now_s = self._deliveries.count, self._clock.monotonic_s()
            if count != seen_count or not len(self._producer):
                seen_count, since_s, is_told = count, now_s, False
            elif not is_told and now_s - since_s >= TOLD_AFTER_S:
                is_told = True
                self._tell(
                    f"{self._topic} has taken nothing for {TOLD_AFTER_S:.0f} s, still waiting:"
                    f" {self._reason()}"
                )

    def _reason(self) -> str:
        from confluent_kafka import KafkaException

        try:
            found = self._producer.list_topics(self._topic, timeout=ASK_SECONDS_MAX)
        except KafkaException as error:
            return f"the cluster does not answer ({error.args[0].name()})"
        return reason_of_wait(self._topic, found.topics[self._topic].partitions.values())


class PlacedReplicas(Protocol):
    """A partition in the metadata of confluent-kafka."""

    id: int
    leader: int
    replicas: list[int]
    isrs: list[int]


def reason_of_wait(topic: str, partitions: Iterable[PlacedReplicas]) -> str:
    """Why writes may wait, in a half sentence: the first partition with a trouble, the worst."""
    ordered = sorted(partitions, key=lambda one: one.id)
    for one in ordered:
        if one.leader == NO_LEADER:
            return f"{topic}-{one.id} has no leader"
    for one in ordered:
        if len(one.isrs) < len(one.replicas):
            return (
                f"{topic}-{one.id} has {len(one.isrs)} of its {len(one.replicas)} replicas in sync,"
                " and acks=all needs as many as min.insync.replicas"
            )
    return "the leader of a partition does not answer, or waits for a replica in sync"
