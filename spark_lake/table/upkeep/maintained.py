"""What maintenance and checks need of a table format, besides what a sync needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.offsets import TableOffsets
from strandline.spark_lake.table.store import FileWriter, WrittenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A data file that the table names."""

    path: str
    size_bytes: int
    record_count: int
    # Of the table's partition; hashable.
    key: Any
    # Least and greatest value by column, where the format knows them.
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    # Whether other files delete rows of it: such a file is left to who wrote those.
    has_deletes: bool = False
    entry: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file in the table's folders, named by the table or not."""

    path: str
    size_bytes: int
    modified_ms: int


class CheckedTable(Protocol):
    """One table in its catalog, for a check."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the table as it was loaded last."""
        ...

    def load(self) -> TableOffsets | None:
        """As `TableStore.load`."""
        ...

    def property_of(self, name: str) -> str | None:
        """A property of the table as it was loaded last."""
        ...

    def live_files(self) -> list[LiveFile]:
        """The data files of the table as it was loaded last."""
        ...

    def as_stored(self, rows: Any) -> Any:
        """A `pyarrow.Table` of rows as the format keeps them."""
        ...

    def read(self, file: LiveFile, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Its rows as `pyarrow.RecordBatch`es in the table's types. Raises TableUnavailable."""
        ...


class MaintainedTable(CheckedTable, Protocol):
    """A table whose format leaves rewriting, expiring and deleting to us."""

    def writer(self, attempt: str) -> FileWriter: ...

    def discard(self, files: Sequence[WrittenFile]) -> None: ...

    def replace(
        self,
        old: Sequence[LiveFile],
        new: Sequence[WrittenFile],
        properties: Mapping[str, str],
    ) -> None:
        """Takes old files out of the table and adds new ones, in one commit that sets properties.

        Raises what `TableStore.commit` raises; FilesOutdated also if an old file is gone,
        or has deletes.
        """
        ...

    def expire(self, before_ms: int) -> int:
        """Takes snapshots of before this time out of the table; the current one and those of tags
        and branches stay. Their files stay too, until they are deleted as orphans."""
        ...

    def stored_files(self) -> list[StoredFile]:
        """All files in the table's folders, and of no other table. Raises TableUnavailable."""
        ...

    def named_paths(self) -> set[str]:
        """What any snapshot of the table, as it was loaded last, needs.

        Raises TableRefused if another catalog has a table at this location.
        """
        ...

    def delete(self, paths: Sequence[str]) -> int:
        """Deletes files; the number that could be deleted."""
        ...


def load_made(table: CheckedTable) -> TableOffsets:
    """What the table has. Raises TableRefused if there is none."""
    offsets = table.load()
    if offsets is None:
        raise TableRefused(f"there is no table {table.name}: `table sync` makes it")
    return offsets
