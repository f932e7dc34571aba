"""Spark over the archive: a batch data source that reads the bucket without a broker.

    from strandline.spark_lake import register
    register(spark)
    spark.read.format("strandline").option("path", "s3://bucket/prefix") \
        .option("subscribe", "flights").load()

Importing this loads neither pyspark nor numba; the names below are loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.spark_lake.report import ScanReport, read_scan_reports
    from strandline.spark_lake.source import StrandlineDataSource, register

__all__ = ["ScanReport", "StrandlineDataSource", "read_scan_reports", "register"]


def __getattr__(name: str) -> object:
    if name in ("StrandlineDataSource", "register"):
        try:
            from strandline.spark_lake import source
        except ImportError as error:
            raise ImportError(
                f"{error}; the lake needs its extra: pip install 'strandline[lake]'"
            ) from error
        return getattr(source, name)
    if name in ("ScanReport", "read_scan_reports"):
        from strandline.spark_lake import report

        return getattr(report, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
