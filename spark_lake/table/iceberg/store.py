"""An Iceberg table as a TableStore: pyiceberg's fast append, with the offsets in a property.

A commit asks for the snapshot that the table had when it was loaded (Iceberg's requirement
`assert-ref-snapshot-id`), and every commit of a sync makes a snapshot, also without files. So of
two syncs that have loaded the same table one fails.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import CommitTableResponse, Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import NullOrder
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.transforms import IdentityTransform
from pyiceberg.utils.properties import property_as_bool

from strandline.spark_lake.table.conform import added_fields
from strandline.spark_lake.table.errors import (
    CommitConflict,
    CommitUnknown,
    FilesOutdated,
    TableRefused,
    naming_table,
)
from strandline.spark_lake.table.iceberg.layout import TableLayout, sorted_by
from strandline.spark_lake.table.iceberg.places import (
    DELTA_LOG,
    FOLDERS,
    missing_paths,
    names_in,
    other_table,
)
from strandline.spark_lake.table.iceberg.schema import check_schema, iceberg_schema
from strandline.spark_lake.table.iceberg.writer import (
    IcebergWriter,
    delete_files,
    reopen_file,
    written_file,
)
from strandline.spark_lake.table.offsets import (
    OFFSETS_PROPERTY,
    WIDENED_PROPERTY,
    TableOffsets,
    widened,
)
from strandline.spark_lake.table.store import FileRole, WrittenFile
from strandline.storage.remote.silence import Silence

COMMIT_SUMMARY = "strandline.commit"
# A commit writes the list of all snapshots anew: with more of them than this it drops the oldest.
SNAPSHOTS_MAX = 500
# Of tables that a sync makes. Without merging, each commit writes a longer list of manifests; old
# metadata files would never be deleted.
_FIRST_PROPERTIES = {
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "20",
}


class _CommitOnce:
    """A catalog whose refused commits pyiceberg neither repeats nor cleans up after.

    It would load the table anew and commit again what another writer has committed meanwhile. And
    it deletes the manifests of a refused commit, which the table needs if the refusal was of a
    request that was sent twice.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> object:
        return getattr(self._catalog, name)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        try:
            return self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            raise CommitConflict(str(error)) from error

    def _delete_old_metadata(
        self, io: FileIO, base: TableMetadata, metadata: TableMetadata
    ) -> None:
        """Called by pyiceberg after a commit; its own warns of each file that is gone already.

        Some REST catalogs delete old metadata themselves. What stays here is an orphan.
        """
        name = TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED
        if property_as_bool(metadata.properties, name, False):
            named = {one.metadata_file for one in metadata.metadata_log}
            for path in {one.metadata_file for one in base.metadata_log} - named:
                with suppress(OSError):
                    io.delete(path)


