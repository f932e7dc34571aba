"""Engine `local`: a few threads of this process, each of which syncs a part of a round.

    splits    [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ][ 6 ][ 7 ]     in order
    workers   [         0        ][         1        ]     of about the same bytes

Arrow, Parquet, the codecs and the compiled loops release the GIL, so two workers keep two cores
busy. They divide the memory of the buffers among them; each writes one file at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace

from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.plan.splits import SUITED_BYTES_MIN, Split
from strandline.spark_lake.query.arrow_scan import default_threads
from strandline.spark_lake.table.buffers import BUFFERS_BYTES_MAX
from strandline.spark_lake.table.engines.split_work import SplitWork, indivisible
from strandline.spark_lake.table.sync import ROUND_BYTES, RoundTask, WrittenRows


class LocalEngine:
    """Memory: the buffers of all workers together, and for each a window and one file's pages.

    Of an upsert, as much again: the newest rows.
    """

    round_bytes = ROUND_BYTES

    def __init__(self, file_bytes: int) -> None:
        self.task_slots = max(1, min(default_threads(), BUFFERS_BYTES_MAX // file_bytes))

    def run(
        self, task: RoundTask, reader: ObjectReader, advance: Callable[[int], None]
    ) -> WrittenRows:
        """Raises what `SplitWork.files` raises; then no file is left."""
        parts = indivisible(task)
        if not parts:
            return WrittenRows(files=[])
        # Of few bytes one worker makes one file.
        worker_count = min(self.task_slots, max(1, _size_bytes(parts) // SUITED_BYTES_MIN))
        shares = _equal_shares(parts, worker_count)
        sink = replace(task.sink, buffers_bytes=BUFFERS_BYTES_MAX // len(shares))
        work = SplitWork(query=task.query, sink=sink)
        steps = _SharedSteps(advance)
        with ThreadPoolExecutor(len(shares), thread_name_prefix="table-worker") as pool:
            running = [pool.submit(work.files, one, reader, steps.count) for one in shares]
            try:
                for one in as_completed(running):
                    one.result()
            except BaseException:
                steps.stop()
                pool.shutdown(wait=True)
                sink.discard(_written_by(running).files)
                raise
        return _written_by(running)


class _SharedSteps:
    """The progress of all workers, and the flag that stops them."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._lock = threading.Lock()
        self._is_stopped = False

    def count(self, rows: int) -> None:
        """Raises _Stopped, which ends its worker, once `stop` was called."""
        with self._lock:
            if self._is_stopped:
                raise _Stopped
            self._advance(rows)

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True


class _Stopped(Exception):
    """Another worker failed."""


def _written_by(done: Sequence[Future[WrittenRows]]) -> WrittenRows:
    return WrittenRows.joined([one.result() for one in done if one.exception() is None])


def _equal_shares(parts: Sequence[Sequence[Split]], count: int) -> list[list[Split]]:
    """The parts in order, as up to `count` shares of about the same bytes; none is empty."""
    total_bytes = max(1, _size_bytes(parts))
    shares: list[list[Split]] = [[] for _ in range(count)]
    position = 0
    for part in parts:
        size_bytes = _size_bytes([part])
        # The share that gets most of the part.
        number = (2 * position + size_bytes) * count // (2 * total_bytes)
        shares[min(number, count - 1)].extend(part)
        position += size_bytes
    return [one for one in shares if one]


def _size_bytes(parts: Sequence[Sequence[Split]]) -> int:
    return sum(split.size_bytes for part in parts for split in part)
