"""Changes of in-sync sets that this broker's leaders propose (Kafka's AlterPartitionManager).

    propose ──► waits ──► one request with all that wait ──► its answers, then the next

There is at most one proposal for a partition. One that an election has made void is not sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from strandline.broker.cluster.in_sync.in_sync_set import Proposal
from strandline.broker.cluster.in_sync.leading import Leading
from strandline.broker.cluster.membership.channel import RETRIES, ControllerChannel
from strandline.broker.peers.errors import PeerError
from strandline.broker.protocol.messages.alter_partition import (
    AlteredPartition,
    AlteredPartitionResult,
    AlteredTopic,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ReplicaInSync,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.model import TopicId
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# Before a refused proposal is made again.
RETRY_S: Final = 0.05


class _Proposed(NamedTuple):
    leading: Leading
    proposal: Proposal

    @property
    def is_void(self) -> bool:
        return self.leading.in_sync.pending is not self.proposal


Key = tuple[TopicId, int]


class InSyncAlterations:
    """The proposals of this broker. Used on the event loop only."""

    def __init__(
        self,
        channel: ControllerChannel,
        clock: Clock,
        *,
        node_id: int,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._channel = channel
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._waiting: dict[Key, _Proposed] = {}
        self._found = asyncio.Event()
        self._quiet_log = QuietLog(log, clock)

    def __repr__(self) -> str:
        return f"<InSyncAlterations waiting={len(self._waiting)}>"

    def propose(self, topic_id: TopicId, index: int, leading: Leading, proposal: Proposal) -> None:
        self._waiting[topic_id, index] = _Proposed(leading, proposal)
        self._found.set()

    async def run(self) -> None:
        """Asks the controller, for ever."""
        failures = 0
        try:
            while True:
                await self._found.wait()
                self._found.clear()
                asked = {key: one for key, one in self._waiting.items() if not one.is_void}
                self._waiting = {}
                if not asked:
                    continue
                again = await self._ask(asked)
                if not again:
                    failures = 0
                    continue
                for key, one in again.items():
                    # A newer proposal takes the place of one that has to be made again.
                    self._waiting.setdefault(key, one)
                self._found.set()
                failures += 1
                await asyncio.sleep(max(RETRY_S, RETRIES.wait_s(failures)))
        finally:
            self._channel.close()

    async def _ask(self, asked: Mapping[Key, _Proposed]) -> Mapping[Key, _Proposed]:
        """Makes these proposals; returns those to be made again."""
        try:
            answer = await self._channel.ask(
                self._request(asked), AlterPartitionResponse, code_of=lambda one: one.error_code
            )
        except PeerError as error:
            self._say("no answer", str(error))
            return asked
        if answer.error_code:
            self._say("refused", ErrorCode(answer.error_code).name)
            return asked
        results = {
            (topic.topic_id, one.partition_index): one
            for topic in answer.topics
            for one in topic.partitions
        }
        again: dict[Key, _Proposed] = {}
        for key, one in asked.items():
            result = results.get(key)
            if result is None or not self._take(one, result):
                again[key] = one
        return again

    def _take(self, one: _Proposed, result: AlteredPartitionResult) -> bool:
        """Gives a lead its answer; returns whether it is done."""
        leading, proposal = one
        if not result.error_code:
            leading.altered(
                proposal, frozenset(result.isr), result.leader_epoch, result.partition_epoch
            )
            return True
        code = ErrorCode(result.error_code)
        if not leading.refused(proposal, code):
            return True
        self._say(str(leading.topic_partition), code.name)
        return False

    def _request(self, asked: Mapping[Key, _Proposed]) -> AlterPartitionRequest:
        topics: dict[TopicId, list[AlteredPartition]] = {}
        for (topic_id, index), (_, proposal) in asked.items():
            topics.setdefault(topic_id, []).append(
                AlteredPartition(
                    partition_index=index,
                    leader_epoch=proposal.leader_epoch,
                    new_isr=[one.broker_id for one in proposal.replicas],
                    new_isr_with_epochs=[
                        ReplicaInSync(**one._asdict()) for one in proposal.replicas
                    ],
                    leader_recovery_state=proposal.recovery_state,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topics=[
                AlteredTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )

    def _say(self, what: str, reason: str) -> None:
        fields = {"what": what, "reason": reason}
        self._quiet_log.say(logging.WARNING, "in-sync replicas not changed yet", what, fields)
