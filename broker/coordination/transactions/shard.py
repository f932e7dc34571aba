"""The transactional ids of one partition of `__transaction_state`, as pure state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strandline.broker.coordination.model.classic_messages import Instant
from strandline.broker.coordination.transactions.records import TransactionRecord
from strandline.broker.coordination.transactions.transaction import Transaction


class TransactionShard:
    """The transactions of one partition, by transactional id."""

    def __init__(self) -> None:
        self._transactions: dict[str, Transaction] = {}

    def __repr__(self) -> str:
        return f"<TransactionShard {len(self)} ids>"

    def __len__(self) -> int:
        return len(self._transactions)

    def __iter__(self) -> Iterator[Transaction]:
        """Iterates over the transactions; the shard may change meanwhile."""
        return iter(tuple(self._transactions.values()))

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def counts(self) -> Mapping[str, int]:
        return {"ids": len(self)}

    def take(self, record: TransactionRecord, now: Instant) -> None:
        """Applies one record that is in the log."""
        if record.transaction is None:
            self._transactions.pop(record.transactional_id, None)
        else:
            self._transactions[record.transactional_id] = record.transaction
