"""A Delta table as a TableStore: deltalake commits, once, with the offsets named in the commit.

    _strandline/<number>.json         what the table has after a commit (`offsets.py`)
    _delta_log/...json                add, remove, and txn {appId: strandline, version: <number>}

A transaction identifier (txn) holds one number, and is in every checkpoint, so that the cleanup of
the log keeps it. The commit's number names the file that has the offsets:

    1 write the file of the offsets      of a number that no other commit has
    2 commit files and number            fails if the table is not at the version that was loaded
    3 delete an old file of offsets      of the commit before the last one

The next sync deletes the file of a commit that died between 1 and 2, once it is old.

VACUUM leaves folders alone whose names begin with an underscore.

RESTORE leaves the transaction identifier, which says of rows that they are there. So a sync looks
for its newest commit in the log, and at what was restored since then (`restores.py`).
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pf
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyiceberg.io import FileIO

from strandline.spark_lake.table.delta.restores import rolled_back
from strandline.spark_lake.table.delta.writer import (
    DAY_SUFFIX,
    DeltaFile,
    DeltaWriter,
    partition_text,
    reopen_file,
)
from strandline.spark_lake.table.errors import (
    CommitConflict,
    CommitUnknown,
    FilesOutdated,
    TableRefused,
    naming_table,
)
from strandline.spark_lake.table.iceberg.places import DELTA_LOG, missing_paths, names_in, place_of
from strandline.spark_lake.table.iceberg.writer import delete_files
from strandline.spark_lake.table.offsets import WIDENED_PROPERTY, TableOffsets, widened
from strandline.spark_lake.table.store import FileRole, FileWriter, WrittenFile
from strandline.storage.clock import SystemClock
from strandline.storage.errors import InvalidConfig
from strandline.storage.remote.silence import Silence

APP_ID = "strandline"
FOLDER = "_strandline"
# A round lasts a day at most (`commit.ROUND_AGE_MS_MAX`), and its commit a few minutes more.
OFFSETS_AGE_MS = 3 * 24 * 3_600_000
# Of the table's configuration: what Delta has no words for, and a later sync keeps.
ORDER_PROPERTY = "strandline.order"
CODEC_PROPERTY = "strandline.codec"
# Of Delta, for tables whose columns are renamed or dropped without a rewrite.
MAPPING_PROPERTY = "delta.columnMapping.mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaLayout:
    """How a table's files are laid out; an existing one keeps its own, but for a given order."""

    # Columns, or `day(column)`.
    partition_by: Sequence[str] = ()
    sort_columns: Sequence[tuple[str, str]] = ()
    codec: str = "zstd"

    @property
    def days(self) -> dict[str, str]:
        """The columns that days are made of, by the columns of the days."""
        calls = [one[4:-1] for one in self.partition_by if one.startswith("day(")]
        return {f"{column}{DAY_SUFFIX}": column for column in calls}

    @property
    def columns(self) -> list[str]:
        return [
            f"{one[4:-1]}{DAY_SUFFIX}" if one.startswith("day(") else one
            for one in self.partition_by
        ]


