"""Steps 2 and 3 of the end of a transaction: its markers, and the record that it is complete.

    begin      right after step 1, as far as one turn goes: usually to the end
    go_on      once step 1 is below the high watermark
    go_on_all  what lacks markers still, the longest waiting first: a full disk, an offline folder,
               more partitions than one turn takes

A marker of a partition that another broker leads is sent there; its answer goes on as well, and so
does one of this broker's that waits for its device or followers.

The coordinator's log has step 1, so a start takes up whatever is left here. A partition may get a
marker a second time, which changes nothing there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.transactions import transaction as rules
from strandline.broker.coordination.transactions.marker_channel import (
    MarkerChannel,
    SentMarker,
)
from strandline.broker.coordination.transactions.markers import (
    EndMarker,
    LocalMarkers,
    log_missing_marker,
)
from strandline.broker.coordination.transactions.peers import TransactionPeers
from strandline.broker.coordination.transactions.states import TransactionSlot, TransactionStates
from strandline.broker.coordination.transactions.transaction import Transaction, TransactionState
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.crash_points import (
    TRANSACTION_AFTER_COMPLETE,
    TRANSACTION_AFTER_MARKER,
    crash_point,
)
from strandline.storage.model import Offset, TopicPartition
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.marker import MarkerType

# Markers that one turn of the loop tries to write, of 20 us each: a transaction may have thousands,
# and thousands of transactions may wait for a disk. `go_on_all` takes all of them in turn.
# A number, and not `in_turns`: the markers of one end are written in the step that decides it.
MARKERS_PER_TURN_MAX = 500


class _Ending:
    """A transaction after step 1, and the partitions that lack a marker.

    `prepared_end` is the end of the coordinator's log with step 1 in it. `lacking` begins with
    those that were not asked for longest; of those in `sent` another broker is asked now.
    """

    __slots__ = ("is_tried", "lacking", "prepared_end", "sent")

    def __init__(self, transaction: Transaction, prepared_end: Offset) -> None:
        self.prepared_end = prepared_end
        self.lacking = dict.fromkeys(transaction.partitions)
        self.sent: dict[TopicPartition, EndMarker] = {}
        self.is_tried = False

    def __len__(self) -> int:
        """How many markers it lacks."""
        return len(self.lacking) + len(self.sent)


class TransactionEnds:
    """The transactions that are ending. Used on the event loop only."""

    def __init__(
        self,
        states: TransactionStates,
        markers: LocalMarkers,
        clock: Clock,
        quiet_log: QuietLog,
        *,
        is_gone: Callable[[TopicPartition], bool],
        is_settling: Callable[[TopicPartition], bool],
        wake: Callable[[], None],
        others: TransactionPeers | None = None,
    ) -> None:
        """`is_gone` says whether a partition was deleted, `is_settling` whether it takes no marker
        yet. `wake` lets `go_on_all` be called soon. A lone broker has no `others`.
        """
        self._states = states
        self._markers = markers
        self._clock = clock
        self._is_gone = is_gone
        self._is_settling = is_settling
        self._wake = wake
        # By transactional id; the first are those that `go_on_all` tries next.
        self._ending: OrderedDict[str, _Ending] = OrderedDict()
        self._quiet_log = quiet_log
        self._channel = None if others is None else MarkerChannel(others, self._answered)

    def __len__(self) -> int:
        return len(self._ending)

    def lacking_counts(self) -> list[int]:
        """Returns how many markers each lacks."""
        return [len(ending) for ending in self._ending.values()]

    def transactions(self) -> Iterable[Transaction]:
        return filter(None, map(self._states.find, self._ending))

    def forget(self, transactional_id: str) -> None:
        """It is not coordinated here any more."""
        self._ending.pop(transactional_id, None)

    def take_up(self, slot: TransactionSlot, transaction: Transaction) -> None:
        """A transaction was loaded after step 1."""
        prepared_end = slot.partition.log.end_offset
        self._ending[transaction.transactional_id] = _Ending(transaction, prepared_end)

    def begin(self, slot: TransactionSlot, transaction: Transaction) -> None:
        """Goes on right after step 1, as far as one turn goes."""
        self.take_up(slot, transaction)
        self._finish(slot, transaction, MARKERS_PER_TURN_MAX)
        ending = self._ending.get(transaction.transactional_id)
        if ending is not None and len(ending) < len(transaction.partitions):
            self._wake()

    def go_on(self, transactional_id: str) -> None:
        """Goes on with a transaction whose step 1 was not below the high watermark at `begin`."""
        ending = self._ending.get(transactional_id)
        if ending is None or ending.is_tried:
            return
        if self._go_on(transactional_id, MARKERS_PER_TURN_MAX) and transactional_id in self._ending:
            self._wake()

    def go_on_all(self) -> None:
        """Tries a turn's worth of markers; wakes if more may be written at once."""
        tries_left = MARKERS_PER_TURN_MAX
        is_onward = False
        for transactional_id in tuple(islice(self._ending, MARKERS_PER_TURN_MAX)):
            if not tries_left:
                break
            tries = min(max(1, len(self._ending[transactional_id].lacking)), tries_left)
            tries_left -= tries
            is_onward |= self._go_on(transactional_id, tries)
        if is_onward and self._ending:
            self._wake()

    def _go_on(self, transactional_id: str, markers_max: int) -> bool:
        """Returns whether it went onward; such a transaction goes before those that cannot."""
        ending = self._ending[transactional_id]
        self._ending.move_to_end(transactional_id)
        try:
            slot, current = self._states.located(transactional_id)
        except CoordinatorFault:
            return False
        if slot is None or current is None or not current.state.is_ending:
            del self._ending[transactional_id]
            return True
        lacking_before = len(ending)
        self._finish(slot, current, markers_max)
        if transactional_id not in self._ending:
            return True
        is_onward = len(ending) < lacking_before
        self._ending.move_to_end(transactional_id, last=not is_onward)
        return is_onward

    def _finish(self, slot: TransactionSlot, transaction: Transaction, markers_max: int) -> None:
        """Takes steps 2 and 3 as far as possible."""
        ending = self._ending[transaction.transactional_id]
        if not slot.partition.may_rely_on(ending.prepared_end):
            return
        ending.is_tried = True
        lacking = ending.lacking
        is_commit = transaction.state is TransactionState.PREPARE_COMMIT
        marker = EndMarker(
            producer=transaction.identity,
            end=MarkerType.COMMIT if is_commit else MarkerType.ABORT,
            coordinator_epoch=slot.epoch,
            version=transaction.client_version,
        )
        for partition in tuple(islice(lacking, markers_max)):
            del lacking[partition]
            sent = SentMarker(transaction.transactional_id, marker, partition)
            if self._is_sent(ending, sent):
                continue
            if self._is_marked(ending, sent):
                crash_point(TRANSACTION_AFTER_MARKER)  # 2
            else:
                lacking[partition] = None
        if len(ending):
            return
        try:
            self._states.write(slot, rules.complete(transaction, now_ms=self._clock.now_ms()))
        except CoordinatorFault:
            return
        del self._ending[transaction.transactional_id]
        crash_point(TRANSACTION_AFTER_COMPLETE)  # 3

    def _is_sent(self, ending: _Ending, sent: SentMarker) -> bool:
        """Returns whether a marker is on its way to another broker."""
        if self._channel is None or not self._channel.send(sent):
            return False
        ending.sent[sent.partition] = sent.marker
        return True

    def _answered(self, sent: SentMarker, code: ErrorCode) -> None:
        """Another broker, or the followers here, have a marker, or will not."""
        ending = self._ending.get(sent.transactional_id)
        if ending is None or ending.sent.get(sent.partition) != sent.marker:
            # It was resigned, and perhaps taken up again under another epoch.
            return
        del ending.sent[sent.partition]
        if not self._is_over(sent.transactional_id, sent.partition, code):
            ending.lacking[sent.partition] = None  # until `go_on_all`
            return
        crash_point(TRANSACTION_AFTER_MARKER)  # 2
        if not len(ending):
            self._go_on(sent.transactional_id, MARKERS_PER_TURN_MAX)

    def _is_marked(self, ending: _Ending, sent: SentMarker) -> bool:
        """Writes a marker to a partition; returns whether that needs no further attempt."""
        if self._is_settling(sent.partition):
            return False
        code = self._markers.write(sent.marker, sent.partition, partial(self._answered, sent))
        if code is None:
            ending.sent[sent.partition] = sent.marker
            return True
        return self._is_over(sent.transactional_id, sent.partition, code)

    def _is_over(self, transactional_id: str, partition: TopicPartition, code: ErrorCode) -> bool:
        """Returns whether a marker needs no further attempt."""
        if code is ErrorCode.NONE:
            return True
        if self._is_gone(partition) and code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return True
        log_missing_marker(self._quiet_log, transactional_id, partition, code)
        # A newer producer or coordinator has ended this transaction in the partition already.
        return code in (
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        )
