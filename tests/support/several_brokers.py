"""`strandline serve --brokers N` as a child process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.support.broker import END_TIMEOUT_S, START_TIMEOUT_S, children_of
from tests.support.forked import PYTHON_PATH, STRANDLINE, ForkedProcess, start_process

NAME = re.compile(r"controller|broker \d+")
NODE = re.compile(rf"(?P<name>{NAME.pattern}) at .*, folder (?P<folder>.*), process (?P<pid>\d+)$")
PY_SPY = Path(sys.executable).with_name("py-spy")
DUMP_TIMEOUT_S = 30.0
# Below those that the kernel gives to clients.
PORTS = range(20_000, 30_000, 20)


class SeveralBrokers:
    """A cluster of one machine; `pids` are those of the first start, by name."""

    def __init__(
        self,
        folder: Path,
        *settings: str,
        brokers: int = 3,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.port = free_ports(2 * brokers + 2) + 1
        self.metrics = f"http://127.0.0.1:{self.port + 2 * brokers}"
        self.log_path = folder / "brokers.log"
        self.pids: dict[str, int] = {}
        self.lines: list[str] = []
        self._brokers = brokers
        self._settings = settings
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | ForkedProcess | None = None
        self._ready = threading.Event()
        # It is ready, or has closed its output.
        self._over = threading.Event()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.port + number}" for number in range(self._brokers))

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        assert self._process is not None
        return self._process.pid

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def __enter__(self) -> SeveralBrokers:
        process = self._begin()
        self._over.wait(START_TIMEOUT_S)
        if not self._ready.is_set():
            reason = self._why_not_ready()
            # The others end with it.
            process.kill()
            raise AssertionError(reason)
        return self

    def fails_to_start(self) -> int:
        """The exit code of a start that does not come to its end."""
        process = self._begin()
        code = process.wait(START_TIMEOUT_S)
        assert not self._ready.is_set()
        return code

    def _begin(self) -> subprocess.Popen[str] | ForkedProcess:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Those of the last start may still be told that it has ended.
        ready, over = self._ready, self._over = threading.Event(), threading.Event()
        settings = (
            f"log.dirs={self.data}",
            f"listeners=PLAINTEXT://127.0.0.1:{self.port}",
            f"strandline.metrics.listener={self.metrics}",
            *self._settings,
        )
        with open(self.log_path, "ab") as log_file:
            self._process = start_process(
                [
                    *(*STRANDLINE, "serve", "--brokers", str(self._brokers)),
                    *(word for one in settings for word in ("--set", one)),
                ],
                folder=self.folder,
                environment={**os.environ, **PYTHON_PATH, **self._environment},
                stdout=subprocess.PIPE,
                stderr=log_file,
            )
        told = (self._process.stdout, ready, over)
        threading.Thread(target=self._read, args=told, daemon=True).start()
        return self._process

    def _read(self, stdout: IO[str], ready: threading.Event, over: threading.Event) -> None:
        for line in stdout:
            self.lines.append(line.rstrip("\n"))
            match = NODE.match(self.lines[-1])
            if match is not None:
                self.pids[match["name"]] = int(match["pid"])
            if line.startswith("strandline ready:"):
                ready.set()
                over.set()
        over.set()

    def _why_not_ready(self) -> str:
        """What is known of a start that failed, or hangs: where each process stands."""
        assert self._process is not None
        code = self._process.poll()
        told = f"exit code {code}, told {self.lines}\n{self.log_text()[-4000:]}"
        return told if code is not None else "\n".join((told, *map(_stacks, _below(self.pid))))

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal to the supervisor and waits for it; its exit code."""
        assert self._process is not None
        self._process.send_signal(by)
        return self.wait()

    def wait(self) -> int:
        """Waits for the end of the supervisor; its exit code."""
        assert self._process is not None
        return self._process.wait(END_TIMEOUT_S)

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)

    def fork_server(self) -> int:
        """The process that forks those that `pids` names."""
        ((pid, _),) = children_of(self.pid)
        return pid

    def present_pids(self) -> dict[str, int]:
        """Those that run now, by name: a process that ended has another one."""
        found = {}
        for pid, _ in children_of(self.fork_server()):
            with suppress(FileNotFoundError, ProcessLookupError):
                name = Path(f"/proc/{pid}/comm").read_text().strip().replace("-", " ")
                if NAME.fullmatch(name) and _is_running(pid):
                    found[name] = pid
        return found

    def kill_present(self, name: str) -> None:
        """Kills the process that has this name now."""
        os.kill(self.present_pids()[name], signal.SIGKILL)

    def await_ends(self) -> None:
        """Waits until none of its processes is left."""
        deadline_s = time.monotonic() + END_TIMEOUT_S
        while any(map(_is_running, self.pids.values())):
            assert time.monotonic() < deadline_s, self.pids
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self.stop(signal.SIGTERM)
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> Iterator[int]:
    """A process, its children, theirs, and so on."""
    yield pid
    for child, _ in children_of(pid):
        yield from _below(child)


def _stacks(pid: int) -> str:
    command = [str(PY_SPY), "dump", "--pid", str(pid)]
    try:
        dumped = subprocess.run(
            command, capture_output=True, text=True, timeout=DUMP_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"process {pid}: {error}"
    return dumped.stdout or f"process {pid}: {dumped.stderr}"


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        # The latter if it is gone between the opening and the reading.
        return False


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has."""
    for offset in range(len(PORTS)):
        first = PORTS[(os.getpid() + offset) % len(PORTS)]
        try:
            for number in range(first, first + count):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        return first
    raise AssertionError("no ports are free")
