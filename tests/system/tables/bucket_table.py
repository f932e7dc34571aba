"""An archive and a table of it in one bucket, and processes that sync and maintain the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3

from strandline.spark_lake.table.iceberg.places import normalized
from strandline.spark_lake.table.run import TableRequest, TableRun
from tests.conftest import S3Bucket
from tests.support.ministack import REPOSITORY
from tests.system.tables.table_job import NoProgress
from tests.system.tiers.lake.uploads import upload
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.rig import add_rows
from tests.unit.spark_lake.table.test_rejected import NUMBERED
from tests.unit.spark_lake.table.test_upkeep import NOW

JOB = REPOSITORY / "tests" / "system" / "tables" / "table_job.py"


class BucketTable:
    """Topic `orders`, whose values go to `lake.orders`, or to its second table."""

    def __init__(self, bucket: S3Bucket, folder: Path, catalog: str | None = None) -> None:
        """`catalog` None is a database."""
        self.bucket = bucket
        self.archive = ArchiveBuilder(folder / "archive")
        self.archive.add_topic("orders", partitions=2)
        self.request: dict[str, Any] = {
            "remote": bucket.url,
            "topic": "orders",
            "table": "lake.orders",
            "catalog": catalog or f"sqlite:///{folder / 'catalog.db'}",
            "options": {
                "s3.endpoint.url": bucket.endpoint_url,
                "valueFormat": "json",
                "valueSchema": NUMBERED,
            },
            "on_error": "reject",
            # A commit for each segment.
            "round_bytes": 1,
        }
        self._log_path = folder / "job.log"
        self._client: Any = boto3.client(
            "s3", endpoint_url=bucket.endpoint_url, region_name="us-east-1"
        )

    def add(self, *bases: int) -> None:
        """Archives 40 records of each partition from these offsets on."""
        for base in bases:
            add_rows(self.archive, base=base)
        upload(self.archive, self.bucket)

    def start(self, what: str, *, crash_at: str = "") -> subprocess.Popen[bytes]:
        """A process that does a "sync" or "maintain"."""
        with open(self._log_path, "ab") as log:
            return subprocess.Popen(
                [sys.executable, str(JOB), what, json.dumps(self.request)],
                env={**os.environ, "STRANDLINE_CRASH_AT": crash_at},
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
            )

    def job_log(self) -> str:
        return self._log_path.read_text()

    def run(self) -> TableRun:
        return TableRun(TableRequest(**self.request))

    def sync(self) -> None:
        self.run().sync(NoProgress())

    def maintain(self) -> None:
        self.run().maintain(None, NOW)

    def stored(self) -> set[str]:
        """The objects of both tables, without the empty ones that pyarrow puts for folders."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket.name, Prefix="archive-tables/"
        )
        return {
            f"s3://{self.bucket.name}/{one['Key']}"
            for page in pages
            for one in page.get("Contents", ())
            if not one["Key"].endswith("/")
        }

    def named(self) -> set[str]:
        """What the newest snapshots of both tables name, as pyiceberg tells."""
        run = self.run()
        found: set[str] = set()
        for store in (run.store, run.rejected):
            assert store.load() is not None
            table = store.loaded  # type: ignore[attr-defined]
            found |= {table.metadata_location}
            found |= {one.metadata_file for one in table.metadata.metadata_log}
            snapshot = table.current_snapshot()
            if snapshot is not None:
                found |= {snapshot.manifest_list}
                found |= {one.manifest_path for one in snapshot.manifests(table.io)}
            found |= {
                normalized(table.io, one.file.file_path, table.location())
                for one in table.scan().plan_files()
            }
        return found
