"""A log of many sealed segments, opened again, with few open files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from strandline.storage.local.log.log import LocalLog
from tests.unit.storage.local.builders import fill, open_log, read_bytes

SEALED_COUNT = 4


def _written(folder: Path) -> tuple[LocalLog, bytes]:
    """A log of sealed segments and an active one, and everything in it."""
    log = open_log(folder)
    for _ in range(SEALED_COUNT):
        fill(log, 20)
        log.roll()
    fill(log, 3)
    return log, read_bytes(log)


def _reopened(folder: Path, log: LocalLog) -> LocalLog:
    log.close()
    return open_log(folder, recovery_point=log.end_offset, clean_shutdown=True)


def _piece(log: LocalLog, offset: int) -> bytes:
    """What one read at `offset` gives: the rest of its segment."""
    found = log.read(offset, bytes_max=1 << 20).range
    assert found is not None
    return found.read()


def _open_logs(folder: Path) -> int:
    """How many descriptors this process has on `.log` files below `folder`."""
    names = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            names.append(str(link.readlink()))
    return sum(name.startswith(str(folder)) and ".log" in name for name in names)
