"""An archive, its objects to be damaged, and the error that a query of it ends with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.storage.errors import (
    StrandlineError,
)
from tests.unit.spark_lake.archive_builder import (
    ArchiveBuilder,
)


def read(archive: ArchiveBuilder, **options: str) -> int:
    """How many rows a query over topic `t` gives."""
    source = StrandlineDataSource({"path": archive.url, "subscribe": "t", **options})
    reader = source.reader(source.schema())
    return sum(batch.num_rows for one in reader.partitions() for batch in reader.read(one))


def refused(archive: ArchiveBuilder, kind: type[StrandlineError], **options: str) -> str:
    with pytest.raises(kind) as caught:
        read(archive, **options)
    return str(caught.value)


def damage(archive: ArchiveBuilder, key: str, change: Callable[[bytearray], object]) -> None:
    path = archive.object_path(key)
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
