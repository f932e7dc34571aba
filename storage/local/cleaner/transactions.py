"""Decides which transactional batches a cleaning may drop. Kafka's CleanedTransactionMetadata.

One pass over the log, from its start, one batch after the other:

    data of an aborted transaction    dropped
    its marker                        kept if the pass saw data of it, or began behind its first
                                      record, with its entry in the transaction index: readers need
                                      both to skip that data
    data of a committed transaction   compacted like other data
    its marker                        kept while the transaction has data

A marker without data may be dropped, but not at once: a consumer inside the transaction must still
read it. So it first gets a delete horizon, like a tombstone.

A transaction ends at the offset of its marker, even if the marker was dropped: the index may keep
the entry longer, and the producer's next, committed transaction must not look aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from strandline.storage.model import AbortedTransaction, Offset
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.marker import MarkerType, TransactionMarker


class CleanedTransactions:
    """The transactions that are open at the position of the pass."""

    def __init__(self, aborted: Iterable[AbortedTransaction], *, start_offset: Offset = 0) -> None:
        """`aborted` are those that touch the range of the pass, in any order.

        `start_offset` is where the pass begins; records before it are read as they are.
        """
        self._start_offset = start_offset
        self._waiting = deque(sorted(aborted, key=lambda entry: entry.first_offset))
        # Open aborted transactions by producer id, and the producers whose data the pass has seen.
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_with_data: set[int] = set()
        self._committed: set[int] = set()
        # Entries of the transaction index of the segment that is being written.
        self.retained: list[AbortedTransaction] = []

    def take_retained(self) -> list[AbortedTransaction]:
        """Returns the entries since the last call."""
        retained, self.retained = self.retained, []
        return retained

    def is_aborted_data(self, header: BatchHeader) -> bool:
        """Adds a data batch; returns whether it is dropped, with its aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        producer_id = header.producer_id
        self._end_below(producer_id, header.last_offset)
        if producer_id in self._aborted:
            self._aborted_with_data.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def is_marker_free(self, header: BatchHeader, marker: TransactionMarker | None) -> bool:
        """Adds a control batch; returns whether its transaction has no data any more.

        `marker` is None for a batch whose record was removed by an earlier cleaning, and for
        control records of other kinds, which stay.
        """
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True
        if marker is None:
            return False
        producer_id = header.producer_id
        if marker.type is MarkerType.COMMIT:
            had_data = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_data
        self._end_below(producer_id, header.last_offset)
        entry = self._aborted.pop(producer_id, None)
        if entry is None or producer_id not in self._aborted_with_data:
            return True
        self._aborted_with_data.discard(producer_id)
        self.retained.append(entry)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0].first_offset <= offset:
            entry = self._waiting.popleft()
            self._end_below(entry.producer_id, entry.first_offset)
            begun = self._aborted.setdefault(entry.producer_id, entry)
            if begun.first_offset < self._start_offset:
                self._aborted_with_data.add(entry.producer_id)

    def _end_below(self, producer_id: int, offset: int) -> None:
        """Ends the producer's aborted transaction if its marker lay below `offset`."""
        entry = self._aborted.get(producer_id)
        if entry is not None and entry.last_offset < offset:
            del self._aborted[producer_id]
            self._aborted_with_data.discard(producer_id)
