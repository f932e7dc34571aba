"""The transactions of this broker, and the records of their states (TransactionStateManager).

A record is appended, and then applied. An append is synchronous, so no other request sees a
transaction between a decision and its record, and a failed append changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from strandline.broker.cluster.metadata.features import TRANSACTION_VERSION
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.runtime.journal import Journal
from strandline.broker.coordination.runtime.slots import Slot, Slots
from strandline.broker.coordination.transactions.records import TransactionRecord, encode_record
from strandline.broker.coordination.transactions.shard import TransactionShard
from strandline.broker.coordination.transactions.transaction import Transaction, TransactionVersion
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.concurrency.turns import Turn, in_turns
from strandline.storage.model import Offset, TimestampMs

TransactionSlot: TypeAlias = Slot[TransactionShard]


class TransactionStates:
    """Finds and writes the states. Used on the event loop only."""

    def __init__(
        self, slots: Slots[TransactionShard], metadata: MetadataView, clock: Clock
    ) -> None:
        self._slots = slots
        self._metadata = metadata
        self._clock = clock
        self.place_of = slots.place_of
        # By transactional id, the end of the last record if that is above the high watermark.
        self._unreplicated: dict[str, tuple[Journal, Offset]] = {}

    @property
    def version(self) -> TransactionVersion:
        """The finalized level of `transaction.version`."""
        return TransactionVersion(self._metadata.image.finalized_level(TRANSACTION_VERSION))

    def located(self, transactional_id: str) -> tuple[TransactionSlot | None, Transaction | None]:
        """Returns where an id lies, and its state. Raises CoordinatorFault."""
        slot = self._slots.of(transactional_id)
        return slot, None if slot is None else slot.shard.get(transactional_id)

    def find(self, transactional_id: str) -> Transaction | None:
        """Returns the state of a transactional id. Raises CoordinatorFault."""
        return self.located(transactional_id)[1]

    def open(self) -> Iterator[Transaction]:
        """Iterates over the transactions in state ONGOING, of loaded partitions."""
        return (one for slot in self._slots.present() if slot.is_loaded for one in slot.shard.open)

    def write(self, slot: TransactionSlot, transaction: Transaction) -> None:
        """Appends and applies a state. Raises CoordinatorFault; then nothing has changed."""
        self._append(slot, TransactionRecord(transaction.transactional_id, transaction))

    def _append(self, slot: TransactionSlot, record: TransactionRecord) -> None:
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
                self.write(slot, ending._replace(log_ends=()))
                return
        slot.shard.keep(record)
        if not slot.journal.is_replicated:
            self._unreplicated[record.transactional_id] = (
                slot.journal,
                slot.partition.log.end_offset,
            )

    # --- replication -------------------------------------------------------------------------

    def is_unreplicated(self, transactional_id: str) -> bool:
        """Whether another coordinator may not know the state."""
        journal, end_offset = self._unreplicated.get(transactional_id, (None, 0))
        if journal is None or not journal.is_below(end_offset):
            return journal is not None
        del self._unreplicated[transactional_id]
        return False

    def forget_replicated(self) -> None:
        """Frees what `is_unreplicated` was not asked for."""
        for transactional_id in tuple(self._unreplicated):
            self.is_unreplicated(transactional_id)

    def forget(self, transactional_id: str) -> None:
        """It is not coordinated here any more."""
        self._unreplicated.pop(transactional_id, None)

    # --- expiry ------------------------------------------------------------------------------

    async def expire(self, due_ms: TimestampMs, expiration_ms: int) -> None:
        """Forgets the transactional ids that have had no transaction for `expiration_ms`."""
        turn = Turn()
        for slot in self._slots.present():
            known = tuple(slot.shard) if slot.is_loaded else ()
            async for transaction in in_turns(known, turn):
                if transaction.is_expired(due_ms, expiration_ms):
                    self._forget(transaction)

    def _forget(self, known: Transaction) -> None:
        try:
            slot, current = self.located(known.transactional_id)
            if slot is not None and current is known:
                self._append(slot, TransactionRecord(known.transactional_id, None))
        except CoordinatorFault:
            # The next look tries again.
            return
