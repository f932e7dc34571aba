"""Remedies for errors that end a command, added to the error's message.

The operating system's error decides: a full disk, a port in use, a missing permission.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping

from strandline.storage.errors import CorruptFile

# Remedies by errno.
_REMEDIES: Mapping[int, str] = {
    errno.ENOSPC: "the volume is full (df, or df -i: its inodes). Make room, and start again",
    errno.EDQUOT: "the quota of the volume is used up. Make room, and start again",
    errno.EFBIG: "files may not grow so large here. Raise the limit (ulimit -f)",
    errno.EROFS: "the file system is read-only. Look into the kernel's log for why, mount it"
    " writable, and start again",
    errno.EACCES: "the user that strandline runs as may not do this. Give it the folder (chown)",
    errno.EPERM: "the user that strandline runs as may not do this. Give it the folder (chown)",
    errno.EMFILE: "the process may have too few open files. Raise the limit (ulimit -n)",
    errno.ENFILE: "the machine has too many open files (sysctl fs.file-max)",
    errno.EADDRINUSE: "another process has the port (ss -ltnp says which). Stop it, or take another"
    " port (listeners, strandline.metrics.listener)",
    errno.EADDRNOTAVAIL: "this machine has no such address. The address that the broker gives to"
    " clients is advertised.listeners; listeners is where the broker listens",
}


def remedy_for(error: BaseException, *, command: str) -> str:
    """Returns the remedy to append to the message of `error`; empty if there is none.

    `command` is the first word of the command line.
    """
    if any(isinstance(one, CorruptFile) for one in _chain(error)):
        is_of_archive = command in ("archive", "lake")
        runbook = "archive-damage" if is_of_archive else "damaged-files"
        return f"; what to do: strandline docs runbooks/{runbook}"
    numbers = (one.errno for one in _chain(error) if isinstance(one, OSError))
    remedy = _REMEDIES.get(next(numbers, None) or 0)
    return f"; {remedy}" if remedy else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__
