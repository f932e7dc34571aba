"""A log that is compacted inside the test, and what its readers get from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from strandline.retention.jump_guard import JumpGuard
from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.cleaner.cleaner import CleanerConfig, LogCleaner
from strandline.storage.local.cleaner.cleaning import Cleaning
from strandline.storage.local.cleaner.messages import (
    CleanedGroup,
    CleaningRequest,
    CleaningStatistics,
)
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import AbortedTransaction
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.records.compression import Codec
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import NOW_MS, PARTITION, TOPIC_ID, append, read_bytes

CONFIG = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=2000,
    index_interval_bytes=200,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=10_000,
    file_delete_delay_ms=0,
)


class InlineProcess:
    """Stands for the child process: the same cleaning, without another interpreter."""

    def __init__(self, _clock: Clock, *, compiled: bool = False) -> None:
        self.compiled = compiled
        self.requests: list[CleaningRequest] = []

    def begin(self, request: CleaningRequest) -> None:
        self.requests.append(request)
        self._cleaning = Cleaning(request, spend=lambda _size_bytes: None, compiled=self.compiled)
        self._groups = self._cleaning.groups()

    def next(self, *, io_bytes_per_s: object = None) -> CleanedGroup | CleaningStatistics:
        return next(self._groups, None) or self._cleaning.statistics

    def proceed(self) -> None: ...

    def stop(self) -> None:
        self._groups.close()  # type: ignore[attr-defined]

    def abandon(self) -> None: ...

    def end_if_idle(self) -> None: ...

    def close(self) -> None: ...


class InThisThread(ThreadPoolExecutor):
    """Runs at once: a simulated crash must not be lost in a worker thread."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        from concurrent.futures import Future

        future: Future[object] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@dataclass
class CompactedLog:
    """One compacted log in a folder of its own, and its cleaner."""

    folder: Path
    config: LogConfig = CONFIG
    compiled: bool = False
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    settings: CleanerConfig = field(default_factory=CleanerConfig)

    def __post_init__(self) -> None:
        self.dirs = self._open_dirs()
        self.log = self.dirs.create_log(PARTITION, TOPIC_ID, self.config)
        self._make_cleaner()

    def _open_dirs(self) -> LogDirs:
        return LogDirs.open([self.folder], node_id=1, cluster_id=None, clock=self.clock)

    def _make_cleaner(self) -> None:
        self.process = InlineProcess(self.clock, compiled=self.compiled)
        self.cleaner = LogCleaner(
            lambda: [self.log],
            offsets=self.dirs,
            executor=InThisThread(),
            clock=self.clock,
            settings=lambda: self.settings,
            believed_ms=JumpGuard(self.clock).now_ms,
            make_process=lambda _clock: self.process,  # type: ignore[arg-type,return-value]
        )

    @property
    def directory(self) -> Path:
        return self.log.directory

    @property
    def cleaned_offset(self) -> int | None:
        return self.dirs.cleaned_offset(self.log)

    def append(self, *records: tuple[bytes | None, bytes | None], **fields: object) -> int:
        """A batch of (key, value); its base offset."""
        batch = [
            Record(offset=i, timestamp_ms=self.clock.now_ms() + i, key=key, value=value)
            for i, (key, value) in enumerate(records)
        ]
        encoded = memoryview(bytearray(encode_batch(batch, **fields)))  # type: ignore[arg-type]
        return append(self.log, encoded).base_offset

    def seal(self) -> None:
        """Everything so far may be cleaned."""
        self.log.roll()
        self.log.flush()

    def clean(self) -> int:
        """Cleans until nothing is due; how often it did."""
        return asyncio.run(self.cleaner.run_once())

    def seal_and_clean(self) -> None:
        self.seal()
        assert self.clean() >= 1

    def kill_and_reopen(self, *, config: LogConfig | None = None) -> None:
        """The process dies; the next one recovers."""
        for directory in self.dirs.directories:
            directory.unlock()
        self.dirs = self._open_dirs()
        loaded = self.dirs.load(lambda _key, _topic_id: config or self.config)
        self.log = loaded[PARTITION]
        self.log.advance_high_watermark(self.log.end_offset)
        self._make_cleaner()

    # --- what readers see --------------------------------------------------------------------

    def headers(self) -> list[BatchHeader]:
        return [batch.header for batch in walk(read_bytes(self.log))]

    def records(self) -> list[Record]:
        """What a read_uncommitted consumer gets."""
        return [record for _, record in self._walk(read_bytes(self.log))]

    def committed(self) -> list[Record]:
        """What a read_committed consumer gets, filtered as clients do it."""
        log = self.log
        content = read_bytes(log)
        aborted = log.aborted_transactions(log.start_offset, log.last_stable_offset)
        return [
            record
            for header, record in self._walk(content)
            if header.last_offset < log.last_stable_offset and not _is_aborted(header, aborted)
        ]

    def table(self) -> dict[bytes | None, bytes | None]:
        """The latest value of each key that a consumer ends up with."""
        return {record.key: record.value for record in self.records()}

    def _walk(self, content: bytes) -> Iterator[tuple[BatchHeader, Record]]:
        for batch in walk(content):
            if not batch.header.is_control:
                for record in iter_records(content, batch.header, batch.position):
                    yield batch.header, record


def _is_aborted(header: BatchHeader, aborted: list[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        entry.producer_id == header.producer_id
        and entry.first_offset <= header.base_offset <= entry.last_offset
        for entry in aborted
    )


def close(log: LocalLog) -> None:
    log.close()


CODECS = tuple(Codec)
