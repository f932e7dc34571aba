"""What a sync needs of a table format; `iceberg/` has the first implementation.

    TableStore   in the driver: loads the table, commits files with offsets
    FileWriter   in each task: cuts rows by the table's partitions, writes Parquet files

A FileWriter and the files that it returns are picklable: tasks may run in other processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from strandline.spark_lake.table.offsets import TableOffsets


class FileRole(Enum):
    """Which table a file is for."""

    ROWS = "rows"
    # Of the second table: values that do not parse.
    REJECTED = "rejected"
    # Of the table as it was loaded: the commit removes it.
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A Parquet file that no commit names yet; `entry` is what the format commits of it."""

    path: str
    size_bytes: int
    record_count: int
    entry: Any
    role: FileRole = FileRole.ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRows:
    """Rows of one partition of the table; `key` is hashable, and means something to its writer."""

    key: Any
    rows: Any


class FileWriter(Protocol):
    """Writer of the data files of one attempt."""

    @property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the table."""
        ...

    def cut(self, rows: Any) -> Iterable[PartitionRows]:
        """The rows of a `pyarrow.RecordBatch` by partition of the table."""
        ...

    def write(self, key: Any, batches: Sequence[Any]) -> WrittenFile:
        """Writes one file under a name that no other attempt uses. Raises TableUnavailable."""
        ...

    def renamed(self) -> FileWriter:
        """The same writer for another attempt, whose files have other names."""
        ...

    def read(self, file: WrittenFile, columns: Sequence[str] | None = None) -> Any:
        """A file of the table, as a `pyarrow.Table` of its columns. Raises TableUnavailable."""
        ...

    def discard(self, files: Sequence[WrittenFile]) -> None:
        """Deletes files that no commit names. What cannot be deleted is left to maintenance."""
        ...


class TableStore(Protocol):
    """One table in its catalog."""

    @property
    def name(self) -> str:
        """Its name, for messages."""
        ...

    def check(self, schema: Any) -> TableOffsets | None:
        """Loads the table, and checks that it takes rows of `schema`, once it is made or widened.

        Writes nothing. Raises TableRefused with all fields named that it cannot take, and
        InvalidConfig for a layout that it cannot have.
        """
        ...

    def prepare(self, schema: Any, first: TableOffsets) -> None:
        """Creates the table with `first`, or widens its schema so that it takes rows of `schema`.

        Raises what `check` raises, before anything is written.
        """
        ...

    def writer(self, attempt: str) -> FileWriter:
        """A writer of files for the table as it was loaded last."""
        ...

    def load(self) -> TableOffsets | None:
        """Loads the table as it is now, and returns what it has; None if there is no table.

        Raises TableUnavailable, and TableRefused for a table that no sync has made.
        """
        ...

    def files_by(self, column: str) -> Mapping[int, Sequence[WrittenFile]]:
        """The files of the table by the value of a column that it is partitioned by.

        Raises TableRefused if it is not, or if a file has deletes beside it.
        """
        ...

    def missing_files(self) -> Sequence[str]:
        """Files of the table as it was loaded last that are not there any more.

        Raises TableUnavailable.
        """
        ...

    def reopen(self, paths: Sequence[str]) -> Sequence[WrittenFile]:
        """Files of the table that another process wrote. Raises TableUnavailable."""
        ...

    def commit(self, files: Sequence[WrittenFile], offsets: TableOffsets) -> None:
        """Adds files, removes others, and sets the offsets in one commit.

        It comes right after the last table of `load`.

        Raises CommitConflict if another commit came first, CommitUnknown if the answer was lost,
        FilesOutdated if the table takes other files now.
        """
        ...

    def discard(self, files: Sequence[WrittenFile]) -> None:
        """Deletes files that no commit names. What cannot be deleted is left to maintenance."""
        ...
