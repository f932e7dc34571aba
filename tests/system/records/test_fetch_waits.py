"""Whoever waits for records is answered as soon as they are there, whatever else goes on.

A model of a few consumers, each with a fetch that may wait for much longer than a test lives. After
every step it says which of them must have an answer, and that answer is then awaited: a waiter that
was forgotten, a partition that a session lost, or a reader that was not resumed ends the test.
"""

from __future__ import annotations

import random
import select
import uuid
from collections.abc import Sequence

import pytest

from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.fetch import FetchResponse, ForgottenTopic
from tests.support.broker import BrokerProcess
from tests.support.wire import TIMEOUT_S, WireClient
from tests.system.calls import (
    MakeTopic,
    append,
    batch,
    delete_topic,
    describe_topic,
    fetch_request,
    fetch_topic,
    fetched_bytes,
    records_in,
    software,
)

pytestmark = pytest.mark.slow

PARTITIONS = 3
CONSUMERS = 4
STEPS = 100
# A forgotten fetch is not saved by the end of its wait: the socket gives up first.
NEVER_MS = int(10 * TIMEOUT_S * 1000)
BATCH = batch(value=bytes(100))
API_VERSIONS = 4


class Log:
    """What was appended to each partition: batches of one record and of one size."""

    def __init__(self) -> None:
        self.ends = [0] * PARTITIONS


class WaitingConsumer:
    """One consumer's side: what it wants, where it stands, and whether it waits."""

    def __init__(self, broker: BrokerProcess, topic: str, log: Log, rng: random.Random) -> None:
        self._broker, self._log, self._rng = broker, log, rng
        self._client = WireClient(broker.port)
        self.version = rng.choice([4, 7, 12, 13, 18])
        self._topic: str | uuid.UUID = topic
        if self.version >= 13:
            self._topic = describe_topic(self._client, topic).topic_id
        self._has_session = self.version >= 7 and rng.random() < 0.8
        self._session_id, self._epoch = 0, 0 if self._has_session else -1
        self._known: dict[int, int] = {}
        self.positions: dict[int, int] = {}
        self._min_bytes = 1
        self._correlation_id = 0
        self._behind: int | None = None
        self.waits = False

    def close(self) -> None:
        self._client.close()

    def ask(self) -> None:
        """Fetches some partitions, of which some are new and some are wanted no more."""
        count = self._rng.randint(1, PARTITIONS)
        wanted = self._rng.sample(range(PARTITIONS), count)
        self.positions = {p: self.positions.get(p, 0) for p in wanted}
        forgotten = [p for p in self._known if p not in self.positions]
        changed = {p: at for p, at in self.positions.items() if self._known.get(p) != at}
        is_full = self._epoch <= 0
        sent = self.positions if is_full else changed
        self._min_bytes = self._rng.choice([1, 1, len(BATCH) + 1, 3 * len(BATCH)])
        request = fetch_request(
            *([fetch_topic(self._topic, sent)] if sent else []),
            session_id=self._session_id,
            session_epoch=self._epoch,
            forgotten=self._forgotten(forgotten) if forgotten and not is_full else [],
            max_wait_ms=NEVER_MS,
            min_bytes=self._min_bytes,
        )
        self._correlation_id = self._client.send(request, self.version)
        if self._rng.random() < 0.3:
            # The broker stops reading from a client that does this, and has to begin again.
            self._behind = self._client.send(software(), API_VERSIONS)
        self._known = dict(self.positions) if self._has_session else {}
        self.waits = True

    def _forgotten(self, partitions: Sequence[int]) -> list[ForgottenTopic]:
        by_id = isinstance(self._topic, uuid.UUID)
        return [
            ForgottenTopic(
                name="" if by_id else str(self._topic),
                topic_id=self._topic if isinstance(self._topic, uuid.UUID) else None,
                partitions=partitions,
            )
        ]

    @property
    def is_due(self) -> bool:
        """Whether there is as much as it asked for."""
        there = sum(self._log.ends[p] - at for p, at in self.positions.items())
        return self.waits and there * len(BATCH) >= self._min_bytes

    def take(self, *, is_gone: bool = False) -> None:
        """The answer, which must come and hold everything that is new, once and in order."""
        response = self._client.receive(FetchResponse, self.version, self._correlation_id)
        self.waits = False
        if self._behind is not None:
            self._client.receive(ApiVersionsResponse, API_VERSIONS, self._behind)
            self._behind = None
        if is_gone:
            return
        assert response.error_code == 0
        if self._has_session:
            self._session_id, self._epoch = response.session_id, self._epoch + 1
            assert self._session_id
        found = dict.fromkeys(self.positions, 0)
        for topic in response.topics:
            for partition in topic.partitions:
                assert partition.error_code == 0, partition
                offsets = [r.offset for r in records_in(partition)] if partition.records else []
                at = self.positions[partition.index]
                assert offsets == list(range(at, at + len(offsets)))
                assert len(fetched_bytes(partition)) == len(offsets) * len(BATCH)
                found[partition.index] = len(offsets)
        for partition_index, count in found.items():
            self.positions[partition_index] += count
            assert self.positions[partition_index] == self._log.ends[partition_index]

    def is_answered(self) -> bool:
        # Not `select`, which knows 1,024 descriptors: this process may have more.
        readable = select.poll()
        readable.register(self._client, select.POLLIN)
        return bool(readable.poll(0))


@pytest.mark.parametrize("seed", range(6))
def test_who_waits_is_answered_when_there_is_enough_and_not_before(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic, seed: int
) -> None:
    rng = random.Random(seed)
    topic, log = make_topic(PARTITIONS), Log()
    consumers = [WaitingConsumer(broker, topic, log, rng) for _ in range(CONSUMERS)]
    try:
        for _ in range(STEPS):
            place = rng.randrange(CONSUMERS)
            if rng.random() < 0.4:
                partition = rng.randrange(PARTITIONS)
                append(client, topic, BATCH, partition=partition)
                log.ends[partition] += 1
            elif not consumers[place].waits:
                consumers[place].ask()
            elif rng.random() < 0.1:
                consumers[place].close()
                consumers[place] = WaitingConsumer(broker, topic, log, rng)
            for consumer in consumers:
                if consumer.is_due:
                    consumer.take()
                else:
                    assert not (consumer.waits and consumer.is_answered())
        for consumer in consumers:
            if not consumer.waits:
                consumer.ask()
        delete_topic(client, topic)
        for consumer in consumers:
            consumer.take(is_gone=True)
    finally:
        for consumer in consumers:
            consumer.close()