class IcebergStore:
    """One table in a catalog of pyiceberg."""

    def __init__(
        self,
        catalog: Catalog,
        identifier: tuple[str, ...],
        layout: TableLayout,
        location: str | None,
    ) -> None:
        """`location` None leaves the choice to the catalog."""
        self._catalog = catalog
        self._identifier = identifier
        self._layout = layout
        self._location = location
        self._table: Table | None = None

    @property
    def name(self) -> str:
        return ".".join(self._identifier)

    def load(self) -> TableOffsets | None:
        with Silence(f"table {self.name}"), naming_table(self.name, "load"):
            try:
                self._table = self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                self._table = None
                return None
        text = self._table.properties.get(OFFSETS_PROPERTY)
        if text is None:
            raise TableRefused(
                f"table {self.name} has no property {OFFSETS_PROPERTY}: no sync made it, and its"
                " rows may be of anything; name another table"
            )
        return TableOffsets.decode(text, source=f"table {self.name}")

    def check(self, schema: Any) -> TableOffsets | None:
        wanted, offsets = iceberg_schema(schema), self.load()
        if offsets is None:
            self._layout.spec(wanted)
            self._layout.check_order(wanted)
            with naming_table(self.name, "create"):
                self._refuse_occupied()
        else:
            existing = self.loaded.schema()
            check_schema(existing, wanted, table=self.name)
            self._layout.check_order(wanted, existing)
            self._refuse_rolled_back(offsets)
        return offsets

    def prepare(self, schema: Any, first: TableOffsets) -> None:
        offsets = self.check(schema)
        if offsets is None:
            self._create(schema, first)
            return
        if check_schema(self.loaded.schema(), iceberg_schema(schema), table=self.name):
            self._widen(schema, offsets)
        if self._layout.sort_columns:
            self._reorder()

    def writer(self, attempt: str) -> IcebergWriter:
        table = self.loaded
        # A task of Spark gets a copy, and needs no history.
        lean: dict[str, object] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "statistics": [],
        }
        return IcebergWriter(
            io=table.io,
            metadata=table.metadata.model_copy(update=lean),
            attempt=uuid.UUID(attempt),
            sort_columns=sorted_by(table.metadata),
        )

    def files_by(self, column: str) -> Mapping[int, Sequence[WrittenFile]]:
        table = self.loaded
        source_id = table.schema().find_field(column).field_id
        found: dict[int, list[WrittenFile]] = {}
        with naming_table(self.name, "read"):
            for task in table.scan().plan_files():
                spec = table.specs()[task.file.spec_id]
                places = [
                    place
                    for place, one in enumerate(spec.fields)
                    if one.source_id == source_id and isinstance(one.transform, IdentityTransform)
                ]
                if not places:
                    raise TableRefused(
                        f"table {self.name} is not partitioned by {column} any more, and an upsert"
                        " rewrites files by it"
                    )
                if task.delete_files:
                    raise TableRefused(
                        f"table {self.name} has deletes of another engine: rewrite its data files"
                        " there, so that an upsert can read them"
                    )
                rows = found.setdefault(task.file.partition[places[0]], [])
                rows.append(written_file(task.file, task.file.spec_id))
        return found

    def missing_files(self) -> Sequence[str]:
        table = self.loaded
        with naming_table(self.name, "list the files of"):
            paths = [task.file.file_path for task in table.scan().plan_files()]
            return missing_paths(table.io, f"{table.location()}/{FOLDERS[0]}", paths)

    def reopen(self, paths: Sequence[str]) -> Sequence[WrittenFile]:
        table = self.loaded
        with naming_table(self.name, "add rows to"):
            return [reopen_file(table.io, table.metadata, path) for path in paths]

    def commit(self, files: Sequence[WrittenFile], offsets: TableOffsets) -> None:
        table = self.loaded
        spec_id = table.metadata.default_spec_id
        removed = [one for one in files if one.role is FileRole.REMOVED]
        added = [one for one in files if one.role is not FileRole.REMOVED]
        if any(one.entry.spec_id != spec_id for one in added):
            raise FilesOutdated(f"table {self.name} is partitioned otherwise now")
        if removed:
            # Rows that were deleted meanwhile are in our new files: they would come back.
            whole = {t.file.file_path for t in table.scan().plan_files() if not t.delete_files}
            if any(one.path not in whole for one in removed):
                raise FilesOutdated(f"files of table {self.name} were changed meanwhile")

        def fill(transaction: Transaction) -> None:
            transaction.set_properties({OFFSETS_PROPERTY: offsets.encode()})
            update = transaction.update_snapshot(
                snapshot_properties={COMMIT_SUMMARY: offsets.commits[0]}
            )
            with update.overwrite() if removed else update.merge_append() as snapshot:
                for one in removed:
                    snapshot.delete_data_file(one.entry.data_file)
                for one in added:
                    snapshot.append_data_file(one.entry.data_file)
            if too_many := _oldest_snapshots(table):
                remove_snapshots(transaction, too_many)

        self.commit_once(fill)

    def commit_once(self, fill: Callable[[Transaction], None]) -> None:
        """Commits what `fill` stages, once. Raises CommitConflict, CommitUnknown."""
        table = self.loaded
        table.catalog = cast("Catalog", _CommitOnce(self._catalog))
        try:
            with Silence(f"table {self.name}"), table.transaction() as transaction:
                fill(transaction)
        except CommitConflict:
            raise
        except Exception as error:
            # A timeout, a 5xx, a lost connection to the database: all that is known is nothing.
            raise CommitUnknown(f"{type(error).__name__}: {error}") from error

    def discard(self, files: Sequence[WrittenFile]) -> None:
        delete_files(self.loaded.io, files)

    @property
    def loaded(self) -> Table:
        """The table of pyiceberg, of the last `load`."""
        assert self._table is not None, self._identifier
        return self._table

    def _widen(self, schema: Any, offsets: TableOffsets) -> None:
        table = self.loaded
        text = table.properties.get(WIDENED_PROPERTY)
        added = added_fields(schema_to_pyarrow(table.schema()), schema)
        text = widened(text, added, offsets, source=f"table {self.name}")
        with naming_table(self.name, "widen"), table.transaction() as transaction:
            transaction.set_properties({WIDENED_PROPERTY: text})
            with transaction.update_schema() as update:
                try:
                    update.union_by_name(iceberg_schema(schema))
                except ValueError as error:
                    # Of a column `a.b` beside the field b of a struct a.
                    raise TableRefused(
                        f"table {self.name} cannot take a new field: {error}. Leave it out of"
                        " valueSchema, or make another table"
                    ) from error

    def _reorder(self) -> None:
        """Gives the table the order of the layout, which later writers keep."""
        table = self.loaded
        if sorted_by(table.metadata) == self._layout.sort_columns:
            return
        with naming_table(self.name, "order"), table.update_sort_order() as update:
            for column, way in self._layout.sort_columns:
                add = update.desc if way == "descending" else update.asc
                add(column, IdentityTransform(), NullOrder.NULLS_LAST)

    def _create(self, schema: Any, offsets: TableOffsets) -> None:
        made = iceberg_schema(schema)
        spec = self._layout.spec(made)
        order = self._layout.order(made)
        properties = {
            **_FIRST_PROPERTIES,
            **self._layout.properties,
            OFFSETS_PROPERTY: offsets.encode(),
        }
        with naming_table(self.name, "create"):
            self._create_namespace()
            try:
                self._table = self._catalog.create_table(
                    self._identifier,
                    schema=made,
                    location=self._location,
                    partition_spec=spec,
                    sort_order=order,
                    properties=properties,
                )
            except TableAlreadyExistsError:
                # Another sync was first; what it made is checked like any other.
                self.prepare(schema, offsets)

    def _create_namespace(self) -> None:
        namespace = self._identifier[:-1]
        try:
            self._catalog.create_namespace_if_not_exists(namespace)
        except Exception:
            # Another sync may have been first, for which each catalog has an error of its own.
            if not self._catalog.namespace_exists(namespace):
                raise

    def _refuse_rolled_back(self, offsets: TableOffsets) -> None:
        """A rollback leaves the property, which says of rows that they are there."""
        table = self.loaded
        snapshot = _rolled_back(table, offsets.commits[0]) if offsets.commits else None
        if snapshot is not None:
            raise TableRefused(
                f"table {self.name} was rolled back to before snapshot {snapshot.snapshot_id}, and"
                f" its property {OFFSETS_PROPERTY} names the rows of that one: they would be"
                f" missing for ever. Make {snapshot.snapshot_id} its current snapshot again, or"
                " name another table"
            )

    def _refuse_occupied(self) -> None:
        """Two tables at one location would take each other's files for orphans."""
        if self._location is None:
            return
        io = load_file_io(self._catalog.properties, self._location)
        if DELTA_LOG in names_in(io, self._location):
            raise TableRefused(
                f"{self._location} has a Delta table already: give the new table another name, or"
                " --format delta"
            )
        other = other_table(io, self._location, None, known=set())
        if other is not None:
            raise TableRefused(
                f"{self._location} has a table already, {other.uuid}, which another catalog names,"
                " or which was dropped without its files. Open that catalog (--catalog), or give"
                " the new table another --warehouse. If that catalog is lost, register the table"
                f" in this one (register_table); its newest metadata: {', '.join(other.newest)}"
            )


