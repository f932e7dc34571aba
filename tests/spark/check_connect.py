"""Over Spark Connect: a server of its own process, and a client without a JVM at hand.

Not part of `make test`, because the client's libraries are not in its environment: `make
check-connect` brings them. What the server reads it reads with its own Python, or inside its JVM.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.spark_lake import load, register, register_views, scan
from strandline.spark_lake.jvm.jar import NoJvmReader
from strandline.spark_lake.table import sync
from tests.support.broker import eventually
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PACKAGE = Path(__file__).parents[2] / ".namespace"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
HEADERS = {"includeHeaders": True}
LOCAL = "127.0.0.1"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of a server that was started for it."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind((LOCAL, 0))
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.address": LOCAL,
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.host": LOCAL,
        "spark.driver.bindAddress": LOCAL,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]
    command += ["--master", "local[2]", "--class", SERVER]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [*command, "spark-internal"],
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        )
    try:

        def listens() -> bool:
            assert server.poll() is None, (folder / "log").read_text()[-4000:]
            with socket.socket() as probe:
                return probe.connect_ex((LOCAL, port)) == 0

        eventually(listens, timeout_s=180, interval_s=0.3)
        session = SparkSession.builder.remote(f"sc://{LOCAL}:{port}").getOrCreate()
        assert "connect" in type(session).__module__
        register(session)
        yield session
        session.stop()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> ArchiveBuilder:
    archive = ArchiveBuilder(tmp_path_factory.mktemp("archive"))
    archive.add_topic("t", partitions=2)
    for first in (0, 100, 200):
        records = make_records(100, base_offset=first, headers=True)
        archive.add_segment("t", make_batches(records))
    archive.add_segment("t", make_batches(make_records(50)), partition=1)
    return archive


def expected(archive: ArchiveBuilder, **how: Any) -> list[tuple[Any, ...]]:
    """What `scan` gives, which knows no Spark."""
    rows = scan(archive.url, "t", **how).read_all().to_pylist()
    assert rows
    return sorted((r["partition"], r["offset"], r["key"], r["value"]) for r in rows)


def found(frame: Any) -> list[tuple[Any, ...]]:
    rows = frame.select("partition", "offset", "key", "value").collect()
    return sorted(
        (r.partition, r.offset, *(v if v is None else bytes(v) for v in (r.key, r.value)))
        for r in rows
    )


def test_the_source_its_filters_and_views_give_the_rows_of_scan(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    source = spark.read.format("strandline").option("subscribe", "t").load(archive.url)
    assert found(source) == expected(archive)
    late = expected(archive, filters=[("offset", ">=", 250)])
    assert found(source.where("offset >= 250")) == late
    assert register_views(spark, archive.url) == {"t": "t"}
    assert found(spark.sql("select * from t where offset >= 250")) == late
    # Whatever was asked before, and within one query.
    assert found(spark.table("t")) == found(source) == expected(archive)
    both = source.where("offset >= 250").unionAll(source.where("partition = 1"))
    assert len(found(both)) == len(late) + 50


def test_a_table_is_synced_by_tasks_of_the_server(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    assert sync(spark, archive.url, "t", "lake.t").rows == len(expected(archive))
    assert sync(spark, archive.url, "t", "lake.t").commits == 0
    uri = f"sqlite:///{archive.path}-tables/catalog.db"
    table = load_catalog("strandline", type="sql", uri=uri).load_table("lake.t")
    rows = table.scan().to_arrow().to_pylist()
    names = ("_topic_partition", "_offset", "_key", "value")
    assert sorted(tuple(row[name] for name in names) for row in rows) == expected(archive)


@pytest.mark.parametrize("engine", ["jvm", "python"])
def test_load_gives_the_rows_of_scan_by_either_reader(
    spark: SparkSession, archive: ArchiveBuilder, engine: str
) -> None:
    options = {**HEADERS, "engine": engine}
    frame = load(spark, archive.url, "t", options=options)
    assert found(frame) == expected(archive)
    keys = [f"key-{n}" for n in (7, 107, 30)]
    some: Any = [("key", "in", keys), ("offset", ">", 20)]
    kept = load(spark, archive.url, "t", filters=some, options=options)
    assert found(kept) == expected(archive, filters=some)
    headers = {row.offset: row.headers for row in frame.where("partition = 0").collect()}
    for row in scan(archive.url, "t", options=HEADERS).read_all().to_pylist():
        if row["partition"] == 0:
            sent = row["headers"] or []
            got = [(one.key, one.value) for one in headers[row["offset"]] or []]
            assert got == [(one["key"], one["value"]) for one in sent]


def test_each_query_prunes_and_is_read_inside_the_servers_jvm(
    spark: SparkSession, archive: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    source = spark.read.format("strandline").option("subscribe", "t")
    frame = source.load(archive.url)
    for asked, plan in ((frame, "4 of 4 segments"), (frame.where("offset >= 250"), "1 of 4 seg")):
        asked.explain()
        told = capsys.readouterr().out
        assert plan in told
        assert "(Python)" not in told
    only = source.option("engine", "jvm").load(archive.url)
    assert found(only) == found(load(spark, archive.url, "t", options={"engine": "jvm"}))


def test_a_session_that_takes_no_jar_reads_everything_in_python(
    spark: SparkSession,
    archive: ArchiveBuilder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse() -> Path:
        raise NoJvmReader("for this test")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr("strandline.spark_lake.jvm.engine.jar_path", refuse)
    other = spark.newSession()
    register(other)
    source = other.read.format("strandline").option("subscribe", "t").load(archive.url)
    late = expected(archive, filters=[("offset", ">=", 250)])
    assert found(source.where("offset >= 250")) == late
    assert found(source) == found(load(other, archive.url, "t")) == expected(archive)
    (told,) = [one.__dict__["fields"] for one in caplog.records if "planned" in one.message]
    assert (told["engine"], told["why"]) == ("python", "for this test")


def test_a_stream_gives_each_record_once_across_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("t")

    def run() -> list[int]:
        query = (
            spark.readStream.format("strandline")
            .options(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="70")
            .load(archive.url)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert query.exception() is None, query.exception()
        rows = spark.read.parquet(str(tmp_path / "out")).select("offset").collect()
        return sorted(row.offset for row in rows)

    archive.add_segment("t", make_batches(make_records(150)))
    assert run() == list(range(150))
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert len(commits) == 3, json.dumps([one.name for one in commits])
    archive.add_segment("t", make_batches(make_records(50, base_offset=150)))
    assert run() == list(range(200))


def test_what_is_asked_wrongly_or_missing_is_told_to_the_client(
    spark: SparkSession, archive: ArchiveBuilder, tmp_path: Path
) -> None:
    source = spark.read.format("strandline")
    with pytest.raises(PySparkException, match="subscrbe is unknown; the nearest is subscribe"):
        source.option("subscrbe", "t").load(archive.url).collect()
    other = ArchiveBuilder(tmp_path)
    other.add_topic("t")
    entry = other.add_segment("t", make_batches(make_records(40)))
    frame = load(spark, other.url, "t", options={"engine": "jvm"})
    other.object_path(entry.log_key).unlink()
    with pytest.raises(
        PySparkException, match=r"ObjectNotFound: .*it does not exist; if retention"
    ):
        frame.collect()
