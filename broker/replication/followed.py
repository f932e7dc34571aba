"""One partition that is fetched from its leader: what is asked for next, and what answers do.

    added ──► FETCHING from the log's end, with the epoch of its last record
                 records                    appended; the next fetch acknowledges them
                 diverging epoch            truncated as far as both logs agree (KIP-101, 279, 595)
                 OFFSET_OUT_OF_RANGE        the leader is asked where its log begins and ends
                 OFFSET_MOVED_TO_TIERED_STORAGE   the log restarts behind the archive (KIP-405)
                 another error              DELAYED for replica.fetch.backoff.ms; for less if the
                                            leader may not know of its lead yet
                 FENCED_LEADER_EPOCH, or    FAILED until the metadata name another leader or epoch
                 a log that fails

A log without epochs is truncated to its high watermark first. Each leader epoch has an object of
its own, so an answer that was asked for under an older one finds its place gone. Follows Kafka's
AbstractFetcherThread and ReplicaFetcherThread.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.protocol.messages.fetch import FetchResponsePartition
from strandline.storage.model import NO_EPOCH, Epoch, Offset, TopicId

log = logging.getLogger(__name__)

UNKNOWN_OFFSET: Final = -1
# A leader hears of its lead some milliseconds before its followers, or behind them.
FIRST_PAUSE_S: Final = 0.02


class FetchedFrom(NamedTuple):
    """What a fetch asks of one partition."""

    offset: Offset
    log_start_offset: Offset
    last_epoch: Epoch
    followed: Followed


class Followed:
    """One partition under one leader epoch. Used on the event loop only."""

    __slots__ = (
        "delayed_until_s",
        "is_failed",
        "last_epoch",
        "leader_epoch",
        "leader_high_watermark",
        "offset",
        "partition",
        "pause_s",
        "unseen_bytes",
    )

    def __init__(self, partition: Partition, leader_epoch: Epoch) -> None:
        """Raises StorageError if the log has to be truncated, and cannot be."""
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.delayed_until_s = 0.0
        self.pause_s = FIRST_PAUSE_S
        self.is_failed = False
        self.leader_high_watermark: Offset = UNKNOWN_OFFSET
        # Appended here, and not known to be below the high watermark.
        self.unseen_bytes = 0
        self.offset: Offset = 0
        self.last_epoch: Epoch = NO_EPOCH
        local = partition.log.local
        if local.leader_epochs.latest_epoch == NO_EPOCH:
            self.truncate(local.high_watermark)
        else:
            self.go_on()

    def __repr__(self) -> str:
        return f"<Followed {self.partition.topic_partition} from {self.offset}>"

    @property
    def key(self) -> tuple[TopicId, int]:
        return self.partition.topic_id, self.partition.topic_partition.partition

    @property
    def asked(self) -> FetchedFrom:
        return FetchedFrom(self.offset, self.partition.log.log_start_offset, self.last_epoch, self)

    @property
    def is_caught_up(self) -> bool:
        """Whether it has all that the leader's in-sync replicas had at the last answer, or may
        have: the first one tells.
        """
        return self.leader_high_watermark <= self.offset

    def is_ready(self, now_s: float) -> bool:
        return not self.is_failed and self.delayed_until_s <= now_s

    def next_pause_s(self) -> float:
        """Before a leader is asked again that does not know of its lead: longer each time."""
        pause_s, self.pause_s = self.pause_s, 2 * self.pause_s
        return pause_s

    # --- answers -----------------------------------------------------------------------------

    def take(self, answer: FetchResponsePartition) -> bool:
        """Takes over an answer without an error, of a log that agrees with the leader's; returns
        whether anything is to be told.

        Raises RecordsRejected, StorageError.
        """
        unified_log = self.partition.log
        if self.offset != unified_log.end_offset:
            # It was opened again, from its files.
            self.go_on()
            return True
        is_changed = False
        for part in answer.records:
            is_changed |= self._append(memoryview(part))  # type: ignore[arg-type]
        return self._take_offsets(answer) or is_changed

    def _append(self, records: memoryview) -> bool:
        unified_log = self.partition.log
        info = unified_log.append_as_follower(records, leader_epoch=self.leader_epoch)
        if info is None:
            return False
        self.partition.traffic.replication_bytes_in += info.size_bytes
        self.unseen_bytes += info.size_bytes
        self.go_on()
        return True

    def _take_offsets(self, answer: FetchResponsePartition) -> bool:
        unified_log = self.partition.log
        local = unified_log.local
        self.leader_high_watermark = answer.high_watermark
        self.partition.follow_high_watermark(answer.high_watermark, self.unseen_bytes or 1)
        if local.high_watermark == local.end_offset:
            self.unseen_bytes = 0
        start = min(answer.log_start_offset, local.high_watermark)
        if start <= unified_log.log_start_offset:
            return False
        unified_log.move_log_start(start)
        return True

    # --- truncation --------------------------------------------------------------------------

    def agreed_end(self, answer: FetchResponsePartition) -> Offset | None:
        """Returns where this log has to end to agree with the leader's, as far as one answer tells.

        None if they agree.
        """
        leaders = answer.diverging_epoch
        if leaders is None or leaders.end_offset == UNKNOWN_OFFSET:
            return None
        unified_log = self.partition.log
        end_offset = unified_log.end_offset
        if leaders.epoch == NO_EPOCH:
            return min(leaders.end_offset, end_offset)
        ours = unified_log.local.leader_epochs.end_offset_for(leaders.epoch, end_offset)
        if ours.epoch == NO_EPOCH:
            return min(leaders.end_offset, end_offset)
        if ours.epoch != leaders.epoch:
            # This log does not know that epoch: the next fetch asks about the one before.
            return min(ours.start_offset, end_offset)
        return min(ours.start_offset, leaders.end_offset, end_offset)

    def truncate(self, offset: Offset) -> None:
        """Drops what this log has from there on. Raises StorageError."""
        unified_log = self.partition.log
        local = unified_log.local
        if offset < local.end_offset:
            fields = {
                "partition": str(self.partition.topic_partition),
                "offset": offset,
                "end_offset": local.end_offset,
                "high_watermark": local.high_watermark,
            }
            is_lossy = offset < local.high_watermark
            event = "log truncated below its high watermark" if is_lossy else "log truncated"
            log.log(logging.WARNING if is_lossy else logging.INFO, event, extra={"fields": fields})
            if offset < local.start_offset:
                # An archived log begins further down.
                log_start = min(unified_log.log_start_offset, offset)
                unified_log.start_over_at(offset, log_start_offset=log_start)
            else:
                local.truncate_to(offset)
        self.go_on()

    def begin_at(self, leader_start: Offset) -> None:
        """Begins again where the leader's log begins, if this one ends before.

        Raises StorageError.
        """
        end_offset = self.partition.log.end_offset
        if leader_start > end_offset:
            fields = {
                "partition": str(self.partition.topic_partition),
                "end_offset": end_offset,
                "leader_start": leader_start,
            }
            log.warning("log begins again where its leader's does", extra={"fields": fields})
            self.partition.log.start_over_at(leader_start, log_start_offset=leader_start)
            self.go_on()

    def go_on(self) -> None:
        """Goes on from where the log ends."""
        local = self.partition.log.local
        self.offset, self.last_epoch = local.end_offset, local.leader_epochs.latest_epoch
