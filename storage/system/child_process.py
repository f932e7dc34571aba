"""A child process that works for the broker without sharing its interpreter.

    broker   --- messages --->  child      pickled objects over a socket pair
             <-- messages ---

The child runs `main` of a module with the descriptor of its end of the socket as its argument, and
is niced: reading and computing yield to everything that serves clients. It ends by itself when the
broker does, however that happens: its end of the socket closes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from strandline.storage.errors import StorageError
from strandline.storage.system.socket_timeouts import timeval

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# A child that does not end within this after its socket is closed is killed, and one that is given
# up is waited for no longer.
GOODBYE_S = 2.0
NICENESS = 10


class ChildFailed(StorageError):
    """The child died, or could not be started; says nothing about what it worked on."""


def program_of(module: str) -> str:
    """Python that runs `main()` of a module of ours."""
    # Not `-m`: the module would be `__main__` in the child, and its classes others than ours.
    return f"from {module} import main; main()"


# What an operator is to think of first.
_WHAT_SIGNALS_MEAN: Mapping[int, str] = {
    signal.SIGBUS: ": a file that it reads cannot be read, or has become shorter",
    signal.SIGKILL: ": perhaps the machine had no memory left",
}


class ChildProcess:
    """One process and our end of the socket to it. Every method may be called from any thread."""

    def __init__(self, program: str, *, descriptors: Sequence[int] = ()) -> None:
        """Starts a `program_of` some module. Raises ChildFailed.

        The child finds the numbers of `descriptors`, which it has too, behind that of its socket.
        """
        try:
            # Not before there is a child: most brokers start none for hours.
            from multiprocessing.connection import Pipe

            self.connection, theirs = Pipe(duplex=True)
        # Of the import, too: a library that there are no descriptors or no memory for.
        except (OSError, ImportError, MemoryError) as error:
            raise ChildFailed(f"cannot start a child process: {error}") from error
        # The child must find the same code, also where the package is on a path of the caller's.
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, *map(str, (theirs.fileno(), *descriptors))],
                pass_fds=[theirs.fileno(), *descriptors],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        except (OSError, MemoryError) as error:
            self.connection.close()
            raise ChildFailed(f"cannot start a child process: {error}") from error
        finally:
            theirs.close()

    def bound_sends(self, wait_s: float) -> None:
        """From now on a message that it takes nothing of for so long raises BlockingIOError.

        Else who sends to a child that was stopped would wait for ever, once the socket is full.
        """
        # Of the socket itself, and not of this descriptor.
        with socket.socket(fileno=os.dup(self.connection.fileno())) as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(wait_s))

    @property
    def pid(self) -> int:
        return self._process.pid

    def died(self) -> ChildFailed:
        """The error for a socket that was closed from the other end."""
        try:
            status: int | None = self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            status = None
        return ChildFailed(f"the child process {_cause_of_death(status)}")

    def end(self) -> None:
        """Lets it end by itself, and waits for that."""
        self.connection.close()
        try:
            self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def abandon(self) -> None:
        """Kills the process while somebody may be waiting for its answer: he gets EOF."""
        self._process.kill()

    def kill(self) -> None:
        """Ends it, and waits until it is gone: what it shares is written to no more then.

        Blocks as long as the system does not let it go.
        """
        self.connection.close()
        self._process.kill()
        self._process.wait()

    def give_up(self) -> None:
        """Ends it, and waits for a moment; if it hangs in the system, it ends after that."""
        self.connection.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GOODBYE_S)

    def activity(self) -> bytes | None:
        """What changes whenever the process computes, sleeps or waits for a disk; None: not known.

        One that is stopped, or hangs in the system, does none of these.
        """
        try:
            with open(f"/proc/{self._process.pid}/stat", "rb") as file:
                spent = file.read()
            with open(f"/proc/{self._process.pid}/status", "rb") as file:
                found = file.read()
        except OSError:
            return None
        # Behind the name, which may be anything: user and system time are 11 fields further on.
        times = spent.rpartition(b")")[2].split()[11:13]
        switches = [line for line in found.splitlines() if b"ctxt_switches" in line]
        return b" ".join([*times, *switches])

    def __repr__(self) -> str:
        return f"pid {self._process.pid}"


def _cause_of_death(status: int | None) -> str:
    """`status` is that of a process as `subprocess` has it; None if it lives still."""
    if status is None or status >= 0:
        return f"died with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}{_WHAT_SIGNALS_MEAN.get(-status, '')}"


def connect_to_parent() -> Connection:
    """The child's end, in its `main`."""
    from multiprocessing.connection import Connection

    # Ctrl-C reaches the whole terminal; the broker decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    return Connection(int(sys.argv[1]))
