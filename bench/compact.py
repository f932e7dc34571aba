"""Compaction of a log that is all dirty, by the cleaner's own process: MB of dirty log per second.

100-byte records in batches of 16 KB, keys drawn at random from a tenth as many as there are
records, so nine of ten records are superseded. The log is written by the log engine itself, synced
and in the page cache; only the cleaning is timed, from the look for work to the
checkpoint. CPU is that of the child, which has one thread: its inverse is MB/s per core.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from strandline.storage.clock import SystemClock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.cleaner.cleaner import CleanerConfig, LogCleaner
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.compression import Codec

RECORDS_PER_BATCH = 164
KEY_BYTES = 16
# With length, deltas, key and header count this makes records of 100 bytes.
VALUE_BYTES = 75
RECORD_BYTES = 100
CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
# Batches are made once and appended over and over with other keys in front of their values.
WARM_UP_BYTES = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """One cleaning. `dirty_bytes` are those of the records before they were compressed."""

    codec: str
    dirty_bytes: int
    elapsed_s: float
    child_cpu_s: float

    @property
    def mb_per_s(self) -> float:
        return self.dirty_bytes / 1e6 / self.elapsed_s

    @property
    def mb_per_cpu_s(self) -> float:
        return self.dirty_bytes / 1e6 / self.child_cpu_s


def run_compaction(folder: Path, total_bytes: int) -> Iterator[Compaction]:
    """One cleaning for each codec, after one that loads the child's libraries."""
    clock = SystemClock()
    dirs = LogDirs.open([folder], node_id=1, cluster_id=None, clock=clock)
    served: list[LocalLog] = []
    cleaner = LogCleaner(
        lambda: served,
        offsets=dirs,
        executor=ThreadPoolExecutor(1),
        clock=clock,
        settings=CleanerConfig,
    )
    config = LogConfig(cleanup_policy=("compact",), segment_bytes=256 << 20)
    try:
        for number, codec in enumerate((Codec.NONE, *CODECS)):
            name = TopicPartition(f"compacted-{number}", 0)
            opened = dirs.create_log(name, uuid.uuid4(), config)
            dirty_bytes = _fill(opened, codec, WARM_UP_BYTES if number == 0 else total_bytes)
            opened.roll()
            opened.flush()
            served[:] = [opened]
            result = _clean(cleaner, codec, dirty_bytes)
            if number:
                yield result
            dirs.delete_log(opened)
            dirs.purge_deleted(clock.monotonic_s() + 1_000_000)
    finally:
        cleaner.close()
        cleaner.end()
        dirs.close()


def _clean(cleaner: LogCleaner, codec: Codec, dirty_bytes: int) -> Compaction:
    before_s = _child_cpu_s(cleaner)
    started_s = time.perf_counter()
    cleaned_count = asyncio.run(cleaner.run_once())
    elapsed_s = time.perf_counter() - started_s
    assert cleaned_count == 1, "one pass cleans it all"
    return Compaction(
        codec=codec.name.lower(),
        dirty_bytes=dirty_bytes,
        elapsed_s=elapsed_s,
        child_cpu_s=_child_cpu_s(cleaner) - before_s,
    )


def _child_cpu_s(cleaner: LogCleaner) -> float:
    child = cleaner._processes[0]._child
    if child is None:
        return 0.0
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _fill(opened: LocalLog, codec: Codec, total_bytes: int) -> int:
    """Appends batches; the bytes of their records, uncompressed."""
    draw = random.Random(1)
    record_count = total_bytes // RECORD_BYTES
    key_count = max(1, record_count // 10)
    filler = os.urandom(VALUE_BYTES // 2).ljust(VALUE_BYTES, b"x")
    for _ in range(0, record_count, RECORDS_PER_BATCH):
        now_ms = SystemClock().now_ms()
        records = [
            Record(
                offset=offset,
                timestamp_ms=now_ms,
                key=b"%016d" % draw.randrange(key_count),
                value=filler,
            )
            for offset in range(RECORDS_PER_BATCH)
        ]
        batch = encode_batch(records, codec=codec)
        opened.append(memoryview(bytearray(batch)), leader_epoch=0)
    opened.advance_high_watermark(opened.end_offset)
    return opened.end_offset * RECORD_BYTES


def main() -> None:
    """Prints the figures by themselves: `python -m bench.compact`."""
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as folder:
        for result in run_compaction(Path(folder), 100_000_000):
            print(
                f"compact 100 B records, {result.codec}: {result.mb_per_s:.0f} MB/s,"
                f" {result.mb_per_cpu_s:.0f} MB per CPU second of the cleaner"
            )


if __name__ == "__main__":
    main()
