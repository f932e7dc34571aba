"""The coordinators' state in the bucket, so that it survives the loss of every local disk.

    groups/<partition>.log         a snapshot of `__consumer_offsets-<partition>`: the last
                                   record of each key, in Kafka's own batches, and a batch without
                                   records that differs each time; replaced as a whole
    transactions/<partition>.log   the same of `__transaction_state-<partition>`

These topics are not tiered: they are compacted, small, and only their latest state matters. So
the state of changed partitions is written beside the archive at intervals. Losing the machine loses
the commits since then: consumers read some records again, and skip none.

The log is read once, and then only its new records; live keys and values stay in memory (shared
with the coordinator). They are kept as bytes, so that every type of record survives, whatever wrote
it. Records of a transaction count once it is committed; those of an open one are in the object as
transactional batches, behind the others, and a restore ends them with their transaction. (Releases
before that skip them: they find no marker.)

The first write of a process reads the etag of the object and replaces exactly that version. An
abandoned request, of this broker or a dead one, may take effect in between: then it reads again. It
cannot take effect after a write of this process, because no content and so no etag repeats: if
another writer replaces the object then, this broker is not the only one, and stops. A deleted
object is written again, with the next write or when a listing finds it missing.

In a cluster the broker that leads the partition writes, and the object has its leader epoch: in its
last batch, where Kafka has that of a batch. Who finds a higher one in the object does not write: it
was the leader, and has not heard yet. One that finds a lower one takes over from the leader before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from strandline.broker.protocol.formats.offsets_topic import (
    OFFSETS_TOPIC,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_offset_commit,
    encode_offset_commit,
)
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.storage import entropy
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import result_of
from strandline.storage.errors import (
    CorruptRecords,
    ObjectNotFound,
    PreconditionFailed,
    RecordsRejected,
    StorageError,
    TierError,
)
from strandline.storage.local.cleaner.cleaned_batch import empty_batch
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.model import NO_EPOCH, Buffer, Epoch, Offset, TopicPartition
from strandline.storage.records.batch.any_batch import iter_records, walk
from strandline.storage.records.batch.marker import MarkerType, read_marker
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.remote.keys import GROUPS_PREFIX, state_key
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectStore,
    PutCondition,
)
from strandline.storage.tiering.log.exposure import Covered, Exposure, ExposureAge, exposure
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
# Batches of the object: well below max.message.bytes, because a restore appends them.
BATCH_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRecord:
    """The last record of a key."""

    key: bytes
    value: bytes
    timestamp_ms: int


class PendingRecord(NamedTuple):
    """The last record of a key in an open transaction; its value is None in a tombstone."""

    value: bytes | None
    timestamp_ms: int
    offset: Offset


@dataclass(frozen=True, slots=True)
class PendingRecords:
    """The records of an open transaction, by key."""

    producer_id: int
    epoch: int
    records: dict[bytes, PendingRecord]


class LiveRecords:
    """The live records of one partition: the last of each key, without tombstones."""

    def __init__(self) -> None:
        # The highest of the batches: in the bucket, that of the leader that wrote the object.
        self.leader_epoch = NO_EPOCH
        self._live: dict[bytes, LiveRecord] = {}
        self._open: dict[int, PendingRecords] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveRecord]:
        return iter(self._live.values())

    @property
    def pending(self) -> Iterable[PendingRecords]:
        """The records of open transactions."""
        return self._open.values()

    def take(self, buffer: Buffer, offset: Offset) -> Offset:
        """Adds the batches of `buffer` from `offset` on; returns their end offset.

        Raises CorruptRecords.
        """
        next_offset = offset
        for batch in walk(buffer):
            header = batch.header
            self.leader_epoch = max(self.leader_epoch, header.leader_epoch)
            if header.next_offset <= offset:
                continue
            next_offset = header.next_offset
            if header.is_control:
                marker = read_marker(buffer, header, batch.position)
                ended = self._open.pop(header.producer_id, None)
                is_commit = marker is not None and marker.type is MarkerType.COMMIT
                if ended is not None and is_commit:
                    for key, (value, timestamp_ms, written_at) in ended.records.items():
                        self._overtake(key, written_at)
                        self._put(key, value, timestamp_ms)
                continue
            for record in iter_records(buffer, header, batch.position):
                if record.offset < offset or record.key is None:
                    continue
                key = bytes(record.key)
                value = None if record.value is None else bytes(record.value)
                if header.is_transactional:
                    open_one = self._open.setdefault(
                        header.producer_id,
                        PendingRecords(header.producer_id, header.producer_epoch, {}),
                    )
                    open_one.records[key] = PendingRecord(value, record.timestamp_ms, record.offset)
                else:
                    self._overtake(key, record.offset)
                    self._put(key, value, record.timestamp_ms)
        return next_offset

    def _overtake(self, key: bytes, offset: Offset) -> None:
        """A record counts: it wins over earlier ones, whatever their transactions come to."""
        for open_one in self._open.values():
            overtaken = open_one.records.get(key)
            if overtaken is not None and overtaken.offset < offset:
                del open_one.records[key]

    def _put(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        # Removed first, so that the order is that of the last writes.
        self._live.pop(key, None)
        if value is not None:
            self._live[key] = LiveRecord(key=key, value=value, timestamp_ms=timestamp_ms)


def encode_live(records: Iterable[LiveRecord], pending: Iterable[PendingRecords] = ()) -> bytes:
    """Encodes the object: batches from offset 0 on, those of open transactions last."""
    live = [(one.key, one.value, one.timestamp_ms) for one in records]
    batches = list(_batches(live, 0))
    offset = len(live)
    undecided = sorted(
        (record.offset, open_one.producer_id, open_one.epoch, key, record)
        for open_one in pending
        for key, record in open_one.records.items()
    )
    # In the order of the log, by which the later record wins.
    for (producer_id, epoch), run in groupby(undecided, key=itemgetter(1, 2)):
        rows = [(key, one.value, one.timestamp_ms) for _, _, _, key, one in run]
        batches += _batches(rows, offset, producer_id=producer_id, producer_epoch=epoch)
        offset += len(rows)
    return b"".join(batches)


def _batches(
    rows: Iterable[tuple[bytes, bytes | None, int]],
    offset: Offset,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> Iterator[bytes]:
    """Encodes rows of key, value and time, in batches of at most some BATCH_BYTES."""
    run: list[Record] = []
    run_bytes = 0

    def encoded() -> bytes:
        return bytes(
            encode_batch(
                run,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer_id >= 0,
            )
        )

    for position, (key, value, timestamp_ms) in enumerate(rows):
        size = len(key) + len(value or b"")
        if run and run_bytes + size > BATCH_BYTES:
            yield encoded()
            run, run_bytes = [], 0
        run.append(
            Record(offset=offset + position, timestamp_ms=timestamp_ms, key=key, value=value)
        )
        run_bytes += size
    if run:
        yield encoded()


# --- restoring -------------------------------------------------------------------------------


def read_group_state(
    store: ObjectStore, partition: int, prefix: str = GROUPS_PREFIX
) -> LiveRecords | None:
    """Reads one partition of a coordinator's topic from the bucket; None if absent. Blocks.

    Raises CorruptRecords and what the store raises.
    """
    key = state_key(prefix, partition)
    try:
        content = store.get(key)
    except ObjectNotFound:
        return None
    if not content:
        # Without live records the object still has the empty batch.
        raise CorruptRecords(f"{key} is empty")
    end = 0
    for batch in walk(content, verify_crc=True):
        end = batch.end_position
    if end != len(content):
        raise CorruptRecords(f"{key} ends inside a batch")
    live = LiveRecords()
    live.take(content, 0)
    return live


def clamped(
    records: Iterable[LiveRecord], end_of: Callable[[TopicPartition], Offset | None]
) -> Iterator[LiveRecord]:
    """Yields the records, with no offset above the end of its restored log.

    Records above it are lost and their offsets will be reused: a consumer that continued at its
    old offset would skip the new ones. `end_of` returns None for an unknown partition.
    """
    return (_clamped(live, end_of) for live in records)


def clamped_pending(
    pending: Iterable[PendingRecords], end_of: Callable[[TopicPartition], Offset | None]
) -> Iterator[PendingRecords]:
    """Yields the records of open transactions likewise."""
    for one in pending:
        records: dict[bytes, PendingRecord] = {}
        for key, record in one.records.items():
            records[key] = record
            if record.value is not None:
                live = LiveRecord(key=key, value=record.value, timestamp_ms=record.timestamp_ms)
                records[key] = record._replace(value=_clamped(live, end_of).value)
        yield replace(one, records=records)


def _clamped(live: LiveRecord, end_of: Callable[[TopicPartition], Offset | None]) -> LiveRecord:
    try:
        key = decode_key(live.key)
        if not isinstance(key, OffsetCommitKey):
            return live
        value: OffsetCommitValue = decode_offset_commit(live.value)
    except MalformedRequest:
        return live
    end_offset = end_of(TopicPartition(key.topic, key.partition))
    if end_offset is None or value.offset <= end_offset:
        return live
    return replace(live, value=encode_offset_commit(value.replaced(offset=end_offset)))


def write_group_state(
    local: LocalLog, records: Iterable[LiveRecord], pending: Iterable[PendingRecords] = ()
) -> None:
    """Fills an empty log; its transactions stay open. Raises DiskError."""
    content = bytearray(encode_live(records, pending))
    for batch in walk(content):
        local.append(batch.encoded(content), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    local.advance_high_watermark(local.end_offset)


# --- keeping the bucket up to date -----------------------------------------------------------


class LedLog(NamedTuple):
    """A log that this broker leads, and the epoch under which it does."""

    log: UnifiedLog
    leader_epoch: Epoch


class GroupsFenced(TierError):
    """Another writer replaced an object of this process."""


class LedLater(TierError):
    """The object is that of a leader with a higher epoch: this broker leads no more."""


class _Shadow:
    """The state of one partition in the bucket, and its pending changes."""

    def __init__(self, local: LocalLog, next_offset: Offset, leader_epoch: Epoch) -> None:
        """`local` is the log that is read, from `next_offset` up to its high watermark."""
        self.live = LiveRecords()
        self.leader_epoch = leader_epoch
        self.next_offset = next_offset
        self.local = local
        # When the log was last read as far as it may be.
        self.read_s = 0.0
        self.written_offset: Offset = -1
        self.etag: str | None = None
        self.is_known = False
        # Whether the object in the bucket is this process's last write.
        self.is_ours = False
        # What this process last wrote and what it read since; None before its first write.
        self.covered: Covered | None = None
        self.read = Covered(end_offset=0)
        self.exposure_age = ExposureAge()

    def forget(self) -> None:
        """Forgets the object, which was deleted in the bucket."""
        self.is_known = self.is_ours = False
        self.written_offset = -1
        self.covered = None


class StateArchive:
    """Writes the changed state of a coordinator to the bucket. Used on the event loop only."""

    def __init__(
        self,
        store: ObjectStore,
        logs: Callable[[], Iterable[LedLog]],
        *,
        executor: Executor,
        clock: Clock,
        interval_ms: int = 60_000,
        topic: str = OFFSETS_TOPIC,
        prefix: str = GROUPS_PREFIX,
        last_logs: Callable[[], Iterable[LedLog]] | None = None,
    ) -> None:
        """`logs` returns the logs of `topic` that this broker leads now, `last_logs` those that it
        may still write for at its stop; `interval_ms` is the time between two runs.
        """
        self._last_logs = last_logs or logs
        self._interval_ms = interval_ms
        self._prefix = prefix
        self._store = store
        self._logs = logs
        self._executor = executor
        self._clock = clock
        self._shadows: dict[tuple[object, int], _Shadow] = {}
        self._topic = topic
        # By partition number: one that fails does not hold up the others.
        self._states: dict[int, RetryState] = {}
        self._is_fenced = False
        # Objects of this process that were found deleted.
        self.deleted_count = 0
        # A task in a thread, which may have outlived its caller.
        self._under_way: asyncio.Future[None] | None = None
        # Partitions for the last write, each read to its end: a partial one would lose the rest.
        self._rest: dict[int, _Shadow] = {}

    async def run_once(self) -> int:
        """Writes the changed partitions; returns how many. Failures are retried by the next run."""
        logs = {one.log.topic_partition.partition: one for one in tuple(self._logs())}
        self._states = {number: self._state_of(number) for number in logs}
        written = 0
        for number, led in logs.items():
            state = self._states[number]
            if self._is_fenced or not state.may_try:
                continue
            try:
                written += await self._follow(led)
            except GroupsFenced as error:
                self._is_fenced = True
                state.failed(error)
                log.error(
                    "another broker writes the groups or transactional ids of this archive, this"
                    " one stops writing them",
                    extra={"fields": {"key": error.key}},
                )
            except (StorageError, RecordsRejected) as error:
                state.failed(error)
            else:
                state.succeeded()
        return written

    def exposures(self) -> Iterator[Exposure | None]:
        """The records of each partition that are not in the bucket; None where it is not known."""
        for unified_log, _ in self._logs():
            local = unified_log.local
            shadow = self._shadows.get(
                (unified_log.topic_id, unified_log.topic_partition.partition)
            )
            if not local.high_watermark:
                yield Exposure()
            elif shadow is None or shadow.local is not local or shadow.covered is None:
                yield None
            else:
                age_s = self._exposure_age_s(shadow)
                yield exposure(local, shadow.covered, age_s=age_s, promised_ms=self._interval_ms)

    def _exposure_age_s(self, shadow: _Shadow) -> float:
        if shadow.covered is None:
            return 0.0
        return shadow.exposure_age.note(
            shadow.covered,
            shadow.local.high_watermark,
            now_s=self._clock.monotonic_s(),
            now_ms=self._clock.now_ms(),
        )

    def _state_of(self, number: int) -> RetryState:
        known = self._states.get(number)
        return known or RetryState(
            self._prefix.rstrip("/"),
            f"{self._topic}-{number}",
            policy=RetryPolicy(),
            clock=self._clock,
        )

    @property
    def failing(self) -> list[RetryState]:
        """The partitions whose upload fails now."""
        return [state for state in self._states.values() if state.failure is not None]

    async def check(self) -> None:
        """Finds objects deleted in the bucket; the next run writes them. Raises StorageError."""
        loop = asyncio.get_running_loop()
        written = [(key[1], shadow) for key, shadow in self._shadows.items() if shadow.is_ours]
        gone = await loop.run_in_executor(
            self._executor,
            _gone,
            self._store,
            self._prefix,
            frozenset(number for number, _ in written),
        )
        for number, shadow in written:
            if number in gone:
                shadow.forget()
        if gone:
            self.deleted_count += len(gone)
            objects = [state_key(self._prefix, number) for number in sorted(gone)]
            log.warning(
                "groups' offsets or transactional ids were deleted in the bucket, they are written"
                " again",
                extra={"fields": {"objects": objects}},
            )

    async def read_rest(self) -> None:
        """Before the logs are closed: reads the data for `write_rest`; sends no request.

        Raises StorageError, RecordsRejected.
        """
        await self._wait_until_idle()
        for led in tuple(self._last_logs()):
            shadow = await self._read_on(led)
            if shadow is not None:
                self._rest[led.log.topic_partition.partition] = shadow

    async def write_rest(self) -> int:
        """Writes the data of `read_rest` concurrently; returns how many partitions.

        `run_once` may have been cancelled before, but it is not running any more. Failed writes are
        left out.
        """
        await self._wait_until_idle()
        if self._is_fenced:
            return 0
        loop = asyncio.get_running_loop()
        outcomes = await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._executor,
                    _write,
                    self._store,
                    state_key(self._prefix, number),
                    shadow,
                )
                for number, shadow in self._rest.items()
            ),
            return_exceptions=True,
        )
        for number, outcome in zip(self._rest, outcomes, strict=True):
            if isinstance(outcome, StorageError):
                self._state_of(number).failed(outcome)
            elif outcome is not None:
                raise outcome
        return outcomes.count(None)

    async def _wait_until_idle(self) -> None:
        """Waits for a cancelled caller's task: its write would look like another broker's."""
        if self._under_way is not None:
            await asyncio.wait((self._under_way,))

    async def _in_thread(self, call: Callable[[], None]) -> None:
        under_way = asyncio.get_running_loop().run_in_executor(self._executor, call)
        under_way.add_done_callback(_retrieve_failure)
        self._under_way = under_way
        await result_of(under_way)

    async def _follow(self, led: LedLog) -> bool:
        shadow = await self._read_on(led)
        if shadow is None:
            return False
        number = led.log.topic_partition.partition
        await self._in_thread(partial(_write, self._store, state_key(self._prefix, number), shadow))
        return True

    async def _read_on(self, led: LedLog) -> _Shadow | None:
        """Reads the records appended since the last run; None if the bucket has all of them."""
        unified_log, leader_epoch = led
        number = unified_log.topic_partition.partition
        key = unified_log.topic_id, number
        shadow = self._shadows.get(key)
        is_known = shadow is not None and shadow.local is unified_log.local
        if shadow is None or not is_known or shadow.leader_epoch != leader_epoch:
            # After its folder was offline, or another broker led, a log may have other records at
            # the same offsets.
            shadow = _Shadow(unified_log.local, unified_log.log_start_offset, leader_epoch)
            self._shadows[key] = shadow
        active = shadow.local.active_segment
        end_offset = unified_log.high_watermark
        base_offset = active.base_offset if end_offset == unified_log.end_offset else -1
        shadow.read = Covered(
            end_offset=end_offset, base_offset=base_offset, position=active.size_bytes
        )
        self._exposure_age_s(shadow)
        now_s = self._clock.monotonic_s()
        if end_offset == shadow.written_offset or end_offset == shadow.next_offset == 0:
            shadow.read_s = now_s
            return None
        if now_s - shadow.read_s >= unified_log.local.config.delete_retention_ms / 1000:
            # Compaction may have removed tombstones that were not read: reading on from here would
            # keep, and restore, deleted groups.
            shadow.live, shadow.next_offset = LiveRecords(), unified_log.log_start_offset
        while shadow.next_offset < end_offset:
            await self._in_thread(partial(_take_chunk, unified_log, shadow, end_offset))
        shadow.read_s = now_s
        return shadow


def _retrieve_failure(under_way: asyncio.Future[None]) -> None:
    """Retrieves the exception: asyncio would log it as never retrieved if no caller waits."""
    if not under_way.cancelled():
        under_way.exception()


def _take_chunk(unified_log: UnifiedLog, shadow: _Shadow, end_offset: Offset) -> None:
    """Reads the next chunk; none is left below `end_offset` if there is none. Blocks."""
    offset = max(shadow.next_offset, unified_log.log_start_offset)
    found = unified_log.read(offset, bytes_max=CHUNK_BYTES)
    if found is None or found.range is None:
        shadow.next_offset = end_offset
    else:
        shadow.next_offset = shadow.live.take(found.range.read(), offset)


def _write(store: ObjectStore, key: str, shadow: _Shadow) -> None:
    """Blocks. Raises StorageError."""
    if not shadow.is_known:
        shadow.etag = _etag_to_replace(store, key, shadow.leader_epoch)
        shadow.is_known = True
    condition: PutCondition = IfAbsent() if shadow.etag is None else IfMatches(shadow.etag)
    content = encode_live(shadow.live, shadow.live.pending) + _last_batch(shadow.leader_epoch)
    try:
        shadow.etag = store.put(key, content, condition=condition).etag
    except StorageError as error:
        is_changed = shadow.is_ours and isinstance(error, PreconditionFailed)
        # The outcome is unknown: read the object again before the next attempt.
        shadow.is_known = shadow.is_ours = False
        if is_changed and _etag_to_replace(store, key, shadow.leader_epoch) is not None:
            raise GroupsFenced(key, "put", "somebody wrote over this broker's groups") from error
        raise
    shadow.is_ours = True
    shadow.written_offset = shadow.next_offset
    shadow.covered = shadow.read


def _etag_to_replace(store: ObjectStore, key: str, leader_epoch: Epoch) -> str | None:
    """Returns the etag of the object; None if there is none. Raises LedLater, and as the store."""
    try:
        found = store.get_object(key)
    except ObjectNotFound:
        return None
    written_epoch = _leader_epoch(found.body)
    if written_epoch > leader_epoch:
        raise LedLater(key, "put", f"leader epoch {written_epoch} wrote it, not {leader_epoch}")
    return found.info.etag


def _gone(store: ObjectStore, prefix: str, numbers: Collection[int]) -> frozenset[int]:
    """Returns the objects that are missing. Blocks. Raises StorageError."""
    listed = {info.key for info in store.list(prefix)} if numbers else set()
    unlisted = [number for number in numbers if state_key(prefix, number) not in listed]
    # A listing may lag; a request by name does not.
    return frozenset(
        number for number in unlisted if not _is_there(store, state_key(prefix, number))
    )


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFound:
        return False
    return True


def _last_batch(leader_epoch: Epoch) -> bytes:
    """Returns an empty batch with a random producer, so that no two objects are equal; and with
    the leader epoch under which the object is written.
    """
    record = Record(offset=0, timestamp_ms=0, key=None, value=None)
    return empty_batch(
        encode_batch(
            [record],
            producer_id=entropy.number(0, 2**63 - 1),
            leader_epoch=leader_epoch,
        )
    )


def _leader_epoch(content: Buffer) -> Epoch:
    """Returns the epoch in the last batch; that of a damaged object does not count."""
    epoch = NO_EPOCH
    with contextlib.suppress(CorruptRecords):
        for batch in walk(content):
            epoch = batch.header.leader_epoch
    return epoch
