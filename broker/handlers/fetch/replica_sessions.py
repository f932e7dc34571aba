"""Fetch sessions of followers: what each follows here, and what there may be to say of it.

    partitions   all that the follower fetches from this broker
    dirty        those that a fetch has to look at: named by it, appended to, not read to the end

A follower of thousands of partitions asks several times a millisecond's work: looking at all of
them each time would take longer than all else. Partitions whose high watermark or log start moved
without an append are found by a look at all, every SWEEP_MS.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from strandline.broker.cluster.in_sync.progress import Asking, FollowerProgress
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.fetch.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    SESSION_ID_MAX,
    PartitionKey,
)
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponsePartition,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage import entropy
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.model import Offset
from strandline.storage.tiering.log.cold_read import RemoteRead

# A follower has `num.replica.fetchers` sessions; those of hundreds of brokers.
SESSIONS_MAX: Final = 1000
# In all sessions; half a kilobyte each.
PARTITIONS_MAX: Final = 500_000
# As long as a fetch of an idle follower waits.
SWEEP_MS: Final = 500


def follower_of(request: FetchRequest) -> tuple[int, int]:
    """Returns the broker that fetches as a follower, and its epoch; -1 for a consumer."""
    state = request.replica_state
    if state is None:
        return request.replica_id, -1
    return state.replica_id, state.replica_epoch


class FollowedPartition:
    """One partition of a session: the request, and the last answer."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "follower",
        "is_told_error",
        "key",
        "last_fetched_epoch",
        "log_start_offset",
        "partition",
        "partition_bytes_max",
        "told_high_watermark",
        "told_log_start_offset",
    )

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        # Found here, and led with this follower; None: to be looked for.
        self.partition: Partition | None = None
        self.follower: FollowerProgress | None = None
        self.fetch_offset: Offset = 0
        self.log_start_offset: Offset = -1
        self.partition_bytes_max = 0
        self.current_leader_epoch = -1
        self.last_fetched_epoch = -1
        self.told_high_watermark: Offset = -1
        self.told_log_start_offset: Offset = -1
        self.is_told_error = False

    def ask(self, wanted: FetchPartition) -> None:
        self.fetch_offset = wanted.fetch_offset
        self.log_start_offset = wanted.log_start_offset
        self.partition_bytes_max = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch

    def is_news(self, answer: FetchResponsePartition) -> bool:
        return bool(
            answer.records_bytes
            or answer.error_code
            or self.is_told_error
            or answer.diverging_epoch is not None
            or answer.high_watermark != self.told_high_watermark
            or answer.log_start_offset != self.told_log_start_offset
        )

    def told(self, answer: FetchResponsePartition) -> None:
        self.told_high_watermark = answer.high_watermark
        self.told_log_start_offset = answer.log_start_offset
        self.is_told_error = answer.error_code != 0


class BegunColdRead(NamedTuple):
    """A read of archived records from an offset, which runs or waits to be answered."""

    offset: Offset
    outcome: asyncio.Task[RemoteRead | RecordsRejected | StorageError]


