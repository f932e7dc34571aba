"""The topic of the record: lines wait in memory, and the broker appends them, one a record.

    request ──► WaitingLines ──► batches ──► partition 0

The broker makes the topic, also again if somebody deletes it. Clients may read it, and cannot write
it (`traffic.py`). What could not be appended is tried again; what its log refuses is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice

from strandline.broker.audit.waiting import WaitingLines
from strandline.broker.cluster.metadata.controller_messages import (
    Controller,
    CreateTopics,
    NewTopic,
)
from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.concurrency.turns import Turn
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.record import Record, encode_batch

log = logging.getLogger(__name__)

# Of one batch: 30 KB, a fraction of a millisecond of the loop.
LINES_MAX = 100
RETRY_S = 1.0


class RecordTopic:
    """A topic of one partition that lines are appended to. Used on the event loop only."""

    def __init__(
        self,
        name: str,
        lines: WaitingLines,
        replicas: ReplicaManager,
        controller: Controller,
        clock: Clock,
    ) -> None:
        self._name = name
        self._lines = lines
        self._replicas = replicas
        self._controller = controller
        self._now_ms = clock.now_ms
        self._quiet_log = QuietLog(log, clock)
        # Taken, and not appended yet.
        self._taken: deque[bytes] = deque()

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
            led = self._replicas.leader(self._name, 0)
            if not isinstance(led, Partition) and creates:
                led = await self._created()
            if not isinstance(led, Partition) or not self._append(led):
                return False
            await turn.pass_if_over()
        return True

    def _append(self, partition: Partition) -> bool:
        batch = tuple(islice(self._taken, LINES_MAX))
        now_ms = self._now_ms()
        records = [
            Record(offset=number, timestamp_ms=now_ms, key=None, value=line[:-1])
            for number, line in enumerate(batch)
        ]
        try:
            partition.append(
                memoryview(bytearray(encode_batch(records))), origin=AppendOrigin.COORDINATOR
            )
        except StorageError as error:
            self._say(str(error))
            return False
        except RecordsRejected as error:
            self._say(str(error))
            self._lines.lose(len(batch))
        for line in batch:
            self._taken.popleft()
            self._lines.written(len(line))
        return True

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
        if not isinstance(led, Partition):
            is_made = result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            self._say(led.code.name if is_made else result.error_message or "")
        return led

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
