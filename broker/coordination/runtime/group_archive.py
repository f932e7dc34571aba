"""The groups' offsets in the bucket, so that they survive the loss of every local disk.

    groups/<partition>.log      what `__consumer_offsets-<partition>` holds at one moment: the last
                                record of each key, in Kafka's own batches, and a batch without
                                records that is another one each time; replaced as a whole

`__consumer_offsets` is not tiered: it is compacted, small, and only its latest state is worth
anything. So its state is written beside the archive instead, now and then for the partitions
that have changed. Losing the machine loses the commits of that time: consumers read some records
again, and none is skipped.

The log is read once, and then only what was appended since; keys and values of what is live stay in
memory (as the coordinator has them). Keys and values are taken as bytes, so that every type of
record is kept, whoever wrote it. Records of a transaction count once it is committed.

The first write of a process finds out what lies there and replaces exactly that. A request that was
given up, this broker's or a dead one's, may be done in between: then it looks again. It cannot be
done after a write of this process, for no content comes twice and so no etag does: if somebody else
writes the same object then, this broker is not the only one, and stops. What somebody deleted is
written again, with the next write or when a look finds it gone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

from strandline.broker.protocol.formats.offsets_topic import (
    OffsetCommitKey,
    OffsetCommitValue,
    UnreadableRecord,
    decode_key,
    decode_offset_commit,
    encode_offset_commit,
)
from strandline.storage.clock import Clock
from strandline.storage.concurrency.shared_future import result_of
from strandline.storage.errors import (
    CorruptRecords,
    ObjectNotFound,
    PreconditionFailed,
    RecordsRejected,
    StorageError,
    TierError,
)
from strandline.storage.local.cleaner.cleaned_batch import empty_batch
from strandline.storage.local.formats.producer_state import MarkerType, read_marker
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.model import Buffer, Isolation, Offset, TopicPartition
from strandline.storage.records.batch.batch import check_crc, iter_batches
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.remote.keys import GROUPS_PREFIX, group_state_key
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectStore,
    PutCondition,
)
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
# Batches of the object: well below max.message.bytes, which a restore appends them under.
BATCH_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRecord:
    """The last record of a key."""

    key: bytes
    value: bytes
    timestamp_ms: int


class LiveRecords:
    """The records of one partition that count: the last of each key, without tombstones."""

    def __init__(self) -> None:
        self._live: dict[bytes, LiveRecord] = {}
        self._open: dict[int, list[tuple[bytes, bytes | None, int]]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveRecord]:
        return iter(self._live.values())

    def take(self, buffer: Buffer, offset: Offset) -> Offset:
        """Adds the batches of `buffer` from `offset` on; where they end.

        Raises CorruptRecords.
        """
        next_offset = offset
        for batch in iter_batches(buffer):
            header = batch.header
            if header.next_offset <= offset:
                continue
            next_offset = header.next_offset
            if header.is_control:
                marker = read_marker(buffer, header, batch.position)
                ended = self._open.pop(header.producer_id, [])
                if marker is not None and marker.type is MarkerType.COMMIT:
                    for key, value, timestamp_ms in ended:
                        self._put(key, value, timestamp_ms)
                continue
            for record in iter_records(buffer, header, batch.position):
                if record.offset < offset or record.key is None:
                    continue
                key = bytes(record.key)
                value = None if record.value is None else bytes(record.value)
                if header.is_transactional:
                    waiting = self._open.setdefault(header.producer_id, [])
                    waiting.append((key, value, record.timestamp_ms))
                else:
                    self._put(key, value, record.timestamp_ms)
        return next_offset

    def _put(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        # Taken out first, so that the order is that of the last writes.
        self._live.pop(key, None)
        if value is not None:
            self._live[key] = LiveRecord(key=key, value=value, timestamp_ms=timestamp_ms)


def encode_live(records: Iterable[LiveRecord]) -> bytes:
    """The object: batches from offset 0 on."""
    batches: list[bytes] = []
    run: list[Record] = []
    run_bytes = 0
    for offset, live in enumerate(records):
        if run and run_bytes + len(live.key) + len(live.value) > BATCH_BYTES:
            batches.append(bytes(encode_batch(run)))
            run, run_bytes = [], 0
        run.append(
            Record(offset=offset, timestamp_ms=live.timestamp_ms, key=live.key, value=live.value)
        )
        run_bytes += len(live.key) + len(live.value)
    if run:
        batches.append(bytes(encode_batch(run)))
    return b"".join(batches)


# --- restoring -------------------------------------------------------------------------------


def read_group_state(store: ObjectStore, partition: int) -> LiveRecords | None:
    """What the bucket has of one partition of `__consumer_offsets`; None if nothing. Blocks.

    Raises CorruptRecords and what the store raises.
    """
    try:
        content = store.get(group_state_key(partition))
    except ObjectNotFound:
        return None
    if not content:
        # Where nothing counts, there is the batch without records still.
        raise CorruptRecords(f"{group_state_key(partition)} is empty")
    end = 0
    for batch in iter_batches(content):
        check_crc(content, batch.header, batch.position)
        end = batch.position + batch.header.size_bytes
    if end != len(content):
        raise CorruptRecords(f"{group_state_key(partition)} ends inside a batch")
    live = LiveRecords()
    live.take(content, 0)
    return live


def clamped(
    records: Iterable[LiveRecord], end_of: Callable[[TopicPartition], Offset | None]
) -> Iterator[LiveRecord]:
    """The records, with no offset above the end of its restored log.

    Records above it are lost, and their offsets will be given to others: a consumer that went on
    at its old offset would skip those. `end_of` answers None for a partition that is not there.
    """
    for live in records:
        yield _clamped(live, end_of)


def _clamped(live: LiveRecord, end_of: Callable[[TopicPartition], Offset | None]) -> LiveRecord:
    try:
        key = decode_key(live.key)
        if not isinstance(key, OffsetCommitKey):
            return live
        value: OffsetCommitValue = decode_offset_commit(live.value)
    except UnreadableRecord:
        return live
    end_offset = end_of(TopicPartition(key.topic, key.partition))
    if end_offset is None or value.offset <= end_offset:
        return live
    return replace(live, value=encode_offset_commit(replace(value, offset=end_offset)))


def write_group_state(local: LocalLog, records: Iterable[LiveRecord]) -> None:
    """Fills an empty log. Raises DiskError."""
    content = bytearray(encode_live(records))
    for batch in iter_batches(content):
        view = memoryview(content)[batch.position : batch.position + batch.header.size_bytes]
        local.append(view, leader_epoch=0, origin=AppendOrigin.COORDINATOR)


# --- keeping the bucket up to date -----------------------------------------------------------


class _GroupsFenced(TierError):
    """Somebody wrote over what this process wrote."""


class _Shadow:
    """One partition as the bucket has it, or will."""

    def __init__(self) -> None:
        self.live = LiveRecords()
        self.next_offset: Offset | None = None
        # Since when nothing was left to be read.
        self.read_s = 0.0
        self.written_offset: Offset = -1
        self.etag: str | None = None
        self.is_known = False
        # Whether what lies there is this process's last write.
        self.is_ours = False

    def forget(self) -> None:
        """The bucket has nothing of it any more."""
        self.is_known = self.is_ours = False
        self.written_offset = -1


class GroupArchive:
    """Writes what has changed; see the top of this file. Used on the event loop only."""

    def __init__(
        self,
        store: ObjectStore,
        logs: Callable[[], Iterable[UnifiedLog]],
        *,
        executor: Executor,
        clock: Clock,
    ) -> None:
        """`logs` gives those of `__consumer_offsets` that this broker leads now."""
        self._store = store
        self._logs = logs
        self._executor = executor
        self._clock = clock
        self._shadows: dict[tuple[object, int], _Shadow] = {}
        self._state = RetryState("groups", "__consumer_offsets", policy=RetryPolicy(), clock=clock)
        self._is_fenced = False
        # Objects that this process wrote, and that were gone.
        self.deleted_count = 0
        # What a thread does for this, though nobody may wait for it any more.
        self._under_way: asyncio.Future[None] | None = None
        # Partitions for the last write, each read to its end: half of one would bury the rest.
        self._rest: dict[int, _Shadow] = {}

    async def run_once(self) -> int:
        """Writes the partitions that have changed; how many. What failed is tried again."""
        written = 0
        for unified_log in tuple(self._logs()):
            if self._is_fenced or not self._state.may_try:
                return written
            try:
                written += await self._follow(unified_log)
            except _GroupsFenced as error:
                self._is_fenced = True
                log.error(
                    "another broker writes the groups of this archive, this one stops to",
                    extra={"fields": {"key": error.key}},
                )
            except (StorageError, RecordsRejected) as error:
                self._state.failed(error)
            else:
                self._state.succeeded()
        return written

    async def look(self) -> None:
        """What was deleted in the bucket is written again by the next run. Raises StorageError."""
        loop = asyncio.get_running_loop()
        written = [(key[1], shadow) for key, shadow in self._shadows.items() if shadow.is_ours]
        gone = await loop.run_in_executor(
            self._executor, _gone, self._store, frozenset(number for number, _ in written)
        )
        for number, shadow in written:
            if number in gone:
                shadow.forget()
        if gone:
            self.deleted_count += len(gone)
            log.warning(
                "offsets of groups were deleted in the bucket, they are written again",
                extra={"fields": {"objects": [group_state_key(number) for number in sorted(gone)]}},
            )

    async def read_rest(self) -> None:
        """Before the logs are closed: reads what `write_rest` is to write, and asks no store.

        Raises StorageError, RecordsRejected.
        """
        await self._settle()
        for unified_log in tuple(self._logs()):
            shadow = await self._read_on(unified_log)
            if shadow is not None:
                self._rest[unified_log.topic_partition.partition] = shadow

    async def write_rest(self) -> int:
        """Writes what `read_rest` read to its end, side by side; how many partitions.

        `run_once` may have been cancelled before, but nobody runs it any more. What cannot be
        written is left out.
        """
        await self._settle()
        if self._is_fenced:
            return 0
        loop = asyncio.get_running_loop()
        outcomes = await asyncio.gather(
            *(
                loop.run_in_executor(self._executor, _write, self._store, number, shadow)
                for number, shadow in self._rest.items()
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, StorageError):
                self._state.failed(outcome)
            elif outcome is not None:
                raise outcome
        return outcomes.count(None)

    async def _settle(self) -> None:
        """Waits for what was begun for somebody who was cancelled.

        Two writes of one partition at a time would take each other for another broker's.
        """
        if self._under_way is not None:
            await asyncio.wait((self._under_way,))

    async def _in_thread(self, call: Callable[[], None]) -> None:
        under_way = asyncio.get_running_loop().run_in_executor(self._executor, call)
        under_way.add_done_callback(_look_at_failure)
        self._under_way = under_way
        await result_of(under_way)

    async def _follow(self, unified_log: UnifiedLog) -> bool:
        shadow = await self._read_on(unified_log)
        if shadow is None:
            return False
        number = unified_log.topic_partition.partition
        await self._in_thread(partial(_write, self._store, number, shadow))
        return True

    async def _read_on(self, unified_log: UnifiedLog) -> _Shadow | None:
        """Reads what was appended since the last time; None if the bucket has all of it."""
        number = unified_log.topic_partition.partition
        shadow = self._shadows.setdefault((unified_log.topic_id, number), _Shadow())
        stable_offset = unified_log.last_stable_offset
        now_s = self._clock.monotonic_s()
        if shadow.next_offset is None:
            shadow.next_offset = unified_log.log_start_offset
        if stable_offset == shadow.written_offset or stable_offset == shadow.next_offset == 0:
            shadow.read_s = now_s
            return None
        if now_s - shadow.read_s >= unified_log.local.config.delete_retention_ms / 1000:
            # Compaction may have taken tombstones away that were not read: who goes on from here
            # keeps, and restores, groups that are gone.
            shadow.live, shadow.next_offset = LiveRecords(), unified_log.log_start_offset
        while shadow.next_offset < stable_offset:
            await self._in_thread(partial(_take_chunk, unified_log, shadow))
        shadow.read_s = now_s
        return shadow


def _look_at_failure(under_way: asyncio.Future[None]) -> None:
    """Nobody may wait for it, and then nobody is to be warned of that."""
    if not under_way.cancelled():
        under_way.exception()


def _take_chunk(unified_log: UnifiedLog, shadow: _Shadow) -> None:
    """Reads on from where it came to. Blocks."""
    offset = max(shadow.next_offset or 0, unified_log.log_start_offset)
    found = unified_log.read(offset, bytes_max=CHUNK_BYTES, isolation=Isolation.READ_COMMITTED)
    if found is None or found.range is None:
        shadow.next_offset = unified_log.last_stable_offset
    else:
        shadow.next_offset = shadow.live.take(found.range.read(), offset)


def _write(store: ObjectStore, number: int, shadow: _Shadow) -> None:
    """Blocks. Raises StorageError."""
    assert shadow.next_offset is not None
    key = group_state_key(number)
    if not shadow.is_known:
        try:
            shadow.etag = store.head(key).etag
        except ObjectNotFound:
            shadow.etag = None
        shadow.is_known = True
    condition: PutCondition = IfAbsent() if shadow.etag is None else IfMatches(shadow.etag)
    content = encode_live(shadow.live) + _unlike_all_others()
    try:
        shadow.etag = store.put(key, content, condition=condition).etag
    except StorageError as error:
        is_changed = shadow.is_ours and isinstance(error, PreconditionFailed)
        if is_changed and not _gone(store, {number}):
            raise _GroupsFenced(key, "put", "somebody wrote over this broker's groups") from error
        # It may be there or not: look again before the next attempt.
        shadow.is_known = shadow.is_ours = False
        raise
    shadow.is_ours = True
    shadow.written_offset = shadow.next_offset


def _gone(store: ObjectStore, numbers: Collection[int]) -> frozenset[int]:
    """Those of the objects that are not there. Blocks. Raises StorageError."""
    listed = {info.key for info in store.list(GROUPS_PREFIX)} if numbers else set()
    unlisted = [number for number in numbers if group_state_key(number) not in listed]
    # A listing may lag; asked by its name it is there.
    return frozenset(number for number in unlisted if not _is_there(store, group_state_key(number)))


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFound:
        return False
    return True


def _unlike_all_others() -> bytes:
    """A batch without records and with a producer that nobody is."""
    record = Record(offset=0, timestamp_ms=0, key=None, value=None)
    return empty_batch(encode_batch([record], producer_id=secrets.randbits(63)))
