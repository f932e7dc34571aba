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
from strandline.spark_lake.selection_options import Subscribe
from strandline.spark_lake.source import FORMAT_NAME, register
from strandline.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What each view has of its own.
_OF_A_VIEW = ("path", "subscribe", "subscribepattern", "assign")


def register_views(
    spark: SparkSession,
    path: str,
    topics: str | Iterable[str] | None = None,
    *,
    options: Mapping[str, OptionValue] | None = None,
) -> dict[str, str]:
    """Makes a view of each of these topics, or of all; the topics by the names of their views.

    `options` are those of the source, for every view. A view is planned anew for each query, so it
    shows what is archived then, and filters prune. With `engine=jvm` it is the frame of `load`:
    planned once, now, and read inside the JVM, which is the faster way to most of the rows.
    Raises InvalidConfig, for a topic that the archive does not have too, and what the bucket
    answers; then no view was made.
    """
    given = {name: option_text(value) for name, value in (options or {}).items()}
    for name in given:
        if name.lower() in _OF_A_VIEW:
            raise InvalidConfig(
                f"option {name} is not for views: register_views takes the path and the topics as"
                " arguments, and makes a view of each topic"
            )
    wanted = None
    if topics is not None:
        wanted = Subscribe((topics,) if isinstance(topics, str) else tuple(topics))
    # Any selection will do for the checks; each view has its own.
    parsed = LakeOptions.parse({**given, "path": path, "subscribePattern": ".*"})
    catalog = Catalog(ObjectReader(parsed.url, parsed.s3))
    catalog.load_cluster()
    topic_of = _names(catalog.topic_names(wanted))
    register(spark)
    frames = {
        name: load(spark, path, topic, options=options)
        if parsed.engine is Engine.JVM
        else spark.read.format(FORMAT_NAME).options(**given).option("subscribe", topic).load(path)
        for name, topic in topic_of.items()
    }
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
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
