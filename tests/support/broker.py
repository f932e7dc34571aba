"""A real broker process for tests: start, wait until ready, kill -9, restart on the same folder."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.forked import PYTHON_PATH, STRANDLINE, ForkedProcess, start_process
from tests.support.ports import ReservedPort

REPOSITORY = Path(__file__).resolve().parents[2]
READY = re.compile(r"^strandline ready: (?:broker|controller) (\d+) at (\S+):(\d+)$")
# Generous: on a loaded machine a start takes many times its second.
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 120.0


class BrokerProcess:
    """`strandline serve` as a child process on a port of its own."""

    program: tuple[str, ...] = STRANDLINE
    command: tuple[str, ...] = ("serve",)

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.settings = dict(settings or {})
        self.environment = dict(environment or {})
        # The port of the first start is kept, so that clients find a restarted broker.
        self._reserved = ReservedPort()
        self._further: list[ReservedPort] = []
        self.port = self._reserved.number
        self.log_path = folder / "broker.log"
        self._process: subprocess.Popen[str] | ForkedProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def add_listener(self, name: str, protocol: str) -> str:
        """One more, before the start, on a port that stays its own; its address."""
        reserved = ReservedPort()
        self._further.append(reserved)
        address = f"127.0.0.1:{reserved.number}"
        plain = f"PLAINTEXT://{self.bootstrap}"
        known = "listener.security.protocol.map"
        for key, first, more in (
            ("listeners", plain, f"{name}://{address}"),
            ("advertised.listeners", plain, f"{name}://{address}"),
            (known, "PLAINTEXT:PLAINTEXT", f"{name}:{protocol}"),
        ):
            self.settings[key] = f"{self.settings.get(key, first)},{more}"
        return address

    def start(self) -> BrokerProcess:
        """Starts the broker and returns when it printed its ready line."""
        self.begin()
        self.port = self._await_ready()
        return self

    def begin(self) -> None:
        """Starts the broker, and waits for nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "node.id": "1",
            "log.dirs": str(self.data),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            **self.settings,
        }
        command = [*self.program, *self.command]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        with open(self.log_path, "ab") as log_file:
            self._process = start_process(
                command,
                folder=self.folder,
                environment={
                    "AWS_ACCESS_KEY_ID": "test",
                    "AWS_SECRET_ACCESS_KEY": "test",
                    **os.environ,
                    **PYTHON_PATH,
                    **self.environment,
                },
                stdout=subprocess.PIPE,
                stderr=log_file,
            )

    def _await_ready(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        found: list[int] = []

        def read_line(stdout: object) -> None:
            line = self._process.stdout.readline()  # type: ignore[union-attr]
            match = READY.match(line.strip())
            if match:
                found.append(int(match.group(3)))

        reader = threading.Thread(target=read_line, args=(None,), daemon=True)
        reader.start()
        reader.join(START_TIMEOUT_S)
        if not found:
            self.kill()
            raise AssertionError(f"broker did not become ready:\n{self.log_text()[-4000:]}")
        return found[0]

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def open_files(self) -> list[str]:
        """What its descriptors name: paths, and `socket:[...]`."""
        names = []
        for link in Path(f"/proc/{self.pid}/fd").iterdir():
            # One may be closed between the listing and the look at it.
            with contextlib.suppress(FileNotFoundError):
                names.append(str(link.readlink()))
        return names

    def socket_count(self) -> int:
        """Sockets that it has open."""
        return sum(name.startswith("socket:") for name in self.open_files())

    def kill(self) -> None:
        """kill -9: no clean-up, no clean marker."""
        self._end(signal.SIGKILL, END_TIMEOUT_S)

    def stop(self) -> int:
        """SIGTERM and wait; the exit code."""
        return self._end(signal.SIGTERM, END_TIMEOUT_S)

    def wait_for_exit(self, timeout_s: float) -> int:
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._close_pipe()
        return code

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _end(self, number: signal.Signals, timeout_s: float) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_TIMEOUT_S)
            raise
        self._close_pipe()
        return code

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.kill()

    def resident_mib(self) -> float:
        """VmRSS of the broker process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")


@contextlib.contextmanager
def faultless_broker(
    folder: Path, *, settings: Mapping[str, str] | None = None
) -> Iterator[BrokerProcess]:
    """A broker that is still there in the end, and fell over nothing that was sent to it."""
    with BrokerProcess(folder, settings=settings) as running:
        yield running
        assert running.running, running.log_text()[-4000:]
        assert "Traceback" not in running.log_text(), running.log_text()[-4000:]


def size_bytes(path: Path) -> int:
    """Of a file that a running broker may remove between its listing and this look: 0 if it did."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def children_of(pid: int) -> Iterator[tuple[int, str]]:
    """The child processes of `pid`, each with its command line, which is empty when it is dead."""
    # A thread may end between the listing and the look at it, and a child too.
    ended = contextlib.suppress(FileNotFoundError, ProcessLookupError)
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        found: list[str] = []
        with ended:
            found = children.read_text().split()
        for child in found:
            with ended:
                yield int(child), Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")


def eventually(check: object, *, timeout_s: float = 60.0, interval_s: float = 0.05) -> object:
    """Calls `check` until it returns something true; that value, or AssertionError in the end."""
    assert callable(check)
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {check}")
        time.sleep(interval_s)
