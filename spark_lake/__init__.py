"""Reads the archive without a broker: a data source for Spark, and a scan that returns Arrow.

    from strandline.spark_lake import register
    register(spark)
    spark.read.format("strandline").option("path", "s3://bucket/prefix") \
        .option("subscribe", "flights").load()

    from strandline.spark_lake import scan              # no Spark, no JVM
    reader = scan("s3://bucket/prefix", "flights")      # a pyarrow.RecordBatchReader

Importing this loads neither pyspark nor numba; the names below are loaded when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from strandline.storage.extras import how_to_install

if TYPE_CHECKING:
    from strandline.spark_lake.query.arrow_scan import scan
    from strandline.spark_lake.query.counting import count
    from strandline.spark_lake.query.report import ScanReport, read_scan_reports
    from strandline.spark_lake.spark.frames import load
    from strandline.spark_lake.spark.source import StrandlineDataSource, register
    from strandline.spark_lake.spark.views import register_views

__all__ = [
    "ScanReport",
    "StrandlineDataSource",
    "count",
    "load",
    "read_scan_reports",
    "register",
    "register_views",
    "scan",
]

# What needs no Spark.
_SCAN = ("ScanReport", "count", "read_scan_reports", "scan")
_MODULES = {
    "ScanReport": "query.report",
    "StrandlineDataSource": "spark.source",
    "count": "query.counting",
    "load": "spark.frames",
    "read_scan_reports": "query.report",
    "register": "spark.source",
    "register_views": "spark.views",
    "scan": "query.arrow_scan",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except ImportError as error:
        extra = "scan" if name in _SCAN else "lake"
        raise ImportError(f"{error}; {how_to_install(extra)}") from error
    return getattr(module, name)
