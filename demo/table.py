"""The table of the flights: synced from the bucket, read by DuckDB and by Spark.

Both ask the same SQL of the files that the table names, so no engine needs an extension. The table
lies in the demo's folder: Spark alone reads no bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from demo.questions import Answer
from demo.screen import Bar
from demo.settings import REGION, TOPIC, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "lake.flights"
FIELDS = "carrier STRING, origin STRING, dest STRING, dep_time INT, dep_delay INT, distance INT"
# As the question about delays, of columns.
QUERY = """
    SELECT carrier, count(*), count(dep_delay), CAST(coalesce(sum(dep_delay), 0) AS BIGINT)
    FROM flights GROUP BY carrier ORDER BY carrier
"""


class _OnBar:
    """The progress of a sync, on a bar of the screen."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._done = 0

    def begin(self, what: str, total: int) -> None:
        self._done = 0
        self._bar.update(0, total=total)

    def advance(self, count: int) -> None:
        self._done += count
        self._bar.update(self._done)


def sync_flights(settings: Settings, bar: Bar) -> int:
    """As `strandline table sync` does it; how many rows it added."""
    from strandline.spark_lake.table.run import TableRequest, TableRun

    request = TableRequest(
        remote=settings.remote_url,
        topic=TOPIC,
        table=TABLE,
        warehouse=settings.warehouse_url,
        options={
            "s3.endpoint.url": settings.s3_url,
            "s3.region": REGION,
            "valueFormat": "json",
            "valueSchema": FIELDS,
        },
    )
    return TableRun(request).sync(_OnBar(bar)).rows


def table_files(settings: Settings) -> list[str]:
    """The Parquet files that the newest snapshot names."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("strandline", type="sql", uri=f"sqlite:///{settings.tables}/catalog.db")
    return [task.file.file_path for task in catalog.load_table(TABLE).scan().plan_files()]


def ask_duckdb(files: list[str]) -> Answer:
    import duckdb

    with duckdb.connect() as connection:
        connection.read_parquet(files).create_view("flights")
        return connection.execute(QUERY).fetchall()


def ask_spark(spark: SparkSession, files: list[str]) -> Answer:
    spark.read.parquet(*files).createOrReplaceTempView("flights")
    return [tuple(row) for row in spark.sql(QUERY).collect()]
