"""What a loss of power, or a lost disk, took from transactions: found and ended by a lone replica.

No step of a transaction but the first waits for the device, so a loss of power may take the marker
of step 2 and leave the record of step 3, or take the record that began a transaction and leave its
batches. The same is true of a lost disk whose logs continue behind their archives. So a start after
an unclean stop, a folder that comes back, and such a log, end what is open in a partition and not
in the coordinator, as `lost_ends.py` finds it:

    4 load all transactional ids, with what was decided in such partitions
    5 append the lost end to each such partition; what nobody knows aborts
                                                        crash point transaction.after-lost-end
    6 retire each producer id that a partition has with a greater epoch than the coordinator: epochs
      that are given twice would make new batches pass for duplicates
                                                        crash point transaction.after-retire

Until step 5 is done with a partition, the coordinator writes no marker to it: it may have a later
transaction of the same producer, of which the coordinator knows nothing any more.

Epochs may be lost in all logs, and a producer live that has them. So after an unclean stop the next
InitProducerId for each transactional id takes a new producer id. A producer that goes on with the
epoch that the coordinator has is served.

A coordinator with replicas, or with peers, does none of this: what was answered is on the replicas,
and what is open here may be known elsewhere.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from itertools import islice

from strandline.broker.cluster.metadata.image import TopicImage
from strandline.broker.coordination.runtime.slots import Slot, Slots
from strandline.broker.coordination.transactions import transaction as rules
from strandline.broker.coordination.transactions.markers import (
    EndMarker,
    LocalMarkers,
    log_missing_marker,
)
from strandline.broker.coordination.transactions.power_loss.left_open import LeftOpen
from strandline.broker.coordination.transactions.power_loss.lost_ends import (
    DecidedEnd,
    OpenTransaction,
    abort_unknown,
    decided_ends,
    end_again,
    is_coordinated,
    may_end,
)
from strandline.broker.coordination.transactions.shard import TransactionShard
from strandline.broker.coordination.transactions.transaction import (
    ProducerIdentity,
    Transaction,
    TransactionVersion,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.crash_points import (
    TRANSACTION_AFTER_LOST_END,
    TRANSACTION_AFTER_RETIRE,
    crash_point,
)
from strandline.storage.model import TopicPartition
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# Partitions that one turn ends, and producer ids that it retires: each is a small append. Not
# `in_turns`: what others begin between two turns would not be among the ids that it goes by.
ENDS_PER_TURN_MAX = 500


class _Progress(Enum):
    """How far steps 4 to 6 are."""

    LACKS_DECISIONS = auto()  # step 4 was done before it was known which decisions are needed
    WAITS = auto()
    DONE = auto()


class PowerLossRepair:
    """Steps 4 to 6 of one coordinator. Used on the event loop only."""

    def __init__(
        self,
        markers: LocalMarkers,
        left_open: LeftOpen,
        quiet_log: QuietLog,
        *,
        node_id: int,
        is_gone: Callable[[TopicPartition], bool],
        retire: Callable[[Transaction], bool],
    ) -> None:
        """`is_gone` says whether a partition was deleted.

        `retire` writes a transactional id without its producer id; returns whether it could.
        """
        self._markers = markers
        self._logs = left_open
        self._node_id = node_id
        self._is_gone = is_gone
        self._retire = retire
        self._quiet_log = quiet_log
        # What was left open, by partition, until step 5 is done with it; those not asked for
        # longest come first.
        self._left_open: dict[TopicPartition, list[OpenTransaction]] = {}
        # The ends in the logs of the transactions that may be theirs.
        self._decided: list[DecidedEnd] = []
        self.restart()
        # Transactional ids whose state was loaded after an unclean stop, until InitProducerId.
        self._may_be_old: set[str] = set()

    # --- what the coordinator asks -----------------------------------------------------------

    def is_settling(self, partition: TopicPartition) -> bool:
        """Whether an open transaction of this partition may still get its lost end."""
        # Asked for each batch of a transaction, and nearly always empty: hashing takes longer.
        return bool(self._left_open) and partition in self._left_open

    @property
    def lacks_ends(self) -> bool:
        """Whether step 5 is not done."""
        return bool(self._left_open)

    @property
    def must_load_again(self) -> bool:
        """Whether step 4 did not note all decisions that step 5 needs."""
        return self._progress is _Progress.LACKS_DECISIONS

    def before_init(
        self, current: Transaction | None, expected: ProducerIdentity | None, now_ms: int
    ) -> Transaction | None:
        """Returns the state that InitProducerId finds.

        A producer that recovers with the epoch that the coordinator has goes on with its id: only
        itself may have had a later one.
        """
        if (
            current is None
            or expected is not None
            or current.transactional_id not in self._may_be_old
            or not current.state.is_idle
        ):
            return current
        return rules.retire(current, now_ms=now_ms)

    def forget(self, transactional_id: str) -> None:
        """It has a new producer, or is not coordinated here any more."""
        self._may_be_old.discard(transactional_id)

    async def may_lack_part(self, producer: ProducerIdentity, current: Transaction | None) -> bool:
        """Whether a part of the producer's transaction may be lost, which step 5 aborts.

        Until step 6 the coordinator would take its end for the repeated one of the transaction
        before.
        """
        if self._progress is _Progress.DONE or current is None or current.identity != producer:
            return False
        if await self._logs.producers_above({producer.producer_id: producer.epoch}):
            return True
        return any(
            one.producer.producer_id == producer.producer_id and not is_coordinated(one, current)
            for left in self._left_open.values()
            for one in left
        )

    # --- what it is told -----------------------------------------------------------------------

    def note_record(self, transaction: Transaction) -> None:
        """A record is loaded: step 4."""
        for decided in decided_ends(transaction) if self._left_open else ():
            left = self._left_open.get(decided.log_end.partition, ())
            if any(may_end(decided, one) for one in left):
                self._decided.append(decided)

    def note_loaded(self, slot: Slot[TransactionShard]) -> None:
        if not slot.partition.log.local.recovery_report.clean_shutdown:
            self._may_be_old.update(one.transactional_id for one in slot.shard)

    def restart(self) -> None:
        """All is loaded anew: logs were opened again, and may have lost their ends."""
        found: defaultdict[TopicPartition, list[OpenTransaction]] = defaultdict(list)
        for opened in self._logs.open_after_crash():
            found[opened.partition].append(opened)
        self._left_open = dict(found)
        self._decided.clear()
        self._progress = _Progress.WAITS

    def note_restarted_log(self) -> None:
        """A log was restarted behind its archive, which may lack markers that its disk had."""
        self.restart()
        if self._left_open:
            self._progress = _Progress.LACKS_DECISIONS

    # --- steps 5 and 6 -----------------------------------------------------------------------

    async def settle(self, slots: Slots[TransactionShard]) -> bool:
        """Takes steps 5 and 6 once all is loaded; returns whether it went onward and has more.

        What cannot be written now is tried again.
        """
        topic = slots.topic()
        if self._progress is _Progress.DONE:
            return False
        if topic is None or not self._is_alone(topic):
            # No transaction was coordinated here alone: others know what is open.
            self._left_open.clear()
            self._decided.clear()
            self._progress = _Progress.DONE
            return False
        present = slots.all()
        if len(present) < topic.partition_count or not all(slot.is_loaded for slot in present):
            return False
        ids = {one.producer_id: one for slot in present for one in slot.shard}
        left_before = len(self._left_open)
        unknown = self._end_some(ids)
        is_onward = 0 < len(self._left_open) < left_before
        epochs = {key: one.epoch for key, one in ids.items()}
        outrun = await self._logs.producers_above(epochs)
        left = [one for one in map(ids.get, unknown | outrun) if one is not None and _has_next(one)]
        is_onward |= self._retire_some(left)
        if not left and not self._left_open:
            self._decided.clear()
            self._progress = _Progress.DONE
        return is_onward

    def _is_alone(self, topic: TopicImage) -> bool:
        return all(one.replicas == (self._node_id,) for one in topic.partitions)

    def _end_some(self, ids: Mapping[int, Transaction]) -> set[int]:
        """Step 5; returns the producers of transactions that nobody knows.

        `ids` are all transactional ids by producer id.
        """
        unknown: set[int] = set()
        for partition in tuple(islice(self._left_open, ENDS_PER_TURN_MAX)):
            left = [
                one
                for one in self._left_open[partition]
                if not self._is_ended(one, ids, unknown) and not self._is_gone(partition)
            ]
            del self._left_open[partition]
            if left:
                self._left_open[partition] = left
        return unknown

    def _is_ended(
        self,
        opened: OpenTransaction,
        ids: Mapping[int, Transaction],
        unknown: set[int],
    ) -> bool:
        """Ends one transaction unless the coordinator does so; returns whether that is done.

        Adds its producer to `unknown` if nobody knows it.
        """
        if not self._logs.is_open(opened):
            return True
        ending = end_again(opened, self._decided)
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
        assert code is not None, "a coordinator without replicas repairs"
        if code is not ErrorCode.NONE:
            whose = f"producer {opened.producer.producer_id}"
            log_missing_marker(self._quiet_log, whose, opened.partition, code)
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

    def _retire_some(self, outrun: Iterable[Transaction]) -> bool:
        """Step 6; returns whether it retired any."""
        retired_count = 0
        for transaction in tuple(outrun)[:ENDS_PER_TURN_MAX]:
            # One that is ending goes on with its epoch until it has its markers.
            if not transaction.state.is_ending and self._retire(transaction):
                retired_count += 1
                crash_point(TRANSACTION_AFTER_RETIRE)  # 6
        if retired_count:
            log.info(
                "transactional ids were older than the logs, their producers are fenced",
                extra={"fields": {"count": retired_count}},
            )
        return bool(retired_count)


def _has_next(transaction: Transaction) -> bool:
    """Whether its producer can be fenced: one whose epochs are used up is retired already."""
    return transaction.epoch < rules.PRODUCER_EPOCH_MAX
