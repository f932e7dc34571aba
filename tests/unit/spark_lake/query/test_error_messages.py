"""Errors come to a user without what lies below the lake."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from strandline.spark_lake import scan
from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.storage.errors import (
    StrandlineError,
)
from strandline.storage.remote import keys
from strandline.storage.remote.manifest.entries import SegmentEntry
from tests.unit.spark_lake.archive_builder import (
    ArchiveBuilder,
)

# --- what a user of Spark sees --------------------------------------------------------------


def test_errors_come_without_the_frames_and_causes_below_the_lake(
    archive: ArchiveBuilder, segment: SegmentEntry
) -> None:
    """Spark shows the traceback of a Python source: thirty frames, the message behind them."""
    given = {"path": archive.url, "subscribe": "t", "startingOffsets": "earliest"}
    source = StrandlineDataSource(given)
    planned = source.reader(source.schema()).partitions()
    stream = source.streamReader(source.schema())
    at = stream.initialOffset()
    archive.object_path(segment.log_key).unlink()
    archive.object_path(keys.CLUSTER_KEY).unlink()

    def stopped(call: Callable[[], object], says: str) -> None:
        with pytest.raises(StrandlineError) as caught:
            call()
        shown = "".join(traceback.format_exception(caught.value))
        assert says in shown.splitlines()[-1]
        assert "Traceback" in shown.splitlines()[0]
        assert shown.count("Traceback") == 1  # no causes
        assert shown.count("  File ") <= 5  # three of them this test's

    stopped(lambda: [*source.reader(source.schema()).read(planned[0])], segment.log_key)
    stopped(lambda: source.reader(source.schema()).partitions(), "no strandline archive at")
    stopped(lambda: scan(archive.url, "t"), "no strandline archive at")
    stopped(source.streamReader(source.schema()).initialOffset, "no strandline archive at")
    stopped(lambda: stream.partitions(at, at | {"offsets": {"t": {"0": 9}}}), "no strandline")
    stopped(lambda: StrandlineDataSource({**given, "x": "1"}).schema(), "option x is unknown")
