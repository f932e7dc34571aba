"""MiniStack as a child process: a real S3 server on loopback, no docker, no token.

It lives in a virtual environment of its own (`localstack/requirements-ministack.txt`) and is spoken
to over HTTP only. Where that environment is:

    $STRANDLINE_MINISTACK_PYTHON, else <repository>/.venv-ministack/bin/python

In memory mode everything is gone after `stop`; with a folder, objects survive even a kill -9.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.ports import ReservedPort

REPOSITORY = Path(__file__).resolve().parents[2]
READY_WAIT_S_MAX = 120.0
# A server that loads its tables at its first request must not have it broken off half-way.
ANSWER_WAIT_S_MAX = 60.0
STOP_WAIT_S_MAX = 60.0


def ministack_python() -> Path:
    """The interpreter that has MiniStack; it may not exist."""
    named = os.environ.get("STRANDLINE_MINISTACK_PYTHON")
    return Path(named) if named else REPOSITORY / ".venv-ministack" / "bin" / "python"


class ServerProcess:
    """A child process that serves HTTP on loopback; a context manager."""

    def __init__(
        self, command: list[str], *, port: ReservedPort, log_path: Path, environment: dict[str, str]
    ) -> None:
        self._reserved = port
        self._command = command
        self._log_path = log_path
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self._reserved.number

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the server and waits until it answers. Raises RuntimeError with its log."""
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, cwd="/"
            )
        give_up_s = time.monotonic() + READY_WAIT_S_MAX
        while time.monotonic() < give_up_s:
            if self._process.poll() is not None:
                break
            if self._answers():
                return
            time.sleep(0.05)
        self.stop()
        tail = self._log_path.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{self._command[0]} did not become ready; its log ends:\n{tail}")

    def stop(self, *, kill: bool = False) -> None:
        """Ends the process, gently or at once, and waits for it."""
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(STOP_WAIT_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_WAIT_S_MAX)

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint_url, timeout=ANSWER_WAIT_S_MAX):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False


def ministack(log_path: Path, *, data_folder: Path | None = None) -> ServerProcess:
    """A MiniStack server, not started yet: in memory, or keeping its objects in `data_folder`."""
    port = ReservedPort()
    environment = {
        "SERVICES": "s3",
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port.number),
        "LOG_LEVEL": "WARNING",
    }
    if data_folder is not None:
        environment |= {"S3_PERSIST": "1", "S3_DATA_DIR": str(data_folder)}
    return ServerProcess(
        [str(ministack_python()), "-P", str(REPOSITORY / "tests" / "support" / "run_ministack.py")],
        port=port,
        log_path=log_path,
        environment=environment,
    )
