"""A plan for each query, though Spark keeps that of a Python source beside the frame.

    frame = spark.read.format("strandline")...load()
    frame.where("partition = 1").count()        the plan, filters and all, is kept with `frame`
    frame.count()                               and read again: the rows of partition 1

That is so from Spark 4.1, where filters came to Python sources, to 4.3 at least. It gives wrong
rows without a word, within one query too (`frame.where(a).union(frame.where(b))`), and a frame
would show for ever what was archived when it was read first. So a rule of ours, `OwnScans.java`,
makes each scan anew at the end of Spark's optimizer, with a source that no other scan has:

    strandline           what a frame holds: takes filters, plans nothing, cannot be read
    strandline_planned   what the rule puts in its place: takes the same filters, and plans

What is planned says too who reads it, the JVM or workers in Python (`jvm_partitions`).

If the rule is missing when it should be there, reading fails. Where it cannot be (Spark Connect, or
a Spark that is made of other parts), the source takes no filters and says so (docs/decisions, 22).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("strandline.spark_lake")

RULE_CLASS = "strandline.spark.OwnScans"
RULE_FILE = "OwnScans.java"


class NoRule(Exception):
    """This session cannot have the rule; the message says why."""


def add_rule(spark: SparkSession) -> None:
    """Adds the rule to the session, once. Raises NoRule."""
    if "connect" in type(spark).__module__:
        raise NoRule("a client of Spark Connect cannot add a rule to the server")
    try:
        session: Any = spark._jsparkSession  # noqa: SLF001  # no public way to the optimizer
        experimental = session.experimental()
        rules = experimental.extraOptimizations()
        known = [rules.apply(number).ruleName() for number in range(rules.size())]
        if RULE_CLASS not in known:
            added = rules.appended(_compiled(spark, session))
            getattr(experimental, "extraOptimizations_$eq")(added)
    except Exception as error:  # py4j, Janino and Spark have their own families
        lines = str(error).strip().splitlines()
        raise NoRule(f"{type(error).__name__}: {lines[0][:300] if lines else ''}") from error


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Makes this session the one that Spark asks for a source's name; another may have it already.

    Spark refuses a name that a session does not have if its thread's active session has it.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    sessions = jvm.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def has_rule(spark: SparkSession) -> bool:
    """Whether each query of this session has a plan of its own; adds the rule if it can be had."""
    try:
        add_rule(spark)
    except NoRule:
        return False
    return True


def _compiled(spark: SparkSession, session: Any) -> Any:
    """By the compiler that Spark brings for its own code, in a tenth of a second."""
    source = resources.files("strandline.spark_lake").joinpath("jvm", "src", RULE_FILE)
    jvm: Any = spark._jvm  # noqa: SLF001
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(session.getClass().getClassLoader())
    compiler.cook(source.read_text(encoding="utf-8"))
    return compiler.getClassLoader().loadClass(RULE_CLASS).newInstance()
