"""The data source inside Spark: rows, filters, errors as a user meets them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession, functions

from strandline.spark_lake import count, read_scan_reports, register, register_views, scan
from strandline.spark_lake import load as load_archive
from strandline.storage.errors import InvalidConfig
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.compression import Codec
from tests.support.heavy import heavy
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MADE = make_records(500, headers=True)
DECODED = {"valueFormat": "string", "valueErrors": "corrupt"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> ArchiveBuilder:
    """Topic `t`: partition 0 with a segment per codec, partition 1 with one; a second apart."""
    archive = ArchiveBuilder(tmp_path_factory.mktemp("archive"))
    archive.add_topic("t", partitions=3)
    for number, codec in enumerate(Codec):
        part = MADE[number * 100 : number * 100 + 100]
        archive.add_segment("t", make_batches(part, codec=codec))
    archive.add_segment("t", make_batches(MADE[:50]), partition=1)
    archive.add_topic("a.b-c")
    return archive


def load(spark: SparkSession, archive: ArchiveBuilder, **options: str) -> DataFrame:
    reader = spark.read.format("strandline").option("subscribe", "t")
    for name, text in options.items():
        reader = reader.option(name, text)
    return reader.load(archive.url)


def test_every_record_comes_once_with_its_columns(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    frame = load(spark, archive, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.orderBy("partition", "offset").collect()
    assert len(rows) == 550
    for record, row in zip([*MADE, *MADE[:50]], rows, strict=True):
        assert (row["key"], row["value"], row["offset"]) == (
            record.key,
            record.value,
            record.offset,
        )
        assert row["timestamp"].timestamp() * 1000 == record.timestamp_ms
        assert row["timestampType"] == 0
        assert row["headers"] == (
            [Row(key=header.key, value=header.value) for header in record.headers] or None
        )
    assert {(row["topic"], row["partition"]) for row in rows} == {("t", 0), ("t", 1)}


def test_filters_are_pushed_and_exact(
    spark: SparkSession, archive: ArchiveBuilder, tmp_path: Path
) -> None:
    condition = (
        "topic = 't' and partition in (0, 2) and offset >= 120 and offset < 340"
        " and timestamp > timestamp'2023-11-14 22:16:29Z'"
        " and timestamp <= timestamp'2023-11-14 22:18:20.0005Z'"
    )
    frame = load(spark, archive, scanReport=str(tmp_path)).where(condition)
    assert "Filter (" not in frame._jdf.queryExecution().executedPlan().toString()
    offsets = [row["offset"] for row in frame.select("offset").orderBy("offset").collect()]
    assert offsets == list(range(190, 301))
    report = read_scan_reports(tmp_path)[-1]
    assert (report.plan.segments_planned, report.plan.segments_total) == (3, 6)
    assert report.rows == 111


def test_explain_says_what_is_read_of_how_much(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    """By either reader; and Spark knows the size: it shuffles nothing to join with a few rows."""

    def plan_of(frame: DataFrame) -> str:
        return str(frame._jdf.queryExecution().executedPlan().toString())

    condition, planned = "partition = 0 and offset < 150", "2 of 6 segments, 2 of 6 chunks, "
    few = load(spark, archive).where(condition)
    of_key = load(spark, archive).where(f"{condition} and key = X'6B65792D37'")
    none = load(spark, archive).where("offset > 100000 and key = X'6B65792D37'")
    assert planned in plan_of(few)
    assert "(Python)" not in plan_of(few)
    assert f"{planned}" in plan_of(of_key)
    assert "(Python)" in plan_of(of_key)
    assert "0 of 6 segments" in plan_of(none)
    told = spark._jvm.PythonSQLUtils.explainString(few._jdf.queryExecution(), "formatted")
    assert f"Planned: {planned}" in told
    assert "PushedFilters: [IsNotNull(partition), IsNotNull(offset), EqualTo(partition,0)" in told
    for small in (few, of_key, none):
        joined = load(spark, archive).join(small.select("offset"), "offset")
        assert "BroadcastHashJoin" in plan_of(joined)
        assert joined.count() == small.count() + small.where("offset < 50").count()


def test_a_query_reads_the_columns_that_it_needs(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    """Also those of its filters; without `value`, a query of decoded values is the JVM's."""
    register_views(spark, archive.url, "t", options={"valueFormat": "string"})

    def plan_of(query: str) -> str:
        frame = spark.sql(query)
        return str(frame._jdf.queryExecution().executedPlan().toString())

    few = (
        "select offset from t where partition = 0 and `offset` % 100 = 7 and timestamp is not null"
    )
    read = r"strandline\[partition#\d+, offset#\d+L, timestamp#\d+\] "
    assert re.search(read, plan_of(few))
    assert "(Python)" not in plan_of(few)
    assert [row[0] for row in spark.sql(f"{few} order by 1").collect()] == [7, 107, 207, 307, 407]
    of_key = "select timestamp, value from t where key = X'6B65792D37'"
    assert re.search(
        r"strandline\[key#\d+, value#\d+, timestamp#\d+\] .*\(Python\)", plan_of(of_key)
    )
    assert spark.sql(of_key).count() == 2
    assert spark.sql("select count(*) from t").collect() == [Row(550)]
    assert re.search(r"strandline\[partition#\d+\] ", plan_of("select count(*) from t"))
    # By tasks in Python, too; these values are no text, and are not looked at.
    rows = load(spark, archive, engine="python", valueFormat="string")
    assert rows.count() == 550
    assert rows.agg(functions.max("offset")).collect() == [Row(499)]


