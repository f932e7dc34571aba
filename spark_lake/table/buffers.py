"""Rows of a round, gathered by partition of the table until a file is full. Bounded memory.

    rows -> cut by partition -> buffer of the partition -> a file, if it has `file_bytes`
                                                        -> the largest one, if all together have
                                                           `buffers_bytes`

Sizes are of rows in memory (Arrow); a Parquet file is 3 to 10 times smaller.

A buffer copies its rows into Arrow's pool. A batch of the lake shares memory with the arrays that
its records were decoded into, each as large as it might have become: 100 bytes of keys keep 2 MiB.
What waits for its file would keep three times its size, scattered over the C library's heaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.store import FileWriter, WrittenFile

BUFFERS_BYTES_MAX = 256 * 1024 * 1024


@dataclass(slots=True)
class _Buffer:
    batches: list[Any] = field(default_factory=list)
    size_bytes: int = 0


class FileBuffers:
    """Buffers of one task. Each file that is full is written at once, and yielded."""

    def __init__(
        self, writer: FileWriter, *, file_bytes: int, buffers_bytes: int = BUFFERS_BYTES_MAX
    ) -> None:
        self._writer = writer
        self._file_bytes = file_bytes
        self._buffers_bytes = max(buffers_bytes, file_bytes)
        self._buffers: dict[Any, _Buffer] = {}
        self._size_bytes = 0

    def add(self, rows: Any) -> Iterator[WrittenFile]:
        """Takes a `pyarrow.RecordBatch`. Raises TableRefused, and what the writer raises."""
        left = rows.num_rows
        for part in self._writer.cut(rows):
            left -= part.rows.num_rows
            buffer = self._buffers.setdefault(part.key, _Buffer())
            buffer.batches.append(_copied(part.rows))
            buffer.size_bytes += part.rows.nbytes
            self._size_bytes += part.rows.nbytes
            if buffer.size_bytes >= self._file_bytes:
                yield self._write(part.key)
        if left:
            raise TableRefused(
                "a row is in no partition of the table, or in two: its partitions are of"
                " floating-point numbers (NaN, -0.0), by which no sync can write; partition the"
                " table by something else"
            )
        while self._size_bytes > self._buffers_bytes:
            yield self._write(max(self._buffers, key=lambda key: self._buffers[key].size_bytes))

    def finish(self) -> Iterator[WrittenFile]:
        """Writes what is left."""
        for key in list(self._buffers):
            yield self._write(key)

    def _write(self, key: Any) -> WrittenFile:
        buffer = self._buffers.pop(key)
        self._size_bytes -= buffer.size_bytes
        return self._writer.write(key, buffer.batches)


def _copied(rows: Any) -> Any:
    """The same rows in memory of their own. Arrow copies only if it has two batches to join."""
    return pa.concat_batches([rows, rows.slice(0, 0)])
