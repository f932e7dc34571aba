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
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from strandline.storage.clock import Clock
from strandline.storage.errors import StorageError, StrandlineError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# A child that does not end within this after its socket is closed is killed, and one that is given
# up is waited for no longer.
GOODBYE_S = 2.0
NICENESS = 10
# Long enough to serve a burst of requests with one child, short enough to give the memory back.
IDLE_S = 60.0
# How soon a caller that waits for the child sees that it was abandoned.
POLL_S = 0.5
# A child that did nothing at all for so long was stopped, or hangs with its disk: however
# much there is to do, and however slow the disk or the limit on its reads, it moves now and then.
STILL_S_MAX = 300.0


class ChildFailed(StorageError):
    """The child died, or could not be started; this says nothing about its work."""


def program_of(module: str) -> str:
    """Returns the command line of a Python that runs `main()` of one of our modules."""
    # Not `-m`: the module would be `__main__` in the child, and its classes others than ours.
    return f"from {module} import main; main()"


# The likely causes of death, for the operator.
_WHAT_SIGNALS_MEAN: Mapping[int, str] = {
    signal.SIGBUS: ": a file that it reads cannot be read, or has become shorter",
    signal.SIGKILL: ": perhaps the machine had no memory left",
}


class ChildProcess:
    """One process and our end of the socket to it. Every method may be called from any thread."""

    def __init__(self, program: str) -> None:
        """Starts a `program_of` some module. Raises ChildFailed."""
        try:
            # Imported when there is a child: most brokers start none for hours.
            from multiprocessing.connection import Pipe

            self.connection, theirs = Pipe(duplex=True)
        # Also of the import: a library may find no descriptors or no memory.
        except (OSError, ImportError, MemoryError) as error:
            raise ChildFailed(f"cannot start a child process: {error}") from error
        # The child must find the same code, also where the package is on a path of the caller's.
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        except (OSError, MemoryError) as error:
            self.connection.close()
            raise ChildFailed(f"cannot start a child process: {error}") from error
        finally:
            theirs.close()

    def bound_sends(self) -> None:
        """Makes a send raise BlockingIOError after STILL_S_MAX without progress.

        Otherwise a send to a child that was stopped would wait for ever, once the socket is full.
        """
        # A setting of the socket itself, and not of this descriptor.
        with socket.socket(fileno=os.dup(self.connection.fileno())) as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(STILL_S_MAX))

    @property
    def pid(self) -> int:
        return self._process.pid

    def died(self) -> ChildFailed:
        """Returns the error for a socket that the child closed."""
        try:
            status: int | None = self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            status = None
        return ChildFailed(f"the child process {_cause_of_death(status)}")

    def end(self) -> None:
        """Closes the socket, which ends the child, and waits for it."""
        self.connection.close()
        try:
            self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def abandon(self) -> None:
        """Kills the process; a thread that waits for its answer gets EOF."""
        self._process.kill()

    def kill(self) -> None:
        """Ends it, and waits for a moment; if it hangs in the system, it ends after that."""
        self.connection.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GOODBYE_S)

    def activity(self) -> bytes | None:
        """Changes whenever the process computes, sleeps or waits for a disk; None: unknown.

        It stays the same while the process is stopped, or hangs in the system.
        """
        try:
            with open(f"/proc/{self._process.pid}/stat", "rb") as file:
                spent = file.read()
            with open(f"/proc/{self._process.pid}/status", "rb") as file:
                found = file.read()
        except OSError:
            return None
        # After the name, which may contain anything: user and system time are 11 fields further on.
        times = spent.rpartition(b")")[2].split()[11:13]
        switches = [line for line in found.splitlines() if b"ctxt_switches" in line]
        return b" ".join([*times, *switches])

    def __repr__(self) -> str:
        return f"pid {self._process.pid}"


