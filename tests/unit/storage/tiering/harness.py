"""One partition over both tiers without a broker: a manual clock, a store, and a way to crash.

async with Rig(tmp_path) as rig:
    rig.produce(10)            # one batch
    rig.roll()
    await rig.settle()         # whatever tiering and retention would do by now
    await rig.crash()          # forget everything that is not on disk or in the store

async with Rig(tmp_path, config=COMPACTED) as rig:
    rig.put((b"key", b"1"))    # one batch
    rig.seal()
    await rig.clean()          # one round of the local cleaner
    await rig.settle()
    await rig.assert_nothing_is_lost()
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ParamSpec
from uuid import UUID

import pytest

from strandline.retention.enforcer import RetentionEnforcer
from strandline.retention.jump_guard import JumpGuard
from strandline.storage.concurrency.alterations import Alterations
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.cleaner.cleaner import CleanerConfig, LogCleaner
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.log.log import AppendInfo, AppendOrigin, LocalLog
from strandline.storage.local.log_dirs import missing_folder_mark
from strandline.storage.model import Isolation, TopicIdPartition, TopicPartition
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.records.compression import Codec
from strandline.storage.remote.keys import manifest_key
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.topic_info import TopicInfo
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.reader.cold_reader import ColdReader
from strandline.storage.tiering.audit.scrub import Depth, Scrub
from strandline.storage.tiering.copy.inspection import SegmentFacts
from strandline.storage.tiering.copy.inspector import InspectionRequest, SegmentInspector, carry_out
from strandline.storage.tiering.log.statistics import PartitionStatistics
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.manager.manager import TieringManager
from strandline.storage.tiering.partition.config import TieringConfig, TieringExecutors
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.retry import RetryPolicy
from tests.sim.loop import VirtualClock
from tests.sim.loop import run as run_virtually
from tests.sim.pools import InlinePool
from tests.support.lone_replica import append_alone
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.unit.storage.local.compaction import InlineProcess, InThisThread
from tests.unit.storage.tiering.threaded_cleaner import ThreadedCleaner

TOPIC = "flights"
TOPIC_ID = UUID("6f8c9a52-6d0c-4a4e-9f5b-0d6a3f1b2c3d")
PARTITION = TopicPartition(TOPIC, 0)
ID_PARTITION = TopicIdPartition(TOPIC, TOPIC_ID, 0)
GRACE_MS = 60_000
# No local file outlives its segment in these tests, and nothing ages unless a test says so.
CONFIG = LogConfig(
    remote_storage_enable=True,
    retention_ms=-1,
    retention_bytes=-1,
    local_retention_ms=1000,
    file_delete_delay_ms=0,
    segment_bytes=1 << 30,
)
COMPACTED = replace(
    CONFIG,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=10_000,
    segment_bytes=4000,
)

# A test that hangs fails after this; each takes milliseconds, or seconds on a loaded machine.
TEST_S_MAX = 120.0

P = ParamSpec("P")


def asynchronous(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Runs a coroutine test on a loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(TEST_S_MAX):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


def virtual(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Runs a coroutine test in virtual time; its rig needs a VirtualClock."""

    @functools.wraps(test)
    def play(*args: P.args, **kwargs: P.kwargs) -> None:
        async def played() -> None:
            await test(*args, **kwargs)

        run_virtually(played)

    return play


async def _forget_time(_now_ms: int) -> None:
    """These logs have no folder beside them for it."""


class DirectInspector(SegmentInspector):
    """Inspects in this process: the same pass without the child."""

    def inspect(self, request: InspectionRequest, *, timeout_s: float) -> SegmentFacts:
        return carry_out(request)


@dataclass(slots=True, kw_only=True)
class Executors:
    """One thread each, so that steps come in a fixed order, unless a test asks for more copies."""

    copies: Executor
    metadata: Executor
    reads: Executor

    @classmethod
    def inline(cls) -> Executors:
        """Without threads, for a loop of virtual time."""
        return cls(copies=InlinePool(), metadata=InlinePool(), reads=InlinePool())

    @classmethod
    def new(cls, copies: int = 1) -> Executors:
        return cls(
            copies=ThreadPoolExecutor(copies),
            metadata=ThreadPoolExecutor(1),
            reads=ThreadPoolExecutor(4),
        )

    def shutdown(self) -> None:
        for executor in (self.copies, self.metadata, self.reads):
            executor.shutdown()


