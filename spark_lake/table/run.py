"""`strandline table`: one table of one topic, from the options of a command line or a caller."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from strandline.spark_lake.options.options import RAW_COLUMN, REASON_COLUMN
from strandline.spark_lake.options.value_options import ValueErrors, ValueFormat
from strandline.spark_lake.query.arrow_scan import make_query, refuse_jvm
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.table.archive import check_mode, load_view
from strandline.spark_lake.table.columns import NEEDED_PARTS, REJECTED_REASON, column_names
from strandline.spark_lake.table.engines.local_engine import LocalEngine
from strandline.spark_lake.table.engines.spark_engine import SparkEngine
from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.iceberg.catalogs import (
    location_of,
    open_catalog,
    parse_identifier,
    warehouse_of,
)
from strandline.spark_lake.table.iceberg.layout import TableLayout, sort_columns
from strandline.spark_lake.table.iceberg.store import IcebergStore
from strandline.spark_lake.table.iceberg.upkeep import IcebergTable
from strandline.spark_lake.table.offsets import Mode, TableOffsets
from strandline.spark_lake.table.rejected import SUFFIX, settle
from strandline.spark_lake.table.store import TableStore
from strandline.spark_lake.table.sync import (
    FILE_BYTES,
    ROUND_BYTES,
    Progress,
    Sync,
    SyncEngine,
    SyncReport,
    SyncSettings,
)
from strandline.spark_lake.table.upkeep.check import Check, CheckReport
from strandline.spark_lake.table.upkeep.maintain import (
    MaintainReport,
    MaintainSettings,
    TableUpkeep,
)
from strandline.spark_lake.table.upkeep.maintained import CheckedTable, load_made
from strandline.spark_lake.table.upkeep.plan import TablePlan, plan_sync
from strandline.spark_lake.table.upkeep.retention import DROPPED_PROPERTY, Kept, Retention
from strandline.storage.clock import SystemClock
from strandline.storage.errors import InvalidConfig, ObjectCorrupt
from strandline.storage.extras import how_to_install
from strandline.storage.model import TimestampMs
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of Parquet that all engines read.
CODECS = ("zstd", "snappy", "lz4", "gzip")
# The identifier of a table, and what it is partitioned by.
_Wanted = tuple[tuple[str, ...], Sequence[str]]


class Format(Enum):
    """The format of a table."""

    ICEBERG = "iceberg"
    DELTA = "delta"


class OnError(Enum):
    """What becomes of a value that does not parse."""

    FAIL = "fail"
    # A row of the table NAME_rejected, with its bytes and the reason; without bytes, if those are
    # damaged in the archive.
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """A topic, its table, and how the rows get there."""

    remote: str
    topic: str
    table: str
    catalog: str | None = None
    warehouse: str | None = None
    catalog_properties: Mapping[str, str] = field(default_factory=dict)
    # Of the lake: which rows, and how values are decoded.
    options: Mapping[str, str] = field(default_factory=dict)
    format: Format | str = Format.ICEBERG
    mode: Mode | str = Mode.APPEND
    on_error: OnError | str = OnError.FAIL
    columns: Sequence[str] = ()
    # None: by day of the timestamp.
    partition_by: Sequence[str] | None = None
    sort_by: Sequence[str] = ()
    codec: str = "zstd"
    file_bytes: int = FILE_BYTES
    # Archived bytes that one commit adds; None: what suits the engine.
    round_bytes: int | None = None
    new_incarnation: bool = False


class TableRun:
    """The parts that the commands of one table share."""

    def __init__(
        self,
        request: TableRequest,
        spark: SparkSession | None = None,
        *,
        makes_catalog: bool = True,
    ) -> None:
        """With `spark`, its tasks read and write; only a sync needs a catalog to be made.

        Raises InvalidConfig, TableUnavailable.
        """
        self._request = request
        self._makes_catalog = makes_catalog
        # Whether a sync has looked for the table's files: once, for that lists all of them.
        self._has_looked = False
        if request.codec not in CODECS:
            raise InvalidConfig(f"--codec {request.codec!r} must be one of {', '.join(CODECS)}")
        if request.file_bytes < 1 or (request.round_bytes or 1) < 1:
            raise InvalidConfig("--file-bytes must be 1 at least")
        self._mode = Mode(request.mode)
        self._sort_columns = sort_columns(request.sort_by)
        self.names = column_names(request.columns)
        self.query = self._make_query(OnError(request.on_error))
        refuse_jvm(self.query, "table sync")
        engine = LocalEngine(request.file_bytes) if spark is None else SparkEngine(spark)
        self._engine: SyncEngine = engine
        self.query.task_slots = engine.task_slots
        warehouse = warehouse_of(request.warehouse, archive_url=self.query.options.url)
        identifier = parse_identifier(request.table)
        second = (*identifier[:-1], identifier[-1] + SUFFIX)
        is_delta = Format(request.format) is Format.DELTA
        open_stores = self._delta_stores if is_delta else self._iceberg_stores
        self.store, self.rejected = open_stores(
            warehouse, [(identifier, self._partition_by()), (second, ())]
        )

    def _make_query(self, on_error: OnError) -> Query:
        parts = [part for part in self.names if part not in ("topic_id", "value")]
        query = make_query(
            self._request.remote,
            self._request.topic,
            columns=[*parts, "value"],
            options=self._options(on_error),
        )
        if on_error is OnError.REJECT:
            query.columns += (RAW_COLUMN, REASON_COLUMN)
        return query

    def _iceberg_stores(self, warehouse: str, wanted: Sequence[_Wanted]) -> list[TableStore]:
        request = self._request
        catalog = open_catalog(
            request.catalog,
            warehouse=warehouse,
            s3=self.query.options.s3,
            properties=request.catalog_properties,
            makes_file=self._makes_catalog,
        )
        return [
            IcebergStore(
                catalog,
                identifier,
                TableLayout(
                    partition_by=tuple(partition_by),
                    sort_columns=self._sort_columns if number == 0 else (),
                    properties={"write.parquet.compression-codec": request.codec},
                ),
                location_of(warehouse, identifier),
            )
            for number, (identifier, partition_by) in enumerate(wanted)
        ]

    def _delta_stores(self, warehouse: str, wanted: Sequence[_Wanted]) -> list[TableStore]:
        try:
            # An extra of its own.
            from strandline.spark_lake.table.delta.open import open_store
        except ImportError as error:
            raise InvalidConfig(f"{error}; {how_to_install('delta')}") from error
        if self._request.catalog or self._request.catalog_properties:
            raise InvalidConfig("a Delta table is its folder: --format delta has no --catalog")
        return [
            open_store(
                location_of(warehouse, identifier),
                self.query.options.s3,
                partition_by=partition_by,
                sort_columns=self._sort_columns if number == 0 else (),
                codec=self._request.codec,
            )
            for number, (identifier, partition_by) in enumerate(wanted)
        ]

    def sync(
        self, progress: Progress, *, should_stop: Callable[[], bool] = lambda: False
    ) -> SyncReport:
        """Brings the table up to the archive. Raises what `Sync.run` raises."""
        if self._load() is not None and not self._has_looked:
            self._refuse_missing_files()
        self._has_looked = True
        settings = SyncSettings(
            names=self.names,
            file_bytes=self._request.file_bytes,
            round_bytes=self._request.round_bytes,
            new_incarnation=self._request.new_incarnation,
            mode=self._mode,
        )
        return Sync(
            self.query,
            self.store,
            self._engine,
            settings,
            rejected=self.rejected,
            progress=progress,
            wait=time.sleep,
            now_ms=SystemClock().now_ms,
            should_stop=should_stop,
        ).run()

    def plan(self) -> TablePlan:
        """What a sync would do now. Raises what it raises before it writes anything.

        A table that exists has its own mode, unless another one than to append is asked for.
        """
        has = self._load()
        mode, existing = self._mode, None
        if has is not None and mode is Mode.APPEND:
            mode = has.mode
        if has is not None:
            check_mode(has, mode, table=self.store.name)
        if mode is not Mode.APPEND:
            existing = {} if has is None else self.store.files_by(self.names["partition"])
        return plan_sync(
            self.query,
            self.store.name,
            has,
            round_bytes=self._request.round_bytes or ROUND_BYTES,
            file_bytes=self._request.file_bytes,
            new_incarnation=self._request.new_incarnation,
            existing=existing,
        )

    def check(self, *, deep: bool = False) -> CheckReport:
        """Compares the table with the archive. Raises TableRefused, TierError, TableUnavailable."""
        table = self.upkeep()
        offsets = load_made(table)
        self._refuse_second(table, offsets)
        self._refuse_missing_files()
        self._check_names(table)
        kept = self._dropped(table)
        first = dt.datetime.fromtimestamp(kept.before_ms / 1000, dt.UTC)
        filters = [("timestamp", ">=", first)] if kept.before_ms else []
        counting = make_query(
            self._request.remote,
            self._request.topic,
            columns=["offset"],
            filters=filters,
            options=dict(self._request.options),
        )
        rejected, query = None, self.query
        if offsets.rejected.number:
            rejected = self._second()
            query = self._make_query(OnError.REJECT)
        try:
            check = Check(table, query, self.names, rejected)
            return check.run(deep=deep, count_query=counting)
        except ObjectCorrupt:
            if rejected is None:
                raise
        # The second table has what a sync could not read.
        check = Check(table, query.salvaging(), self.names, rejected)
        return check.run(deep=deep, count_query=counting.salvaging())

    def maintain(
        self, retention: Retention | None = None, settings: MaintainSettings | None = None
    ) -> MaintainReport:
        """Drops rows, rewrites small files, expires snapshots, deletes orphans; of both tables.

        Adds rejected rows first that a dead sync left to the second table: nothing else names
        their files. `retention` None keeps all rows. Raises TableRefused, TierError,
        TableUnavailable.
        """
        table = self.upkeep()
        offsets = load_made(table)
        self._refuse_second(table, offsets)
        self._refuse_missing_files()
        settle(offsets, self.rejected, wait=time.sleep)
        now_ms = SystemClock().now_ms()
        kept = None
        if retention is not None:
            self._check_names(table)
            kept = self._kept(retention, now_ms)
        settings = settings or MaintainSettings(file_bytes=self._request.file_bytes)
        report = self._maintain(table, kept, settings)
        second = self._second()
        if second is not None:
            report.rejected = self._maintain(second, kept, settings)
        return report

    def _maintain(
        self, table: TableUpkeep, kept: Kept | None, settings: MaintainSettings
    ) -> MaintainReport:
        return table.maintain(kept and kept.joined(self._dropped(table)), settings)

    def upkeep(self) -> TableUpkeep:
        """The table, for checks and maintenance."""
        return self._upkeep_of(self.store)

    def _upkeep_of(self, store: TableStore) -> TableUpkeep:
        if isinstance(store, IcebergStore):
            order = [(self.names[part], "ascending") for part in ("partition", "offset")]
            return IcebergTable(store, order)
        from strandline.spark_lake.table.delta.store import DeltaStore
        from strandline.spark_lake.table.delta.upkeep import DeltaUpkeep

        assert isinstance(store, DeltaStore), store
        return DeltaUpkeep(store)

    def _second(self) -> TableUpkeep | None:
        """The second table, if a sync made one. Raises TableUnavailable."""
        try:
            found = self.rejected.load()
        except TableRefused:
            # Somebody else's, of this name.
            return None
        return None if found is None else self._upkeep_of(self.rejected)

    def _check_names(self, table: CheckedTable) -> None:
        """Raises InvalidConfig if the loaded table has other names for what makes a row's place."""
        names = table.schema.names
        missing = [self.names[part] for part in NEEDED_PARTS if self.names[part] not in names]
        if missing:
            raise InvalidConfig(
                f"table {table.name} has no column {', '.join(missing)}: give the --column options"
                " of its sync"
            )

    def _load(self) -> TableOffsets | None:
        """What the table has, None without one. Raises InvalidConfig for one to leave alone."""
        offsets = self.store.load()
        if offsets is not None:
            table = self.upkeep()
            self._refuse_second(table, offsets)
            self._check_names(table)
        return offsets

    def _refuse_missing_files(self) -> None:
        """Raises TableRefused: every reader of the table fails at a file that is gone."""
        missing = self.store.missing_files()
        if missing:
            raise TableRefused(
                f"table {self.store.name} has lost {counted(len(missing), 'file')} that somebody"
                f" has deleted, such as {missing[0]}, and no engine can read it: put them back, or"
                " name another table, which gets what the archive has"
            )

    def _refuse_second(self, table: CheckedTable, offsets: TableOffsets) -> None:
        """The files that its first table names for it would look like orphans."""
        is_second = not offsets.next_offsets and REJECTED_REASON in table.schema.names
        if is_second and table.name.endswith(SUFFIX):
            raise TableRefused(
                f"{table.name} has the rejected rows of another table: name"
                f" {table.name.removesuffix(SUFFIX)}, whose commands work on both"
            )

    def _dropped(self, table: CheckedTable) -> Kept:
        """What earlier maintenance left."""
        text = None if table.load() is None else table.property_of(DROPPED_PROPERTY)
        return Kept.decode(text, self.names, source=f"table {table.name}")

    def _kept(self, retention: Retention, now_ms: TimestampMs) -> Kept:
        if retention.age_ms is not None:
            if "timestamp" not in self.names:
                raise InvalidConfig("--retention by age needs the column of the timestamp")
            return Kept(names=self.names, before_ms=max(0, now_ms - retention.age_ms))
        view = load_view(self.query, self.query.open())
        starts = {one.partition: view.archived(one).start_offset for one in view.selected}
        return Kept(names=self.names, starts={view.topic_id: starts})

    def _partition_by(self) -> Sequence[str]:
        """Raises InvalidConfig."""
        partition_by = self._request.partition_by
        if self._mode is not Mode.APPEND:
            partition = self.names["partition"]
            if partition_by is None:
                partition_by = [partition]
            if partition not in partition_by or "key" not in self.names:
                raise InvalidConfig(
                    f"--mode {self._mode.value} needs the key's column, and --partition-by"
                    f" {partition} among others: it rewrites the files of one partition at a time"
                )
        if partition_by is None:
            timestamp = self.names.get("timestamp")
            partition_by = [] if timestamp is None else [f"day({timestamp})"]
        return partition_by

    def _options(self, on_error: OnError) -> dict[str, str]:
        """Of the lake. Raises InvalidConfig."""
        options = dict(self._request.options)
        given = [name for name in options if name.lower() == "valueerrors"]
        if any(options[name] == ValueErrors.CORRUPT.value for name in given):
            raise InvalidConfig("a table has no column _corrupt: --on-error reject is its like")
        if self._mode is not Mode.APPEND and given:
            raise InvalidConfig(
                f"--mode {self._mode.value} and option valueErrors exclude each other: a value that"
                " does not parse would delete its key; --on-error reject keeps it apart"
            )
        if on_error is OnError.FAIL:
            return options
        if given:
            raise InvalidConfig("--on-error reject and option valueErrors exclude each other")
        formats = [text for name, text in options.items() if name.lower() == "valueformat"]
        if formats in ([], [ValueFormat.RAW.value]):
            # Each value parses.
            return options
        return options | {"valueErrors": ValueErrors.CORRUPT.value}
