"""The reader inside the JVM over a bucket: signed ranges, faults on the way, lasting errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from strandline.spark_lake import jvm_engine, load
from strandline.storage.clock import ManualClock
from tests.conftest import S3Bucket
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.unit.lake.archive_builder import ArchiveBuilder, make_batches, make_records

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.s3]

COUNT = 300


class Lake:
    """An archive of one topic in a bucket, seen through a proxy."""

    def __init__(self, folder: Path, bucket: S3Bucket, proxy: FaultProxy) -> None:
        archive = ArchiveBuilder(folder)
        archive.add_topic("t")
        self.entries = [
            archive.add_segment(
                "t", make_batches(make_records(100, base_offset=first, value_bytes=9000))
            )
            for first in range(0, COUNT, 100)
        ]
        self.proxy = proxy
        self.bucket = bucket
        self.client: Any = boto3.client(
            "s3", endpoint_url=bucket.endpoint_url, region_name="us-east-1"
        )
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(str(path.relative_to(folder)), path.read_bytes())

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket.name, Key=f"archive/{key}", Body=content)

    def get(self, key: str) -> bytes:
        answer = self.client.get_object(Bucket=self.bucket.name, Key=f"archive/{key}")
        content: bytes = answer["Body"].read()
        return content

    def frame(self, spark: SparkSession, **options: str) -> DataFrame:
        given = {"s3.endpoint.url": self.proxy.endpoint_url, "engine": "jvm", **options}
        return load(spark, self.bucket.url, "t", options=given)

    def offsets(self, spark: SparkSession, **options: str) -> list[int]:
        return [row["offset"] for row in self.frame(spark, **options).collect()]

    def refusal(self, spark: SparkSession, **options: str) -> str:
        return self.refusal_of(self.frame(spark, **options))

    def refusal_of(self, frame: DataFrame) -> str:
        with pytest.raises(Py4JJavaError) as caught:
            frame.collect()
        return str(caught.value)


@pytest.fixture
def lake(tmp_path: Path, s3_bucket: S3Bucket, fault_proxy: FaultProxy) -> Iterator[Lake]:
    yield Lake(tmp_path, s3_bucket, fault_proxy)
    fault_proxy.clear()


def test_objects_come_in_signed_ranges(spark: SparkSession, lake: Lake) -> None:
    frame = lake.frame(spark)
    # `load` itself may have looked at the format of a segment.
    lake.proxy.clear()
    assert [row["offset"] for row in frame.collect()] == list(range(COUNT))
    logs = [one.path for one in lake.proxy.seen if ".log" in one.path]
    assert len(logs) == len(lake.entries)
    # Version 4: buckets made since 2020 refuse the older one.
    assert all(re.search("X-Amz-Algorithm=AWS4-HMAC-SHA256&.*X-Amz-Signature=", p) for p in logs)
    assert all("X-Amz-Expires=43200" in path for path in logs)


@pytest.mark.parametrize(
    "rule",
    [
        Rule(action=Action.STATUS, status=503, code="SlowDown", times=2),
        Rule(action=Action.STATUS, status=500, code="InternalError"),
        Rule(action=Action.RESET_BEFORE),
        Rule(action=Action.TRUNCATE, at_byte=100_000),
        Rule(action=Action.CORRUPT, at_byte=500_000),
    ],
    ids=lambda rule: rule.action.name + str(rule.status),
)
def test_what_passes_is_tried_again(spark: SparkSession, lake: Lake, rule: Rule) -> None:
    rule.path = r"\.log"
    frame = lake.frame(spark)
    lake.proxy.add(rule)
    assert [row["offset"] for row in frame.collect()] == list(range(COUNT))
    assert rule.hit_count > 0


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Rule(action=Action.STATUS, status=503, times=-1), "TierUnavailable: read {}: the bucket"),
        (
            Rule(action=Action.STATUS, status=403, code="AccessDenied", times=-1),
            "AccessDenied: read {}: status 403 AccessDenied; set the options s3.key",
        ),
        (
            Rule(action=Action.STATUS, status=403, code="InvalidObjectState", times=-1),
            "ObjectArchived: read {}: it must be restored",
        ),
        (Rule(action=Action.CORRUPT, at_byte=500_000, times=-1), "ObjectCorrupt: read {}: from"),
    ],
    ids=["503", "403", "archived", "corrupt"],
)
def test_what_stays_names_the_object(
    spark: SparkSession, lake: Lake, rule: Rule, says: str
) -> None:
    entry = lake.entries[1]
    rule.path = re.escape(entry.log_key)
    lake.proxy.add(rule)
    assert says.format(f"{lake.bucket.url}/{entry.log_key}") in lake.refusal(spark)


def test_a_missing_and_a_shorter_object_are_different_errors(
    spark: SparkSession, lake: Lake
) -> None:
    entry = lake.entries[1]
    name = f"{lake.bucket.url}/{entry.log_key}"
    content = lake.get(entry.log_key)
    lake.put(entry.log_key, content[:-10])
    assert f"ObjectCorrupt: read {name}: bytes 0 to {len(content)} were" in lake.refusal(spark)
    lake.client.delete_object(Bucket=lake.bucket.name, Key=f"archive/{entry.log_key}")
    assert f"ObjectNotFound: read {name}: it does not exist; if" in lake.refusal(spark)


def test_a_frame_whose_urls_have_expired_says_so(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm_engine, "SystemClock", lambda: ManualClock(1_700_000_000_000))
    frame = lake.frame(spark, urlExpiry="1m")
    lake.proxy.add(Rule(action=Action.STATUS, status=403, code="AccessDenied", path=r"\.log"))
    assert "what it signed has expired. Make the frame anew" in lake.refusal_of(frame)
