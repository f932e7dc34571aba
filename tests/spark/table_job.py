"""A sync of a table on a small cluster, as a process of its own that a test kills.

    python table_job.py ARCHIVE_URL append|upsert ["executor"]

Says `began`, and in the end one line of JSON.
With "executor" it kills one of its executors once some tasks have ended.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import cluster_job
from pyspark.sql import SparkSession


def main(url: str, mode: str, kill: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .appName("strandline table test")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .getOrCreate()
    )
    from strandline.spark_lake.table import sync

    killed: list[int] = []
    killer = threading.Thread(target=cluster_job.kill_one, args=(spark, killed), daemon=True)
    if kill == "executor":
        killer.start()
    print("began", flush=True)
    # Rounds of half the archive: a driver dies between two commits, too.
    round_bytes = None if kill == "executor" else 20 << 20
    done = sync(
        spark,
        url,
        "t",
        "lake.t",
        mode=mode,
        options={"splitBytes": 1 << 20},
        round_bytes=round_bytes,
    )
    if kill == "executor":
        killer.join(cluster_job.WAIT_S_MAX)
    print(json.dumps({"killed": len(killed), "rows": done.rows}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
