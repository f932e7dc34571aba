"""The two servers as child processes: started, waited for, stopped, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from demo.screen import DemoError, end_of
from demo.settings import (
    BUCKET,
    CREDENTIALS,
    REGION,
    START_SECONDS_MAX,
    STOP_SECONDS_MAX,
    Settings,
)

_READY = re.compile(r"strandline ready: broker \d+ at \S+:(\d+)")


class Child:
    """A process of ours in a group of its own, so that Ctrl-C reaches the demo first."""

    def __init__(
        self, name: str, command: list[str], *, environment: dict[str, str], log: Path
    ) -> None:
        self.name = name
        self.log = log
        with open(log, "ab") as log_file:
            self.process = subprocess.Popen(
                command,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
                start_new_session=True,
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # Drains standard output for as long as the process lives: a full pipe would stop it.
        threading.Thread(target=self._read_lines, daemon=True).start()

    def wait_for_line(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """The first line that matches. Raises DemoError when it does not come in time."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self.is_running():
            with contextlib.suppress(queue.Empty):
                if matched := pattern.search(self._lines.get(timeout=0.1)):
                    return matched
        raise self.failure("did not become ready")

    def is_running(self) -> bool:
        return self.process.poll() is None

    def check(self) -> None:
        """Raises DemoError if the process has ended."""
        if not self.is_running():
            raise self.failure("ended")

    def stop(self) -> int:
        """SIGTERM, and patience; the exit code. A process that does not end is killed."""
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def failure(self, what: str) -> DemoError:
        """An error with the end of the child's log."""
        return DemoError(f"{self.name} {what}; {end_of(self.log)}")

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)


@contextlib.contextmanager
def s3_server(settings: Settings) -> Iterator[Child]:
    """MiniStack with its data on disk, and the bucket in it."""
    child = Child(
        "the S3 server",
        settings.s3_command(),
        environment=settings.s3_environment(),
        log=settings.data / "s3.log",
    )
    try:
        _wait_for_http(child, settings.s3_url)
        _create_bucket(settings.s3_url)
        yield child
    finally:
        child.stop()


@contextlib.contextmanager
def broker(settings: Settings) -> Iterator[Child]:
    """`strandline serve`, ready for clients."""
    child = Child(
        "the broker",
        settings.broker_command(),
        environment=CREDENTIALS,
        log=settings.data / "broker.log",
    )
    try:
        child.wait_for_line(_READY)
        yield child
    finally:
        child.stop()


def _wait_for_http(child: Child, url: str) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and child.is_running():
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except urllib.error.HTTPError:
            return  # An answer is an answer.
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise child.failure("did not become ready")


def _create_bucket(url: str) -> None:
    import boto3

    s3 = boto3.client(
        "s3",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )
    s3.create_bucket(Bucket=BUCKET)
