"""The Spark examples of the pages run, on the archive of a real broker in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support.page_blocks import JOURNEYS, is_of_spark, pages, runnable
from tests.support.page_world import ARCHIVE, PageWorld, page_world

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STREAM_S_MAX = 120


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageWorld]:
    with page_world(tmp_path_factory.mktemp("world")) as running:
        yield running


@pytest.mark.parametrize(
    "page",
    [page for page in pages() if is_of_spark(page) and page not in JOURNEYS],
    ids=lambda page: str(page.stem),
)
def test_spark_examples_of_a_page_run(
    spark: SparkSession,
    world: PageWorld,
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints = ARCHIVE.replace("s3://", "s3a://").replace("archive", "checkpoints")
    names: dict[str, object] = {"spark": spark}
    for block in runnable(page, "python", "sql"):
        text = world.shell.replaced(block.text.replace(checkpoints, str(tmp_path)))
        if block.language == "sql":
            spark.sql(text).collect()
        else:
            exec(compile(text, block.place, "exec"), names)
    queries = [one for one in names.values() if isinstance(one, StreamingQuery)]
    for query in queries:
        assert query.awaitTermination(STREAM_S_MAX)
        assert query.exception() is None