class ChildOwner:
    """The owner of a child that runs `main` of a module until it is idle for IDLE_S.

    One exchange at a time, in a worker: the methods block. `abandon` and `close` do not, and may be
    called meanwhile from another thread.
    """

    def __init__(
        self, module: str, clock: Clock, start: Callable[[str], ChildProcess] = ChildProcess
    ) -> None:
        """`start` starts a program as a child."""
        self._program = program_of(module)
        self._start_child = start
        self._clock = clock
        self._child: ChildProcess | None = None
        self._used_s = clock.monotonic_s()
        self._closed = threading.Event()

    def send(self, message: object) -> None:
        """Starts a child if there is none. Raises ChildFailed."""
        if self._closed.is_set():
            raise ChildFailed("the broker stops")
        child = self._child or self._start()
        try:
            child.connection.send(message)
        except BlockingIOError as error:
            self.stop()
            raise ChildFailed(f"the child process took nothing for {STILL_S_MAX:g} s") from error
        except OSError as error:
            raise self._buried(child) from error

    def receive(
        self,
        *,
        timeout_s: float = float("inf"),
        work: str = "it",
        meanwhile: Callable[[], None] | None = None,
    ) -> object:
        """Waits for the next message; calls `meanwhile` every POLL_S, which may send.

        Raises the error that the child answered, and ChildFailed: it died, did not move for
        STILL_S_MAX, the broker stops, or `work` took longer than `timeout_s`. It has ended then.
        """
        child = self._child
        assert child is not None, "nothing was sent"
        try:
            self._await_message(child, timeout_s, work, meanwhile)
            answer = child.connection.recv()
        except (EOFError, OSError) as error:
            raise self._buried(child) from error
        self._used_s = self._clock.monotonic_s()
        if isinstance(answer, StrandlineError):
            raise answer
        return answer

    def _start(self) -> ChildProcess:
        child = self._child = self._start_child(self._program)
        child.bound_sends()
        return child

    def _await_message(
        self,
        child: ChildProcess,
        timeout_s: float,
        work: str,
        meanwhile: Callable[[], None] | None,
    ) -> None:
        began_s = since_s = self._clock.monotonic_s()
        activity = child.activity()
        while not child.connection.poll(min(POLL_S, timeout_s)):
            if self._closed.is_set():
                raise ChildFailed("the broker stops")
            if meanwhile is not None:
                meanwhile()
            seen, now_s = child.activity(), self._clock.monotonic_s()
            if seen is None or seen != activity:
                since_s, activity = now_s, seen
            if now_s - since_s >= STILL_S_MAX:
                self.stop()
                raise ChildFailed(f"the child process did not move for {STILL_S_MAX:g} s")
            if now_s - began_s >= timeout_s:
                self.stop()
                raise ChildFailed(f"{work} took longer than {timeout_s:g} s")

    def _buried(self, child: ChildProcess) -> ChildFailed:
        self._child = None
        died = child.died()
        child.kill()
        return died

    def stop(self) -> None:
        """Ends the child in the middle of its work; the next message starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def abandon(self) -> None:
        """Like `stop`, while another thread is waiting in `receive`, which then raises."""
        child = self._child
        if child is not None:
            child.abandon()

    def end_if_idle(self) -> None:
        """Ends the child if it was idle for `IDLE_S`."""
        if self._child is not None and self._clock.monotonic_s() - self._used_s >= IDLE_S:
            child, self._child = self._child, None
            child.end()

    def close(self) -> None:
        """Ends the child for good; what waits for it fails at once."""
        self._closed.set()
        self.abandon()

    def __repr__(self) -> str:
        return f"<ChildOwner child={self._child}>"


def _cause_of_death(status: int | None) -> str:
    """Describes `status`, a return code as of `subprocess`; None if the process is still alive."""
    if status is None or status >= 0:
        return f"died with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}{_WHAT_SIGNALS_MEAN.get(-status, '')}"


def connect_to_parent() -> Connection:
    """Returns the child's end of the socket, for its `main`."""
    from multiprocessing.connection import Connection

    # Ctrl-C reaches the whole terminal; the broker decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    return Connection(int(sys.argv[1]))


def _timeval(duration_s: float) -> bytes:
    """Returns the value of the socket option SO_SNDTIMEO."""
    seconds, rest_s = divmod(duration_s, 1)
    return struct.pack("@ll", int(seconds), int(rest_s * 1_000_000))
