"""`strandline` as a process of its own that a fork server starts: a tenth of a start's cost.

For tests whose promise is not the start itself. The process is as real as another: it has its own
signals, streams, environment, limits and kill -9. It differs in three ways, and `start_process`
takes a real start where the first matters: variables of the interpreter and of the loader are the
server's; so is the command line in /proc; and the modules of S3 are loaded before a broker asks
for them.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.support import fork_server

STRANDLINE = (sys.executable, "-m", "strandline")
PYTHON_PATH = {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / ".namespace")}
# Variables that mean the same to a process that is loaded already.
READ_LATE = (
    *("AWS_", "STRANDLINE_", "PYTEST_"),
    *("COLUMNS", "HOME", "NO_COLOR", "NOTIFY_SOCKET", "PATH", "SPARK_SUBMIT_OPTS", "TMPDIR"),
)
LIMITS = [
    resource.RLIMIT_AS,
    resource.RLIMIT_CORE,
    resource.RLIMIT_DATA,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
]


class ForkedProcess:
    """As much of `subprocess.Popen` as tests use; `stdout` is None unless it is a pipe."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | int,
    ) -> None:
        self.args = [*STRANDLINE, *words]
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        request = {
            "words": list(words),
            "environment": dict(environment),
            "folder": str(folder),
            "limits": [(limit, resource.getrlimit(limit)) for limit in LIMITS],
        }
        self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as passed:
            passed.enter_context(status)
            if stdout == subprocess.PIPE:
                self.stdout, stdout = _pipe(passed)
            if stderr == subprocess.PIPE:
                self.stderr, stderr = _pipe(passed)
            assert not isinstance(stdout, int)
            assert not isinstance(stderr, int)
            streams = [passed.enter_context(open(os.devnull, "rb")), stdout, stderr]
            descriptors = [one.fileno() for one in (status, *streams)]
            socket.send_fds(_server(), [json.dumps(request).encode()], descriptors)
        self.pid = self._told(None)

    def poll(self) -> int | None:
        """The exit code, -n for signal n, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            try:
                self.returncode = self._told(timeout)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Raises subprocess.TimeoutExpired, and has killed it then."""
        with ThreadPoolExecutor(2) as pool:
            printed = [pool.submit(_read, stream) for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        out, errors = (one.result() for one in printed)
        return out, errors

    def send_signal(self, number: int) -> None:
        # As Popen: never to another process that has got its number, and it may just have ended.
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _told(self, timeout_s: float | None) -> int:
        self._status.settimeout(timeout_s)
        message = self._status.recv(64)
        assert message, "the fork server has ended"
        return int(message)


def _read(stream: IO[str] | None) -> str:
    if stream is None or stream.closed:
        return ""
    with stream:
        return stream.read()


def _pipe(passed: ExitStack) -> tuple[IO[str], IO[bytes]]:
    """Its end for reading, which whoever has the process closes, and that for the process."""
    reader, writer = os.pipe()
    return open(reader), passed.enter_context(open(writer, "wb"))


@functools.cache
def _server() -> socket.socket:
    """Of this process of the tests, which ends it by its own end."""
    requests, inherited = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with inherited:
        server = subprocess.Popen(
            [sys.executable, "-P", fork_server.__file__, str(inherited.fileno())],
            pass_fds=[inherited.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **PYTHON_PATH},
        )

    def stop() -> None:
        # The system counts a child's seconds when it is waited for.
        requests.close()
        server.wait()

    atexit.register(stop)
    return requests


@functools.cache
def _environment_of_server() -> Mapping[str, str]:
    """As it was when the first process was started, near enough."""
    return {**os.environ, **PYTHON_PATH}


def _is_forkable(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    if tuple(command[: len(STRANDLINE)]) != STRANDLINE:
        return False
    of_server = _environment_of_server().items()
    changed = {name for name, _ in environment.items() ^ of_server}
    return all(name.startswith(READ_LATE) for name in changed)


def start_process(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
) -> subprocess.Popen[str] | ForkedProcess:
    """Starts a command that has nothing to read: by a fork, where a fork is as good."""
    if _is_forkable(command, environment):
        words = command[len(STRANDLINE) :]
        return ForkedProcess(
            words, folder=folder, environment=environment, stdout=stdout, stderr=stderr
        )
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
    )


def run_process(
    command: Sequence[str],
    *,
    folder: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, and takes what it prints. Raises subprocess.TimeoutExpired.

    `environment` goes over that of the tests.
    """
    with TemporaryFile() as out, TemporaryFile() as errors:
        process = start_process(
            command,
            folder=folder,
            environment={**os.environ, **PYTHON_PATH, **(environment or {})},
            stdout=out,
            stderr=errors,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(
            command, code, out.read().decode(), errors.read().decode()
        )
