"""What a sync would read, write and cost. Reads manifests and the table's metadata.

What an upsert rewrites of the table depends on keys, which only the sync reads. So the plan has two
bounds, of the table as it is now: no file has a key of a commit, or each commit rewrites all files
of the partitions that it changes. Files that the sync itself adds come on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.spark_lake.plan.planner import OffsetRange, ScanPlan
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.query.query_log import planned_requests
from strandline.spark_lake.table.archive import (
    check_identity,
    check_is_ahead,
    load_view,
    missing_ranges,
)
from strandline.spark_lake.table.offsets import TableOffsets
from strandline.spark_lake.table.store import WrittenFile
from strandline.storage.model import TopicPartition

# Manifest, list of manifests, metadata file.
PUTS_OF_COMMIT = 3
# Of a file of the table, about: its length, its footer, and a column.
GETS_OF_KEYS = 3
# The same, and the other columns one by one; tables have some tens of them.
GETS_OF_REWRITTEN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """The table's files, as they are now, whose keys each commit of an upsert reads.

    It rewrites those that have one of its keys: none at least, all at most.
    """

    file_count: int
    size_bytes: int
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """What the table lacks of the archive, and the requests to bring it over."""

    table: str
    topic: str
    # None if a sync would make the table.
    has: TableOffsets | None
    ranges: Mapping[TopicPartition, OffsetRange]
    scan: ScanPlan
    # Of an upsert at least: a commit ends where decoded rows fill the memory.
    commits: int
    # To add the rows, at least: rows of more days are more files.
    puts: int
    # None if rows are appended.
    rewriting: Rewriting | None = None

    @property
    def offset_count(self) -> int:
        return sum(one.offset_count for one in self.ranges.values())

    @property
    def gets(self) -> int:
        return planned_requests(self.scan.splits) + self._rewritten_files * GETS_OF_KEYS

    @property
    def gets_max(self) -> int:
        """About, if each commit of an upsert rewrites all files that it looks at."""
        return self.gets + self._rewritten_files * GETS_OF_REWRITTEN

    @property
    def puts_max(self) -> int:
        return self.puts + self._rewritten_files

    @property
    def rewritten_bytes_max(self) -> int:
        return 0 if self.rewriting is None else self.commits * self.rewriting.size_bytes

    @property
    def _rewritten_files(self) -> int:
        return 0 if self.rewriting is None else self.commits * self.rewriting.file_count

    def cost(self, prices: Mapping[str, float]) -> float:
        """In the money of the prices, which are for 1,000 requests."""
        return (self.gets * prices["GET"] + self.puts * prices["PUT"]) / 1000

    def cost_max(self, prices: Mapping[str, float]) -> float:
        return (self.gets_max * prices["GET"] + self.puts_max * prices["PUT"]) / 1000


def plan_sync(
    query: Query,
    table: str,
    has: TableOffsets | None,
    *,
    round_bytes: int,
    file_bytes: int,
    new_incarnation: bool,
    existing: Mapping[int, Sequence[WrittenFile]] | None,
) -> TablePlan:
    """`existing` are the table's files by partition, for an upsert; None: rows are appended.

    Raises what a sync raises before it writes.
    """
    reader = query.open()
    view = load_view(query, reader)
    if has is not None:
        check_identity(view, has, new_incarnation=new_incarnation)
        check_is_ahead(query, view, has, reader)
    ranges = missing_ranges(
        view,
        has or TableOffsets(topic=view.topic),
        {one: selected.end_offset for one, selected in view.selected.items()},
        fail_on_data_loss=query.options.fail_on_data_loss,
    )
    scan = query.plan_ranges(reader, view.partitions, ranges)
    commits = -(-scan.bytes_planned // round_bytes) if ranges else 0
    commits = max(commits, 1) if ranges else 0
    files = max(commits, -(-scan.bytes_planned // file_bytes)) if ranges else 0
    return TablePlan(
        table=table,
        topic=view.topic,
        has=has,
        ranges=ranges,
        scan=scan,
        commits=commits,
        puts=files + commits * PUTS_OF_COMMIT,
        rewriting=None if existing is None else _rewriting(existing, ranges),
    )


def _rewriting(
    existing: Mapping[int, Sequence[WrittenFile]], ranges: Mapping[TopicPartition, OffsetRange]
) -> Rewriting:
    found = {one.partition: existing.get(one.partition, ()) for one in ranges}
    files = [file for some in found.values() for file in some]
    return Rewriting(
        file_count=len(files),
        size_bytes=sum(one.size_bytes for one in files),
        partition_count=sum(map(bool, found.values())),
    )
