"""What the tests of tables share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.rig import add_rows


@pytest.fixture
def orders(tmp_path: Path) -> ArchiveBuilder:
    made = ArchiveBuilder(tmp_path / "archive")
    made.add_topic("orders", partitions=2)
    add_rows(made, base=0)
    add_rows(made, base=40)
    return made
