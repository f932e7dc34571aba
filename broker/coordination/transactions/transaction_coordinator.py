"""The transaction coordinator: connects transactions with their log, the partitions and requests.

    request --> Transaction (pure) --> append to __transaction_state --> memory --> answer

Each partition of `__transaction_state` is a *slot* (`slots.py`), whose states `states.py` finds and
writes. The end of a transaction has numbered steps, each of which survives a crash:

    1 append PREPARE_COMMIT or PREPARE_ABORT, with the ends of the partitions' logs: from here on
      the outcome is certain. With flush.messages=1 of __transaction_state, flush it
                                                        crash point transaction.after-prepare
    2 append a marker to each partition                 crash point transaction.after-marker
    3 append COMPLETE_COMMIT or COMPLETE_ABORT
                                                        crash point transaction.after-complete

EndTxn is answered after step 1. Usually all three are one turn of the event loop; `ends.py` has
steps 2 and 3, and tries what cannot be written now. Meanwhile the producer gets
CONCURRENT_TRANSACTIONS. A start takes up each transaction that it loads after step 1 at step 2.

No other step waits for the device but InitProducerId: its answer leaves when its record is there.
What a loss of power takes nevertheless, a lone replica mends (`power_loss/`).

`run` also aborts transactions that time out, and forgets transactional ids that expire.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TypeVar

from strandline.broker.cluster.metadata.controller_messages import Controller, NewTopic
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.runtime.runtime import POLL_S, CoordinatorRuntime
from strandline.broker.coordination.runtime.slots import Slots
from strandline.broker.coordination.transactions import transaction as rules
from strandline.broker.coordination.transactions.config import TransactionConfig
from strandline.broker.coordination.transactions.ends import TransactionEnds
from strandline.broker.coordination.transactions.markers import LocalMarkers
from strandline.broker.coordination.transactions.peers import TransactionPeers
from strandline.broker.coordination.transactions.power_loss.left_open import LeftOpen
from strandline.broker.coordination.transactions.power_loss.repair import PowerLossRepair
from strandline.broker.coordination.transactions.producer_ids import ProducerIds
from strandline.broker.coordination.transactions.records import decode_records
from strandline.broker.coordination.transactions.shard import TransactionShard
from strandline.broker.coordination.transactions.states import TransactionSlot, TransactionStates
from strandline.broker.coordination.transactions.transaction import (
    ProducerIdentity,
    Transaction,
    TransactionState,
    TransactionVersion,
    Transition,
)
from strandline.broker.coordination.transactions.verification import PartitionVerification
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.crash_points import TRANSACTION_AFTER_PREPARE, crash_point
from strandline.storage.errors import StorageError
from strandline.storage.model import TimestampMs, TopicPartition
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.marker import MarkerType

log = logging.getLogger(__name__)

T = TypeVar("T")


class EndOutcome(StrEnum):
    """How a transaction ended, for the metrics."""

    COMMITTED = auto()
    ABORTED = auto()  # by its producer, or because another producer began
    TIMED_OUT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStatistics:
    """Figures of the coordinator; totals are since the start.

    `oldest_open_ms` is when the oldest open transaction began, None if none is open.
    `waiting_markers` are those that their partition could not take; `waiting_ends` are transactions
    that have all their markers and whose COMPLETE could not be written.
    """

    ids_by_state: Mapping[TransactionState, int]
    oldest_open_ms: TimestampMs | None
    waiting_markers: int
    waiting_ends: int
    ended_total: Mapping[EndOutcome, int]
    refused_partitions_total: int


class TransactionCoordinator:
    """The transaction coordinator of this broker. Used on the event loop only."""

    def __init__(
        self,
        config: Callable[[], TransactionConfig],
        metadata: MetadataView,
        controller: Controller,
        replicas: ReplicaManager,
        markers: LocalMarkers,
        left_open: LeftOpen,
        *,
        node_id: int,
        clock: Clock,
        reads: Executor,
        believed_ms: Callable[[], TimestampMs] | None = None,
        others: TransactionPeers | None = None,
    ) -> None:
        """`config` gives the keys in force; `reads` runs the blocking part of loading.

        `believed_ms` is the time by which ids expire, by default the clock's. `others` are the
        brokers that lead partitions, too.
        """
        self._config = config
        self._metadata = metadata
        self._markers = markers
        self._clock = clock
        self._believed_ms = believed_ms or clock.now_ms
        self.producer_ids = ProducerIds(controller, node_id)
        self._slots = Slots(
            NewTopic(
                name=TRANSACTION_TOPIC,
                partition_count=config().partition_count,
                replication_factor=config().replicas_max,
                properties={
                    "min.insync.replicas": str(config().in_sync_min),
                    "cleanup.policy": "compact",
                    "compression.type": "uncompressed",
                    "segment.bytes": str(config().segment_bytes),
                    "unclean.leader.election.enable": "false",
                },
            ),
            lambda: TransactionShard(self._repair.note_record),
            decode_records,
            metadata,
            controller,
            replicas,
            node_id=node_id,
            clock=clock,
            reads=reads,
            content="transactions",
        )
        self._runtime = CoordinatorRuntime(self._slots, clock)
        self._states = TransactionStates(self._slots, metadata, clock)
        missing_markers = QuietLog(log, clock)
        self._repair = PowerLossRepair(
            markers,
            left_open,
            missing_markers,
            node_id=node_id,
            is_gone=self._is_gone,
            retire=self._is_retired,
        )
        self._ends = TransactionEnds(
            self._states,
            markers,
            clock,
            missing_markers,
            is_gone=self._is_gone,
            is_settling=self._repair.is_settling,
            wake=self._runtime.wake,
            others=others,
        )
        self.is_settling = self._repair.is_settling
        self._verification = PartitionVerification(
            self._states, self._repair, config, clock, others
        )
        self.confirm = self._verification.confirm
        self.elsewhere = self._verification.elsewhere
        self.confirm_elsewhere = self._verification.confirm_elsewhere
        self.find = self._states.find
        self._ended_total = Counter(dict.fromkeys(EndOutcome, 0))
        now_ms = self._runtime.now().monotonic_ms
        self._next_timeouts_ms = now_ms + config().timeout_check_interval_ms
        self._next_expiry_ms = now_ms + config().expiration_check_interval_ms

    def __repr__(self) -> str:
        count = sum(len(slot.shard) for slot in self._slots.present())
        return f"<TransactionCoordinator {count} ids, {len(self._ends)} ending>"

    def statistics(self) -> TransactionStatistics:
        """The figures of now; costs a look at each open transaction."""
        ids: Counter[TransactionState] = Counter()
        for slot in self._slots.present():
            ids.update(slot.shard.states)
        lacking = self._ends.lacking_counts()
        return TransactionStatistics(
            ids_by_state=ids,
            oldest_open_ms=min((one.started_ms for one in self._states.open()), default=None),
            waiting_markers=sum(lacking),
            waiting_ends=lacking.count(0),
            ended_total=dict(self._ended_total),
            refused_partitions_total=self._verification.refused_total,
        )

    # --- requests ----------------------------------------------------------------------------

    async def init_producer(
        self, transactional_id: str, *, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Returns the identity of a new producer, which fences the one before it.

        Raises CoordinatorFault.
        """
        if not transactional_id:
            raise CoordinatorFault(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config().timeout_ms_max:
            raise CoordinatorFault(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

        def before_init(current: Transaction | None) -> Transaction | None:
            return self._repair.before_init(current, expected, self._clock.now_ms())

        def begun(slot: TransactionSlot) -> ProducerIdentity:
            decision = rules.init_producer(
                before_init(slot.shard.get(transactional_id)),
                transactional_id,
                timeout_ms=timeout_ms,
                expected=expected,
                fresh_id=fresh_id,
                server_version=self._states.version,
                now_ms=self._clock.now_ms(),
            )
            self._carry_out(slot, decision)
            if expected is None:
                self._repair.forget(transactional_id)
            return decision.identity

        await self._slots.ensure_topic()
        fresh_id = await self._fresh_id_for(before_init(self.find(transactional_id)))
        try:
            return await self._runtime.write(transactional_id, begun, must_flush=True)
        finally:
            self._ends.go_on(transactional_id)

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Set[TopicPartition],
        client_version: TransactionVersion,
    ) -> ErrorCode:
        """Adds partitions to the producer's transaction, which begins with the first of them."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        try:
            return await self._runtime.write(
                transactional_id,
                lambda slot: self._verification.add(
                    slot, transactional_id, producer, partitions, client_version
                ),
                absent=ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            )
        except CoordinatorFault as fault:
            return fault.error_code

    async def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Set[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Returns whether each partition is part of the producer's transaction."""
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        try:
            return await self._runtime.read(
                transactional_id,
                lambda shard: rules.verify_partitions(
                    shard.get(transactional_id), producer, partitions
                ),
            )
        except CoordinatorFault as fault:
            return dict.fromkeys(partitions, fault.error_code)

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        end: MarkerType,
        client_version: TransactionVersion,
    ) -> ProducerIdentity:
        """Commits or aborts; returns the producer's next identity (version 2).

        Raises CoordinatorFault.
        """
        if not transactional_id:
            raise CoordinatorFault(ErrorCode.INVALID_REQUEST)

        def ended(slot: TransactionSlot) -> ProducerIdentity:
            decision = rules.end_transaction(
                slot.shard.get(transactional_id),
                producer,
                is_commit=end is MarkerType.COMMIT,
                client_version=client_version,
                fresh_id=fresh_id,
                now_ms=self._clock.now_ms(),
            )
            self._carry_out(slot, decision)
            return decision.identity

        fresh_id, current = None, self.find(transactional_id)
        if client_version.bumps_epoch and current is not None:
            fresh_id = await self._fresh_id_for(current)
        if await self._repair.may_lack_part(producer, self.find(transactional_id)):
            raise CoordinatorFault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        absent = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        try:
            return await self._runtime.write(transactional_id, ended, absent=absent)
        finally:
            self._ends.go_on(transactional_id)

    async def describe(self, transactional_id: str) -> Transaction | None:
        """Returns the state of a transactional id. Raises CoordinatorFault."""
        return await self._runtime.read(transactional_id, lambda shard: shard.get(transactional_id))

    async def transactions(
        self, passes: Callable[[Transaction], bool] = lambda _: True
    ) -> list[Transaction]:
        """Returns all transactions that pass. Raises CoordinatorFault while any is loaded."""
        return await self._runtime.read_all(
            lambda shards: [one for shard in shards for one in shard if passes(one)]
        )

    def not_ended(self) -> dict[int, Transaction] | None:
        """Returns the transactions that are open or ending, by producer id.

        None while transactional ids are loaded.
        """
        try:
            self._slots.loaded()
        except CoordinatorFault:
            return None
        open_or_ending = (*self._states.open(), *self._ends.transactions())
        return {one.producer_id: one for one in open_or_ending}

    # --- carrying out ------------------------------------------------------------------------

    async def _fresh_id_for(self, current: Transaction | None) -> int | None:
        """Returns a producer id if the next decision may need one. Raises CoordinatorFault."""
        if not rules.needs_producer_id(current):
            return None
        try:
            return await self.producer_ids.take()
        except StorageError as error:
            raise CoordinatorFault(ErrorCode(error.kafka_code)) from error

    def _carry_out(
        self, slot: TransactionSlot, decision: Transition, outcome: EndOutcome = EndOutcome.ABORTED
    ) -> None:
        """Writes what was decided. Raises CoordinatorFault with the code of the answer.

        `outcome` is how an abort counts.
        """
        written = decision.written
        if written is not None and written.state.is_ending:
            written = written._replace(log_ends=self._markers.log_ends(written.partitions))
            self._states.write(slot, written)
            is_commit = written.state is TransactionState.PREPARE_COMMIT
            self._ended_total[EndOutcome.COMMITTED if is_commit else outcome] += 1
            crash_point(TRANSACTION_AFTER_PREPARE)  # 1
            self._ends.begin(slot, written)
        elif written is not None:
            self._states.write(slot, written)
        if decision.error_code is not ErrorCode.NONE:
            raise CoordinatorFault(decision.error_code)

    def _is_gone(self, partition: TopicPartition) -> bool:
        """Whether its topic was deleted, and the records of the transaction with it."""
        return self._metadata.image.partition(partition) is None

    # --- loading -----------------------------------------------------------------------------

    def follow(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        """Leads and resigns partitions."""
        self._unload(self._slots.follow(delta))

    def _unload(self, slots: Iterable[TransactionSlot]) -> None:
        for slot in slots:
            for transaction in slot.shard:
                for part in (self._ends, self._states, self._repair):
                    part.forget(transaction.transactional_id)

    def _loaded(self, slot: TransactionSlot) -> None:
        for transaction in slot.shard:
            if transaction.state.is_ending:
                self._ends.take_up(slot, transaction)
        self._repair.note_loaded(slot)

    # --- after an unclean stop ---------------------------------------------------------------

    def reload(self) -> None:
        """Loads everything anew: logs were opened again, and may have lost their ends."""
        self._unload(self._slots.drop())
        self._repair.restart()
        self._runtime.wake()

    def note_restarted_log(self) -> None:
        """A log was restarted behind its archive, which may lack markers that its disk had."""
        self._repair.note_restarted_log()
        self._runtime.wake()

    @property
    def lacks_ends(self) -> bool:
        """Whether transactions wait for ends that a loss of power took."""
        return self._repair.lacks_ends

    def _is_retired(self, transaction: Transaction) -> bool:
        """Writes an id without its producer id; returns whether it could."""
        retired = rules.retire(transaction, now_ms=self._clock.now_ms())
        try:
            slot, current = self._states.located(transaction.transactional_id)
            if slot is None or current is not transaction:
                return False
            self._carry_out(slot, Transition(written=retired))
        except CoordinatorFault:
            # The next look tries again.
            return False
        return True

    # --- time --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Loads unloaded partitions, ends what is ending, and follows the time; never returns."""
        await self._runtime.run(self._loaded, self._pass_time)

    async def _pass_time(self) -> float:
        if self._repair.must_load_again:
            self.reload()
        if await self._repair.settle(self._slots):
            self._runtime.wake()
        self._states.forget_replicated()
        for slot in self._slots.present():
            try:
                if slot.partition.must_flush:
                    await slot.journal.flush()
            except CoordinatorFault:
                # Its folder is offline; what is ending there waits.
                continue
        self._ends.go_on_all()
        config, now_ms = self._config(), self._runtime.now().monotonic_ms
        if now_ms >= self._next_timeouts_ms:
            self._next_timeouts_ms = now_ms + config.timeout_check_interval_ms
            await self._abort_timed_out()
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + config.expiration_check_interval_ms
            await self._states.expire(self._believed_ms(), config.expiration_ms)
        return POLL_S

    async def _abort_timed_out(self) -> None:
        due_ms = self._believed_ms()
        # The transactions of all clients may time out together, after a network failure.
        timed_out = [one for one in self._states.open() if one.is_timed_out(due_ms)]
        async for transactional_id in in_turns([one.transactional_id for one in timed_out]):
            try:
                fresh_id = await self._fresh_id_for(self.find(transactional_id))
                slot, current = self._states.located(transactional_id)
                if slot is None or current is None or not current.is_timed_out(due_ms):
                    continue
                log.info(
                    "transaction timed out, is aborted",
                    extra={
                        "fields": {
                            "transactional_id": transactional_id,
                            "producer_id": current.producer_id,
                            "timeout_ms": current.timeout_ms,
                        }
                    },
                )
                decision = rules.fence_and_abort(
                    current,
                    fresh_id=fresh_id,
                    server_version=self._states.version,
                    now_ms=self._clock.now_ms(),
                )
                self._carry_out(slot, decision, EndOutcome.TIMED_OUT)
            except CoordinatorFault:
                # The next look tries again.
                continue
