"""Position deletes, as Spark and Trino write them for a DELETE; pyiceberg only reads them."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import _FastAppendFiles

# Of the specification.
_PATH = pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"})
_POSITION = pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"})


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_FastAppendFiles):
    """A snapshot that adds a file of deletes."""

    table: Table
    deletes: DataFile

    def _manifests(self) -> list[ManifestFile]:
        path = f"{self.table.location()}/metadata/{uuid.uuid4()}.avro"
        spec = self.spec(self.deletes.spec_id)
        output = self.table.io.new_output(path)
        with _DeleteManifest(spec, self.schema(), output, self.snapshot_id, "null") as writer:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self.snapshot_id,
                data_file=self.deletes,
            )
            writer.add(entry)
        return [*super()._manifests(), writer.to_manifest_file()]


def delete_row(table: Table, file: DataFile, position: int) -> None:
    """Deletes one row of a data file, in a commit of its own."""
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    rows = pa.table([[file.file_path], [position]], schema=pa.schema([_PATH, _POSITION]))
    with table.io.new_output(path).create() as out:
        pq.write_table(rows, out)
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=1,
        file_size_in_bytes=len(table.io.new_input(path)),
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={2147483546: file.file_path.encode()},
        upper_bounds={2147483546: file.file_path.encode()},
    )
    deletes.spec_id = file.spec_id
    with table.transaction() as transaction:
        made: Any = _RowDelta(operation="delete", transaction=transaction, io=table.io)
        made.table, made.deletes = table, deletes
        made.commit()
