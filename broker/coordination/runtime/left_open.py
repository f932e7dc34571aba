"""The transactions that are open in partitions after an unclean stop or on a lost disk's logs.

The coordinator may not know them, or may have ended them: `end` gives each its lost end, as
`lost_ends.py` finds it. The coordinator calls it once it has loaded all transactional ids.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from strandline.broker.coordination.runtime.markers import EndMarker, LocalMarkers
from strandline.broker.coordination.transactions.lost_ends import (
    DecidedEnd,
    OpenTransaction,
    abort_unknown,
    end_again,
    is_coordinated,
    may_end,
)
from strandline.broker.coordination.transactions.transaction import (
    ProducerIdentity,
    Transaction,
    TransactionVersion,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.crash_points import TRANSACTION_AFTER_LOST_END, crash_point
from strandline.storage.model import TopicPartition

log = logging.getLogger(__name__)

# Each takes a marker, as long as a small append.
PARTITIONS_PER_TURN_MAX = 500


class LeftOpen:
    """What was left open, by partition, until it has its end. Used on the event loop only."""

    def __init__(
        self,
        markers: LocalMarkers,
        log_missing_marker: Callable[[str, TopicPartition, ErrorCode], None],
    ) -> None:
        """`log_missing_marker` is told the producer, the partition, and why it took no marker."""
        self._markers = markers
        self._log_missing_marker = log_missing_marker
        self._left: dict[TopicPartition, list[OpenTransaction]] = {}
        self.find()

    def __repr__(self) -> str:
        return f"<LeftOpen in {len(self._left)} partitions>"

    def __len__(self) -> int:
        """The number of partitions."""
        return len(self._left)

    def __contains__(self, partition: TopicPartition) -> bool:
        # Asked for each batch of a transaction, and nearly always empty: hashing takes longer.
        return bool(self._left) and partition in self._left

    def find(self) -> None:
        """Looks at all logs anew."""
        found: defaultdict[TopicPartition, list[OpenTransaction]] = defaultdict(list)
        for opened in self._markers.open_after_crash():
            found[opened.partition].append(opened)
        self._left = dict(found)

    def forget(self) -> None:
        self._left = {}

    def is_missed(self, decided: DecidedEnd) -> bool:
        """Whether something that was left open may have lost the marker of this end."""
        return any(may_end(decided, one) for one in self._left.get(decided.log_end.partition, ()))

    def has_part_of(self, producer: ProducerIdentity, current: Transaction) -> bool:
        """Whether something of this producer is left open that its transaction does not have."""
        return any(
            one.producer.producer_id == producer.producer_id and not is_coordinated(one, current)
            for left in self._left.values()
            for one in left
        )

    def end(
        self,
        ids: Mapping[int, Transaction],
        decided: Iterable[DecidedEnd],
        is_gone: Callable[[TopicPartition], bool],
    ) -> set[int]:
        """Ends what can be ended now, in PARTITIONS_PER_TURN_MAX partitions at most; those that
        are not done go to the end. Returns the producers of transactions that nobody knows.

        `ids` are all transactional ids by producer id, `decided` is what their log has decided;
        `is_gone` says whether a partition was deleted.
        """
        unknown: set[int] = set()
        for partition in tuple(islice(self._left, PARTITIONS_PER_TURN_MAX)):
            left = [
                one
                for one in self._left[partition]
                if not self._is_ended(one, ids, decided, unknown) and not is_gone(partition)
            ]
            del self._left[partition]
            if left:
                self._left[partition] = left
        return unknown

    def _is_ended(
        self,
        opened: OpenTransaction,
        ids: Mapping[int, Transaction],
        decided: Iterable[DecidedEnd],
        unknown: set[int],
    ) -> bool:
        """Ends one transaction unless the coordinator does so; returns whether that is done.

        Adds its producer to `unknown` if nobody knows it.
        """
        if not self._markers.is_open(opened):
            return True
        ending = end_again(opened, decided)
        if ending is None:
            transaction = ids.get(opened.producer.producer_id)
            if transaction is not None and is_coordinated(opened, transaction):
                return True
            ending = abort_unknown(opened)
            unknown.add(opened.producer.producer_id)
        marker = EndMarker(
            producer=ending.producer,
            end=ending.end,
            coordinator_epoch=opened.coordinator_epoch,
            version=TransactionVersion.V0,
        )
        code = self._markers.write(marker, opened.partition)
        if code is not ErrorCode.NONE:
            whose = f"producer {opened.producer.producer_id}"
            self._log_missing_marker(whose, opened.partition, code)
            return False
        fields = {
            "partition": str(opened.partition),
            "producer_id": opened.producer.producer_id,
            "start_offset": opened.first_offset,
            "end": ending.end.name,
        }
        log.info("transaction that had lost its end is ended", extra={"fields": fields})
        crash_point(TRANSACTION_AFTER_LOST_END)  # 5
        return True
