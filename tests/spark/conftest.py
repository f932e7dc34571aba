"""One Spark session for all tests of this folder: starting it costs seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.spark_lake.jvm import jar
from strandline.spark_lake.jvm.jar import jar_path
from tests.support.spark_session import make_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    sources = Path(jar.__file__).parent / "src"
    newest = max(one.stat().st_mtime for one in sources.iterdir())
    assert jar_path().stat().st_mtime >= newest, "the jar is older than its sources: make jar"
    session = make_session(tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()