def test_parts_of_headers_are_read_where_a_query_needs_no_more(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    """Spark asks for a part of a column then, and gets the whole one."""
    for frame in (
        load(spark, archive, includeHeaders="true"),
        load_archive(spark, archive.url, "t", columns=["headers", "offset", "partition"]),
    ):
        found = frame.where("partition = 1").select("headers.value", "offset").collect()
        assert {row["offset"]: row["value"] for row in found} == {
            one.offset: [header.value for header in one.headers] or None for one in MADE[:50]
        }


def test_other_filters_stay_with_spark(spark: SparkSession, archive: ArchiveBuilder) -> None:
    frame = load(spark, archive).where("key = 'key-7' and offset < 100 and timestampType = 0")
    assert [row["offset"] for row in frame.collect()] == [7, 7]
    by_key = load(spark, archive).where(functions.col("key") == b"key-7").select("offset")
    assert "Filter (" not in by_key._jdf.queryExecution().executedPlan().toString()
    assert [row["offset"] for row in by_key.collect()] == [7, 7]
    assert load(spark, archive).where("offset in (3, 5, 499)").count() == 5
    assert load(spark, archive).where("offset != 3 or partition = 1").count() == 549
    assert load(spark, archive).where("value is null").count() == sum(
        record.value is None for record in [*MADE, *MADE[:50]]
    )


def test_a_query_logs_one_line_of_what_it_reads_of_how_much(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        assert load(spark, archive).where("partition = 0 and offset < 150").count() == 150
        lines = spark.tvf.python_worker_logs().select("msg", "context").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    begins = ("scan planned", "split read")
    (told,) = [row["context"] for row in lines if row["msg"].startswith(begins)]
    assert told["plan"].startswith("2 of 6 segments, 2 of 6 chunks, ")
    assert (told["requests_planned"], told["requests_total"]) == ("2", "6")


def test_load_gives_the_rows_of_the_source_and_filters_like_scan(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    frame = load_archive(spark, archive.url, "t", options={"includeHeaders": True})
    source = load(spark, archive, includeHeaders="true")
    assert frame.schema == source.schema
    order = ("partition", "offset")
    assert frame.orderBy(*order).collect() == source.orderBy(*order).collect()
    few = load_archive(
        spark,
        archive.url,
        "t",
        columns=["offset", "timestamp"],
        filters=[("key", "in", ["key-7", "key-107"]), ("offset", "<", 300)],
        options={"splitBytes": 1024 * 1024},
    )
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        rows = few.orderBy(*few.columns).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [row["offset"] for row in rows] == [7, 7, 107]
    assert rows[0]["timestamp"].timestamp() * 1000 == MADE[7].timestamp_ms
    assert load_archive(spark, archive.url, "a.b-c").collect() == []
    assert len(frame.limit(3).collect()) == 3


@pytest.mark.parametrize("engine", ["jvm", "python"])
def test_splits_suit_the_tasks_that_run_at_once(
    spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    """Planned by `load` and in Spark's workers; nothing is read."""
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    entry = archive.add_segment("t", make_batches(MADE[:10]))
    manifest = archive.manifest("t")
    twelve = [
        replace(entry, base_offset=n * 1000, end_offset=(n + 1) * 1000, size_bytes=20 * 1024 * 1024)
        for n in range(12)
    ]
    archive.save(replace(manifest, segments=tuple(twelve)))

    def task_count(**more: int) -> list[int]:
        options = {"engine": engine, "assign": '{"t": [0]}', **more}
        frames = (
            spark.read.format("strandline").options(**options).load(archive.url),
            load_archive(spark, archive.url, options=options),
        )
        return [frame.rdd.getNumPartitions() for frame in frames]

    # Two rounds of local[2].
    assert task_count() == [4, 4]
    assert task_count(splitBytes=100 * 1024 * 1024) == [3, 3]
    assert task_count(splitBytes=20 * 1024 * 1024) == [12, 12]


def test_a_view_of_sql_alone_follows_the_archive_and_a_table_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    archive.add_segment("t", make_batches(MADE[:50]))
    using = f"using strandline options (subscribe 't', path '{archive.url}')"
    spark.sql(f"create temporary view of_sql {using}")
    few = "select count(*) n, min(offset) low from of_sql where offset >= 40"
    assert [tuple(row) for row in spark.sql(few).collect()] == [(10, 40)]
    archive.add_segment("t", make_batches(MADE[50:100]))
    assert [tuple(row) for row in spark.sql(few).collect()] == [(60, 40)]
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW takes the same"):
        spark.sql(f"create table of_catalog {using}")


def test_queries_without_rows_and_limits_work(spark: SparkSession, archive: ArchiveBuilder) -> None:
    assert load(spark, archive).where("offset > 100000").count() == 0
    assert len(load(spark, archive).limit(5).collect()) == 5
    assert load(spark, archive).where("partition = 2").collect() == []


def test_sql_and_chosen_columns_work(spark: SparkSession, archive: ArchiveBuilder) -> None:
    views = register_views(spark, archive.path, options={"includeHeaders": True, "s3.token": None})
    assert views == {"a_b_c": "a.b-c", "t": "t"}
    assert spark.sql("select * from a_b_c").collect() == []
    (row,) = spark.sql(
        "select count(*) n, min(offset) low, max(offset) high,"
        " count(distinct cast(key as string)) k from t where partition = 0"
    ).collect()
    assert (row["n"], row["low"], row["high"], row["k"]) == (500, 0, 499, 400)
    chosen = (
        spark.read.format("strandline")
        .schema("offset long, value binary")
        .option("subscribe", "t")
        .load(archive.url)
    )
    assert chosen.columns == ["offset", "value"]
    assert chosen.count() == 550


@pytest.mark.parametrize("engine", ["python", "jvm"])
@pytest.mark.parametrize(
    ("topics", "options", "says"),
    [
        (["t", "nothing"], {}, "has no topic nothing"),
        ("tt", {}, "has no topic tt; the nearest is t"),
        ("t,nothing", {}, "has no topic nothing"),
        ([], {}, "option subscribe is empty"),
        (["t"], {"subscribe": "t"}, "option subscribe is not for views"),
        (["t"], {"path": "file:///other"}, "option path is not for views"),
        (["t"], {"startingOffset": "earliest"}, "the nearest is startingOffsets"),
        (["t"], {"maxOffsetsPerTrigger": 5}, "works in a query of readStream only"),
    ],
)
def test_views_are_refused_before_one_is_made(
    spark: SparkSession,
    archive: ArchiveBuilder,
    topics: str | list[str],
    options: dict[str, str | int],
    says: str,
    engine: str,
) -> None:
    spark.catalog.dropTempView("t")
    with pytest.raises(InvalidConfig, match=says):
        register_views(spark, archive.url, topics, options={"engine": engine, **options})
    assert "t" not in [one.name for one in spark.catalog.listTables()]
    assert register_views(spark, archive.url, "t", options={"engine": engine}) == {"t": "t"}


def test_views_take_topics_with_commas_between_them_as_subscribe_does(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    views = register_views(spark, archive.url, "t, a.b-c,")
    assert views == register_views(spark, archive.url, ["t", "a.b-c"])
    assert views == {"a_b_c": "a.b-c", "t": "t"}
    assert spark.table("t").count() == 550


def test_topics_that_would_be_one_view_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Also where only capitals tell them apart: Spark would show the one under both names."""
    archive = ArchiveBuilder(tmp_path)
    for topic, rows in (("Orders", 2), ("orders", 3), ("a.b", 1), ("a-b", 1)):
        archive.add_topic(topic)
        archive.add_segment(topic, make_batches(make_records(rows)))
    for topics in (["Orders", "orders"], ["a.b", "a-b"], None):
        with pytest.raises(InvalidConfig, match=r"would both be the view .*register one of them"):
            register_views(spark, archive.url, topics)
    register_views(spark, archive.url, ["Orders"])
    assert spark.table("orders").count() == 2
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        register_views(spark, archive.url, ["Orders", "orders"])
        assert [spark.table(one).count() for one in ("Orders", "orders")] == [2, 3]
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")


@pytest.mark.parametrize("engine", [heavy("auto"), "python", "jvm"])
def test_views_of_several_topics_share_the_options_that_name_partitions(
    spark: SparkSession, archive: ArchiveBuilder, engine: str
) -> None:
    starts = {"t": {"0": 490, "1": 40, "2": -2}, "a.b-c": {"0": -2}}
    options = {"engine": engine, "startingOffsets": starts}
    register_views(spark, archive.url, options=options)
    told = spark.sql("select partition, count(*) n from t group by partition order by 1").collect()
    assert [tuple(row) for row in told] == [(0, 10), (1, 10)]
    assert spark.sql("select * from a_b_c").collect() == []


@pytest.mark.parametrize(
    ("values", "engine"),
    [
        heavy({}, "auto"),
        heavy({}, "python"),
        ({}, "jvm"),
        heavy(DECODED, "auto"),
        heavy(DECODED, "python"),
        (DECODED, "jvm"),
    ],
)
def test_every_helper_gives_the_same_rows_by_every_engine_or_says_why_not(
    spark: SparkSession, archive: ArchiveBuilder, engine: str, values: dict[str, str]
) -> None:
    options = {"engine": engine, **values}

    def by_view() -> int:
        register_views(spark, archive.url, "t", options=options)
        return spark.table("t").where("offset >= 400").count()

    def by_stream() -> int:
        reader = spark.readStream.format("strandline").option("subscribe", "t").options(**options)
        frame = reader.option("startingOffsets", "earliest").load(archive.url)
        counted: list[int] = []
        frame.where("offset >= 400").writeStream.foreachBatch(
            lambda rows, _: counted.append(rows.count())
        ).trigger(availableNow=True).start().awaitTermination()
        return sum(counted)

    some = [("offset", ">=", 400)]
    how: dict[str, Any] = {"filters": some, "options": options}
    helpers: dict[str, Callable[[], int]] = {
        "view": by_view,
        "load": lambda: load_archive(spark, archive.url, "t", **how).count(),
        "source": lambda: load(spark, archive, **options).where("offset >= 400").count(),
        "stream": by_stream,
        "scan": lambda: scan(archive.url, "t", **how).read_all().num_rows,
        "count": lambda: count(archive.url, "t", **how),
    }
    for name, ask in helpers.items():
        if engine != "jvm" or (name in ("view", "load", "source") and not values):
            assert ask() == 100, name
            continue
        with pytest.raises((InvalidConfig, PySparkException), match="option engine is jvm, but"):
            ask()


def test_decoded_values_are_columns_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("v")
    values = [b'{"a": 1, "day": "2024-02-01", "s": {"l": [1.5]}}', None, b"{", b"{}"]
    records = [
        Record(offset=n, timestamp_ms=START_MS, key=None, value=value)
        for n, value in enumerate(values)
    ]
    archive.add_segment("v", [encode_batch(records)])
    frame = load(
        spark,
        archive,
        subscribe="v",
        valueFormat="json",
        valueSchema="a INT, day DATE, s STRUCT<l: ARRAY<DOUBLE>>",
        valueErrors="corrupt",
    )
    rows = frame.select("offset", "value.*", "_corrupt").orderBy("offset").collect()
    assert [row["a"] for row in rows] == [1, None, None, None]
    assert rows[0]["s"]["l"] == [1.5]
    assert str(rows[0]["day"]) == "2024-02-01"
    assert [row["_corrupt"] for row in rows] == [None, None, b"{", None]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscibe": "t"}, "option subscibe is unknown; the nearest is subscribe"),
        ({"startingOffsets": "latest"}, "option startingOffsets may not be latest"),
        ({"subscribe": "nothing"}, "has no topic nothing"),
        ({"endingOffsets": '{"t": {"0": 9999, "1": -1, "2": -1}}'}, "archive has 0 to 500"),
    ],
)
def test_wrong_options_are_explained(
    spark: SparkSession, archive: ArchiveBuilder, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        load(spark, archive, **options).count()
    assert says in str(caught.value)


def test_writing_is_refused_with_what_to_do_instead(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    writer = load(spark, archive).write.format("strandline").mode("append")
    with pytest.raises(PySparkException, match=r'only reads: .* writes with format\("kafka"\)'):
        writer.save(archive.url)


def test_another_python_for_the_workers_is_warned_of(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    register(spark)
    assert not caplog.records
    with monkeypatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonExec", "/bin/sh")
        register(spark)
    assert "PYSPARK_PYTHON" in caplog.text
    register(spark)  # what is registered last, and with which Python, is what runs


def test_python3_of_the_same_environment_is_no_other_python(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """What an activated environment gives Spark that knows of no PYSPARK_PYTHON."""
    interpreter = Path(sys.executable).resolve()
    for environment in ("this", "that"):
        (tmp_path / environment).mkdir()
        (tmp_path / environment / "python").symlink_to(interpreter)
        (tmp_path / environment / "python3").symlink_to("python")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "this" / "python"))
        patch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "this" / "python3"))
        register(spark)
        assert not caplog.records
        patch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "that" / "python3"))
        register(spark)
        assert "PYSPARK_PYTHON" in caplog.text
    register(spark)


def test_a_damaged_segment_fails_the_query_and_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    entry = archive.add_segment("t", make_batches(MADE[:50]))
    path = archive.object_path(entry.log_key)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    for engine in ("auto", "python"):
        with pytest.raises((PySparkException, Py4JJavaError)) as caught:
            load(spark, archive, engine=engine).count()
        assert entry.log_key in str(caught.value)
        assert "CRC of batch at offset 40" in str(caught.value)
