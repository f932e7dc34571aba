"""Spark over the bucket: the session, one question at a time, and what each really read."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from demo.questions import Answer, Question
from demo.screen import Bar, DemoError, end_of, in_mb
from demo.settings import CREDENTIALS, REGION, TOPIC, Settings
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from strandline.spark_lake import ScanReport

QUESTION_SECONDS_MAX = 120.0


@contextmanager
def spark_session(log: Path) -> Iterator[SparkSession]:
    """A session in this process that knows the format `strandline`; two cores, no web page.

    What Spark says goes to `log`.
    """
    os.environ |= CREDENTIALS
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    from strandline.spark_lake import register

    try:
        with _errors_to(log):
            spark = _start(SparkSession.builder)
    except PySparkRuntimeError as error:
        raise DemoError(f"Spark did not start; {end_of(log)}") from error
    try:
        register(spark)
        yield spark
    finally:
        spark.stop()


def _start(builder: SparkSession.Builder) -> SparkSession:
    return (
        builder.appName("strandline demo")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        # The answers have a dozen rows; 200 tasks to sort them would take most of the time.
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


@contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """Sends standard error, of this process and of those it starts meanwhile, to a file.

    Java keeps it for good. Its talk would run across the progress bars.
    """
    kept = os.dup(2)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def records_of(spark: SparkSession, settings: Settings, scan_report: Path) -> DataFrame:
    """The topic, straight from the bucket; no broker is asked."""
    return (
        spark.read.format("strandline")
        .option("path", settings.remote_url)
        .option("subscribe", TOPIC)
        .option("s3.endpoint.url", settings.s3_url)
        .option("s3.region", REGION)
        .option("scanReport", str(scan_report))
        .load()
    )


def ask(spark: SparkSession, question: Question, records: DataFrame, bar: Bar) -> Answer:
    """Spark's answer; the bar counts its tasks."""
    rows: Future[list[Row]] = Future()

    def collect() -> None:
        try:
            rows.set_result(question.ask(records).collect())
        except Exception as error:
            rows.set_exception(error)

    # A daemon, not a pool: who interrupts the demo does not want to wait for the answer.
    threading.Thread(target=collect, daemon=True).start()
    _watch(spark, rows, bar)
    return [tuple(row) for row in rows.result()]


def reading_of(folder: Path) -> ScanReport:
    """What the one query that reported into `folder` planned and really read."""
    from strandline.spark_lake import read_scan_reports

    scans = [scan for scan in read_scan_reports(folder) if scan.tasks_ended]
    if len(scans) != 1:
        raise DemoError(f"{len(scans)} scans reported into {folder}, expected one")
    return scans[0]


def describe(scan: ScanReport) -> str:
    """One line: how much was read of how much."""
    plan = scan.plan
    return (
        f"read {scan.segments_read} of {counted(plan.segments_total, 'segment')},"
        f" {in_mb(scan.bytes_read)} of {in_mb(plan.bytes_total)}"
        f" ({scan.bytes_read / max(plan.bytes_total, 1):.1%}),"
        f" {counted(scan.requests, 'request')} in {counted(plan.splits, 'task')}"
    )


def _watch(spark: SparkSession, work: Future[list[Row]], bar: Bar) -> None:
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + QUESTION_SECONDS_MAX
    while not work.done():
        if time.monotonic() > deadline:
            raise DemoError(f"Spark did not answer within {QUESTION_SECONDS_MAX:.0f} s")
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        done = sum(stage.numCompletedTasks for stage in stages if stage)
        total = sum(stage.numTasks for stage in stages if stage)
        if total:
            bar.update(done, total=total)
        time.sleep(0.1)
    bar.update(1, total=1)
