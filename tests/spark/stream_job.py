"""A stream from an archive into Parquet, as a process of its own that a test kills.

    python stream_job.py ARCHIVE_URL FOLDER OPTIONS_JSON TRIGGER_JSON      ends when all is read

Says `batch N` before each micro-batch is written, so that the test knows where it strikes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def main(url: str, folder: str, options: dict[str, str], trigger: dict[str, Any]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("strandline stream test")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    from strandline.spark_lake import register

    register(spark)
    reader = spark.readStream.format("strandline").option("subscribe", "t")
    frame = reader.options(**{"startingOffsets": "earliest", **options}).load(url)

    def write(rows: DataFrame, batch: int) -> None:
        """A sink that keeps Spark's promise: a batch that is repeated replaces itself."""
        print(f"batch {batch}", flush=True)
        path = str(Path(folder) / "rows" / f"batch={batch}")
        rows.select("partition", "offset", "value").write.mode("overwrite").parquet(path)
        print(f"written {batch}", flush=True)

    query = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .trigger(**trigger)
        .start()
    )
    if "availableNow" in trigger:
        query.awaitTermination()
    else:
        query.processAllAvailable()
        query.stop()
    print("ended", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]))
