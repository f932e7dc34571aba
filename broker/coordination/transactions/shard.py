"""The transactional ids of one partition of `__transaction_state`, as pure state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from strandline.broker.coordination.model.classic_messages import Instant
from strandline.broker.coordination.transactions.records import TransactionRecord
from strandline.broker.coordination.transactions.transaction import Transaction, TransactionState


class TransactionShard:
    """The transactions of one partition, by transactional id."""

    def __init__(self, on_loading: Callable[[Transaction], None] = lambda _: None) -> None:
        """`on_loading` is told each record of the log, also those that later ones replace."""
        self._on_loading = on_loading
        self._transactions: dict[str, Transaction] = {}
        # Those in state ONGOING: few of very many ids, and the time concerns them alone.
        self._open: dict[str, Transaction] = {}
        self._states: Counter[TransactionState] = Counter()

    def __repr__(self) -> str:
        return f"<TransactionShard {len(self)} ids, {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._transactions)

    def __iter__(self) -> Iterator[Transaction]:
        """Iterates over the transactions; the shard may change meanwhile."""
        return iter(tuple(self._transactions.values()))

    @property
    def open(self) -> Collection[Transaction]:
        """The transactions in state ONGOING; a view that follows changes."""
        return self._open.values()

    @property
    def states(self) -> Mapping[TransactionState, int]:
        """How many ids there are in each state; a view that follows changes."""
        return self._states

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def counts(self) -> Mapping[str, int]:
        return {"ids": len(self)}

    def take(self, record: TransactionRecord, now: Instant) -> None:
        """Applies one record of a log that is loaded."""
        if record.transaction is not None:
            self._on_loading(record.transaction)
        self.keep(record)

    def keep(self, record: TransactionRecord) -> None:
        """Applies one record that is in the log."""
        name, after = record.transactional_id, record.transaction
        before = self._transactions.get(name)
        if before is not None:
            self._states[before.state] -= 1
        if after is not None:
            self._transactions[name] = after
            self._states[after.state] += 1
        elif before is not None:
            del self._transactions[name]
        if after is not None and after.state is TransactionState.ONGOING:
            self._open[name] = after
        else:
            self._open.pop(name, None)
