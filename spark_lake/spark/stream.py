"""Stream over a growing archive: `spark.readStream.format("strandline")`.

    driver   initialOffset()                  once, for a new checkpoint
             latestOffset(start, limit)       reads manifests; the end of the next micro-batch
             partitions(start, end)           plans exactly [start, end), also for a repeated batch
    executor read(split)                      as in a batch query

Exactly-once comes from Spark's checkpoint and our determinism: archived records never change, so a
batch between two written offsets always has the same rows. Records that retention deleted before
they were read are an error, unless `failOnDataLoss` is false: then the stream continues with the
remaining records, as Spark's Kafka source does, and goes back if the archive went back.

The interface is that of PySpark 4.2 and later, in which a source can limit a micro-batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from strandline.spark_lake.archive.catalog import Catalog, LakePartition
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.plan.planner import OffsetRange
from strandline.spark_lake.plan.splits import Split
from strandline.spark_lake.query.bounds import BoundsResolver
from strandline.spark_lake.query.error_messages import without_traceback
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.query.query_log import log_event
from strandline.spark_lake.spark.progress import (
    DataLoss,
    StreamOffsets,
    StreamPosition,
    admitted,
    began_of,
    compare,
    is_initial,
    up_to,
)
from strandline.storage.clock import SystemClock
from strandline.storage.errors import StorageError, TierUnavailable
from strandline.storage.model import TopicPartition
from strandline.storage.remote.manifest.manifest import Manifest

# Reads of the archive before rows count as lost.
LOOKS_MAX = 2

Json = Mapping[str, Mapping[str, object]]


class StreamDataLost(StorageError):
    """Records that a stream still had to read are gone from the archive."""


class StrandlineStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of one stream, in the driver; executors get a copy that only reads splits."""

    def __init__(self, query: Query) -> None:
        self._options = query.options
        self._query = query
        self._target: StreamOffsets | None = None
        self._latest: StreamOffsets | None = None
        # Time of the last batch that minOffsetsPerTrigger admitted; None before the first one.
        self._triggered_s: float | None = None

    # --- the driver --------------------------------------------------------------------------

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name, as all of these
        """The offsets of `startingOffsets` or `startingTimestamp`; the archive's end by default."""
        reader = self._query.open()
        catalog, archived = self._load(reader)
        self._options.start.check_names([one.topic_partition for one in archived])
        ranges = BoundsResolver(reader, catalog, self._options).resolve_all(archived)
        return StreamOffsets(
            offsets={partition: found.start_offset for partition, found in ranges.items()},
            topic_ids={one.topic_partition.topic: one.partition.topic_id for one in archived},
        ).to_json(began=StreamOffsets())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """With both limits Spark gets that of rows; `latestOffset` applies both."""
        trigger = self._options.trigger
        if trigger.offsets_max is not None:
            return ReadMaxRows(trigger.offsets_max)
        if trigger.bytes_max is not None:
            return ReadMaxBytes(trigger.bytes_max)
        if trigger.offsets_min is not None:
            return ReadMinRows(trigger.offsets_min)
        return ReadAllAvailable()

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes the end of this run; records archived later are for the next run."""
        _, archived = self._load(self._query.open())
        nowhere = compare(StreamOffsets(), archived)
        ends = {partition: one.end_offset for partition, one in _manifests(archived).items()}
        self._target = StreamOffsets(
            offsets={**nowhere.position.offsets, **ends}, topic_ids=nowhere.position.topic_ids
        )

    @without_traceback
    def latestOffset(self, start: Json, limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Returns the end of the next micro-batch; `start` if there are no records for it.

        Raises StreamDataLost, or the errors of reading manifests.
        """
        position = StreamOffsets.from_json(start)
        for looks_left in reversed(range(LOOKS_MAX)):
            _, archived = self._load(self._query.open())
            standing = compare(position, archived)
            if self._is_certain(standing.losses, looks_left):
                break
        manifests = _manifests(archived)
        self._latest = admitted(standing, manifests)
        if self._target is not None:
            standing = up_to(self._target, standing, known=position)
        trigger = self._options.trigger
        if isinstance(limit, ReadAllAvailable):
            end = admitted(standing, manifests)
        elif self._waits_for_more(standing):
            end = standing.position
        else:
            end = admitted(
                standing, manifests, offsets_max=trigger.offsets_max, bytes_max=trigger.bytes_max
            )
        if end == position:
            return dict(start)
        return end.to_json(began=position if is_initial(start) else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The archive's end at the last `latestOffset`, from which Spark computes the lag."""
        return None if self._latest is None else self._latest.to_json()

    @without_traceback
    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Returns the splits of [start, end): the same for the same offsets."""
        last = StreamOffsets.from_json(end)
        # The first batch keeps its start, whatever `initialOffset` returns now.
        first = StreamOffsets.from_json(start)
        if is_initial(start):
            first = began_of(end) or first
        ranges = {
            partition: OffsetRange(start_offset=first.offsets[partition], end_offset=end_offset)
            for partition, end_offset in last.offsets.items()
            if first.offsets.get(partition, end_offset) < end_offset
        }
        if not ranges:
            return []
        reader = self._query.open()
        for looks_left in reversed(range(LOOKS_MAX)):
            _, archived = self._load(reader)
            # Compared with `first`, which also shows what retention has deleted since.
            standing = compare(
                StreamOffsets(
                    offsets={partition: one.start_offset for partition, one in ranges.items()},
                    topic_ids=last.topic_ids,
                ),
                [one for one in archived if one.topic_partition in ranges],
            )
            manifests = _manifests(archived)
            _check_awaited(ranges, manifests)
            losses = (*standing.losses, *_cut_short(ranges, manifests))
            if self._is_certain(losses, looks_left):
                break
        readable = {
            partition: replace(one, start_offset=min(one.end_offset, offset))
            for partition, one in ranges.items()
            if (offset := standing.position.offsets.get(partition)) is not None
            # A recreated topic has other records there; they come with the next batch.
            and standing.position.topic_ids[partition.topic] == last.topic_ids[partition.topic]
        }
        plan = self._query.plan_ranges(reader, archived, readable)
        self._query.log_plan(plan, reader)
        return [InputPartition(split) for split in plan.splits]

    def commit(self, end: Json) -> None:
        """Does nothing: the archive keeps no state of its readers."""

    # --- the executors -----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One split as `pyarrow.RecordBatch`es."""
        if isinstance(partition.value, Split):
            yield from self._query.read(partition.value, self._query.open())

    # --- parts -------------------------------------------------------------------------------

    def _load(self, reader: ObjectReader) -> tuple[Catalog, tuple[LakePartition, ...]]:
        catalog = Catalog(reader)
        catalog.load_cluster()
        options = self._options
        # Topics of a pattern come and go: a missing one is a loss, not a wrong option.
        return catalog, catalog.load_partitions(
            options.selection, open_for=options.open_for, topics_min=0
        )

    def _waits_for_more(self, standing: StreamPosition) -> bool:
        """Whether minOffsetsPerTrigger delays the batch: too few new records, and no long wait yet.

        As in Spark's Kafka source the first trigger of a query never waits: a query that is started
        every ten minutes would read nothing if `maxTriggerDelay` is longer.
        """
        wanted = self._options.trigger.offsets_min
        # A run of trigger availableNow has to end.
        if wanted is None or self._target is not None:
            return False
        new = sum(one.offset_count for one in standing.waiting.values())
        now_s = SystemClock().monotonic_s()
        if self._triggered_s is not None and new < wanted:
            waited_ms = (now_s - self._triggered_s) * 1000
            if waited_ms < self._options.trigger.delay_ms_max:
                return True
        self._triggered_s = now_s
        return False

    def _is_certain(self, losses: Sequence[DataLoss], looks_left: int) -> bool:
        """Whether the archive was read often enough: a loss counts if the last read still shows it.

        Else a store that lags could end the stream, or move it to wrong offsets. Raises
        StreamDataLost.
        """
        if not losses:
            return True
        if looks_left:
            return False
        told = "; ".join(str(one) for one in losses)
        if self._options.fail_on_data_loss:
            raise StreamDataLost(
                f"{told}; failOnDataLoss=false goes on with what there is, a new"
                " checkpointLocation begins anew"
            )
        log_event("records are gone before they were read", {"losses": told}, level=logging.WARNING)
        return True


def _manifests(archived: Sequence[LakePartition]) -> dict[TopicPartition, Manifest]:
    return {one.topic_partition: one.manifest for one in archived if one.manifest is not None}


def _check_awaited(
    ranges: Mapping[TopicPartition, OffsetRange], manifests: Mapping[TopicPartition, Manifest]
) -> None:
    """Raises TierUnavailable if a repeated batch is in a segment that is being uploaded.

    Its rows were read from pieces of the open segment. That segment is closed now but not archived,
    and the pieces are those of the next one.
    """
    for partition, one in ranges.items():
        manifest = manifests.get(partition)
        if manifest and manifest.end_offset < one.end_offset <= manifest.tail_end_offset:
            raise TierUnavailable(
                str(partition),
                "read",
                f"the offsets {manifest.end_offset} to {one.end_offset} of a batch that is repeated"
                " are in a segment that was just closed, or in an open one and"
                " includeOpenSegment=false: start the query again when it is archived",
            )


def _cut_short(
    ranges: Mapping[TopicPartition, OffsetRange], manifests: Mapping[TopicPartition, Manifest]
) -> list[DataLoss]:
    """Losses of ranges beyond the archive's end: an older archive replaced it, or none."""
    ends = {partition: manifest.end_offset for partition, manifest in manifests.items()}
    return [
        DataLoss(
            partition=partition,
            detail=f"the checkpoint has offset {one.end_offset}, the archive does not reach it",
        )
        for partition, one in ranges.items()
        if ends.get(partition, 0) < one.end_offset
    ]