class Rig:
    """A partition with its tiering, its retention and its cleaner."""

    def __init__(
        self,
        folder: Path,
        *,
        config: LogConfig = CONFIG,
        store: ObjectStore | None = None,
        grace_ms: int = GRACE_MS,
        leader_epoch: int = 1,
        inspector: SegmentInspector | None = None,
        merge_target_bytes: int = 0,
        clock: ManualClock | VirtualClock | None = None,
        copies: int = 1,
        alterations: Alterations | None = None,
    ) -> None:
        self.folder = folder / str(PARTITION)
        self.checkpoint_path = folder / "log-start-offset-checkpoint"
        self.clock = clock or ManualClock()
        self.config = config
        self.memory = MemoryStore(clock=self.clock)
        self.store: ObjectStore = store or self.memory
        self.leader_epoch = leader_epoch
        self.alterations = alterations
        self.copies = copies
        self.tiering_config = TieringConfig(
            task_interval_ms=50,
            workers=copies,
            delete_grace_ms=grace_ms,
            merge_target_bytes=merge_target_bytes,
            retry=RetryPolicy(backoff_ms=500, jitter=0),
        )
        self.inspector = inspector or DirectInspector(self.clock)
        is_virtual = isinstance(self.clock, VirtualClock)
        self.executors = Executors.inline() if is_virtual else Executors.new(self.copies)
        # Whether there is no other replica: what is appended moves the high watermark.
        self.is_alone = True
        self.sent: list[bytes] = []
        # The last value of each key that `put` appended.
        self.latest: dict[bytes, bytes | None] = {}
        # The cleaner's checkpoint, as LogDirs keeps it.
        self.cleaned_offset: int | None = None
        self.purged: list[TopicInfo] = []
        # The next start begins with it.
        self.lead = Lead.CONFIRMED
        # Whether this broker purges, of several.
        self.is_caretaker = True
        self.log: UnifiedLog
        self._reader: ColdReader | None = None
        self.manager: TieringManager
        self.enforcer: RetentionEnforcer

    async def __aenter__(self) -> Rig:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self.executors.shutdown()
        if self._reader is not None:
            # It may have a child process, which would live as long as this one.
            self._reader.close()

    @property
    def reader(self) -> ColdReader:
        """The reader of the running process."""
        assert self._reader is not None
        return self._reader

    # --- starting and stopping ---------------------------------------------------------------

    async def open(self, *, clean: bool = False, start: bool = True) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        log_start = checkpoint.read_offsets(self.checkpoint_path).get(PARTITION)
        local = LocalLog.open(
            self.folder,
            topic_partition=PARTITION,
            topic_id=TOPIC_ID,
            config=self.config,
            clock=self.clock,
            recovery_point=0,
            log_start_offset=log_start or 0,
            clean_shutdown=clean,
            was_compacted=self.cleaned_offset is not None,
        )
        local.cleaned_offset = self.cleaned_offset
        local.advance_high_watermark(local.end_offset)
        self.log = UnifiedLog(local, log_start_offset=log_start)
        self.guard = JumpGuard(self.clock)
        self._reader = ColdReader(self.store, self.executors.reads)
        self.manager = TieringManager(
            self.store,
            reader=self._reader,
            executors=TieringExecutors(
                copies=self.executors.copies, metadata=self.executors.metadata
            ),
            clock=self.clock,
            believed_ms=self.guard.now_ms,
            config=self.tiering_config,
            inspector=self.inspector,
            cleaner=ThreadedCleaner(self.clock),
            on_topic_purged=self.purged.append,
            lead=self.lead,
            is_caretaker=lambda: self.is_caretaker,
            alterations=self.alterations,
        )
        self.attach()
        self.enforcer = RetentionEnforcer(
            lambda: [self.log],
            write_log_starts=self.write_log_starts,
            purge_deleted=self._purge_deleted,
            wake_tiering=self.manager.wake,
            clock=self.clock,
            guard=self.guard,
            note_time=_forget_time,
            interval_ms=50,
        )
        if start:
            await self.manager.start()

    async def _purge_deleted(self, now_s: float) -> None:
        self.log.local.purge_deleted(now_s)

    def attach(self) -> None:
        self.manager.attach(self.log, self.topic_info, leader_epoch=self.leader_epoch)

    async def crash(self, *, start: bool = True) -> None:
        """The process dies and comes back: only files and objects are left."""
        self._end()
        self.executors = Executors.new(self.copies)
        self.leader_epoch += 1
        await self.open(start=start)

    async def lose_disk(self) -> None:
        """The machine is replaced: only objects are left."""
        shutil.rmtree(self.folder)
        missing_folder_mark.make_marked(self.folder)
        self.checkpoint_path.unlink(missing_ok=True)
        self.cleaned_offset = None
        await self.crash()

    async def write_log_starts(self) -> frozenset[Path]:
        checkpoint.write_offsets(self.checkpoint_path, {PARTITION: self.log.log_start_offset})
        return frozenset()

    @property
    def topic_info(self) -> TopicInfo:
        return TopicInfo(topic=TOPIC, topic_id=TOPIC_ID, partition_count=1)

    # --- doing -------------------------------------------------------------------------------

    def produce(self, record_count: int = 10, *, timestamp_ms: int | None = None) -> None:
        """Appends one batch."""
        base_ms = self.clock.now_ms() if timestamp_ms is None else timestamp_ms
        batch = bytearray(
            encode_batch(
                [
                    Record(
                        offset=index,
                        timestamp_ms=base_ms + index,
                        key=None,
                        value=f"{self.log.end_offset + index}".encode(),
                    )
                    for index in range(record_count)
                ]
            )
        )
        self.append(batch)
        self.sent.append(bytes(batch))

    def put(
        self,
        *records: tuple[bytes, bytes | None],
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
    ) -> None:
        """One batch of (key, value); with `producer_id` the first one of that producer."""
        first = -1 if producer_id < 0 else 0
        batch = encode_batch(
            [
                Record(offset=i, timestamp_ms=self.clock.now_ms() + i, key=key, value=value)
                for i, (key, value) in enumerate(records)
            ],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=first,
            base_sequence=first,
        )
        self.append(bytearray(batch))
        self.latest.update(records)

    def append(self, batch: bytearray, *, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendInfo:
        append = append_alone if self.is_alone else UnifiedLog.append
        return append(self.log, memoryview(batch), leader_epoch=self.leader_epoch, origin=origin)

    def roll(self) -> None:
        self.log.local.roll()

    def seal(self) -> None:
        # Segments without timestamps have the age of their file.
        for segment in self.log.local.segments:
            os.utime(segment.log_path, ns=(self.clock.now_ms() * 1_000_000,) * 2)
        self.roll()
        self.log.local.flush()

    async def clean(self) -> int:
        return await LogCleaner(
            lambda: [self.log.local],
            offsets=_CleanedOffset(self),
            executor=InThisThread(),
            clock=self.clock,
            settings=CleanerConfig,
            believed_ms=self.guard.now_ms,
            make_process=InlineProcess,  # type: ignore[arg-type]
        ).run_once()

    def produce_segments(self, count: int, record_count: int = 10) -> None:
        """`count` closed segments of one batch each; the active one is empty."""
        for _ in range(count):
            self.produce(record_count)
            self.roll()

    async def settle(self) -> int:
        """Tiering, retention, tiering: all that is due; returns the number of freed segments."""
        await self.manager.run_once()
        freed_count = await self.enforcer.run_once()
        await self.manager.run_once()
        return freed_count

    def pass_ms(self, delta_ms: int) -> None:
        self.clock.advance_ms(delta_ms)

    def configure(self, **changes: object) -> None:
        self.config = replace(self.config, **changes)  # type: ignore[arg-type]  # tests' words
        self.log.local.update_config(self.config)

    # --- looking -----------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest | None:
        """The manifest in the store, not the one that the broker holds."""
        if self.store is not self.memory:
            stored = manifest_store.load(self.store, ID_PARTITION)
            return None if stored is None else stored.manifest
        # The planted faults do not apply: this is no request of the broker.
        found = self.memory._objects.get(self.manifest_key)
        return None if found is None else Manifest.decode(found.body)

    @property
    def manifest_key(self) -> str:
        return manifest_key(ID_PARTITION)

    @property
    def statistics(self) -> PartitionStatistics:
        found = self.manager.statistics_of(self.log.topic_partition)
        assert found is not None
        return found

    @property
    def reasons(self) -> list[str]:
        return [segment.reason for segment in self.statistics.pending]

    @property
    def local_segments(self) -> list[tuple[int, int]]:
        return [(s.base_offset, s.end_offset) for s in self.log.local.segments]

    @property
    def archived(self) -> list[tuple[int, int]]:
        manifest = self.manifest
        entries = () if manifest is None else manifest.segments
        return [(entry.base_offset, entry.end_offset) for entry in entries]

    def data_keys(self) -> list[str]:
        """Keys of segment objects in the store."""
        return [
            info.key
            for info in self.store.list("topics/")
            if info.key.endswith((".log", ".meta", ".tail"))
        ]

    async def read(
        self,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> tuple[bytes, int]:
        """One fetch, from whichever tier: its batches, and the offset of the next one."""
        local = self.log.read(offset, bytes_max=bytes_max, isolation=isolation)
        if local is not None:
            assert local.range is not None or offset >= self.log.high_watermark
            return b"" if local.range is None else local.range.read(), local.next_offset
        cold = await self.log.read_remote(offset, bytes_max=bytes_max, isolation=isolation)
        return b"".join(cold.buffers), cold.next_offset

    async def read_all(self, from_offset: int | None = None) -> bytes:
        """Every batch from `from_offset` (the log start) to the high watermark."""
        offset = self.log.log_start_offset if from_offset is None else from_offset
        found: list[bytes] = []
        while offset < self.log.high_watermark:
            content, offset = await self.read(offset)
            found.append(content)
        return b"".join(found)

    async def records(self, from_offset: int | None = None) -> list[Record]:
        content = await self.read_all(from_offset)
        return [
            record
            for batch in walk(content)
            for record in iter_records(content, batch.header, batch.position)
        ]

    async def assert_everything_is_readable(self) -> None:
        """All that was ever sent comes back, byte for byte, from the log start on."""
        expected = b"".join(self.sent)
        assert self.log.log_start_offset == 0
        assert await self.read_all(0) == expected

    async def assert_nothing_is_lost(self) -> None:
        """A reader from the beginning ends with the latest value of every key."""
        table: dict[bytes, bytes | None] = {}
        offsets: list[int] = []
        for record in await self.records():
            assert record.key is not None
            table[bytes(record.key)] = None if record.value is None else bytes(record.value)
            offsets.append(record.offset)
        assert offsets == sorted(set(offsets))
        assert living(table) == living(self.latest)

    def assert_archive_is_whole(self) -> None:
        with ThreadPoolExecutor(2) as executor:
            report = Scrub(self.store, executor, depth=Depth.EVERYTHING).check(ID_PARTITION)
        assert report.findings == ()


def keys_of(manifest: Manifest | None) -> set[str]:
    """Object keys that the manifest names as data."""
    if manifest is None:
        return set()
    segments = {key for entry in manifest.segments for key in (entry.log_key, entry.meta_key)}
    return segments | {part.key for part in manifest.tail}


def living(table: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in table.items() if value is not None}


async def in_three_segments(rig: Rig) -> None:
    """An archive of keyed records that no round has compacted yet, nor will until it is told to."""
    rig.configure(min_cleanable_dirty_ratio=1.0)
    for value in (b"1", b"2", b"3"):
        rig.put((b"a", value), (b"only-" + value, value))
        rig.seal()
        await rig.clean()
        await rig.settle()


class _CleanedOffset:
    """The cleaner's checkpoint, which a crash leaves."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def cleaned_offset(self, _opened: LocalLog) -> int | None:
        return self._rig.cleaned_offset

    def write_cleaned_offset(self, opened: LocalLog, offset: int) -> None:
        self._rig.cleaned_offset = opened.cleaned_offset = offset


def make_small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three entries in the root, two in a page: pages after four segments."""
    small = partial(manifest_store.commit, root_entries_max=3, page_entries=2, page_entries_max=2)
    monkeypatch.setattr(manifest_store, "commit", small)