class ReplicaSession:
    """The session of one fetcher of a follower. Used on the event loop only."""

    def __init__(self, session_id: int, broker_id: int, user: str) -> None:
        self.session_id = session_id
        self.broker_id = broker_id
        self.user = user
        self.epoch = 1
        self.partitions: dict[PartitionKey, FollowedPartition] = {}
        self.dirty: dict[FollowedPartition, None] = {}
        self.cold_reads: dict[FollowedPartition, BegunColdRead] = {}
        self.asking = Asking()
        self.swept_ms = 0.0
        # Called with the bytes of an append, and with none for what cannot wait.
        self.on_news: Callable[[int | None], None] | None = None
        self._followed: dict[Partition, FollowedPartition] = {}

    def __repr__(self) -> str:
        return (
            f"<ReplicaSession {self.session_id} of broker {self.broker_id}"
            f" epoch={self.epoch} partitions={len(self.partitions)} dirty={len(self.dirty)}>"
        )

    def want(self, key: PartitionKey, wanted: FetchPartition) -> None:
        one = self.partitions.get(key)
        if one is None:
            one = self.partitions[key] = FollowedPartition(key)
        one.ask(wanted)
        self.dirty[one] = None

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            gone = self.partitions.pop(key, None)
            if gone is not None:
                self.dirty.pop(gone, None)
                self._lose(gone)

    def follow(
        self, one: FollowedPartition, partition: Partition, follower: FollowerProgress
    ) -> None:
        """It was found: its appends concern this session from now on."""
        one.partition, one.follower = partition, follower
        follower.asking = self.asking
        self._followed[partition] = one
        partition.watch(self)

    def sweep(self, now_ms: float) -> None:
        """Finds partitions whose high watermark or log start moved, and those where the follower is
        not in sync: the controller may have taken it out, and may take it in again.
        """
        if now_ms - self.swept_ms < SWEEP_MS:
            return
        self.swept_ms = now_ms
        for partition, one in self._followed.items():
            if (
                partition.log.local.high_watermark != one.told_high_watermark
                or partition.log.log_start_offset != one.told_log_start_offset
                or self._is_out_of_sync(partition)
            ):
                self.dirty[one] = None

    def _is_out_of_sync(self, partition: Partition) -> bool:
        leading = partition.leading
        return leading is not None and self.broker_id not in leading.in_sync.committed

    def close(self) -> None:
        for one in self.partitions.values():
            self._lose(one)
        self.partitions.clear()
        self.dirty.clear()

    def drop_cold_read(self, one: FollowedPartition) -> None:
        """Nobody wants it any more."""
        begun = self.cold_reads.pop(one, None)
        if begun is not None:
            begun.outcome.cancel()

    def _lose(self, one: FollowedPartition) -> None:
        self.drop_cold_read(one)
        partition, one.partition = one.partition, None
        if partition is not None:
            self._followed.pop(partition, None)
            partition.stop_watching(self)
        if one.follower is not None and one.follower.asking is self.asking:
            one.follower.asking = None
        one.follower = None

    # --- as AppendWatcher --------------------------------------------------------------------

    def on_append(self, partition: Partition, size_bytes: int) -> None:
        self.dirty[self._followed[partition]] = None
        if self.on_news is not None:
            self.on_news(size_bytes)

    def on_gone(self, partition: Partition) -> None:
        one = self._followed.get(partition)
        if one is not None:
            self._lose(one)
            self.dirty[one] = None
            if self.on_news is not None:
                self.on_news(None)


class ReplicaSessions:
    """The sessions of all followers of this broker."""

    def __init__(self) -> None:
        # Least recently used first.
        self._sessions: OrderedDict[int, ReplicaSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def of(
        self, session_id: int, epoch: int, *, broker_id: int, user: str
    ) -> ReplicaSession | ErrorCode:
        """Returns the session of a request, a new one if it begins one (KIP-227).

        One with the id 0 is not kept: `close` it after the answer.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(session_id, user)
            if epoch == FINAL_EPOCH:
                return ReplicaSession(0, broker_id, user)
            return self._begin(broker_id, user)
        session = self._sessions.get(session_id)
        if session is None or session.user != user or session.broker_id != broker_id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.epoch = 1 if epoch == SESSION_ID_MAX else epoch + 1
        self._sessions.move_to_end(session_id)
        return session

    def _begin(self, broker_id: int, user: str) -> ReplicaSession:
        session_id = entropy.number(1, SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = entropy.number(1, SESSION_ID_MAX)
        session = self._sessions[session_id] = ReplicaSession(session_id, broker_id, user)
        while len(self._sessions) > 1 and self._is_full():
            _, oldest = self._sessions.popitem(last=False)
            oldest.close()
        return session

    def _is_full(self) -> bool:
        count = sum(len(one.partitions) for one in self._sessions.values())
        return len(self._sessions) > SESSIONS_MAX or count > PARTITIONS_MAX

    def _end(self, session_id: int, user: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.user == user:
            del self._sessions[session_id]
            session.close()
