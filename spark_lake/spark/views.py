"""Temporary views of the topics of an archive, for SQL.

    register_views(spark, "s3://bucket/prefix")
    spark.sql("select count(*) from flights where timestamp >= current_date()")

A view is named after its topic, with `_` for `.` and `-`, which mean something else in SQL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from strandline.spark_lake.archive.catalog import Catalog
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.jvm.engine import ruled_out
from strandline.spark_lake.options.bound_options import narrowed
from strandline.spark_lake.options.given_options import option_texts
from strandline.spark_lake.options.options import Engine, LakeOptions
from strandline.spark_lake.query.arrow_scan import OptionValue, joined
from strandline.spark_lake.spark.source import FORMAT_NAME, register
from strandline.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Options that differ between views.
_OF_A_VIEW = ("path", "subscribe", "subscribepattern", "assign")


def register_views(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    options: Mapping[str, OptionValue] | None = None,
) -> dict[str, str]:
    """Creates a view of each of these topics, or of all; returns the topics by view name.

    A text names topics with commas between them, as for `load` and the option `subscribe`.
    `options` are those of the source, for every view; options that name partitions name them for
    all topics, and each view takes its own. Each query plans its view again: it sees the records
    archived by then, and filters prune. Raises InvalidConfig, also for a topic that the archive
    does not have, or a TierError; then no view was created.
    """
    path = os.fspath(path)
    given = option_texts(options or {})
    for name in given:
        if name.lower() in _OF_A_VIEW:
            raise InvalidConfig(
                f"option {name} is not for views: register_views takes the path and the topics as"
                " arguments, and makes a view of each topic"
            )
    if topics is None:
        selection = {"subscribePattern": ".*"}
    else:
        selection = {"subscribe": joined("topics", topics)}
    parsed = LakeOptions.parse({**given, "path": path, **selection})
    catalog = Catalog(ObjectReader(parsed.url, parsed.s3))
    catalog.load_cluster()
    # View names are case-insensitive by default.
    told_apart = str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    topic_of = _names(catalog.topic_names(parsed.selection), str if told_apart else str.lower)
    if parsed.engine is Engine.JVM and (reason := ruled_out(parsed)):
        raise InvalidConfig(f"option engine is jvm, but {reason}")
    register(spark)
    frames = {
        name: spark.read.format(FORMAT_NAME)
        .options(**narrowed(given, topic))
        .option("subscribe", topic)
        .load(path)
        for name, topic in topic_of.items()
    }
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    return topic_of


def _names(topics: Iterable[str], known_as: Callable[[str], str]) -> dict[str, str]:
    """The topics by view name. Raises InvalidConfig if two topics have the same view name."""
    topic_of: dict[str, str] = {}
    taken: dict[str, str] = {}
    for topic in topics:
        name = topic.replace(".", "_").replace("-", "_")
        if not name.isidentifier():
            name = f"t_{name}"
        other = taken.setdefault(known_as(name), topic)
        if other != topic:
            raise InvalidConfig(
                f"the topics {other} and {topic} would both be the view {name}: name the topics,"
                " and register one of them by hand"
            )
        topic_of[name] = topic
    return topic_of
