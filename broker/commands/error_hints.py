"""Remedies for errors that end a command, added to the error's message.

The operating system's error decides: a full disk, a port in use, a missing permission.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping

from strandline.broker.config.listeners import CannotListen
from strandline.storage.errors import CorruptFile, OutOfResources

_NO_SUCH_HOST = "neither DNS nor /etc/hosts has this host name. Correct it, or write an address"
_NO_FOLDER = "a file, or a link to nothing, is in the way of this path. Name another folder"
# Remedies by errno; those of the resolver are negative.
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
    socket.EAI_NONAME: _NO_SUCH_HOST,
    socket.EAI_AGAIN: _NO_SUCH_HOST,
    errno.EEXIST: _NO_FOLDER,
    errno.ENOTDIR: _NO_FOLDER,
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
    if any(isinstance(one, OutOfResources) for one in _chain(error)):
        return (
            "; raise the limits of threads and memory (ulimit -u, ulimit -v, or of the container)"
        )
    if isinstance(error, CannotListen) and isinstance(error.__cause__, PermissionError):
        return "; ports below 1024 need root or CAP_NET_BIND_SERVICE. Take a higher one (listeners)"
    numbers = (one.errno for one in _chain(error) if isinstance(one, OSError))
    remedy = _REMEDIES.get(next(numbers, None) or 0)
    return f"; {remedy}" if remedy else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__
