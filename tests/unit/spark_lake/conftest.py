"""What several tests of the lake share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.storage.remote.manifest.entries import SegmentEntry
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records
from tests.unit.spark_lake.fake_registry import FakeRegistry


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    server = FakeRegistry()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveBuilder:
    """An archive without topics; a module that wants some adds them in its own."""
    return ArchiveBuilder(tmp_path)


@pytest.fixture
def segment(archive: ArchiveBuilder) -> SegmentEntry:
    """The middle one of three."""
    archive.add_topic("t")
    entries = [
        archive.add_segment("t", make_batches(make_records(40, base_offset=start, value_bytes=200)))
        for start in (0, 40, 80)
    ]
    return entries[1]