def _rolled_back(table: Table, commit_id: str) -> Snapshot | None:
    """The snapshot of a commit, if the table's newest one does not come after it.

    None also if that cannot be told, because one of the snapshots in between is expired.
    """
    ours = [
        one
        for one in table.metadata.snapshots
        if one.summary is not None
        and one.summary.additional_properties.get(COMMIT_SUMMARY) == commit_id
    ]
    one = table.current_snapshot()
    if not ours:
        return None
    while one is not None and one.snapshot_id != ours[0].snapshot_id:
        if (one.sequence_number or 0) < (ours[0].sequence_number or 0):
            return ours[0]
        parent_id = one.parent_snapshot_id
        one = None if parent_id is None else table.metadata.snapshot_by_id(parent_id)
    return None


def _oldest_snapshots(table: Table) -> list[int]:
    """Those before the newest SNAPSHOTS_MAX; tags and branches keep theirs."""
    kept = {one.snapshot_id for one in table.metadata.refs.values()}
    known = sorted(table.metadata.snapshots, key=lambda one: one.timestamp_ms)
    return [one.snapshot_id for one in known[: -SNAPSHOTS_MAX + 1] if one.snapshot_id not in kept]


def remove_snapshots(transaction: Transaction, snapshot_ids: Sequence[int]) -> None:
    """Stages their removal; `Table.maintenance` would commit it by itself."""
    ExpireSnapshots(transaction).by_ids(list(snapshot_ids)).commit()
