"""The lines that a query logs, where a user of Spark can find them.

Planning and reading happen in Spark's Python workers, whose logging nobody sets up, at level
WARNING. With `spark.sql.pyspark.worker.logging.enabled` Spark collects what workers log into
`spark.tvf.python_worker_logs()`, with the fields of a line in its column `context`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

log = logging.getLogger("strandline.spark_lake")

# Set by Spark in workers whose logs it collects.
_COLLECTED = "PYSPARK_SPARK_SESSION_UUID"


def tell(text: str, fields: Mapping[str, str | int]) -> None:
    """Logs one line at INFO; `text` is constant, what differs is in `fields`."""
    if _COLLECTED in os.environ and log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    context = {name: str(value) for name, value in fields.items()}
    log.info(text, extra={"fields": dict(fields), "context": context})