class DeltaStore:
    """One table, which is its folder."""

    def __init__(
        self, url: str, layout: DeltaLayout, *, io: FileIO, storage_options: Mapping[str, str]
    ) -> None:
        self._url = url
        self._layout = layout
        self.io = io
        self._storage_options = dict(storage_options)
        self._table: DeltaTable | None = None

    @property
    def name(self) -> str:
        return self._url

    def load(self) -> TableOffsets | None:
        with Silence(f"table {self.name}"), naming_table(self.name, "load"):
            try:
                self._table = DeltaTable(self._url, storage_options=self._storage_options)
            except TableNotFoundError:
                self._table = None
                return None
            number = self._table.transaction_version(APP_ID)
            if number is None:
                raise TableRefused(
                    f"table {self.name} has no transaction of {APP_ID}: no sync made it, and its"
                    " rows may be of anything; name another table"
                )
            mode = self._table.metadata().configuration.get(MAPPING_PROPERTY, "none")
            if mode != "none":
                raise TableRefused(
                    f"table {self.name} has column mapping ({MAPPING_PROPERTY}={mode}): its files"
                    " name columns otherwise than the table, and files of a sync would be read as"
                    " nulls. Name another table, and leave its columns as they are"
                )
            path = self._offsets_path(number)
            with self.io.new_input(path).open() as source:
                text = source.read().decode()
        return TableOffsets.decode(text, source=f"table {self.name}")

    def check(self, schema: Any) -> TableOffsets | None:
        offsets = self.load()
        if offsets is None:
            check_partitions(self._layout, schema)
            check_order(self._layout.sort_columns, schema)
            with naming_table(self.name, "create"):
                self._refuse_occupied()
        else:
            added = new_fields(self.schema, schema, table=self.name)
            check_order(self._layout.sort_columns, pa.schema([*self.schema, *added]))
            self._refuse_rolled_back()
        return offsets

    def prepare(self, schema: Any, first: TableOffsets) -> None:
        offsets = self.check(schema)
        if offsets is None:
            self._create(schema, first)
            return
        self._delete_old_offsets()
        added = new_fields(self.schema, schema, table=self.name)
        if added:
            self._widen(added, offsets)
        wanted = self._layout.sort_columns
        if wanted and self._order != tuple(wanted):
            with naming_table(self.name, "order"):
                self.loaded.alter.set_table_properties(
                    {ORDER_PROPERTY: json.dumps(wanted)}, raise_if_not_exists=False
                )

    def writer(self, attempt: str) -> FileWriter:
        return DeltaWriter(
            io=self.io,
            url=self._url,
            schema=self.schema,
            partition_by=self.loaded.metadata().partition_columns,
            codec=self.codec,
            attempt=uuid.UUID(attempt),
            sort_columns=self._order,
        )

    def files_by(self, column: str) -> Mapping[int, Sequence[WrittenFile]]:
        found: dict[int, list[WrittenFile]] = {}
        for one in self.files():
            value = one.entry.partition.get(column)
            if value is None:
                raise TableRefused(
                    f"table {self.name} is not partitioned by {column}, and an upsert rewrites"
                    " files by it"
                )
            found.setdefault(int(value), []).append(one)
        return found

    def missing_files(self) -> Sequence[str]:
        paths = [one.path for one in self.files()]
        with naming_table(self.name, "list the files of"):
            return missing_paths(self.io, self._url, paths)

    def reopen(self, paths: Sequence[str]) -> Sequence[WrittenFile]:
        with naming_table(self.name, "add rows to"):
            return [reopen_file(self.io, self._url, path) for path in paths]

    def commit(self, files: Sequence[WrittenFile], offsets: TableOffsets) -> None:
        table = self.loaded
        removed = [one for one in files if one.role is FileRole.REMOVED]
        if removed:
            named = {one.path for one in self.files()}
            if any(one.path not in named for one in removed):
                raise FilesOutdated(f"files of table {self.name} were rewritten meanwhile")
        columns = table.metadata().partition_columns
        added = [one for one in files if one.role is not FileRole.REMOVED]
        if any(list(one.entry.partition) != columns for one in added):
            raise FilesOutdated(f"table {self.name} is partitioned otherwise now")
        now_ms = SystemClock().now_ms()
        actions: list[AddAction | RemoveAction] = [_remove(one, now_ms) for one in removed]
        actions += [_add(one, now_ms) for one in added]
        try:
            with Silence(f"table {self.name}"):
                # 1
                number = self._write_offsets(offsets)
                # 2
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    partition_by=columns or None,
                    commit_properties=_once(number),
                )
        except CommitFailedError as error:
            raise CommitConflict(str(error)) from error
        except Exception as error:
            raise CommitUnknown(f"{type(error).__name__}: {error}") from error
        # 3
        for commit_id in offsets.commits[2:3]:
            with suppress(Exception):
                self.io.delete(self._offsets_path(_number(commit_id)))

    def discard(self, files: Sequence[WrittenFile]) -> None:
        delete_files(self.io, files)

    @property
    def loaded(self) -> DeltaTable:
        """The table of deltalake, as it was loaded last."""
        assert self._table is not None, self._url
        return self._table

    @property
    def codec(self) -> str:
        return self.loaded.metadata().configuration.get(CODEC_PROPERTY, self._layout.codec)

    @property
    def _order(self) -> tuple[tuple[str, str], ...]:
        """The order of the table's files; columns that somebody has dropped are left out."""
        text = self.loaded.metadata().configuration.get(ORDER_PROPERTY, "[]")
        names = self.schema.names
        return tuple((column, way) for column, way in json.loads(text) if column in names)

    @property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the table as it was loaded last."""
        return pa.schema(self.loaded.schema().to_arrow())

    def files(self) -> list[WrittenFile]:
        """The data files of the table as it was loaded last. Raises TableUnavailable."""
        with naming_table(self.name, "read"):
            rows = pa.table(self.loaded.get_add_actions(flatten=True)).to_pylist()
        columns = self.loaded.metadata().partition_columns
        return [
            WrittenFile(
                path=f"{self._url}/{unquote(row['path'])}",
                size_bytes=row["size_bytes"],
                record_count=row["num_records"] or 0,
                entry=DeltaFile(
                    place=unquote(row["path"]),
                    partition={one: partition_text(row[f"partition.{one}"]) for one in columns},
                    stats="",
                ),
            )
            for row in rows
        ]

    def _create(self, schema: Any, first: TableOffsets) -> None:
        for day in self._layout.days:
            schema = schema.append(pa.field(day, pa.date32()))
        with naming_table(self.name, "create"):
            number = self._write_offsets(first)
            try:
                self._table = DeltaTable.create(
                    self._url,
                    schema,
                    partition_by=self._layout.columns or None,
                    storage_options=self._storage_options,
                    commit_properties=_once(number),
                    configuration={
                        ORDER_PROPERTY: json.dumps(self._layout.sort_columns),
                        CODEC_PROPERTY: self._layout.codec,
                    },
                    raise_if_key_not_exists=False,
                )
                return
            except Exception:
                # Another sync may have been first; what it made is checked like any other.
                if self.load() is None:
                    raise
        self.prepare(schema, first)

    def _widen(self, added: Sequence[Any], offsets: TableOffsets) -> None:
        """In two commits; after a death between them the next sync adds the columns."""
        table = self.loaded
        text = table.metadata().configuration.get(WIDENED_PROPERTY)
        fields = [(one.name,) for one in added]
        text = widened(text, fields, offsets, source=f"table {self.name}")
        with naming_table(self.name, "widen"):
            table.alter.set_table_properties({WIDENED_PROPERTY: text}, raise_if_not_exists=False)
            table.alter.add_columns([Field.from_arrow(one) for one in added])

    def _refuse_rolled_back(self) -> None:
        with naming_table(self.name, "read the log of"):
            version = rolled_back(
                self.loaded.version(), APP_ID, self._loaded_number, self._log_entry
            )
        if version is not None:
            raise TableRefused(
                f"table {self.name} was rolled back to before version {version}, and its"
                f" transaction of {APP_ID} names the rows of that one: they would be missing for"
                f" ever. Restore version {version} again, or name another table"
            )

    @property
    def _loaded_number(self) -> int:
        """Of its newest commit of a sync."""
        number = self.loaded.transaction_version(APP_ID)
        assert number is not None, self._url
        return number

    def _log_entry(self, version: int) -> bytes:
        with self.io.new_input(f"{self._url}/{DELTA_LOG}/{version:020}.json").open() as source:
            return bytes(source.read())

    def _refuse_occupied(self) -> None:
        """VACUUM deletes what the log does not name: files of other tables."""
        found = names_in(self.io, self._url)
        # With a log, another sync has just made this table.
        if DELTA_LOG not in found and (others := found - {FOLDER}):
            raise TableRefused(
                f"{self._url} has files already ({', '.join(sorted(others)[:3])}), and a Delta"
                " table is its folder: give the new table another name or --warehouse"
            )

    def _write_offsets(self, offsets: TableOffsets) -> int:
        number = _number(offsets.commits[0] if offsets.commits else uuid.uuid4().hex)
        with self.io.new_output(self._offsets_path(number)).create(overwrite=True) as out:
            out.write(offsets.encode().encode())
        return number

    def _delete_old_offsets(self) -> None:
        """Deletes those that no commit has named for days; what cannot be deleted is left."""
        number = self._loaded_number
        before_ms = SystemClock().now_ms() - OFFSETS_AGE_MS
        with suppress(OSError):
            system, path, _ = place_of(self.io, f"{self._url}/{FOLDER}")
            for one in system.get_file_info(pf.FileSelector(path, allow_not_found=True)):
                is_old = (one.mtime_ns or 0) // 1_000_000 < before_ms
                if is_old and one.type is pf.FileType.File and one.base_name != f"{number}.json":
                    system.delete_file(one.path)

    def _offsets_path(self, number: int) -> str:
        return f"{self._url}/{FOLDER}/{number}.json"


def new_fields(existing: Any, wanted: Any, *, table: str) -> list[Any]:
    """The columns that a table lacks. Raises TableRefused with all that it can never take."""
    refused, added = [], []
    for one in wanted:
        if one.name not in existing.names:
            others = [name for name in existing.names if name.lower() == one.name.lower()]
            if others:
                refused.append(f"{one.name} beside {others[0]}, which differs in case alone")
            added.append(one)
        elif not _fits(one.type, existing.field(one.name).type):
            refused.append(
                f"{one.name} is {existing.field(one.name).type} in the table, {one.type} here"
            )
    if refused:
        raise TableRefused(
            f"table {table} cannot take these fields: {'; '.join(refused)}. Nothing was written:"
            " read them as the table has them (--option valueSchema), or make another table"
        )
    return added


def check_partitions(layout: DeltaLayout, schema: Any) -> None:
    """Raises InvalidConfig for a column that a table cannot be partitioned by."""
    for one in (
        *layout.days.values(),
        *set(layout.columns) - set(layout.days),
    ):
        if one not in schema.names:
            names = ", ".join(schema.names)
            raise InvalidConfig(f"--partition-by: there is no column {one}; there are {names}")
    for one in layout.days.values():
        kind = schema.field(one).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise InvalidConfig(
                f"--partition-by 'day({one})': {one} is {kind}, which has no day; choose a column"
                " of times or dates"
            )
    for one in set(layout.columns) - set(layout.days):
        if not _has_one_text(kind := schema.field(one).type):
            raise InvalidConfig(
                f"--partition-by {one}: {one} is {kind}, and a Delta table is partitioned by"
                " integers, texts, booleans and dates"
            )


def check_order(columns: Sequence[tuple[str, str]], schema: Any) -> None:
    """Raises InvalidConfig for a column that rows cannot be sorted by."""
    for column, _ in columns:
        if column not in schema.names:
            names = ", ".join(schema.names)
            raise InvalidConfig(f"--sort-by: there is no column {column}; there are {names}")
        if pa.types.is_nested(schema.field(column).type):
            raise InvalidConfig(f"--sort-by {column}: rows are sorted by columns of one value each")


def _fits(kind: Any, known: Any) -> bool:
    """Whether values of `kind` are values of the table's type; delta-rs widens no types."""
    if pa.types.is_struct(known) and pa.types.is_struct(kind):
        fields = {one.name: one.type for one in known}
        return all(one.name in fields and _fits(one.type, fields[one.name]) for one in kind)
    if pa.types.is_list(known) and pa.types.is_list(kind):
        return _fits(kind.value_type, known.value_type)
    if pa.types.is_map(known) and pa.types.is_map(kind):
        return bool(kind.key_type == known.key_type) and _fits(kind.item_type, known.item_type)
    if pa.types.is_signed_integer(known) and pa.types.is_signed_integer(kind):
        return bool(kind.bit_width <= known.bit_width)
    if pa.types.is_floating(known) and pa.types.is_floating(kind):
        return bool(kind.bit_width <= known.bit_width)
    return bool(kind == known)


def _has_one_text(kind: Any) -> bool:
    """Whether all readers take a value of this type for the same one, by its text in the log."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
    )


def _once(number: int) -> CommitProperties:
    """A commit that deltalake does not repeat: it would append after another writer's rows."""
    return CommitProperties(max_commit_retries=0, app_transactions=[Transaction(APP_ID, number)])


def _number(commit_id: str) -> int:
    """The number of a commit: 60 bits of its id."""
    return int(hashlib.sha256(commit_id.encode()).hexdigest()[:15], 16)


def _add(one: WrittenFile, now_ms: int) -> AddAction:
    return AddAction(
        path=one.entry.place,
        size=one.size_bytes,
        partition_values=dict(one.entry.partition),
        modification_time=now_ms,
        data_change=True,
        stats=one.entry.stats or json.dumps({"numRecords": one.record_count}),
    )


def _remove(one: WrittenFile, now_ms: int) -> RemoveAction:
    return RemoveAction(
        path=one.entry.place,
        data_change=True,
        deletion_timestamp=now_ms,
        size=one.size_bytes,
        partition_values=dict(one.entry.partition),
    )
