"""The lead of a partition with followers (the leader's half of Kafka's Partition).

    append ──► wakes fetches of followers          fetch of a follower ──► its progress
                                                        │
    high watermark ◄── lowest end of the maximal ◄──────┤
      │                in-sync set, while that is       └──► joins the in-sync set, once it has all
      └──► producers with acks=all, consumers                below the high watermark
    time ──► whoever has not been caught up for replica.lag.time.max.ms leaves the set

Changes of the set are the controller's: the leader proposes one after the other, and counts on it
only as far as that is safe (in_sync_set.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from strandline.broker.cluster.in_sync.acknowledgements import Acknowledgements
from strandline.broker.cluster.in_sync.in_sync_set import InSyncSet, Proposal, SyncedReplica
from strandline.broker.cluster.in_sync.progress import NO_BROKER_EPOCH, FollowerProgress
from strandline.broker.cluster.in_sync.throttle import ReplicationThrottle
from strandline.broker.cluster.metadata.image import PartitionImage
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import RecordsRejected
from strandline.storage.local.log.log import AppendInfo, LocalLog
from strandline.storage.model import Epoch, Offset, TopicId, TopicPartition

log = logging.getLogger(__name__)

# Appends that are told one by one to who waits for bytes below the high watermark.
_UNREPLICATED_MAX = 1024


class NotEnoughReplicas(RecordsRejected):
    """Fewer replicas are in sync than `min.insync.replicas`; nothing was appended."""

    kafka_code = 19  # NOT_ENOUGH_REPLICAS


class StaleFollower(RecordsRejected):
    """A fetch of an incarnation of a broker that another one has followed."""

    kafka_code = 6  # NOT_LEADER_OR_FOLLOWER


class Propose(Protocol):
    """Asks the controller for another in-sync set; `Leading.answered` gets the answer."""

    def __call__(
        self, topic_id: TopicId, index: int, leading: Leading, proposal: Proposal, /
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderContext:
    """What all leads of a broker have in common."""

    node_id: int
    # Monotonic.
    now_ms: Callable[[], float]
    # Of replica.lag.time.max.ms.
    lag_ms_max: Callable[[], float]
    # As the newest metadata have them.
    brokers: Callable[[], Mapping[int, RegisterBrokerRecord]]
    # Of this broker.
    broker_epoch: Callable[[], int]
    propose: Propose
    throttle: ReplicationThrottle

    def check_epoch(self, broker_id: int, broker_epoch: int) -> None:
        """Raises StaleFollower for the epoch of an earlier incarnation."""
        broker = self.brokers().get(broker_id)
        if broker is None or broker_epoch == NO_BROKER_EPOCH or broker.fenced:
            return
        if broker.broker_epoch > broker_epoch:
            raise StaleFollower(
                f"broker {broker_id} fetches under epoch {broker_epoch}, and is registered under"
                f" {broker.broker_epoch}"
            )

    def may_join(self, follower: FollowerProgress) -> bool:
        """Whether the controller would take it into an in-sync set (KIP-841, KIP-903), and its log
        folder is there.
        """
        broker = self.brokers().get(follower.broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        if not follower.is_in(broker.log_dirs):
            return False
        epoch = follower.broker_epoch
        return follower.has_fetched and epoch in (NO_BROKER_EPOCH, broker.broker_epoch)


class Leading:
    """One lead. Used on the event loop only."""

    __slots__ = (
        "_cluster",
        "_epoch_start",
        "_followers",
        "_local",
        "_on_advanced",
        "_topic_id",
        "_unreplicated",
        "in_sync",
        "leader_epoch",
        "topic_partition",
        "waits",
    )

    def __init__(
        self,
        cluster: LeaderContext,
        topic_id: TopicId,
        local: LocalLog,
        *,
        on_advanced: Callable[[int], None],
    ) -> None:
        """`on_advanced` gets the bytes that came below the high watermark."""
        self._cluster = cluster
        self._topic_id = topic_id
        self._local = local
        self._on_advanced = on_advanced
        self._followers: dict[int, FollowerProgress] = {}
        self._epoch_start: Offset = 0
        # End and size of appends above the high watermark.
        self._unreplicated: deque[tuple[Offset, int]] = deque()
        self.topic_partition: TopicPartition = local.topic_partition
        self.leader_epoch: Epoch = -1
        self.in_sync = InSyncSet()
        self.waits = Acknowledgements()

    def __repr__(self) -> str:
        return (
            f"<Leading {self.topic_partition} epoch={self.leader_epoch} {self.in_sync!r}"
            f" followers={list(self._followers.values())}>"
        )

    # --- metadata ----------------------------------------------------------------------------

    def follow(self, image: PartitionImage, *, is_new: bool) -> None:
        """Takes over newer metadata; `is_new`: this broker did not lead before."""
        if image.partition_epoch < self.in_sync.partition_epoch:
            # An answer of the controller was faster.
            return
        cluster, now_ms = self._cluster, self._cluster.now_ms()
        # Each election is an epoch. If some are missing here, another broker may have led, and its
        # followers dropped what they had acknowledged to this one.
        if image.leader_epoch > self.leader_epoch + 1:
            is_new = True
        known = {} if is_new else self._followers
        self._followers = {
            node_id: known.get(node_id)
            or FollowerProgress(node_id, now_ms=now_ms, is_in_sync=node_id in image.isr)
            for node_id in image.replicas
            if node_id != cluster.node_id
        }
        for node_id, directory in zip(image.replicas, image.directories, strict=False):
            if node_id in self._followers:
                self._followers[node_id].directory = directory
        if image.leader_epoch != self.leader_epoch:
            end_offset = self._local.end_offset
            if not is_new:
                for node_id, one in self._followers.items():
                    if node_id in known:
                        is_in_sync = node_id in image.isr
                        one.begin_epoch(end_offset, now_ms=now_ms, is_in_sync=is_in_sync)
            self.leader_epoch = image.leader_epoch
            self._epoch_start = self._start_of_epoch()
        self.in_sync.follow(image)
        self.advance()

    def _start_of_epoch(self) -> Offset:
        """The epoch began with its first record, if it has one: replicas may be added later."""
        epochs = self._local.leader_epochs
        if epochs.latest_epoch == self.leader_epoch:
            return epochs.starts[-1].start_offset
        return self._local.end_offset

    @property
    def is_end_known(self) -> bool:
        """Whether the high watermark has reached this lead: before, it may be one that consumers
        have seen passed already (KIP-207).
        """
        return self._local.high_watermark >= self._epoch_start

    def replace_local(self, local: LocalLog) -> None:
        """Goes on over the copy of the log."""
        self._local = local
        self.advance()

    # --- appends -----------------------------------------------------------------------------

    @property
    def min_in_sync(self) -> int:
        """min.insync.replicas, or the number of replicas if that is lower."""
        return min(self._local.config.min_insync_replicas, len(self._followers) + 1)

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is not in sync."""
        return len(self.in_sync.committed) <= len(self._followers)

    @property
    def is_under_min_in_sync(self) -> bool:
        return len(self.in_sync.committed) < self.min_in_sync

    @property
    def is_at_min_in_sync(self) -> bool:
        return len(self.in_sync.committed) == self.min_in_sync

    def followers_behind(self) -> Iterator[tuple[int, float]]:
        """Yields who is not in sync, and for how many ms, as far back as this leader knows."""
        committed, now_ms = self.in_sync.committed, self._cluster.now_ms()
        for node_id, one in self._followers.items():
            if node_id not in committed:
                yield node_id, max(0.0, now_ms - one.behind_since_ms)

    def check_enough_in_sync(self) -> None:
        """Raises NotEnoughReplicas, before an append that is to be replicated."""
        if self.is_under_min_in_sync:
            raise NotEnoughReplicas(
                f"{self.topic_partition} has {len(self.in_sync.committed)} replicas in sync, and"
                f" min.insync.replicas is {self.min_in_sync}"
            )

    def appended(self, info: AppendInfo) -> None:
        """Records were appended here; called inside the append."""
        base_offset = info.base_offset
        for one in self._followers.values():
            if one.end_offset == base_offset:
                one.falls_behind()
        unreplicated = self._unreplicated
        end_offset = info.last_offset + 1
        if len(unreplicated) < _UNREPLICATED_MAX:
            unreplicated.append((end_offset, info.size_bytes))
        else:
            unreplicated[-1] = (end_offset, unreplicated[-1][1] + info.size_bytes)
        if len(self.in_sync.maximal) == 1:
            self.advance()

    def wait(self, end_offset: Offset) -> ErrorCode | None:
        """Returns None while records before `end_offset` are to be waited for, else the code of
        their answer (Kafka's `checkEnoughReplicasReachOffset`).
        """
        return self._outcome if self._local.high_watermark >= end_offset else None

    @property
    def _outcome(self) -> ErrorCode:
        if len(self.in_sync.maximal) < self.min_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    # --- fetches of followers ----------------------------------------------------------------

    def follower(self, broker_id: int) -> FollowerProgress | None:
        """Returns a follower's progress; None for a broker that is no replica."""
        return self._followers.get(broker_id)

    def followers(self) -> Iterator[FollowerProgress]:
        return iter(self._followers.values())

    def fetched(
        self,
        follower: FollowerProgress,
        offset: Offset,
        log_start_offset: Offset,
        *,
        now_ms: float,
        broker_epoch: int,
    ) -> None:
        """A follower asks for what is from `offset` on: it has all before. Raises StaleFollower."""
        self._cluster.check_epoch(follower.broker_id, broker_epoch)
        end_before = follower.end_offset
        follower.fetched(
            offset,
            log_start_offset,
            leader_end_offset=self._local.end_offset,
            now_ms=now_ms,
            broker_epoch=broker_epoch,
        )
        self._expand(follower)
        if offset != end_before:
            self.advance()

    def _expand(self, follower: FollowerProgress) -> None:
        in_sync, offset = self.in_sync, follower.end_offset
        if (
            in_sync.pending is None
            and follower.broker_id not in in_sync.committed
            and offset >= self._local.high_watermark
            and offset >= self._epoch_start
            and self._cluster.may_join(follower)
        ):
            wanted = in_sync.committed | {follower.broker_id}
            self._propose(wanted, joining=follower.broker_id)

    def holds_back(self, follower: FollowerProgress) -> bool:
        """Whether a follower gets no records now: it is throttled, and not in sync (KIP-73)."""
        throttle = self._cluster.throttle
        return (
            bool(throttle.topics)
            and follower.broker_id not in self.in_sync.committed
            and throttle.covers(self.topic_partition)
            and throttle.is_exceeded
        )

    def sent(self, size_bytes: int) -> None:
        """Counts records that a follower was answered."""
        throttle = self._cluster.throttle
        if throttle.topics and throttle.covers(self.topic_partition):
            throttle.record(size_bytes)

    def low_watermark(self, log_start_offset: Offset) -> Offset:
        """Returns where the logs of all replicas begin whose brokers live, with this one's."""
        brokers = self._cluster.brokers()
        lowest = log_start_offset
        for one in self._followers.values():
            broker = brokers.get(one.broker_id)
            if broker is not None and not broker.fenced:
                lowest = min(lowest, one.log_start_offset)
        return lowest

    def shrink(self) -> None:
        """Proposes the set without those that have not been caught up for too long."""
        in_sync = self.in_sync
        if in_sync.pending is not None:
            return
        late = self.late_followers()
        if late:
            log.info(
                "replicas are not in sync any more",
                extra={
                    "fields": {
                        "partition": str(self.topic_partition),
                        "replicas": sorted(late),
                        "end_offset": self._local.end_offset,
                        "high_watermark": self._local.high_watermark,
                    }
                },
            )
            self._propose(in_sync.committed - late)

    def late_followers(self) -> frozenset[int]:
        """Returns the in-sync followers that have not been caught up for too long."""
        end_offset, cluster = self._local.end_offset, self._cluster
        now_ms, lag_ms_max = cluster.now_ms(), cluster.lag_ms_max()
        others = self.in_sync.committed - {cluster.node_id}
        return frozenset(
            node_id
            for node_id in others
            if (one := self._followers.get(node_id)) is None
            or not one.is_caught_up(end_offset, now_ms=now_ms, lag_ms_max=lag_ms_max)
        )

    # --- the high watermark ------------------------------------------------------------------

    def advance(self) -> None:
        """Moves the high watermark to the lowest end of the maximal in-sync set.

        One that is not in it yet, and caught up, is waited for as well: it joins at once, and must
        not be kept from that by a high watermark that runs ahead of it.
        """
        if self.is_under_min_in_sync:
            return
        local, maximal = self._local, self.in_sync.maximal
        end_offset = lowest = local.end_offset
        now_ms: float | None = None
        for node_id, one in self._followers.items():
            if one.end_offset >= lowest:
                continue
            if node_id not in maximal:
                if not one.has_fetched:
                    continue
                cluster = self._cluster
                now_ms = cluster.now_ms() if now_ms is None else now_ms
                is_caught_up = one.is_caught_up(
                    end_offset, now_ms=now_ms, lag_ms_max=cluster.lag_ms_max()
                )
                if not (is_caught_up and cluster.may_join(one)):
                    continue
            lowest = one.end_offset
        if lowest > local.high_watermark:
            local.advance_high_watermark(lowest)
            self._tell()

    def _tell(self) -> None:
        high_watermark, size_bytes = self._local.high_watermark, 0
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[0][0] <= high_watermark:
            size_bytes += unreplicated.popleft()[1]
        if self.waits:
            self.waits.tell_below(high_watermark, self._outcome)
        # Records of an earlier lead were not counted.
        self._on_advanced(size_bytes or 1)

    # --- the controller ----------------------------------------------------------------------

    def _propose(self, broker_ids: frozenset[int], joining: int | None = None) -> None:
        proposal = self.in_sync.propose(
            [SyncedReplica(one, self._epoch_of(one)) for one in sorted(broker_ids)],
            leader_epoch=self.leader_epoch,
            joining=joining,
        )
        self._cluster.propose(self._topic_id, self.topic_partition.partition, self, proposal)

    def _epoch_of(self, broker_id: int) -> int:
        if broker_id == self._cluster.node_id:
            return self._cluster.broker_epoch()
        follower = self._followers.get(broker_id)
        return NO_BROKER_EPOCH if follower is None else follower.broker_epoch

    def altered(
        self,
        proposal: Proposal,
        broker_ids: frozenset[int],
        leader_epoch: int,
        partition_epoch: int,
    ) -> None:
        """The controller has carried out a proposal; the metadata tell the same later.

        A set without members that it had stays proposed until then.
        """
        in_sync = self.in_sync
        if in_sync.pending is not proposal:
            # An election came between.
            return
        if leader_epoch != self.leader_epoch or partition_epoch < in_sync.partition_epoch:
            return
        if not broker_ids >= in_sync.committed and partition_epoch > in_sync.partition_epoch:
            # Whoever left may lead by a min.insync.replicas that was raised meanwhile, which is in
            # the metadata before that. So nothing is acknowledged without it until they are here.
            return
        in_sync.commit(broker_ids, partition_epoch, 0)
        self.advance()

    def refused(self, proposal: Proposal, code: ErrorCode) -> bool:
        """The controller refuses a proposal; returns whether to ask again.

        Refusals that say nothing of whether it was carried out before leave it pending, until the
        metadata decide.
        """
        if self.in_sync.pending is not proposal:
            return False
        if code in (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA):
            self.in_sync.withdraw()
            return False
        return code not in _AWAIT_METADATA


_AWAIT_METADATA = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
)
