"""`sync(spark, ...)`: a table of a topic from a notebook or a job of Spark."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from strandline.spark_lake.table.run import TableRequest, TableRun
from strandline.spark_lake.table.sync import SyncReport
from strandline.storage.errors import InvalidConfig
from strandline.storage.extras import how_to_install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(table: str, master: str | None) -> SparkSession:
    """A session for a sync; `master` None leaves it to Spark's configuration.

    Raises InvalidConfig if there is no Spark, or if it does not start.
    """
    try:
        # Takes longer than a sync in this process that finds nothing.
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidConfig(f"{error}; {how_to_install('lake')}") from error

    # Else Spark's workers take whatever `python3` is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"strandline table sync {table}")
    if master is not None:
        is_connect = master.startswith("sc://")
        builder = builder.remote(master) if is_connect else builder.master(master)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        # Py4J puts the exception of Java into the second line.
        reason = " ".join(str(error).splitlines()[:2])
        raise InvalidConfig(
            f"Spark does not start: {reason} It needs Java (JAVA_HOME, or java on the path) and a"
            " --master that it knows; versions: strandline docs reference/requirements"
        ) from error


class _Unseen:
    """No progress bar: Spark has one of its own."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, count: int) -> None: ...


def sync(
    spark: SparkSession | None, remote: str, topic: str, table: str, **more: Any
) -> SyncReport:
    """Brings the table `NAMESPACE.TABLE` up to what the archive at `remote` has of the topic.

    `more` are the further fields of `TableRequest`, such as `catalog`, `warehouse`, `options` of
    the lake, `partition_by`; as the flags of `strandline table sync`. Spark's tasks read the
    archive and write the files, and this process commits them; without a session it does all.

    Raises InvalidConfig and TableRefused before anything is written; TableUnavailable, TaskFailed
    and TierError leave the table as its last commit made it: run again.
    """
    request = TableRequest(remote=remote, topic=topic, table=table, **more)
    return TableRun(request, spark).sync(_Unseen())
