"""Engine `spark`: tasks read the splits of a round and write its files, the driver commits them.

    driver    plan -> splits -> range(n) in n partitions, `mapInArrow`
    task      its split -> rows -> files, under names of this attempt     the writer of `local`
              -> one row, with its files, pickled                         at the end, all or none
    driver    files of the attempts that Spark counts -> one commit

No jar: the code is Python in Spark's workers, which need strandline[lake,table]. An attempt that
Spark repeats, or runs twice, writes its files anew; those of an attempt that was killed are named
by no commit, until maintenance removes them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.plan.splits import SUITED_BYTES_MAX
from strandline.spark_lake.table.engines.split_work import SplitWork, indivisible
from strandline.spark_lake.table.errors import TaskFailed
from strandline.spark_lake.table.store import FileRole
from strandline.spark_lake.table.sync import ROUND_BYTES, RoundTask, WrittenRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITTEN = pa.schema([pa.field("written", pa.binary())])
_WRITTEN_DDL = "written BINARY"
# Our errors, as Spark's text of a Python worker's traceback has them.
_OURS = "strandline."


class SparkEngine:
    """Runs in the driver; `spark` is a session of Spark 4, classic or Connect."""

    def __init__(self, spark: SparkSession) -> None:
        # Load pyspark, which takes longer than a sync in this process that finds nothing.
        from strandline.spark_lake.spark.frames import task_slots
        from strandline.spark_lake.spark.source import warn_of_another_python

        warn_of_another_python(spark)
        self._spark = spark
        self.task_slots = task_slots(spark)

    @property
    def round_bytes(self) -> int:
        """Archived bytes of a round that keeps all slots busy."""
        return max(ROUND_BYTES, SUITED_BYTES_MAX * (self.task_slots or 1))

    def run(
        self, task: RoundTask, reader: ObjectReader, advance: Callable[[int], None]
    ) -> WrittenRows:
        """Raises TaskFailed with the error of a task; files of other tasks are orphans then."""
        from pyspark.errors import PySparkException

        count = len(indivisible(task))
        if not count:
            return WrittenRows(files=[])
        tasks = self._spark.range(0, count, 1, count)
        try:
            rows = tasks.mapInArrow(_work(task), _WRITTEN_DDL).collect()
        except PySparkException as error:
            raise TaskFailed(_reason(error)) from error
        written = WrittenRows.joined([pickle.loads(bytes(row.written)) for row in rows])
        advance(sum(one.record_count for one in written.files if one.role is not FileRole.REMOVED))
        return written


def _work(task: RoundTask) -> Callable[[Iterator[Any]], Iterator[Any]]:
    work = SplitWork(query=task.query, sink=task.sink)
    # Each task unpickles the whole list and needs one split: bytes are unpickled fastest.
    splits = [pickle.dumps(one) for one in indivisible(task)]

    def write(numbers: Iterator[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                share = pickle.loads(splits[number])
                written = work.files(share, work.query.open(), lambda _: None)
                pickled = pa.array([pickle.dumps(written)], pa.binary())
                yield pa.RecordBatch.from_arrays([pickled], schema=_WRITTEN)

    return write


def _reason(error: Exception) -> str:
    """The message of the task's own error, which Spark wraps in stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(_OURS)]
    if ours:
        return ours[-1].partition(": ")[2]
    return f"a task of Spark failed: {type(error).__name__}: {lines[0] if lines else ''}"
