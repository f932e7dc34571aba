"""SQL in one line: each topic of an archive as a temporary view of the session.

    register_views(spark, "s3://bucket/prefix")
    spark.sql("select count(*) from flights where timestamp >= current_date()")

A view is named after its topic, with `_` for `.` and `-`, which SQL would take for something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from strandline.spark_lake.arrow_scan import OptionValue
from strandline.spark_lake.catalog import Catalog
from strandline.spark_lake.frames import load
from strandline.spark_lake.given_options import option_text
from strandline.spark_lake.objects import ObjectReader
from strandline.spark_lake.options import Engine, LakeOptions
from strandline.spark_lake.source import FORMAT_NAME, register
from strandline.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_views(
    spark: SparkSession,
    path: str,
    topics: Iterable[str] | None = None,
    *,
    options: Mapping[str, OptionValue] | None = None,
) -> dict[str, str]:
    """Makes a view of each of these topics, or of all; the topics by the names of their views.

    `options` are those of the source, for every view. A view is planned anew for each query, so it
    shows what is archived then, and filters prune. With `engine=jvm` it is the frame of `load`:
    planned once, now, and read inside the JVM, which is the faster way to most of the rows.
    Raises InvalidConfig, and what the bucket answers.
    """
    given = {name: option_text(value) for name, value in (options or {}).items()}
    # Any selection will do for the checks; each view has its own.
    parsed = LakeOptions.parse({**given, "path": path, "subscribePattern": ".*"})
    if topics is None:
        catalog = Catalog(ObjectReader(parsed.url, parsed.s3))
        catalog.load_cluster()
        topics = catalog.topic_names()
    topic_of = _names(topics)
    register(spark)
    for name, topic in topic_of.items():
        if parsed.engine is Engine.JVM:
            load(spark, path, topic, options=options).createOrReplaceTempView(name)
            continue
        reader = spark.read.format(FORMAT_NAME).options(**given).option("subscribe", topic)
        reader.load(path).createOrReplaceTempView(name)
    return topic_of


def _names(topics: Iterable[str]) -> dict[str, str]:
    topic_of: dict[str, str] = {}
    for topic in topics:
        name = topic.replace(".", "_").replace("-", "_")
        if not name.isidentifier():
            name = f"t_{name}"
        if name in topic_of:
            raise InvalidConfig(
                f"the topics {topic_of[name]} and {topic} would both be the view {name}: name the"
                " topics, and register one of them by hand"
            )
        topic_of[name] = topic
    return topic_of
