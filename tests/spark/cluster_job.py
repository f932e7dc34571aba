"""A job on a small cluster of processes: sums a topic while one executor is killed in the middle.

Through the source, by `load` inside the executors' JVM, and as a stream.

    python cluster_job.py ARCHIVE_URL WHEEL       prints one line of JSON

Executors get the wheel by `--py-files` and nothing else of ours.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

WAIT_S_MAX = 120.0
# Tasks that have ended when the executor is killed: the query is well under way, and far from done.
TASKS_BEFORE_KILL = 3


def executors(parent: int) -> list[int]:
    """Process ids of the executors below this process."""
    parents: dict[int, int] = {}
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            )
            command = (folder / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if b"CoarseGrainedExecutorBackend" in command:
            found.append(int(folder.name))

    def is_ours(pid: int) -> bool:
        while pid > 1 and pid != parent:
            pid = parents.get(pid, 0)
        return pid == parent

    return [pid for pid in found if is_ours(pid)]


def kill_one(spark: SparkSession, killed: list[int]) -> None:
    """Kills an executor for good once some tasks have ended."""
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        if any(stage and stage.numCompletedTasks >= TASKS_BEFORE_KILL for stage in stages):
            victim = executors(os.getpid())[0]
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
            return
        time.sleep(0.01)


def sums(spark: SparkSession, url: str) -> Row:
    frame = (
        spark.read.format("strandline")
        .option("subscribe", "t")
        .option("splitBytes", str(1 << 20))
        .load(url)
    )
    return frame.selectExpr(
        "count(*) rows", "sum(offset) offsets", "sum(crc32(value)) checksums"
    ).collect()[0]


def sums_in_jvm(spark: SparkSession, url: str) -> Row:
    """By `load`, whose executors get the reader from Spark."""
    from strandline.spark_lake import load

    frame = load(spark, url, "t", options={"engine": "jvm", "splitBytes": 1 << 20})
    return frame.selectExpr(
        "count(*) rows", "sum(offset) offsets", "sum(crc32(value)) checksums"
    ).collect()[0]


def sums_in_stream(spark: SparkSession, url: str) -> tuple[int, ...]:
    """By a stream in a few batches; what a batch repeats is not counted twice."""
    by_batch: dict[int, Row] = {}

    def add(rows: DataFrame, batch: int) -> None:
        by_batch[batch] = rows.selectExpr(
            "count(*) rows", "sum(offset) offsets", "sum(crc32(value)) checksums"
        ).collect()[0]

    query = (
        spark.readStream.format("strandline")
        .options(
            subscribe="t",
            startingOffsets="earliest",
            maxOffsetsPerTrigger="2000",
            splitBytes=str(1 << 20),
        )
        .load(url)
        .writeStream.foreachBatch(add)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return tuple(sum(one) for one in zip(*by_batch.values(), strict=True))


def origins(_: Iterator[Any]) -> Iterator[str]:
    import strandline

    yield str(strandline.__file__)


def main(url: str, wheel: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .appName("strandline cluster test")
        .config("spark.submit.pyFiles", wheel)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.NUMBA_CACHE_DIR", os.environ["NUMBA_CACHE_DIR"])
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    from strandline.spark_lake import register

    register(spark)
    found = set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(origins).collect())
    said: dict[str, object] = {"from_wheel": all(wheel.rsplit("/", 1)[-1] in one for one in found)}
    for name, read in (("source", sums), ("jvm", sums_in_jvm), ("stream", sums_in_stream)):
        said[f"{name}, undisturbed"] = list(read(spark, url))
        killed: list[int] = []
        killer = threading.Thread(target=kill_one, args=(spark, killed), daemon=True)
        killer.start()
        said[f"{name}, disturbed"] = list(read(spark, url))
        killer.join(WAIT_S_MAX)
        said[f"{name}, killed"] = len(killed)
    print(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
