"""The transaction coordinator: connects transactions with their log, the partitions and requests.

    request --> Transaction (pure) --> append to __transaction_state --> memory --> answer

Each partition of `__transaction_state` is a *slot* (`slots.py`). An append is synchronous, so no
other request sees a transaction between a decision and its record, and a failed append changes
nothing. The end of a transaction has numbered steps, each of which survives a crash:

    1 append PREPARE_COMMIT or PREPARE_ABORT, with the ends of the partitions' logs: from here on
      the outcome is certain. With flush.messages=1 of __transaction_state, flush it
                                                        crash point transaction.after-prepare
    2 append a marker to each partition                 crash point transaction.after-marker
    3 append COMPLETE_COMMIT or COMPLETE_ABORT
                                                        crash point transaction.after-complete

EndTxn is answered after step 1. Usually all three are one turn of the event loop. A marker that
cannot be written (a full disk, an offline folder) is retried by `run` until it can, as is step 3;
meanwhile the producer gets CONCURRENT_TRANSACTIONS. A start takes up each transaction that it loads
after step 1 at step 2: a partition may get its marker a second time, which changes nothing there,
for no other transaction of this producer can be open in it.

No other step waits for the device but InitProducerId: its answer leaves when its record is there.
What a loss of power takes nevertheless is mended by `power_loss_repair.py`.

`run` also aborts transactions that time out, and forgets transactional ids that expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from itertools import islice

from strandline.broker.cluster.metadata.active_controller import ControllerClient
from strandline.broker.cluster.metadata.controller_messages import NewTopic
from strandline.broker.cluster.metadata.features import TRANSACTION_VERSION
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.model.classic_messages import CoordinatorFault, Instant
from strandline.broker.coordination.runtime.journal import Journal
from strandline.broker.coordination.runtime.slots import Slot, Slots
from strandline.broker.coordination.transactions import transaction as rules
from strandline.broker.coordination.transactions.config import TransactionConfig
from strandline.broker.coordination.transactions.markers import EndMarker, LocalMarkers
from strandline.broker.coordination.transactions.power_loss_repair import PowerLossRepair
from strandline.broker.coordination.transactions.producer_ids import ProducerIds
from strandline.broker.coordination.transactions.records import (
    TransactionRecord,
    decode_records,
    encode_record,
)
from strandline.broker.coordination.transactions.shard import TransactionShard
from strandline.broker.coordination.transactions.transaction import (
    ProducerIdentity,
    Transaction,
    TransactionState,
    TransactionVersion,
    Transition,
)
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import wait_within
from strandline.storage.concurrency.turns import Turn, in_turns
from strandline.storage.crash_points import (
    TRANSACTION_AFTER_COMPLETE,
    TRANSACTION_AFTER_MARKER,
    TRANSACTION_AFTER_PREPARE,
    crash_point,
)
from strandline.storage.errors import StorageError
from strandline.storage.model import Offset, TimestampMs, TopicPartition
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.marker import MarkerType

log = logging.getLogger(__name__)

# Pause between two attempts to write a marker, and between two looks at the metadata.
POLL_S = 1.0
# Markers that one turn of the loop tries to write, of 20 us each: a transaction may have thousands,
# and thousands of transactions may wait for a disk. `run` takes all of them in turn. A number, and
# not `in_turns`: the markers of one end are written in the step that decides it, without an await.
MARKERS_PER_TURN_MAX = 500

_Slot = Slot[TransactionShard]


class Confirmation(Enum):
    """What a client expects of a partition that it writes to in a transaction (KIP-890)."""

    LOOK = auto()  # must be part of it; older clients know INVALID_TXN_STATE alone
    LOOK_ABORTABLE = auto()  # must be part of it; the client aborts the transaction otherwise
    ADD = auto()  # becomes part of it with the write: transaction version 2


class Outcome(StrEnum):
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
    ended_total: Mapping[Outcome, int]
    refused_partitions_total: int


class _EndingTransaction:
    """A transaction after step 1, and the partitions that lack a marker.

    `prepared_end` is the end of the coordinator's log with step 1 in it. `lacking` begins with
    those that were not asked for longest.
    """

    __slots__ = ("lacking", "prepared_end")

    def __init__(self, transaction: Transaction, prepared_end: Offset) -> None:
        self.prepared_end = prepared_end
        self.lacking = dict.fromkeys(transaction.partitions)


class TransactionCoordinator:
    """The transaction coordinator of this broker. Used on the event loop only."""

    def __init__(
        self,
        config: Callable[[], TransactionConfig],
        metadata: MetadataView,
        controller: ControllerClient,
        replicas: ReplicaManager,
        markers: LocalMarkers,
        *,
        node_id: int,
        clock: Clock,
        reads: Executor,
        believed_ms: Callable[[], TimestampMs] | None = None,
    ) -> None:
        """`config` gives the keys in force; `reads` runs the blocking part of loading.

        `believed_ms` is the time by which ids expire, by default the clock's.
        """
        self._config = config
        self._metadata = metadata
        self._markers = markers
        self._clock = clock
        self._believed_ms = believed_ms or clock.now_ms
        self.producer_ids = ProducerIds(controller)
        self._wake = asyncio.Event()
        self._slots = Slots(
            NewTopic(
                name=TRANSACTION_TOPIC,
                partition_count=config().partition_count,
                properties={
                    "cleanup.policy": "compact",
                    "compression.type": "uncompressed",
                    "segment.bytes": str(config().segment_bytes),
                    "unclean.leader.election.enable": "false",
                },
            ),
            lambda: TransactionShard(self._repair.is_missed),
            decode_records,
            metadata,
            controller,
            replicas,
            node_id=node_id,
            clock=clock,
            reads=reads,
            on_found=self._wake.set,
            content="transactions",
        )
        # Await these between a look at the state and an answer that tells of it.
        self.replicated = self._slots.replicated
        self.all_replicated = self._slots.all_replicated
        # By transactional id; the first are those that `run` tries next.
        self._ending: OrderedDict[str, _EndingTransaction] = OrderedDict()
        self._repair = PowerLossRepair(
            markers,
            self._log_missing_marker,
            node_id=node_id,
            is_gone=self._is_gone,
            retire=self._is_retired,
        )
        self.is_settling = self._repair.is_settling
        # By transactional id, the end of the last record if that is above the high watermark.
        self._unreplicated: dict[str, tuple[Journal, Offset]] = {}
        self._ended_total = Counter(dict.fromkeys(Outcome, 0))
        self._refused_partitions_total = 0
        now_ms = self._monotonic_ms()
        self._next_timeouts_ms = now_ms + config().timeout_check_interval_ms
        self._next_expiry_ms = now_ms + config().expiration_check_interval_ms
        self._quiet_log = QuietLog(log, clock)

    def __repr__(self) -> str:
        count = sum(len(slot.shard) for slot in self._slots.present())
        return f"<TransactionCoordinator {count} ids, {len(self._ending)} ending>"

    @property
    def version(self) -> TransactionVersion:
        """The finalized level of `transaction.version`."""
        return TransactionVersion(self._metadata.image.finalized_level(TRANSACTION_VERSION))

    def statistics(self) -> TransactionStatistics:
        """The figures of now; costs a look at each open transaction."""
        ids: Counter[TransactionState] = Counter()
        for slot in self._slots.present():
            ids.update(slot.shard.states)
        lacking = [len(ending.lacking) for ending in self._ending.values()]
        return TransactionStatistics(
            ids_by_state=ids,
            oldest_open_ms=min((one.started_ms for one in self._open()), default=None),
            waiting_markers=sum(lacking),
            waiting_ends=lacking.count(0),
            ended_total=dict(self._ended_total),
            refused_partitions_total=self._refused_partitions_total,
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
        await self._slots.ensure_topic()
        fresh_id = await self._fresh_id_for(self._before_init(transactional_id, expected))
        slot = self._slots.of(transactional_id)
        if slot is None:
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        decision = rules.init_producer(
            self._before_init(transactional_id, expected),
            transactional_id,
            timeout_ms=timeout_ms,
            expected=expected,
            fresh_id=fresh_id,
            server_version=self.version,
            now_ms=self._clock.now_ms(),
        )
        await self._carry_out_and_flush(slot, decision)
        if expected is None:
            self._repair.forget(transactional_id)
        await slot.journal.flush()
        await slot.journal.settled()
        return decision.identity

    def _before_init(
        self, transactional_id: str, expected: ProducerIdentity | None
    ) -> Transaction | None:
        """Returns the state that InitProducerId finds. Raises CoordinatorFault."""
        current = self.find(transactional_id)
        return self._repair.before_init(current, expected, self._clock.now_ms())

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Set[TopicPartition],
        client_version: TransactionVersion,
    ) -> ErrorCode:
        """Adds partitions to the producer's transaction, which begins with the first of them."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        if self.lacks_ends and any(map(self.is_settling, partitions)):
            # Step 5 would take what is open there for a part of this transaction.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        try:
            slot = self._slots.of(transactional_id)
            if slot is None:
                return ErrorCode.INVALID_PRODUCER_ID_MAPPING
            decision = rules.add_partitions(
                slot.shard.get(transactional_id),
                producer,
                partitions,
                client_version=client_version,
                now_ms=self._clock.now_ms(),
            )
            self._carry_out(slot, decision)
        except CoordinatorFault as fault:
            return fault.error_code
        return ErrorCode.NONE

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Set[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Returns whether each partition is part of the producer's transaction."""
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        try:
            slot = self._slots.of(transactional_id)
        except CoordinatorFault as fault:
            return dict.fromkeys(partitions, fault.error_code)
        current = None if slot is None else slot.shard.get(transactional_id)
        return rules.verify_partitions(current, producer, partitions)

    def confirm(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partition: TopicPartition,
        confirmation: Confirmation,
        together: Set[TopicPartition] = frozenset(),
    ) -> ErrorCode:
        """Returns whether a batch of the producer's transaction may be written to a partition.

        With ADD the partitions that it is `together` with in its request are added as well.
        """
        if self.is_settling(partition):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if confirmation is Confirmation.ADD:
            if self.lacks_ends:
                together = {one for one in together if not self.is_settling(one)}
            code = self.add_partitions(
                transactional_id, producer, together or {partition}, TransactionVersion.V2
            )
        elif self._config().verifies_partitions:
            code = self.verify_partitions(transactional_id, producer, {partition})[partition]
        else:
            return ErrorCode.NONE
        if self._is_unreplicated(transactional_id):
            # The records would stay open if another coordinator did not know of the partition.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if code is not ErrorCode.NONE:
            self._refused_partitions_total += 1
        if code is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if code is ErrorCode.TRANSACTION_ABORTABLE and confirmation is Confirmation.LOOK:
            return ErrorCode.INVALID_TXN_STATE
        return code

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
        fresh_id = None
        if client_version.bumps_epoch and self._slots.topic() is not None:
            fresh_id = await self._fresh_id_for(self.find(transactional_id))
        if await self._repair.may_lack_part(producer, self.find(transactional_id)):
            raise CoordinatorFault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        slot = self._slots.of(transactional_id)
        if slot is None:
            raise CoordinatorFault(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        decision = rules.end_transaction(
            slot.shard.get(transactional_id),
            producer,
            is_commit=end is MarkerType.COMMIT,
            client_version=client_version,
            fresh_id=fresh_id,
            now_ms=self._clock.now_ms(),
        )
        await self._carry_out_and_flush(slot, decision)
        return decision.identity

    def _is_unreplicated(self, transactional_id: str) -> bool:
        journal, end_offset = self._unreplicated.get(transactional_id, (None, 0))
        if journal is None or not journal.is_below(end_offset):
            return journal is not None
        del self._unreplicated[transactional_id]
        return False

    def find(self, transactional_id: str) -> Transaction | None:
        """Returns the state of a transactional id. Raises CoordinatorFault."""
        slot = self._slots.of(transactional_id)
        return None if slot is None else slot.shard.get(transactional_id)

    def transactions(self) -> Iterator[Transaction]:
        """Returns all transactional ids. Raises CoordinatorFault while they are loaded."""
        slots = self._slots.all()
        if not all(slot.is_loaded for slot in slots):
            raise CoordinatorFault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return (transaction for slot in slots for transaction in slot.shard)

    def not_ended(self) -> dict[int, Transaction] | None:
        """Returns the transactions that are open or ending, by producer id.

        None while transactional ids are loaded.
        """
        if not all(slot.is_loaded for slot in self._slots.all()):
            return None
        ending = filter(None, map(self.find, self._ending))
        return {one.producer_id: one for one in (*self._open(), *ending)}

    # --- writing -----------------------------------------------------------------------------

    async def _fresh_id_for(self, current: Transaction | None) -> int | None:
        """Returns a producer id if the next decision may need one. Raises CoordinatorFault."""
        if not rules.needs_producer_id(current):
            return None
        try:
            return await self.producer_ids.take()
        except StorageError as error:
            raise CoordinatorFault(ErrorCode(error.kafka_code)) from error

    async def _carry_out_and_flush(self, slot: _Slot, decision: Transition) -> None:
        """Writes what was decided. Raises CoordinatorFault with the code of the answer."""
        try:
            self._carry_out(slot, decision)
        finally:
            # Also of a refusal: it may have aborted the transaction of another producer.
            await slot.journal.settled(wrote=decision.written is not None)
            if decision.written is not None:
                whose = decision.written.transactional_id
                if self._finish_named(whose) and whose in self._ending:
                    # It has more partitions than one turn takes, and `run` goes on with it.
                    self._wake.set()

    def _carry_out(
        self, slot: _Slot, decision: Transition, outcome: Outcome = Outcome.ABORTED
    ) -> None:
        """Writes what was decided. Raises CoordinatorFault with the code of the answer.

        `outcome` is how an abort counts.
        """
        written = decision.written
        if written is not None and written.state.is_ending:
            written = written._replace(log_ends=self._markers.log_ends(written.partitions))
            self._write(slot, written)
            is_commit = written.state is TransactionState.PREPARE_COMMIT
            self._ended_total[Outcome.COMMITTED if is_commit else outcome] += 1
            crash_point(TRANSACTION_AFTER_PREPARE)  # 1
            self._take_up(slot, written)
            self._finish(slot, written)
        elif written is not None:
            self._write(slot, written)
        if decision.error_code is not ErrorCode.NONE:
            raise CoordinatorFault(decision.error_code)

    def _write(self, slot: _Slot, transaction: Transaction) -> None:
        self._append(slot, TransactionRecord(transaction.transactional_id, transaction))

    def _append(self, slot: _Slot, record: TransactionRecord) -> None:
        """Appends and applies a record. Raises CoordinatorFault; then nothing has changed."""
        batch = encode_record(record, self.version, self._clock.now_ms())
        ending = record.transaction
        if ending is None or not ending.log_ends:
            slot.journal.append(batch)
        else:
            try:
                slot.journal.append(batch, too_large=ErrorCode.MESSAGE_TOO_LARGE)
            except CoordinatorFault as fault:
                if fault.error_code is not ErrorCode.MESSAGE_TOO_LARGE:
                    raise
                # What could begin must end. Only a loss of power asks for the log ends.
                self._write(slot, ending._replace(log_ends=()))
                return
        slot.shard.keep(record)
        if not slot.journal.is_replicated:
            self._unreplicated[record.transactional_id] = (
                slot.journal,
                slot.partition.log.end_offset,
            )

    def follow(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        """Leads and resigns partitions."""
        self._unload(self._slots.follow(delta))

    def _unload(self, slots: Iterable[_Slot]) -> None:
        for slot in slots:
            for transaction in slot.shard:
                self._ending.pop(transaction.transactional_id, None)
                self._unreplicated.pop(transaction.transactional_id, None)
                self._repair.forget(transaction.transactional_id)

    # --- ending ------------------------------------------------------------------------------

    def _take_up(self, slot: _Slot, transaction: Transaction) -> None:
        prepared_end = slot.partition.log.end_offset
        self._ending[transaction.transactional_id] = _EndingTransaction(transaction, prepared_end)

    def _finish(
        self, slot: _Slot, transaction: Transaction, markers_max: int = MARKERS_PER_TURN_MAX
    ) -> None:
        """Takes steps 2 and 3 as far as possible; `run` takes the rest."""
        ending = self._ending[transaction.transactional_id]
        if not slot.partition.may_rely_on(ending.prepared_end):
            return
        lacking = ending.lacking
        marker = EndMarker(
            producer=transaction.identity,
            end=(
                MarkerType.COMMIT
                if transaction.state is TransactionState.PREPARE_COMMIT
                else MarkerType.ABORT
            ),
            coordinator_epoch=slot.epoch,
            version=transaction.client_version,
        )
        for partition in tuple(islice(lacking, markers_max)):
            del lacking[partition]
            if self._is_marked(transaction, partition, marker):
                crash_point(TRANSACTION_AFTER_MARKER)  # 2
            else:
                lacking[partition] = None
        if lacking:
            return
        try:
            self._write(slot, rules.complete(transaction, now_ms=self._clock.now_ms()))
        except CoordinatorFault:
            return
        del self._ending[transaction.transactional_id]
        crash_point(TRANSACTION_AFTER_COMPLETE)  # 3

    def _is_marked(
        self, transaction: Transaction, partition: TopicPartition, marker: EndMarker
    ) -> bool:
        """Writes a marker to a partition; returns whether that needs no further attempt."""
        if self.is_settling(partition):
            return False
        code = self._markers.write(marker, partition)
        if code is ErrorCode.NONE:
            return True
        if self._is_gone(partition) and code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return True
        self._log_missing_marker(transaction.transactional_id, partition, code)
        # A newer producer or coordinator has ended this transaction in the partition already.
        return code in (
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        )

    def _is_gone(self, partition: TopicPartition) -> bool:
        """Whether its topic was deleted, and the records of the transaction with it."""
        return self._metadata.image.partition(partition) is None

    def _log_missing_marker(self, whose: str, partition: TopicPartition, code: ErrorCode) -> None:
        fields = {"transactional_id": whose, "partition": str(partition), "error": code.name}
        # One line for all partitions of a folder that fails: the metrics count them.
        self._quiet_log.say(logging.WARNING, "transaction marker not written", code, fields)

    async def _finish_all(self) -> None:
        for transactional_id in tuple(self._unreplicated):
            self._is_unreplicated(transactional_id)
        for slot in self._slots.present():
            try:
                if slot.partition.must_flush:
                    await slot.journal.flush()
            except CoordinatorFault:
                # Its folder is offline; what is ending there waits.
                continue
        tries_left = MARKERS_PER_TURN_MAX
        is_onward = False
        for transactional_id in tuple(islice(self._ending, MARKERS_PER_TURN_MAX)):
            if not tries_left:
                break
            tries = min(max(1, len(self._ending[transactional_id].lacking)), tries_left)
            tries_left -= tries
            is_onward |= self._finish_named(transactional_id, tries)
        if is_onward and self._ending:
            self._wake.set()

    def _finish_named(self, transactional_id: str, markers_max: int = MARKERS_PER_TURN_MAX) -> bool:
        """Returns whether it went onward; such a transaction goes before those that cannot."""
        ending = self._ending.get(transactional_id)
        if ending is None:
            return False
        self._ending.move_to_end(transactional_id)
        try:
            slot = self._slots.of(transactional_id)
        except CoordinatorFault:
            return False
        current = None if slot is None else slot.shard.get(transactional_id)
        if slot is None or current is None or not current.state.is_ending:
            del self._ending[transactional_id]
            return True
        lacking_before = len(ending.lacking)
        self._finish(slot, current, markers_max)
        if transactional_id not in self._ending:
            return True
        is_onward = len(ending.lacking) < lacking_before
        self._ending.move_to_end(transactional_id, last=not is_onward)
        return is_onward

    def _loaded(self, slot: _Slot) -> None:
        for transaction in slot.shard:
            if transaction.state.is_ending:
                self._take_up(slot, transaction)
        self._repair.note_loaded(slot)

    # --- after an unclean stop -----------------------------------------------------------------

    def reload(self) -> None:
        """Loads everything anew: logs were opened again, and may have lost their ends."""
        self._unload(self._slots.drop())
        self._repair.restart()
        self._wake.set()

    def note_restarted_log(self) -> None:
        """A log was restarted behind its archive, which may lack markers that its disk had."""
        self._repair.note_restarted_log()
        self._wake.set()

    @property
    def lacks_ends(self) -> bool:
        """Whether transactions wait for ends that a loss of power took."""
        return self._repair.lacks_ends

    def _is_retired(self, transaction: Transaction) -> bool:
        """Writes an id without its producer id; returns whether it could."""
        retired = rules.retire(transaction, now_ms=self._clock.now_ms())
        try:
            slot = self._slots.of(transaction.transactional_id)
            if slot is None or slot.shard.get(transaction.transactional_id) is not transaction:
                return False
            self._carry_out(slot, Transition(written=retired))
        except CoordinatorFault:
            # The next look tries again.
            return False
        return True

    # --- time --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Loads unloaded partitions, ends what is ending, and follows the time; never returns."""
        while True:
            slot = self._slots.next_to_load()
            if slot is not None:
                await self._slots.load(slot, self._now, self._loaded)
                continue
            if self._repair.must_load_again:
                self.reload()
                continue
            self._wake.clear()
            if await self._repair.settle(self._slots):
                self._wake.set()
            await self._finish_all()
            await self._follow_time()
            await wait_within(self._wake, POLL_S)

    async def _follow_time(self) -> None:
        now_ms = self._monotonic_ms()
        if now_ms >= self._next_timeouts_ms:
            self._next_timeouts_ms = now_ms + self._config().timeout_check_interval_ms
            await self._abort_timed_out()
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + self._config().expiration_check_interval_ms
            await self._forget_expired()

    async def _abort_timed_out(self) -> None:
        due_ms = self._believed_ms()
        # The transactions of all clients may time out together, after a network failure.
        async for timed_out in in_turns([one for one in self._open() if one.is_timed_out(due_ms)]):
            transactional_id = timed_out.transactional_id
            try:
                fresh_id = await self._fresh_id_for(self.find(transactional_id))
                slot = self._slots.of(transactional_id)
                current = None if slot is None else slot.shard.get(transactional_id)
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
                    server_version=self.version,
                    now_ms=self._clock.now_ms(),
                )
                self._carry_out(slot, decision, Outcome.TIMED_OUT)
            except CoordinatorFault:
                # The next look tries again.
                continue

    async def _forget_expired(self) -> None:
        due_ms = self._believed_ms()
        expiration_ms = self._config().expiration_ms
        turn = Turn()
        for slot in self._slots.present():
            known = tuple(slot.shard) if slot.is_loaded else ()
            async for transaction in in_turns(known, turn):
                whose = transaction.transactional_id
                if not transaction.is_expired(due_ms, expiration_ms):
                    continue
                try:
                    served = self._slots.of(whose)
                    if served is slot and slot.shard.get(whose) is transaction:
                        self._append(slot, TransactionRecord(whose, None))
                except CoordinatorFault:
                    # The next look tries again.
                    continue

    def _open(self) -> Iterator[Transaction]:
        """Iterates over the transactions in state ONGOING, of loaded partitions."""
        return (one for slot in self._slots.present() if slot.is_loaded for one in slot.shard.open)

    def _now(self) -> Instant:
        return Instant(self._clock.now_ms(), self._monotonic_ms())

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)
