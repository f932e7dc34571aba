"""What a loss of power, or a lost disk, took from transactions: found and ended by a lone replica.

No step of a transaction but the first waits for the device, so a loss of power may take the marker
of step 2 and leave the record of step 3, or take the record that began a transaction and leave its
batches. The same is true of a lost disk whose logs continue behind their archives. So a start after
an unclean stop, a folder that comes back, and such a log, end what is open in a partition and not
in the coordinator (`left_open.py`, `lost_ends.py`):

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
from collections.abc import Callable, Iterable
from enum import Enum, auto

from strandline.broker.cluster.metadata.image import TopicImage
from strandline.broker.coordination.runtime.left_open import LeftOpen
from strandline.broker.coordination.runtime.markers import LocalMarkers
from strandline.broker.coordination.runtime.slots import Slot, Slots
from strandline.broker.coordination.transactions import transaction as rules
from strandline.broker.coordination.transactions.lost_ends import DecidedEnd
from strandline.broker.coordination.transactions.shard import TransactionShard
from strandline.broker.coordination.transactions.transaction import ProducerIdentity, Transaction
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.crash_points import TRANSACTION_AFTER_RETIRE, crash_point
from strandline.storage.model import TopicPartition

log = logging.getLogger(__name__)

# Producer ids that one look retires, with a record each.
RETIRED_PER_TURN_MAX = 500


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
        log_missing_marker: Callable[[str, TopicPartition, ErrorCode], None],
        *,
        node_id: int,
        is_gone: Callable[[TopicPartition], bool],
        retire: Callable[[Transaction], bool],
    ) -> None:
        """`log_missing_marker` as in LeftOpen; `is_gone` says whether a partition was deleted.

        `retire` writes a transactional id without its producer id; returns whether it could.
        """
        self._markers = markers
        self._node_id = node_id
        self._is_gone = is_gone
        self._retire = retire
        # What an unclean stop left open in partitions, until step 5 is done with it.
        self._left_open = LeftOpen(markers, log_missing_marker)
        self._progress = _Progress.WAITS
        # Transactional ids whose state was loaded after an unclean stop, until InitProducerId.
        self._may_be_old: set[str] = set()

    # --- what the coordinator asks -----------------------------------------------------------

    def is_settling(self, partition: TopicPartition) -> bool:
        """Whether an open transaction of this partition may still get its lost end."""
        return partition in self._left_open

    def is_missed(self, decided: DecidedEnd) -> bool:
        """Whether something that was left open may have lost the marker of this end."""
        return self._left_open.is_missed(decided)

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
        if await self._markers.producers_above({producer.producer_id: producer.epoch}):
            return True
        return self._left_open.has_part_of(producer, current)

    # --- what it tells -----------------------------------------------------------------------

    def note_loaded(self, slot: Slot[TransactionShard]) -> None:
        if not slot.partition.log.local.recovery_report.clean_shutdown:
            self._may_be_old.update(one.transactional_id for one in slot.shard)

    def restart(self) -> None:
        """All is loaded anew: logs were opened again, and may have lost their ends."""
        self._left_open.find()
        self._progress = _Progress.WAITS

    def note_restarted_log(self) -> None:
        """A log was restarted behind its archive, which may lack markers that its disk had."""
        self._left_open.find()
        self._progress = _Progress.LACKS_DECISIONS if self._left_open else _Progress.WAITS

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
            self._left_open.forget()
            self._progress = _Progress.DONE
            return False
        present = slots.all()
        if len(present) < topic.partition_count or not all(slot.is_loaded for slot in present):
            return False
        shards = [slot.shard for slot in present]
        ids = {one.producer_id: one for shard in shards for one in shard}
        decided = [end for shard in shards for end in shard.decided_ends]
        left_before = len(self._left_open)
        unknown = self._left_open.end(ids, decided, self._is_gone)
        is_onward = 0 < len(self._left_open) < left_before
        epochs = {key: one.epoch for key, one in ids.items()}
        outrun = await self._markers.producers_above(epochs)
        left = [one for one in map(ids.get, unknown | outrun) if one is not None and _has_next(one)]
        is_onward |= self._retire_some(left)
        if not left and not self._left_open:
            self._progress = _Progress.DONE
            for shard in shards:
                shard.decided_ends.clear()
        return is_onward

    def _is_alone(self, topic: TopicImage) -> bool:
        return all(one.replicas == (self._node_id,) for one in topic.partitions)

    def _retire_some(self, outrun: Iterable[Transaction]) -> bool:
        """Step 6; returns whether it retired any."""
        retired_count = 0
        for transaction in tuple(outrun)[:RETIRED_PER_TURN_MAX]:
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
