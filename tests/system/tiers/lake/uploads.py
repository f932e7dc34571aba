"""Archives made here, in a bucket."""

from __future__ import annotations

from pathlib import Path

from strandline.storage.remote.open_store import open_store
from tests.conftest import S3Bucket
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records


def uploaded(bucket: S3Bucket, folder: Path, *, records: int = 600) -> ArchiveBuilder:
    """Topic `t` with so many records in two segments, in the bucket."""
    archive = ArchiveBuilder(folder)
    archive.add_topic("t")
    size = 20 if records == 600 else 2000
    for start in (0, records // 2):
        made = make_records(records // 2, base_offset=start, value_bytes=size)
        archive.add_segment("t", make_batches(made))
    upload(archive, bucket)
    return archive


def upload(archive: ArchiveBuilder, bucket: S3Bucket) -> None:
    store = open_store(bucket.url, endpoint_url=bucket.endpoint_url, region="us-east-1")
    for path in sorted(archive.path.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(archive.path)), path.read_bytes())
