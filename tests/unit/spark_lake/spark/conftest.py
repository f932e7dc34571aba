"""The archive that streams read."""

from __future__ import annotations

import pytest

from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.stream_steps import add


@pytest.fixture
def archive(archive: ArchiveBuilder) -> ArchiveBuilder:
    """Topic `t` with 100 records in partition 0 and 20 in partition 1."""
    archive.add_topic("t", partitions=3)
    add(archive, 0, 100)
    add(archive, 0, 20, partition=1)
    return archive
