"""One frame, many queries: each has a plan and filters of its own, whatever was asked before it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.spark_lake import load, register, scan
from strandline.storage.records.batch.record import Record
from strandline.storage.records.compression import Codec
from tests.support.heavy import HEAVY, heavy
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveBuilder:
    """Topic `t` with 100 records in partition 0 and 50 in partition 1."""
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t", partitions=2)
    archive.add_segment("t", make_batches(make_records(100)))
    archive.add_segment("t", make_batches(make_records(50)), partition=1)
    return archive


def frame_of(spark: SparkSession, archive: ArchiveBuilder) -> DataFrame:
    return spark.read.format("strandline").option("subscribe", "t").load(archive.url)


def test_filters_of_one_query_are_not_those_of_the_next(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    frame = frame_of(spark, archive)
    frame.createOrReplaceTempView("asked_often")
    view = spark.table("asked_often")
    for asked in (frame, view):
        assert asked.where("partition = 1").count() == 50
        assert asked.count() == 150
        # Spark gives a Python source nothing of an "or": it has no filter at all.
        assert asked.where("offset < 10 or partition = 7").count() == 20
        assert asked.where("offset < 10").count() == 20
        assert asked.where("key is null").count() == 30
    few, one = frame.where("offset < 10"), frame.where("partition = 1")
    assert (few.count(), one.count(), few.count()) == (20, 50, 20)
    frame.where("partition = 0").explain()
    assert few.count() == 20


def test_queries_within_one_query_have_filters_of_their_own(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    frame = frame_of(spark, archive)
    few, one = frame.where("offset < 10"), frame.where("partition = 1")
    assert few.unionAll(one).count() == 70
    assert one.unionAll(frame).unionAll(few).count() == 220
    assert few.join(one, "offset").count() == 20
    frame.createOrReplaceTempView("asked_twice")
    text = (
        "with late as (select * from asked_twice where offset >= 40)"
        " select count(*) n, (select count(*) from asked_twice where partition = 1) inner_n"
        " from late where late.offset not in (select offset from asked_twice where partition = 1)"
    )
    (row,) = spark.sql(text).collect()
    assert (row["n"], row["inner_n"]) == (50, 50)


def test_a_frame_shows_what_is_archived_when_it_is_asked(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    frame = frame_of(spark, archive)
    assert frame.count() == 150
    old = archive.manifest("t").segments[0]
    archive.add_segment("t", make_batches(make_records(7, base_offset=100)))
    assert (frame.count(), frame.where("offset >= 100").count()) == (157, 7)
    archive.move_log_start("t", 100)
    archive.store.delete([old.log_key, old.meta_key])
    assert frame.count() == 57


def test_queries_over_one_frame_at_the_same_time_do_not_meet(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    frame = frame_of(spark, archive)

    def counted(start: int) -> int:
        return frame.where(f"offset >= {start}" if start else "true").count()

    starts = [0, 10, 90, 0, 60, 49]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(counted, starts))
    assert found == [(100 - start) + max(0, 50 - start) for start in starts]


def test_a_new_session_is_registered_for_itself(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    active = SparkSession.getActiveSession()
    other = spark.newSession()
    register(other)
    assert frame_of(other, archive).where("partition = 1").count() == 50
    assert frame_of(spark, archive).count() == 150
    assert SparkSession.getActiveSession() == active


def test_a_thread_of_its_own_finds_the_format_and_the_reader(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    """Spark takes classes from where a thread begins."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: frame_of(spark, archive).count()).result() == 150
        assert pool.submit(lambda: load(spark, archive.url, "t").count()).result() == 150


WITHOUT_JAR = """
import logging
import sys
from pyspark.sql import SparkSession
from strandline.spark_lake import load, register
from strandline.spark_lake.jvm import engine, jar

def refuse():
    raise jar.NoJvmReader("for this test")

logging.basicConfig(level=logging.INFO)
engine.jar_path = refuse
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
source = spark.read.format("strandline").option("subscribe", "t")
# By the package pyspark_strandline, which Spark finds by itself.
assert source.load(sys.argv[1]).where("partition = 1").count() == 50
spark.sql(
    "create temporary view unregistered using strandline"
    f" options (path '{sys.argv[1]}', subscribe 't')"
)
assert spark.sql("select offset from unregistered").count() == 150
register(spark)
frame = source.load(sys.argv[1])
assert frame.where("partition = 1").count() == 50
assert frame.count() == 150
assert frame.where("offset < 10").unionAll(frame).count() == 170
assert load(spark, sys.argv[1], "t").count() == 150
try:
    source.option("engine", "jvm").load(sys.argv[1]).count()
except Exception as error:
    assert "has no jar in this session" in str(error), error
else:
    raise AssertionError("engine=jvm was taken")
"""


@HEAVY
def test_a_session_that_takes_no_jar_reads_everything_in_python(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    """In a process of its own: all sessions of one share its classes."""
    environment = {name: text for name, text in os.environ.items() if "GATEWAY" not in name}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAR, archive.url],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "for this test" in done.stderr


# --- random filters -----------------------------------------------------------------------------

KEYS = [None, b"", b"\x00", b"k1", b"k2", "é".encode(), b"K1", b"k1 "]
OPERATORS = ["=", "=", "<", ">", "<=", ">=", "!=", "<=>"]


