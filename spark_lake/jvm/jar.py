"""The jar of the reader inside Spark's JVM, which comes with this package.

    spark_lake/jvm/src/*.scala --make jar--> spark_lake/jvm/strandline-spark.jar --> the wheel

One jar is for every Spark 4 (`make check-sparks`). A checkout has it once it was built.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import cache
from importlib import resources
from pathlib import Path

from strandline.storage.errors import StrandlineError

JAR_NAME = "strandline-spark.jar"


class NoJvmReader(StrandlineError):
    """The reader inside the JVM cannot be had here; the message says why."""


@cache
def jar_path() -> Path:
    """Returns the path of the jar; from a packed wheel it is extracted until this process ends.

    Raises NoJvmReader.
    """
    found = resources.files("strandline.spark_lake").joinpath("jvm", JAR_NAME)
    if not found.is_file():
        raise NoJvmReader(
            f"this installation has no {JAR_NAME}: `make jar` builds it in a checkout, before"
            " strandline is installed from there"
        )
    taken = ExitStack()
    atexit.register(taken.close)
    return taken.enter_context(resources.as_file(found))
