"""Freezes the loaded libraries of a Spark Python worker out of its garbage collections.

Spark keeps workers, and its daemon collects all of a worker's garbage behind each answer. What is
there is nearly all libraries, a quarter of a million objects of botocore, pandas and PySpark: a
tenth of a second of CPU, in which nothing is found. The planner's workers spent it while the tasks
of the query that they had planned began, on the same cores, and a task's before its next task.
"""

from __future__ import annotations

import gc
import os

# Spark sets it in the workers that it keeps, and nowhere else.
_KEPT = "SPARK_REUSE_WORKER"
# The processes that have done it: this one, and one that it was forked from.
_done: set[int] = set()


def leave_out_what_is_loaded() -> None:
    """Called when this process has done its first work, so that its libraries are there.

    Once for each worker: what is no library and becomes garbage later is kept too, if it is part of
    a cycle. In a process that is no worker of Spark's it does nothing.
    """
    if _KEPT in os.environ and os.getpid() not in _done:
        _done.add(os.getpid())
        gc.freeze()
