"""What Spark 4 finds by itself: it imports each package `pyspark_*`, and takes its DefaultSource.

So `format("strandline")` works in a session in which nobody has called `register`. Tasks in Python
read it, and Spark evaluates all filters: only `register` gives a session the jar.
"""

from contextlib import suppress

# Without the extra `lake`. An error here would hide the sources of all other packages from Spark.
with suppress(ImportError):
    from strandline.spark_lake.spark.source import StrandlineDataSource as DefaultSource

    __all__ = ["DefaultSource"]
