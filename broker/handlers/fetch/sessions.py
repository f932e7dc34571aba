"""Incremental fetch sessions (KIP-227): the partitions of each consumer, kept between requests.

    session epoch   meaning
             -1     full fetch, no session afterwards; closes the named session
              0     full fetch, opens a session if there is room
              n     incremental: the listed partitions change, the others stay

A session keeps per partition the request and the last answer, so that an incremental answer holds
only partitions with records, an error, or a change. Partitions that had records move to the end of
the order, so that a full response starves no partition.

The cache is bounded by `max.incremental.fetch.session.cache.slots`, and by SESSION_BYTES_MAX of
memory: a session may hold tens of thousands of partitions. The least recently used session is
evicted, and only if it was idle for EVICTION_IDLE_S: a thrashing cache would be useless. A client
without a session sends full fetches. Follows Kafka's FetchSession, where any client that guesses an
id may continue a session.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.identity import ANONYMOUS
from strandline.storage import entropy
from strandline.storage.clock import Clock

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EVICTION_IDLE_S = 120.0
SESSION_ID_MAX = 2**31 - 1
# A thousand consumers of two hundred partitions each, or twenty of ten thousand.
SESSION_BYTES_MAX = 128 * 1024 * 1024
# The slotted object, its key, its place in the order, and integers too large to be interned.
PARTITION_BYTES = 600
# The name of a topic requested by id; the text is shared.
NAME_BYTES = 150

NameOf = Callable[[uuid.UUID | None], str | None]


@dataclass(slots=True)
class WantedPartition:
    """One partition of a fetch: the request, and the last answer."""

    topic: str | None
    topic_id: uuid.UUID | None
    partition: int
    fetch_offset: int
    partition_bytes_max: int
    current_leader_epoch: int
    last_fetched_epoch: int = -1
    told_high_watermark: int = -1
    told_log_start_offset: int = -1
    told_error: bool = False

    @property
    def key(self) -> PartitionKey:
        return (self.topic_id if self.topic is None else self.topic, self.partition)

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of this entry."""
        return PARTITION_BYTES + (0 if self.topic is None else 2 * len(self.topic))


PartitionKey = tuple[str | uuid.UUID | None, int]


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions that one client reads, in serving order."""

    session_id: int
    uses_topic_ids: bool
    used_at_s: float
    # Who opened it: nobody else may continue it, or learn what it reads.
    user: str = ANONYMOUS
    epoch: int = 1
    memory_bytes: int = 0
    partitions: OrderedDict[PartitionKey, WantedPartition] = field(default_factory=OrderedDict)
    # The topics' names when they were added to the session.
    names: dict[uuid.UUID, str] = field(default_factory=dict)

    def update(
        self,
        wanted: Iterable[WantedPartition],
        forgotten: Iterable[PartitionKey],
        name_of: NameOf,
    ) -> None:
        """Applies an incremental request; the last answers stay.

        A partition both wanted and forgotten is forgotten, as in Kafka's FetchSession.
        """
        for request in wanted:
            known = self.partitions.get(request.key)
            if known is None:
                self.partitions[request.key] = request
                self.memory_bytes += request.memory_bytes
                self._note_name(request.topic_id, name_of)
                continue
            known.fetch_offset = request.fetch_offset
            known.partition_bytes_max = request.partition_bytes_max
            known.current_leader_epoch = request.current_leader_epoch
            known.last_fetched_epoch = request.last_fetched_epoch
        for key in forgotten:
            gone = self.partitions.pop(key, None)
            if gone is not None:
                self.memory_bytes -= gone.memory_bytes

    def _note_name(self, topic_id: uuid.UUID | None, name_of: NameOf) -> None:
        if topic_id is None or not self.uses_topic_ids or topic_id in self.names:
            return
        name = name_of(topic_id)
        if name is not None:
            self.names[topic_id] = name
            self.memory_bytes += NAME_BYTES

    def rotate(self, served: Iterable[PartitionKey]) -> None:
        """Moves partitions that had records to the end."""
        for key in served:
            if key in self.partitions:
                self.partitions.move_to_end(key)


class FetchSessionCache:
    """The fetch sessions of one broker, bounded in number and memory."""

    def __init__(
        self,
        slots_max: int,
        clock: Clock,
        *,
        memory_bytes_max: int = SESSION_BYTES_MAX,
        name_of: NameOf = lambda _: None,
    ) -> None:
        """`name_of` returns the name of a topic id; None if there is no such topic now."""
        self._name_of = name_of
        self._slots_max = slots_max
        self._memory_bytes_max = memory_bytes_max
        self._clock = clock
        # Least recently used first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._memory_bytes = 0
        self.evictions_total = 0

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Number of partitions in all sessions."""
        return sum(len(session.partitions) for session in self._sessions.values())

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    def begin(
        self,
        wanted: Iterable[WantedPartition],
        *,
        uses_topic_ids: bool,
        user: str = ANONYMOUS,
    ) -> FetchSession | None:
        """Opens a session of these partitions for `user`; None if there is no room."""
        now_s = self._clock.monotonic_s()
        if not self._slots_max:
            return None
        session = FetchSession(0, uses_topic_ids=uses_topic_ids, used_at_s=now_s, user=user)
        session.update(wanted, (), self._name_of)
        if not self._make_room(session.memory_bytes, slots=1, now_s=now_s):
            return None
        session.session_id = entropy.number(1, SESSION_ID_MAX)
        while session.session_id in self._sessions:
            session.session_id = entropy.number(1, SESSION_ID_MAX)
        self._sessions[session.session_id] = session
        self._memory_bytes += session.memory_bytes
        return session

    def resume(
        self, session_id: int, epoch: int, *, uses_topic_ids: bool, user: str = ANONYMOUS
    ) -> FetchSession | ErrorCode:
        """Returns the session that an incremental request continues, or why it cannot.

        That of another user looks as if there were none.
        """
        session = self._sessions.get(session_id)
        if session is None or session.user != user:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.used_at_s = self._clock.monotonic_s()
        self._sessions.move_to_end(session_id)
        session.epoch = 1 if epoch == SESSION_ID_MAX else epoch + 1
        return session

    def update(
        self,
        session: FetchSession,
        wanted: Iterable[WantedPartition],
        forgotten: Iterable[PartitionKey],
    ) -> None:
        """Applies an incremental request. A session that outgrows the cache ends.

        This request is still answered; the next one gets FETCH_SESSION_ID_NOT_FOUND, and starts
        over.
        """
        memory_bytes = session.memory_bytes
        session.update(wanted, forgotten, self._name_of)
        self._memory_bytes += session.memory_bytes - memory_bytes
        if not self._make_room(0, slots=0, now_s=session.used_at_s):
            self.end(session.session_id)

    def end_of(self, user: str, session_id: int) -> None:
        """Ends a session, if it is the user's."""
        session = self._sessions.get(session_id)
        if session is not None and session.user == user:
            self.end(session_id)

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._memory_bytes -= session.memory_bytes

    def _make_room(self, memory_bytes: int, *, slots: int, now_s: float) -> bool:
        """Evicts idle sessions until the given memory and slots fit; False if they do not."""
        while (
            len(self._sessions) + slots > self._slots_max
            or self._memory_bytes + memory_bytes > self._memory_bytes_max
        ):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_s - oldest.used_at_s < EVICTION_IDLE_S:
                return False
            self.end(oldest.session_id)
            self.evictions_total += 1
        return True
