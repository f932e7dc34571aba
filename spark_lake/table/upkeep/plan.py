"""What a sync would read, write and cost. Reads manifests and the table's metadata."""

from __future__ import annotations

from collections.abc import Mapping
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
from strandline.storage.model import TopicPartition

# Manifest, list of manifests, metadata file.
PUTS_OF_COMMIT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """What the table lacks of the archive, and the requests to bring it over."""

    table: str
    topic: str
    # None if a sync would make the table.
    has: TableOffsets | None
    ranges: Mapping[TopicPartition, OffsetRange]
    scan: ScanPlan
    commits: int
    # At least: rows of more days are more files.
    puts: int

    @property
    def offset_count(self) -> int:
        return sum(one.end_offset - one.start_offset for one in self.ranges.values())

    @property
    def gets(self) -> int:
        return planned_requests(self.scan.splits)

    def cost(self, prices: Mapping[str, float]) -> float:
        """In the money of the prices, which are for 1,000 requests."""
        return (self.gets * prices["GET"] + self.puts * prices["PUT"]) / 1000


def plan_sync(
    query: Query,
    table: str,
    has: TableOffsets | None,
    *,
    round_bytes: int,
    file_bytes: int,
    new_incarnation: bool,
) -> TablePlan:
    """Raises what a sync raises before it writes."""
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
    )
