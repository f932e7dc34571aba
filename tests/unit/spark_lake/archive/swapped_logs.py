"""An archive in which a segment has the log of another one."""

from __future__ import annotations

from strandline.storage.records.batch.record import Record
from strandline.storage.remote.manifest.entries import SegmentEntry
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches

RECORDS = 400


def swapped(archive: ArchiveBuilder) -> list[SegmentEntry]:
    """Two partitions of topic `t`, alike but for keys and times; each has the other's log."""
    archive.add_topic("t", partitions=2)
    entries = []
    for partition in range(2):
        records = [
            Record(
                offset=offset,
                timestamp_ms=START_MS + 1000 * offset + partition,
                key=b"%d" % partition,
                value=bytes(200),
            )
            for offset in range(RECORDS)
        ]
        batches = make_batches(records)
        entries.append(archive.add_segment("t", batches, partition=partition, chunk_bytes=8000))
    paths = [archive.object_path(entry.log_key) for entry in entries]
    logs = [path.read_bytes() for path in paths]
    assert len(logs[0]) == len(logs[1])
    for path, log in zip(paths, reversed(logs), strict=True):
        path.write_bytes(log)
    return entries
