"""Engine `local`: reads a round in this process, a few splits at once, and writes its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.query.arrow_scan import default_threads, read_in_order
from strandline.spark_lake.table.store import WrittenFile
from strandline.spark_lake.table.sync import ROUND_BYTES, RoundTask
from strandline.storage.crash_points import TABLE_AFTER_FILE, crash_point


class LocalEngine:
    """Memory: the batches that threads have read ahead, the buffers, and one file being written."""

    round_bytes = ROUND_BYTES

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or default_threads()

    def run(
        self, task: RoundTask, reader: ObjectReader, advance: Callable[[int], None]
    ) -> Iterator[WrittenFile]:
        """The files as they are written. Raises what `Query.read` and the writer raise."""
        sink = task.sink.open()
        batches = read_in_order(task.query, task.plan, reader, threads=self._threads)
        for batch in batches:
            for file in sink.add(batch):
                yield file
                crash_point(TABLE_AFTER_FILE)
            advance(batch.num_rows)
        for file in sink.finish():
            yield file
            crash_point(TABLE_AFTER_FILE)
