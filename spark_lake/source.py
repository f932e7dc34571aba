"""The data source itself: what Spark calls, and where.

    driver    StrandlineDataSource(options)   options are checked: a wrong one fails in `load()`
    planner   reader(schema).pushFilters(...).partitions()     reads manifests, makes the splits
    executor  read(split)                                      one split, as Arrow record batches

Spark runs each of them in another Python process and pickles the objects between them. So they
hold options and splits, never anything open.
"""

from __future__ import annotations

import logging
import shutil
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from strandline.spark_lake.arrow import HEADERS_COLUMN
from strandline.spark_lake.bounds import BoundsResolver
from strandline.spark_lake.catalog import PARALLEL_READS, ArchivedPartition, Catalog
from strandline.spark_lake.filters import PushedFilters, push_down
from strandline.spark_lake.objects import ObjectReader
from strandline.spark_lake.options import LakeOptions
from strandline.spark_lake.planner import PartitionScan, ScanPlan, Split, plan, wanted_pages
from strandline.spark_lake.report import ReportWriter, TaskReport, report_folder
from strandline.spark_lake.scan import SplitScan
from strandline.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FORMAT_NAME = "strandline"
PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Makes `format("strandline")` known to this session, with filter pushdown switched on."""
    spark.conf.set(PUSHDOWN_CONF, "true")
    spark.dataSource.register(StrandlineDataSource)
    _warn_of_another_python(spark)


def _warn_of_another_python(spark: SparkSession) -> None:
    """Without PYSPARK_PYTHON workers run whatever `python3` is, and fail at the first import."""
    try:
        workers = shutil.which(spark.sparkContext.pythonExec)
    except PySparkException:  # Spark Connect: the server's Python is not ours to judge
        return
    if workers is not None and Path(workers).absolute() != Path(sys.executable).absolute():
        log.warning(
            "Spark's workers run another Python than this process: unless strandline[lake] is"
            " installed there too, set PYSPARK_PYTHON before the session starts",
            extra={"fields": {"workers": workers, "this_process": sys.executable}},
        )


def kafka_schema(*, include_headers: bool) -> StructType:
    """The columns of Spark's Kafka source."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField(HEADERS_COLUMN, ArrayType(header)))
    return StructType(fields)


class StrandlineDataSource(DataSource):
    """`format("strandline")`; see `options.py` for the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Raises InvalidConfig for options that are wrong in themselves."""
        return kafka_schema(include_headers=self._parsed().include_headers)

    def reader(self, schema: StructType) -> StrandlineReader:
        """A reader of these columns: all, or those of a schema that the user chose."""
        return StrandlineReader(self._parsed(), _checked_columns(schema))

    def _parsed(self) -> LakeOptions:
        options = LakeOptions.parse(self.options)
        if options.scan_report is not None:
            report_folder(options.scan_report)
        return options


class StrandlineReader(DataSourceReader):
    """One scan: planned once, read split by split."""

    def __init__(self, options: LakeOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._pushed = PushedFilters()
        self._scan_id = uuid.uuid4().hex

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Takes the filters that prune; gives back those that Spark has to evaluate."""
        pushdown = push_down(filters)
        self._pushed = pushdown.pushed
        return iter(pushdown.left)

    def partitions(self) -> list[InputPartition]:
        """Reads manifests and plans. Raises what `Catalog`, `BoundsResolver` raise."""
        reader = ObjectReader(self._options.url, self._options.s3)
        made = self.plan(reader)
        statistics = reader.statistics()
        log.info(
            "scan planned",
            extra={
                "fields": {
                    "plan": str(made),
                    "requests": statistics.request_count,
                    "bytes_read": statistics.bytes_read,
                }
            },
        )
        if self._options.scan_report is not None:
            ReportWriter(self._options.scan_report, self._scan_id).write_plan(
                made, requests=statistics.request_count, bytes_read=statistics.bytes_read
            )
        return [InputPartition(split) for split in made.splits]

    def plan(self, reader: ObjectReader) -> ScanPlan:
        """The plan of this scan; printable."""
        catalog = Catalog(reader)
        catalog.load_cluster()
        selected = catalog.load_partitions(self._options.selection)
        wanted = [one for one in selected if self._pushed.wants(one.topic_partition)]
        scans = self._scans(catalog, BoundsResolver(reader, catalog, self._options), wanted)
        return plan(
            scans,
            partition_count=len(scans),
            totals=[one.manifest for one in selected if one.manifest is not None],
            split_bytes=self._options.split_bytes,
            splits_min=self._options.splits_min,
        )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One split as `pyarrow.RecordBatch`es."""
        # Of a plan without splits Spark makes one partition of nothing.
        if isinstance(partition.value, Split):
            yield from self._read_split(partition.value)

    def _scans(
        self, catalog: Catalog, resolver: BoundsResolver, wanted: Sequence[ArchivedPartition]
    ) -> list[PartitionScan]:
        if not wanted:
            return []
        limits = self._pushed.limits
        with ThreadPoolExecutor(min(PARALLEL_READS, len(wanted))) as pool:
            offsets = list(pool.map(resolver.resolve, wanted))
        archived = [
            (one.manifest, found)
            for one, found in zip(wanted, offsets, strict=True)
            if one.manifest is not None
        ]
        pages = catalog.load_pages(
            [page for manifest, found in archived for page in wanted_pages(manifest, found, limits)]
        )
        return [
            PartitionScan(manifest=manifest, offsets=found, limits=limits, pages=pages)
            for manifest, found in archived
        ]

    def _read_split(self, split: Split) -> Iterator[Any]:
        reader = ObjectReader(self._options.url, self._options.s3)
        scan = SplitScan(reader, split, columns=self._columns, isolation=self._options.isolation)
        try:
            yield from scan.record_batches()
        finally:
            # Also when Spark has enough rows (LIMIT) and does not ask for the rest.
            if self._options.scan_report is not None:
                statistics, counts = reader.statistics(), scan.counts
                ReportWriter(self._options.scan_report, self._scan_id).write_task(
                    split.index,
                    TaskReport(
                        rows=counts.rows,
                        segments_read=counts.segments_read,
                        segments_skipped=counts.segments_skipped,
                        chunks_skipped=counts.chunks_skipped,
                        requests=statistics.request_count,
                        bytes_read=statistics.bytes_read,
                    ),
                )


def _checked_columns(schema: StructType) -> list[str]:
    known = {field.name: field for field in kafka_schema(include_headers=True)}
    for field in schema:
        expected = known.get(field.name)
        if expected is None:
            raise InvalidConfig(
                f"the schema has the column {field.name}; there are {', '.join(known)}"
            )
        if field.dataType != expected.dataType:
            raise InvalidConfig(
                f"the schema has {field.name} as {field.dataType.simpleString()}, it is"
                f" {expected.dataType.simpleString()}"
            )
    return list(schema.fieldNames())
