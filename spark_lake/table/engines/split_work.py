"""Work of a round that one worker does: a thread of this process, or a task of Spark.

    splits in order -> batches -> its own sink -> its own files

Workers share nothing: each file is written by the one that read its rows, in the order of the
archive. What a worker has written when an error ends it, it deletes. If the archive is damaged, and
the second table takes what the first one cannot have, it begins anew and reads what is left.

An upsert's rows lie in memory as they are decoded, and nothing tells their size before. Where they
fill it, the worker ends its share, and the next round goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.plan.splits import Split
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.table.sink import SinkPlan
from strandline.spark_lake.table.store import WrittenFile
from strandline.spark_lake.table.sync import RoundTask, WrittenRows
from strandline.storage.crash_points import TABLE_AFTER_FILE, crash_point
from strandline.storage.errors import ObjectCorrupt
from strandline.storage.model import Offset, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWork:
    """How splits become files; picklable."""

    query: Query
    sink: SinkPlan

    def files(
        self, splits: Sequence[Split], reader: ObjectReader, advance: Callable[[int], None]
    ) -> WrittenRows:
        """Writes the rows of some splits, under names of this call. Tells `advance` their count.

        Raises what `Query.read`, the writers and `advance` raise.
        """
        try:
            return self._written(self.query, splits, reader, advance)
        except ObjectCorrupt:
            if self.sink.rejected is None:
                raise
        # Some of these rows were counted already.
        return self._written(self.query.salvaging(), splits, reader, lambda _: advance(0))

    def _written(
        self,
        query: Query,
        splits: Sequence[Split],
        reader: ObjectReader,
        advance: Callable[[int], None],
    ) -> WrittenRows:
        plan = self.sink.renamed()
        sink = plan.open()
        files: list[WrittenFile] = []
        ends: dict[TopicPartition, Offset] = {}
        try:
            for split in splits:
                if sink.is_full():
                    # Of a partition that nothing was read of.
                    ends.setdefault(split.topic_partition, split.limits.start_offset)
                    continue
                for batch in query.read(split, reader):
                    for file in sink.add(batch):
                        files.append(file)
                        crash_point(TABLE_AFTER_FILE)
                    advance(batch.num_rows)
                    if sink.is_full():
                        ends[split.topic_partition] = batch.column("offset")[-1].as_py() + 1
                        break
            for file in sink.finish():
                files.append(file)
                crash_point(TABLE_AFTER_FILE)
        except Exception:
            plan.discard(files)
            raise
        return WrittenRows(files=files, ends=ends)


def indivisible(task: RoundTask) -> list[list[Split]]:
    """The splits that one worker has to read: each by itself, or, for upserts, a partition's."""
    splits = task.plan.splits
    if task.sink.upsert is None:
        return [[split] for split in splits]
    by_partition = groupby(splits, key=lambda one: one.topic_partition)
    return [list(part) for _, part in by_partition]
