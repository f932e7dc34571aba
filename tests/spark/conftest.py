"""One Spark session for all tests of this folder: starting it costs seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.spark_lake import register
from strandline.spark_lake.jvm import jar
from strandline.spark_lake.jvm.jar import jar_path


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    sources = Path(jar.__file__).parent / "src"
    newest = max(one.stat().st_mtime for one in sources.iterdir())
    assert jar_path().stat().st_mtime >= newest, "the jar is older than its sources: make jar"
    # Else Spark takes whatever `python3` is, which has nothing of ours installed.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    package = Path(__file__).parents[2] / ".namespace"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    session = (
        SparkSession.builder.master("local[2]")
        .appName("strandline tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    register(session)
    yield session
    session.stop()