class Conditions:
    """Random SQL conditions over the columns, true to types and nulls as a user is not."""

    def __init__(self, source: random.Random) -> None:
        self.random = source

    def key(self) -> str:
        key = self.random.choice([*KEYS, b"zz"])
        if key is None:
            return "null"
        literals = [f"X'{key.hex()}'"]
        if b"\x00" not in key:
            literals += [f"cast('{key.decode()}' as binary)", f"'{key.decode()}'"]
        return self.random.choice(literals)

    def time(self) -> str:
        ms = START_MS + self.random.randint(-60_000, 700_000)
        micros = ms * 1000 + self.random.choice([0, 0, 1, -1, 500])
        return self.random.choice(
            [
                f"timestamp_micros({micros})",
                f"timestamp_millis({ms})",
                f"cast(timestamp_micros({micros}) as timestamp_ntz)",
                f"cast(timestamp_micros({micros}) as string)",
                "date'2023-11-15'",
                "'2023-11-14 22:15:00'",
                "null",
            ]
        )

    def number(self) -> str:
        number = self.random.choice([*range(-2, 300, 7), 2**31, 2**63 - 1, -(2**63) + 1])
        forms = [f"{number}L", f"{number}L", f"'{number}'", f"{number}.5", "null"]
        return self.random.choice(forms)

    def test(self) -> str:
        operator = self.random.choice(OPERATORS)
        topic = self.random.choice(["'a'", "'A'", "'b.c'", "null"])
        return self.random.choice(
            [
                f"key {operator} {self.key()}",
                f"key in ({self.key()}, {self.key()})",
                f"timestamp {operator} {self.time()}",
                f"timestamp between {self.time()} and {self.time()}",
                f"offset {operator} {self.number()}",
                f"offset in ({self.number()}, {self.number()})",
                f"partition {operator} {self.random.choice(['0', '1', '1L', '0.5', 'null'])}",
                f"partition in (0, {self.random.choice(['1', 'null', '7'])})",
                f"topic {operator} {topic}",
                f"topic {self.random.choice(['like', 'not like'])} '%{self.random.choice('abc')}%'",
                self.random.choice(["key is null", "key is not null", "value is null"]),
                self.random.choice(["length(value) > 5", "hash(key) % 2 = 0", "offset % 3 = 1"]),
                self.random.choice(["topic in ('a', null)", "not (topic in ('A', 'zz'))", "false"]),
            ]
        )

    def condition(self, depth: int = 0) -> str:
        chance = self.random.random()
        if depth > 2 or chance < 0.35:
            return self.test()
        left, right = self.condition(depth + 1), self.condition(depth + 1)
        if chance < 0.75:
            return f"({left} and {right})"
        return f"({left} or {right})" if chance < 0.88 else f"not ({left})"


def mixed_archive(folder: Path, source: random.Random) -> ArchiveBuilder:
    """Three topics with gaps, times out of order, all codecs, chunks small and large."""
    archive = ArchiveBuilder(folder)
    for topic, partitions in (("a", 2), ("b.c", 2), ("A", 1)):
        archive.add_topic(topic, partitions=partitions)
        for partition in range(partitions):
            offset = 0
            for number in range(source.randint(1, 3)):
                records = []
                # The first is large enough for its statistics to be asked.
                is_large = topic == "a" and number == 0
                for _ in range(400 if is_large else source.randint(5, 60)):
                    near = START_MS + offset * 1000
                    at = source.choice([near, near, START_MS + source.randint(-60_000, 600_000)])
                    value = source.randbytes(3000 if is_large else source.choice([0, 9]))
                    records.append(
                        Record(
                            offset=offset,
                            timestamp_ms=source.choice([at] * 30 + [-1, 0]),
                            key=source.choice(KEYS),
                            value=source.choice([value, value, None]),
                        )
                    )
                    offset += source.choice([1, 1, 1, 2])
                offset = records[-1].offset + 1
                made = make_batches(records, per_batch=7, codec=source.choice(list(Codec)))
                archive.add_segment(topic, made, partition=partition, chunk_bytes=20_000)
    return archive


@pytest.mark.parametrize(("seed", "rounds"), [(1, 1), heavy(1, 4), heavy(2, 4)])
@pytest.mark.heavy
def test_random_filters_give_the_rows_that_spark_alone_would_give(
    spark: SparkSession, tmp_path: Path, seed: int, rounds: int
) -> None:
    source = random.Random(seed)
    archive = mixed_archive(tmp_path / "archive", source)
    options = {"subscribePattern": ".*"}
    lake = spark.read.format("strandline").options(**options).load(archive.url)
    lake.write.parquet(str(tmp_path / "all"))
    everything = spark.read.parquet(str(tmp_path / "all")).coalesce(1).cache()
    assert everything.count() == scan(archive.url, options=options).read_all().num_rows
    views = {"lake_rows": lake, "all_rows": everything}
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    conditions = Conditions(source)
    told = "topic, partition, offset, unix_micros(timestamp), timestampType, key, value"
    spark.conf.set("spark.sql.session.timeZone", ["Asia/Kolkata", "America/New_York"][seed % 2])
    try:
        for _ in range(rounds):
            asked = [conditions.condition() for _ in range(8)]
            found = {}
            for name in views:
                # All in one query, over one frame.
                parts = [
                    f"select {number} q, count(*) n, bit_xor(xxhash64({told})) rows"
                    f" from {name} where {one}"
                    for number, one in enumerate(asked)
                ]
                rows = spark.sql(" union all ".join(parts)).collect()
                found[name] = {asked[row["q"]]: (row["n"], row["rows"]) for row in rows}
            assert found["lake_rows"] == found["all_rows"], seed
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        everything.unpersist()
