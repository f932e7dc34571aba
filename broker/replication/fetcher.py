"""Fetches the partitions that one other broker leads (Kafka's AbstractFetcherThread).

    1 what is asked: partitions that moved on, those whose pause is over   2 one fetch
    3 each answer is appended, or truncates   4 with flush.messages=1 on the device   5 go to 1

The next fetch acknowledges what the last one brought. A failure concerns its partition alone, and a
broken connection all of them, for replica.fetch.backoff.ms. A leader that does not know of its lead
yet is asked again much sooner: until then its producers wait for this follower.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Final

from strandline.broker.cluster.in_sync.throttle import ReplicationThrottle
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.peers.errors import PeerError, PeerRefused, PeerUnreachable
from strandline.broker.protocol.messages.fetch import FetchResponse, FetchResponsePartition
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.replication.fetch_session import Key
from strandline.broker.replication.followed import FetchedFrom, Followed
from strandline.broker.replication.leader import EARLIEST, LATEST, LeaderEndpoint
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import wait_within
from strandline.storage.errors import DiskError, RecordsRejected, StorageError
from strandline.storage.model import Offset
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# A look at whether there is anything to fetch; adding it wakes at once.
IDLE_S: Final = 60.0
# Another full fetch may begin at once.
_SESSION_LOST: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.NONE,
)
# The leader does not know of its lead yet, or of the topic; or it leads no more.
_PASSING: Final = (
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)


class Fetcher:
    """One connection's worth of partitions. Used on the event loop only."""

    def __init__(
        self,
        leader: LeaderEndpoint,
        clock: Clock,
        *,
        backoff_ms: int,
        throttle: ReplicationThrottle,
        spawn: Callable[[Coroutine[object, object, None]], object],
    ) -> None:
        """`spawn` runs what waits for the disk or the store, beside the fetches."""
        self.leader = leader
        self._spawn = spawn
        self._throttle = throttle
        self._clock = clock
        self._backoff_s = backoff_ms / 1000
        self._followed: dict[Key, Followed] = {}
        # What may have to be named, or left out.
        self._changed: dict[Key, None] = {}
        self._delayed: dict[Key, Followed] = {}
        # Truncations, which wait for the disk, and restarts behind the archive, which wait for the
        # store: at most one for each partition.
        self._at_work: set[Key] = set()
        self._woken = asyncio.Event()
        self._quiet_log = QuietLog(log, clock)

    def __repr__(self) -> str:
        return f"<Fetcher {self.leader!r} partitions={len(self._followed)}>"

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def failed_count(self) -> int:
        """Partitions that wait for their metadata to change."""
        return sum(one.is_failed for one in self._followed.values())

    def add(self, partition: Partition, leader_epoch: int) -> None:
        """Fetches a partition from now on, from the end of its log."""
        key = (partition.topic_id, partition.topic_partition.partition)
        self._delayed.pop(key, None)
        if partition.is_offline:
            # A fetch from its end would let the leader take it back into the in-sync set, which
            # then waits for what no disk can have.
            return
        try:
            followed = Followed(partition, leader_epoch)
        except StorageError as error:
            self._say(partition, "log not truncated", str(error))
            return
        self._followed[key] = followed
        self._changed[key] = None
        self._woken.set()

    def remove(self, partition: Partition) -> None:
        """Nothing is appended to it from now on, whatever is under way."""
        key = (partition.topic_id, partition.topic_partition.partition)
        self._followed.pop(key, None)
        self._delayed.pop(key, None)
        self._changed[key] = None

    async def run(self) -> None:
        """Fetches for ever."""
        try:
            while True:
                try:
                    await self._step()
                except Exception:
                    # Other fetchers go on. What was not taken is asked for again.
                    log.exception("fetch from a leader failed")
                    self.leader.session.reset()
                    self._delay(self._followed)
        finally:
            self.leader.close()

    async def _step(self) -> None:
        self._woken.clear()
        self._end_delays()
        if self._throttle.topics:
            self._hold_back()
        ready_count = len(self._followed) - len(self._delayed)
        if not ready_count:
            if not self._followed:
                self.leader.close()
            await wait_within(self._woken, min(self._soonest_s(), IDLE_S))
            return
        try:
            self.leader.look_up()
            # A fetch that waits at the leader must not hold up those that wait here.
            answer = await self.leader.fetch(*self._wanted(), within_s=self._soonest_s())
        except PeerError as error:
            self._lose_connection(error)
            return
        session = self.leader.session
        asked = session.asked
        if not session.take(answer):
            if answer.error_code not in _SESSION_LOST:
                code = ErrorCode(answer.error_code)
                self._lose_connection(PeerUnreachable(f"{self.leader!r} answers {code.name}"))
            return
        await self._take_all(answer, asked)

    def _wanted(self) -> tuple[dict[Key, FetchedFrom], list[Key]]:
        """Returns what is asked, as FollowerSession.update wants it."""
        now_s = self._clock.monotonic_s()
        changed, self._changed = self._changed, {}
        wanted: dict[Key, FetchedFrom] = {}
        gone: list[Key] = []
        for key in self._followed if self.leader.session.is_full else changed:
            followed = self._followed.get(key)
            if followed is not None and self._is_ready(key, followed, now_s):
                wanted[key] = followed.asked
            else:
                gone.append(key)
        return wanted, gone

    def _is_ready(self, key: Key, followed: Followed, now_s: float) -> bool:
        """Nothing is appended to a log that is about to be cut."""
        return followed.is_ready(now_s) and key not in self._at_work

    def _hold_back(self) -> None:
        """Leaves out partitions that are throttled, and not in sync, while the rate is exceeded."""
        throttle = self._throttle
        if throttle.is_exceeded:
            self._delay(
                key
                for key, one in self._followed.items()
                if key not in self._delayed
                and not one.is_caught_up
                and throttle.covers(one.partition.topic_partition)
            )

    def _end_delays(self) -> None:
        now_s = self._clock.monotonic_s()
        ended = [key for key, one in self._delayed.items() if self._is_ready(key, one, now_s)]
        for key in ended:
            del self._delayed[key]
            self._changed[key] = None

    def _soonest_s(self) -> float:
        """Until the first delay ends that ends by itself; infinity without one."""
        now_s = self._clock.monotonic_s()
        ends_s = [
            one.delayed_until_s - now_s
            for key, one in self._delayed.items()
            if not one.is_failed and key not in self._at_work
        ]
        return max(0.0, min(ends_s, default=math.inf))

    def _delay(self, keys: Iterable[Key], *, within_s: float | None = None) -> None:
        """Leaves them out for replica.fetch.backoff.ms, or for less."""
        delay_s = self._backoff_s if within_s is None else min(within_s, self._backoff_s)
        until_s = self._clock.monotonic_s() + delay_s
        for key in tuple(keys):
            followed = self._followed.get(key)
            if followed is not None:
                followed.delayed_until_s = until_s
                self._delayed[key] = followed
                self._changed[key] = None

    def _lose_connection(self, error: PeerError) -> None:
        level = logging.ERROR if isinstance(error, PeerRefused) else logging.WARNING
        fields = {"leader": self.leader.leader_id, "reason": str(error)}
        self._quiet_log.say(level, "leader does not answer", self.leader.leader_id, fields)
        self.leader.session.reset()
        self._delay(self._followed)

    # --- answers -----------------------------------------------------------------------------

    async def _take_all(self, answer: FetchResponse, asked: dict[Key, FetchedFrom]) -> None:
        unflushed: list[Partition] = []
        misplaced: list[Followed] = []
        for topic in answer.topics:
            for one in topic.partitions:
                key = (
                    _key_of(topic.name, one.index, asked)
                    if topic.topic_id is None
                    else (topic.topic_id, one.index)
                )
                if key is None:
                    continue
                wanted = asked.get(key)
                followed = self._followed.get(key)
                if wanted is None or followed is None:
                    continue
                if wanted.followed is not followed or wanted.offset != followed.offset:
                    # It was led by another one meanwhile.
                    continue
                if one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    misplaced.append(followed)
                elif one.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
                    self._begin_restart(key, followed)
                elif one.error_code:
                    self._refused(key, followed, ErrorCode(one.error_code))
                elif (end := followed.agreed_end(one)) is not None:
                    self._begin_truncation(key, followed, end)
                elif self._take(key, followed, one) and followed.partition.must_flush:
                    unflushed.append(followed.partition)
        for followed in misplaced:
            await self._place(followed)
        for partition in unflushed:
            try:
                await partition.flush()
            except DiskError as error:
                self._say(partition, "flush failed", str(error))

    def _take(self, key: Key, followed: Followed, answer: FetchResponsePartition) -> bool:
        throttle = self._throttle
        if throttle.topics and throttle.covers(followed.partition.topic_partition):
            throttle.record(sum(len(one) for one in answer.records))  # type: ignore[arg-type, misc]
        try:
            if followed.take(answer):
                self._changed[key] = None
        except RecordsRejected as error:
            self._say(followed.partition, "records of the leader refused", str(error))
            self._delay([key])
            return False
        except StorageError as error:
            self._note_failure(key, followed, error)
            return False
        return True

    def _refused(self, key: Key, followed: Followed, code: ErrorCode) -> None:
        if code is ErrorCode.FENCED_LEADER_EPOCH:
            self._fail(key, followed, code.name)
            return
        if code in _PASSING:
            self._delay([key], within_s=followed.next_pause_s())
        else:
            self._say(followed.partition, "leader refuses a fetch", code.name)
            self._delay([key])

    def _note_failure(self, key: Key, followed: Followed, error: StorageError) -> None:
        if isinstance(error, DiskError) and error.is_full:
            # There may be room again at any time.
            self._say(followed.partition, "no room for records of the leader", str(error))
            self._delay([key])
        else:
            self._fail(key, followed, str(error))

    def _fail(self, key: Key, followed: Followed, reason: str) -> None:
        """Gives up until the metadata change: other partitions go on."""
        self._say(followed.partition, "partition not fetched any more", reason)
        followed.is_failed = True
        self._delayed[key] = followed
        self._changed[key] = None

    async def _place(self, followed: Followed) -> None:
        """Asks where the leader's log begins and ends, and goes on there."""
        key = followed.key
        try:
            leader_end = await self.leader.offset(followed, LATEST)
            leader_start = await self.leader.offset(followed, EARLIEST)
            if self._followed.get(key) is not followed:
                return
            if leader_end < followed.offset:
                self._begin_truncation(key, followed, leader_end)
                return
            followed.begin_at(leader_start)
        except PeerError as error:
            self._say(followed.partition, "no offsets from the leader", str(error))
            self._delay([key])
        except StorageError as error:
            self._note_failure(key, followed, error)
        else:
            self._changed[key] = None

    # --- truncation and restarts -------------------------------------------------------------

    def _begin_truncation(self, key: Key, followed: Followed, offset: Offset) -> None:
        """The disk may take long, or hang: other partitions go on."""
        self._delay([key])
        if key not in self._at_work:
            self._at_work.add(key)
            self._spawn(self._truncate(key, followed, offset))

    async def _truncate(self, key: Key, followed: Followed, offset: Offset) -> None:
        try:
            await followed.partition.lower_recovery_point(offset)
            if self._followed.get(key) is followed:
                followed.truncate(offset)
                self._end_delay(key, followed)
        except StorageError as error:
            if self._followed.get(key) is followed:
                self._note_failure(key, followed, error)
        except Exception:
            # Other partitions go on, and this one is tried again.
            log.exception("truncation failed")
        finally:
            self._end_work(key)

    def _end_delay(self, key: Key, followed: Followed) -> None:
        followed.delayed_until_s = 0.0
        self._delayed.pop(key, None)
        self._changed[key] = None
        self._woken.set()

    def _begin_restart(self, key: Key, followed: Followed) -> None:
        """The leader has freed what comes next: the archive has it. Other partitions go on."""
        self._delay([key])
        remote = followed.partition.log.remote
        if remote is None or remote.restart_replica is None:
            what = "log has to go on behind an archive that this broker has not"
            self._say(followed.partition, what, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE.name)
        elif key not in self._at_work:
            self._at_work.add(key)
            self._spawn(self._restart(key, followed, remote.restart_replica))

    async def _restart(
        self, key: Key, followed: Followed, restart_replica: Callable[[], Awaitable[object]]
    ) -> None:
        try:
            await restart_replica()
            if self._followed.get(key) is followed:
                followed.go_on()
                self._changed[key] = None
        except DiskError as error:
            if self._followed.get(key) is followed:
                self._note_failure(key, followed, error)
        except StorageError as error:
            self._say(followed.partition, "log does not go on behind the archive", str(error))
        except Exception:
            # Other partitions go on, and this one is tried again.
            log.exception("restart behind the archive failed")
        finally:
            self._end_work(key)

    def _end_work(self, key: Key) -> None:
        self._at_work.discard(key)
        self._changed[key] = None
        self._woken.set()

    def _say(self, partition: Partition, what: str, reason: str) -> None:
        where = partition.topic_partition
        fields = {"partition": str(where), "leader": self.leader.leader_id, "reason": reason}
        self._quiet_log.say(logging.WARNING, what, where, fields)


def _key_of(name: str, index: int, asked: Mapping[Key, FetchedFrom]) -> Key | None:
    """Returns the partition of a name, for leaders that know no ids in fetches."""
    for key, one in asked.items():
        if key[1] == index and one.followed.partition.topic_partition.topic == name:
            return key
    return None
