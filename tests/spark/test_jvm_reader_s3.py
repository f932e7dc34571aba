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

from strandline.spark_lake import load, scan
from strandline.spark_lake.jvm import engine as jvm_engine
from strandline.storage.errors import StrandlineError
from tests.conftest import S3Bucket
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.heavy import heavy
from tests.support.manual_clock import ManualClock
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.s3]

COUNT = 300


class Lake:
    """An archive of one topic in a bucket, seen through a proxy."""

    count = COUNT
    per_segment = 100

    def __init__(self, folder: Path, bucket: S3Bucket, proxy: FaultProxy) -> None:
        archive = ArchiveBuilder(folder)
        archive.add_topic("t")
        self.entries = [
            archive.add_segment(
                "t",
                make_batches(make_records(self.per_segment, base_offset=first, value_bytes=9000)),
            )
            for first in range(0, self.count, self.per_segment)
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
            "AccessDenied: read {}: status 403 AccessDenied; set the options s3.access.key",
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


# --- objects of several windows ------------------------------------------------------------------

WINDOW = 8 * 1024 * 1024


class LongLake(Lake):
    """One segment of more than two windows."""

    count = 2_800
    per_segment = 2_800

    @property
    def size_bytes(self) -> int:
        return self.entries[0].size_bytes

    def refusal_of_scan(self) -> str:
        """What the reader in Python says."""
        options = {"s3.endpoint.url": self.proxy.endpoint_url}
        with pytest.raises(StrandlineError) as caught:
            scan(self.bucket.url, "t", options=options).read_all()
        return f"{type(caught.value).__name__}: {caught.value}"


@pytest.fixture
def long_lake(tmp_path: Path, s3_bucket: S3Bucket, fault_proxy: FaultProxy) -> Iterator[LongLake]:
    made = LongLake(tmp_path, s3_bucket, fault_proxy)
    assert 2 * WINDOW < made.size_bytes < 3 * WINDOW
    yield made
    fault_proxy.clear()


def logs_seen(lake: Lake) -> int:
    return sum(".log" in one.path for one in lake.proxy.seen)


def test_windows_of_an_object_come_out_of_one_request(
    spark: SparkSession, long_lake: LongLake
) -> None:
    frame = long_lake.frame(spark)
    long_lake.proxy.clear()
    assert [row["offset"] for row in frame.collect()] == list(range(long_lake.count))
    assert logs_seen(long_lake) == 1


@pytest.mark.parametrize(
    "at_byte", [WINDOW - 1, WINDOW, heavy(WINDOW + 1), heavy(2 * WINDOW + 100_000)]
)
def test_a_connection_that_breaks_between_windows_goes_on_where_it_broke(
    spark: SparkSession, long_lake: LongLake, at_byte: int
) -> None:
    frame = long_lake.frame(spark)
    long_lake.proxy.clear()
    rule = Rule(action=Action.TRUNCATE, at_byte=at_byte, path=r"\.log")
    long_lake.proxy.add(rule)
    assert [row["offset"] for row in frame.collect()] == list(range(long_lake.count))
    assert rule.hit_count == 1
    assert logs_seen(long_lake) == 2


@pytest.mark.parametrize("at_byte", [heavy(500_000), WINDOW + 500_000])
def test_a_damaged_window_is_read_again_and_the_rest_after_it(
    spark: SparkSession, long_lake: LongLake, at_byte: int
) -> None:
    frame = long_lake.frame(spark)
    rule = Rule(action=Action.CORRUPT, at_byte=at_byte, path=r"\.log")
    long_lake.proxy.add(rule)
    rows = frame.select("offset", "value").collect()
    assert [row["offset"] for row in rows] == list(range(long_lake.count))
    assert rule.hit_count == 1


def test_an_object_that_ends_in_a_later_window_is_short_in_the_words_of_python(
    spark: SparkSession, long_lake: LongLake
) -> None:
    entry = long_lake.entries[0]
    content = long_lake.get(entry.log_key)
    for kept, start in ((len(content) - 10, 2 * WINDOW), (WINDOW + 5, WINDOW)):
        long_lake.put(entry.log_key, content[:kept])
        end = min(start + WINDOW, len(content))
        said = f"bytes {start} to {end} were asked for, {kept - start} came"
        assert said in long_lake.refusal_of_scan()
        assert long_lake.refusal_of_scan() in long_lake.refusal(spark)
    long_lake.put(entry.log_key, content[:WINDOW])
    assert "the object is shorter than the manifest says" in long_lake.refusal_of_scan()
    assert long_lake.refusal_of_scan() in long_lake.refusal(spark)


def test_what_is_wrong_with_a_segment_is_said_before_what_is_wrong_with_the_next(
    spark: SparkSession, lake: Lake
) -> None:
    """The next is fetched while the rows of this one are read."""
    first, second = lake.entries[:2]
    lake.client.delete_object(Bucket=lake.bucket.name, Key=f"archive/{second.log_key}")
    content = bytearray(lake.get(first.log_key))
    # A leader epoch, which lies outside the CRC of its batch: only the whole object's tells.
    content[15] ^= 1
    lake.put(first.log_key, bytes(content))
    assert f"ObjectCorrupt: read {lake.bucket.url}/{first.log_key}" in lake.refusal(spark)
    content[15] ^= 1
    lake.put(first.log_key, bytes(content))
    assert f"ObjectNotFound: read {lake.bucket.url}/{second.log_key}" in lake.refusal(spark)


@pytest.mark.heavy
def test_a_query_that_has_enough_rows_leaves_the_rest_of_its_request(
    spark: SparkSession, long_lake: LongLake
) -> None:
    for _ in range(20):
        assert len(long_lake.frame(spark).limit(3).collect()) == 3
    assert [row["offset"] for row in long_lake.frame(spark).collect()] == list(
        range(long_lake.count)
    )
