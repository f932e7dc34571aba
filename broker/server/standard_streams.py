"""Standard input, output and error of a broker: it serves whatever has become of them.

Who starts it may have closed them, their reader may be gone, and the disk behind them may be full.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress

log = logging.getLogger(__name__)

STANDARD_DESCRIPTORS = range(3)


def occupy_closed() -> None:
    """Opens the null device where one of the three is closed.

    Else a log or a connection gets its number, and what some library writes to standard error goes
    into that; in a child process too.
    """
    for number in STANDARD_DESCRIPTORS:
        try:
            os.fstat(number)
        except OSError:
            # The system gives the lowest number that is free: this one. Child processes have it
            # too, or the number would be free in them.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def say(line: str) -> None:
    """Writes a line to standard output; to the log if that cannot be written."""
    try:
        print(line, flush=True)  # noqa: T201
    except OSError as error:
        log.warning(
            "standard output cannot be written",
            extra={"fields": {"line": line, "reason": str(error)}},
        )
        # The line is still buffered, and the end of the process would try again.
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)


def flush() -> None:
    """Writes what is buffered, as far as that is possible."""
    for stream in (sys.stdout, sys.stderr):
        # None where it was closed from the beginning.
        if stream is not None:
            with suppress(OSError):
                stream.flush()
