"""A compacted log over both tiers without a broker, its cleaner, and a consumer that is slow."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Thread

from strandline.storage.clock import Clock, ManualClock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.cleaner.cleaner import CleanerConfig, LogCleaner
from strandline.storage.local.cleaner.messages import CleaningRequest
from strandline.storage.local.cleaner.process import CleanerProcess, serve
from strandline.storage.local.log.log import LocalLog
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.records.compression import Codec
from strandline.storage.system.child_process import ChildFailed, ChildProcess
from strandline.storage.tiering.audit.scrub import Depth, Scrub
from tests.unit.storage.local.compaction import InlineProcess, InThisThread
from tests.unit.storage.tiering.harness import CONFIG, GRACE_MS, ID_PARTITION, Rig

DELETE_RETENTION_MS = 1000
COMPACTED = replace(
    CONFIG,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=10_000,
    segment_bytes=4000,
)


class CompactedRig(Rig):
    """A rig with a cleaner; records have keys."""

    def __init__(
        self,
        folder: Path,
        *,
        config: LogConfig = COMPACTED,
        merge: int = 0,
        grace_ms: int = GRACE_MS,
        clock: ManualClock | None = None,
    ) -> None:
        super().__init__(
            folder, config=config, merge_target_bytes=merge, grace_ms=grace_ms, clock=clock
        )
        self.latest: dict[bytes, bytes | None] = {}

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
        self.log.append(memoryview(bytearray(batch)), leader_epoch=self.leader_epoch)
        self.latest.update(records)

    def seal(self) -> None:
        # Segments without timestamps have the age of their file.
        for segment in self.log.local.segments:
            os.utime(segment.log_path, ns=(self.clock.now_ms() * 1_000_000,) * 2)
        self.roll()
        self.log.local.flush()

    async def clean(self) -> int:
        return await LogCleaner(
            lambda: [self.log.local],
            offsets=_Offsets(self),
            executor=InThisThread(),
            clock=self.clock,
            settings=CleanerConfig,
            believed_ms=self.guard.now_ms,
            make_process=InlineProcess,  # type: ignore[arg-type]
        ).run_once()

    def make_cleaner(self) -> CleanerProcess:
        return ThreadedCleaner(self.clock)

    # --- looking -------------------------------------------------------------------------------

    async def records(self, from_offset: int | None = None) -> list[Record]:
        content = await self.read_all(from_offset)
        return [
            record
            for batch in walk(content)
            for record in iter_records(content, batch.header, batch.position)
        ]

    async def some_records(self, offset: int) -> list[tuple[BatchHeader, Record | None]]:
        """What one small fetch gives; a batch without records comes with None."""
        found: list[tuple[BatchHeader, Record | None]] = []
        for content in await self._fetch(offset):
            for batch in walk(content):
                records = list(iter_records(content, batch.header, batch.position))
                found += [(batch.header, record) for record in records or (None,)]
        return found

    async def _fetch(self, offset: int) -> list[bytes]:
        local = self.log.read(offset, bytes_max=1)
        if local is not None:
            return [local.range.read()] if local.range is not None else []
        return [
            bytes(buffer) for buffer in (await self.log.read_remote(offset, bytes_max=1)).buffers
        ]

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


class _ThreadChild(ChildProcess):
    """Speaks as a child does, from a thread of the test."""

    def __init__(self, clock: Clock) -> None:
        self.connection, theirs = Pipe(duplex=True)
        Thread(target=serve, args=(theirs, clock), daemon=True).start()

    def died(self) -> ChildFailed:
        return ChildFailed("the thread ended")

    def end(self) -> None:
        self.connection.close()

    def abandon(self) -> None: ...

    def kill(self) -> None:
        self.connection.close()

    def activity(self) -> None:
        """Nobody stops a thread."""


class ThreadedCleaner(CleanerProcess):
    """The cleaner's protocol without the start of an interpreter."""

    def begin(self, request: CleaningRequest) -> None:
        self._child = self._child or _ThreadChild(self._clock)
        super().begin(request)


class _Offsets:
    """The cleaner's checkpoint, which a crash leaves."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def cleaned_offset(self, _opened: LocalLog) -> int | None:
        return self._rig.cleaned_offset

    def write_cleaned_offset(self, opened: LocalLog, offset: int) -> None:
        self._rig.cleaned_offset = opened.cleaned_offset = offset


class SlowReader:
    """A consumer that reads a batch now and then; its table must be the true one when it arrives.

    Unless it takes longer than delete.retention.ms: then it may have missed a tombstone.
    """

    def __init__(self, rig: CompactedRig) -> None:
        self._rig = rig
        self._start()

    def _start(self) -> None:
        self.offset = self._rig.log.log_start_offset
        self.table: dict[bytes, bytes | None] = {}
        self._started_ms = self._rig.clock.now_ms()

    async def read(self) -> None:
        if self._rig.clock.now_ms() - self._started_ms >= DELETE_RETENTION_MS:
            self._start()
        for header, record in await self._rig.some_records(self.offset):
            self.offset = header.next_offset
            if record is not None:
                assert record.key is not None
                self.table[bytes(record.key)] = record.value and bytes(record.value)
        if self.offset == self._rig.log.end_offset:
            assert living(self.table) == living(self._rig.latest)
            self._start()


def living(table: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in table.items() if value is not None}


async def in_three_segments(rig: CompactedRig) -> None:
    """An archive that no round has compacted yet, nor will until it is told to."""
    rig.configure(min_cleanable_dirty_ratio=1.0)
    for value in (b"1", b"2", b"3"):
        rig.put((b"a", value), (b"only-" + value, value))
        rig.seal()
        await rig.clean()
        await rig.settle()
