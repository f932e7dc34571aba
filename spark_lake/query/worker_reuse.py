"""Exclusion of loaded libraries from the garbage collections of Spark's Python workers.

Spark reuses workers, and its daemon runs a full collection after each answer. Nearly all objects
are of libraries, a quarter of a million of botocore, pandas and PySpark: a tenth of a second of CPU
that finds nothing. It delays the tasks of a query just planned, and the next task of a worker.
"""

from __future__ import annotations

import gc
import os

# Spark sets it only in the workers that it reuses.
_KEPT = "SPARK_REUSE_WORKER"
# Processes that did it: this one, or one that it was forked from.
_done: set[int] = set()


def leave_out_what_is_loaded() -> None:
    """Freezes the objects of a worker after its first work, when its libraries are loaded.

    Only once per worker: other objects in cycles are kept, too. Does nothing in a process that is
    no worker of Spark's.
    """
    if _KEPT in os.environ and os.getpid() not in _done:
        _done.add(os.getpid())
        gc.freeze()
