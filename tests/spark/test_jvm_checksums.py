"""Inside the JVM: a log that is another's, whole in itself and of the right shape; all times."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from strandline.spark_lake import load
from strandline.spark_lake.query import pruning
from strandline.storage.records.batch.record import Record
from strandline.storage.records.columns.vectorised import INT64_MAX, INT64_MIN
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import Section, SegmentStatistics
from tests.unit.spark_lake.archive.swapped_logs import RECORDS, swapped
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("metas_max", [256, 0], ids=["chunks by the planner", "chunks by tasks"])
def test_a_log_of_the_same_shape_is_refused_though_a_part_of_it_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metas_max: int
) -> None:
    monkeypatch.setattr(pruning, "PRUNED_SEGMENT_BYTES_MIN", 1)
    monkeypatch.setattr(pruning, "PLANNED_METAS_MAX", metas_max)
    archive = ArchiveBuilder(tmp_path)
    entry, _ = swapped(archive)
    options = {"engine": "jvm"}
    for filters in ([("offset", "==", 77)], []):
        frame = load(spark, archive.url, "t", filters=filters, options=options)
        # Not even to who wants only a row of it.
        with pytest.raises(Py4JJavaError, match=r"checksum of the (chunk|whole)"):
            frame.limit(1).collect()
    # The other way round each chunk has its checksum again.
    paths = sorted(tmp_path.rglob("*.log"))
    logs = [path.read_bytes() for path in paths]
    for path, log in zip(paths, reversed(logs), strict=True):
        path.write_bytes(log)
    for filters in ([("offset", ">=", 77)], []):
        frame = load(spark, archive.url, "t", filters=filters, options=options)
        assert frame.count() == 2 * (RECORDS - 77 if filters else RECORDS)
    # Another's from a chunk in the middle on.
    path = archive.object_path(entry.log_key)
    theirs = next(log for log in logs if log != path.read_bytes())
    sections = segment_meta.decode(archive.object_path(entry.meta_key).read_bytes())
    chunks = SegmentStatistics.decode(sections[Section.STATISTICS]).chunks
    border = next(chunk.position for chunk in chunks if chunk.base_offset > RECORDS // 2)
    path.write_bytes(path.read_bytes()[:border] + theirs[border:])
    frame = load(spark, archive.url, "t", filters=[("offset", ">=", 77)], options=options)
    with pytest.raises(Py4JJavaError, match=f"from byte {border}: checksum of the chunk"):
        frame.collect()


def test_no_time_is_too_late_or_too_early_for_its_row(spark: SparkSession, tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    times = [INT64_MIN, -1, 0, INT64_MAX - 1, INT64_MAX]
    records = [
        Record(offset=n, timestamp_ms=time, key=None, value=None) for n, time in enumerate(times)
    ]
    for one in records[:3]:
        archive.add_segment("t", make_batches([one]))
    archive.add_segment("t", make_batches(records[3:], per_batch=1))
    frame = load(spark, archive.url, "t", columns=["offset"], options={"engine": "jvm"})
    assert sorted(row.offset for row in frame.collect()) == list(range(len(times)))
