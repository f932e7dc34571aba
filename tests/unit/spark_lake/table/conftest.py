"""What the tests of tables share."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.rig import add_rows, sync


def make_orders(folder: Path) -> ArchiveBuilder:
    made = ArchiveBuilder(folder / "archive")
    made.add_topic("orders", partitions=2)
    add_rows(made, base=0)
    add_rows(made, base=40)
    return made


@pytest.fixture
def orders(tmp_path: Path) -> ArchiveBuilder:
    return make_orders(tmp_path)


@pytest.fixture(scope="session")
def synced_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[ArchiveBuilder, Path]:
    """`orders` and a table of it, and a folder with a copy of both."""
    folder = tmp_path_factory.mktemp("synced")
    made = make_orders(folder / "used")
    sync(made)
    return made, shutil.copytree(folder / "used", folder / "kept")


@pytest.fixture
def synced(synced_once: tuple[ArchiveBuilder, Path]) -> ArchiveBuilder:
    """`orders`, after a sync that is made once.

    At the place that it was made at, since a table has the paths of its files.
    """
    made, kept = synced_once
    shutil.rmtree(made.path.parent)
    shutil.copytree(kept, made.path.parent)
    again = copy.copy(made)
    again.topics = copy.deepcopy(made.topics)
    return again
