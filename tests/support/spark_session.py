"""The Spark session of tests: two local threads, our package on the path, our source registered."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from strandline.spark_lake import register
from strandline.spark_lake.jvm.jar import jar_path
from tests.support.broker import REPOSITORY


def make_session(warehouse: Path) -> SparkSession:
    """Starts a JVM, which takes seconds: stop the session in the end."""
    # Else Spark takes whatever `python3` is, which has nothing of ours installed.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(REPOSITORY / ".namespace"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    session: SparkSession = (
        SparkSession.builder.master("local[2]")
        .appName("strandline tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .getOrCreate()
    )
    register(session)
    return session


def reads_with_the_jar(session: SparkSession) -> None:
    """Asserts that the JVM has the reader of exactly the jar that this package has."""
    loader = session._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    reader = loader.loadClass("strandline.spark.StrandlineSource")
    loaded = Path(reader.getProtectionDomain().getCodeSource().getLocation().getPath())
    assert loaded.read_bytes() == jar_path().read_bytes(), loaded
