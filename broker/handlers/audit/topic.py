"""The topic of the record: lines wait in memory, and the broker appends them, one a record.

    request ──► WaitingLines ──► batches ──► partition 0, here
                                        └──► the broker that leads it, by Produce

The broker makes the topic, also again if somebody deletes it. Clients may read it, and cannot write
it (`traffic.py`). What could not be appended is tried again; if the answer of another broker was
lost, these lines are there twice. What the log refuses is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice

from strandline.broker.audit.waiting import WaitingLines
from strandline.broker.cluster.membership.brokers import OtherBrokers
from strandline.broker.cluster.metadata.controller_messages import (
    Controller,
    CreateTopics,
    NewTopic,
)
from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.peers.errors import PeerError
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.concurrency.turns import Turn
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.model import TopicPartition
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.record import Record, encode_batch

log = logging.getLogger(__name__)

# Of one batch: 30 KB, a fraction of a millisecond of the loop.
LINES_MAX = 100
RETRY_S = 1.0
# Of another broker, also at a stop.
ANSWER_S_MAX = 5.0
# For a batch that the log will not take later either.
_REFUSED = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
    }
)


class RecordTopic:
    """A topic of one partition that lines are appended to. Used on the event loop only."""

    def __init__(
        self,
        name: str,
        lines: WaitingLines,
        replicas: ReplicaManager,
        controller: Controller,
        clock: Clock,
        *,
        others: OtherBrokers | None = None,
    ) -> None:
        """`others` are those of a cluster."""
        self._name = name
        self._others = others
        self._lines = lines
        self._replicas = replicas
        self._controller = controller
        self._now_ms = clock.now_ms
        self._quiet_log = QuietLog(log, clock)
        # Taken, and not appended yet.
        self._taken: deque[bytes] = deque()
        # In a row.
        self._refusals = 0

    async def run(self) -> None:
        """Appends lines when there are some."""
        while True:
            await self._lines.news.wait()
            self._lines.news.clear()
            if not await self.write():
                await asyncio.sleep(RETRY_S)
                self._lines.news.set()

    async def write(self, *, creates: bool = True) -> bool:
        """Appends all lines that wait; returns whether it could. It may create the topic."""
        turn = Turn()
        self._taken.extend(self._lines.take())
        while self._taken:
            if not await self._pass_on(creates=creates):
                return False
            await turn.pass_if_over()
        return True

    async def _pass_on(self, *, creates: bool) -> bool:
        """Appends one batch, here or elsewhere; returns whether it could."""
        led = self._replicas.leader(self._name, 0)
        if not isinstance(led, Partition) and creates and self._leader_elsewhere is None:
            led = await self._created()
        if isinstance(led, Partition):
            return self._append(led)
        node_id = self._leader_elsewhere
        return node_id is not None and await self._send(node_id)

    @property
    def _leader_elsewhere(self) -> int | None:
        return None if self._others is None else self._others.leader_of(self._partition)

    @property
    def _partition(self) -> TopicPartition:
        return TopicPartition(self._name, 0)

    def _append(self, partition: Partition) -> bool:
        batch = self._next()
        try:
            partition.append(self._encoded(batch), origin=AppendOrigin.COORDINATOR)
        except StorageError as error:
            self._say(str(error))
            return False
        except RecordsRejected as error:
            self._say(str(error))
            self._lines.lose(len(batch))
        self._done(batch)
        return True

    async def _send(self, node_id: int) -> bool:
        """As `_append`, by the broker that leads the partition."""
        assert self._others is not None
        batch = self._next()
        partition = ProducePartition(index=0, records=self._encoded(batch))
        topic = ProduceTopic(
            name=self._name,
            topic_id=self._others.topic_id(self._name),
            partitions=[partition],
        )
        request = ProduceRequest(acks=-1, timeout_ms=int(1000 * ANSWER_S_MAX), topics=[topic])
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                answer = await self._others.ask(node_id, request, ProduceResponse)
        except (PeerError, TimeoutError) as error:
            self._wait(str(error) or f"broker {node_id} did not answer in {ANSWER_S_MAX:g} s")
            return False
        found = next((one for topic in answer.topics for one in topic.partitions), None)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if found is None else found.error_code
        if code:
            reason = f"broker {node_id} answers with error {code}"
            if code not in _REFUSED:
                self._wait(reason)
                return False
            self._say(reason)
            self._lines.lose(len(batch))
        self._done(batch)
        return True

    def _next(self) -> tuple[bytes, ...]:
        return tuple(islice(self._taken, LINES_MAX))

    def _encoded(self, batch: tuple[bytes, ...]) -> memoryview:
        now_ms = self._now_ms()
        records = [
            Record(offset=number, timestamp_ms=now_ms, key=None, value=line[:-1])
            for number, line in enumerate(batch)
        ]
        return memoryview(bytearray(encode_batch(records)))

    def _done(self, batch: tuple[bytes, ...]) -> None:
        self._refusals = 0
        for line in batch:
            self._taken.popleft()
            self._lines.written(len(line))

    async def _created(self) -> Partition | LeaderRefusal:
        """Makes the topic; returns why it is not served, if it is not."""
        topic = NewTopic(name=self._name, partition_count=1)
        try:
            (result,) = await self._controller.ask(CreateTopics([topic]))
        except StorageError as error:
            self._say(str(error))
            return LeaderRefusal(ErrorCode(error.kafka_code))
        await self._replicas.created([result.topic_id])
        led = self._replicas.leader(self._name, 0)
        if not isinstance(led, Partition) and self._leader_elsewhere is None:
            is_made = result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            self._wait(led.code.name if is_made else result.error_message or "")
        return led

    def _wait(self, reason: str) -> None:
        """The next try is soon; what passes by then, such as a topic that is new, is no trouble."""
        self._refusals += 1
        if self._refusals > 1:
            self._say(reason)

    def _say(self, reason: str) -> None:
        fields = {
            "topic": self._name,
            "error": reason,
            "waiting_bytes": self._lines.waiting_bytes,
            "lost": self._lines.lost_count,
        }
        self._quiet_log.say(
            logging.ERROR, "the record cannot be appended to its topic", None, fields
        )
