"""Transactional producers in virtual time, who know of each transaction how it ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from strandline.broker.protocol.messages.end_txn import EndTxnRequest
from strandline.broker.protocol.messages.init_producer_id import InitProducerIdRequest
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.records.batch.record import Record, encode_batch
from tests.sim.client import RETRY_S, Refused, Unanswered, VirtualClient, check
from tests.sim.cluster import World

TIMEOUT_MS = 10_000
# A client asks again until these are over.
PASSING = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@dataclass
class Outcomes:
    """The values of all transactions of a topic, by partition, in the order of each producer."""

    topic: str
    committed: dict[int, list[bytes]] = field(default_factory=dict)
    aborted: set[bytes] = field(default_factory=set)

    def check(self, partition: int, found: list[bytes]) -> None:
        """Each committed value once, those of one producer in order, and no aborted one."""
        committed = self.committed.get(partition, [])
        assert not self.aborted.intersection(found), (partition, "aborted, and read")
        assert sorted(found) == sorted(committed), (partition, "lost, or in half")
        for producer in {value.split(b"/")[0] for value in found}:
            own = [value for value in found if value.startswith(producer + b"/")]
            assert own == [value for value in committed if value.startswith(producer + b"/")]


class Transactor:
    """One transactional id; some transactions are aborted, and some time out."""

    def __init__(
        self, world: World, client: VirtualClient, name: str, outcomes: Outcomes, partitions: int
    ) -> None:
        self._world = world
        self._client = client
        self._name = name
        self._outcomes = outcomes
        self._partitions = partitions
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[int, int] = {}

    async def run(self, count: int) -> None:
        await self._begin_again()
        for number in range(count):
            values: dict[int, list[bytes]] = {}
            try:
                await self._write(number, values)
            except (Refused, Unanswered):
                # What of it was written is not known: it must not be committed.
                is_committed = await self._end(committed=False)
            else:
                if self._world.random.random() < 0.15:
                    await asyncio.sleep(4 * TIMEOUT_MS / 1000)
                is_committed = await self._end(committed=self._world.random.random() < 0.7)
            self._world.note("transaction", self._name, number, is_committed)
            for partition, written in values.items():
                if is_committed:
                    self._outcomes.committed.setdefault(partition, []).extend(written)
                else:
                    self._outcomes.aborted.update(written)
            if not is_committed:
                await self._begin_again()
            await asyncio.sleep(self._world.random.uniform(0.01, 2.0))

    async def _begin_again(self) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._name, transaction_timeout_ms=TIMEOUT_MS
        )
        while True:
            try:
                answer = await self._client.ask(request, 4)
                check(answer.error_code)
            except (Refused, Unanswered):
                await asyncio.sleep(RETRY_S)
                continue
            self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
            return

    async def _write(self, number: int, values: dict[int, list[bytes]]) -> None:
        """Adds each value before it is sent. Raises Refused, Unanswered."""
        for place in range(self._world.random.randint(1, 4)):
            partition = self._world.random.randrange(self._partitions)
            await self._add(partition)
            value = b"%s/%d/%d" % (self._name.encode(), number, place)
            values.setdefault(partition, []).append(value)
            record = Record(
                offset=0, timestamp_ms=self._world.clock.now_ms(), key=None, value=value
            )
            sequence = self._sequences.get(partition, 0)
            encoded = encode_batch(
                [record],
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=sequence,
                transactional=True,
            )
            await self._client.produce(
                self._outcomes.topic, encoded, partition=partition, transactional_id=self._name
            )
            self._sequences[partition] = sequence + 1

    async def _add(self, partition: int) -> None:
        request = AddPartitionsToTxnRequest(
            transactional_id=self._name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[AddPartitionsToTxnTopic(name=self._outcomes.topic, partitions=[partition])],
        )
        while True:
            answer = await self._client.ask(request, 3)
            code = answer.results_by_topic[0].results_by_partition[0].partition_error_code
            if code not in PASSING:
                check(code)
                return
            await asyncio.sleep(RETRY_S)

    async def _end(self, *, committed: bool) -> bool:
        """Whether it was committed; asks until that is known."""
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=committed,
        )
        while True:
            try:
                code = (await self._client.ask(request, 3)).error_code
            except Unanswered:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if code == ErrorCode.NONE:
                return committed
            if code not in PASSING:
                # It timed out, or there was none.
                self._world.note("not ended", self._name, ErrorCode(code).name)
                return False
            await asyncio.sleep(RETRY_S)
