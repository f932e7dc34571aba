"""The standard streams of a command: closed ones, a full disk, an encoding without our characters.

A parent may have closed them, and a locale may be ASCII or Latin-1. Neither costs a command its
exit code.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

STANDARD_DESCRIPTORS = range(3)


def prepare_streams() -> None:
    """Makes output possible; call it before anything opens a file.

    Closed streams lead to the null device. A character that the encoding lacks is written as its
    escape: `\\u2713` for the mark of `status`.
    """
    occupy_closed()
    # Python leaves them None, and `print(file=None)` would write to standard output.
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def occupy_closed() -> None:
    """Opens the null device in place of each closed standard stream.

    Otherwise a log or a connection would get its number, also in a child process, and receive the
    output that a library writes to standard error.
    """
    for number in STANDARD_DESCRIPTORS:
        try:
            os.fstat(number)
        except OSError:
            # The system assigns the lowest free number: this one. Child processes inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def drop_unwritable_output() -> None:
    """Drops what standard output does not take: Python would try again at its end, and fail."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
