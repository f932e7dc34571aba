"""No loss of the standard streams costs a broker its life, or a command its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker import REPOSITORY, eventually
from tests.support.ports import ReservedPort
from tests.support.wire import WireClient
from tests.unit.broker.commands.archive_rig import Archive

pytestmark = pytest.mark.slow

CLEAN_MARK = ".kafka_cleanshutdown"


def serves(port: int) -> bool:
    try:
        with WireClient(port):
            return True
    except OSError:
        return False


def start(
    folder: Path, port: int, *, stdout: int, before: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    with (folder / "broker.log").open("ab") as log_file:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "strandline", "serve"),
                *("--set", f"log.dirs={folder / 'data'}"),
                *("--set", f"listeners=PLAINTEXT://127.0.0.1:{port}"),
            ],
            stdout=stdout,
            stderr=log_file,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / ".namespace")},
            preexec_fn=before,  # noqa: PLW1509
        )


@pytest.mark.parametrize("how", ["reader gone", "full", "all closed"])
def test_a_broker_serves_whatever_has_become_of_its_standard_streams(
    tmp_path: Path, how: str
) -> None:
    reserved = ReservedPort()
    if how == "full":
        stdout = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, stdout = os.pipe()
        os.close(reader)

    def close_all() -> None:
        os.closerange(0, 3)

    broker = start(
        tmp_path,
        reserved.number,
        stdout=stdout,
        before=close_all if how == "all closed" else None,
    )
    os.close(stdout)
    try:
        eventually(lambda: broker.poll() is not None or serves(reserved.number))
        if how == "all closed":
            # Else the first log or connection would have the number of standard error.
            links = [Path(f"/proc/{broker.pid}/fd/{number}").readlink() for number in range(3)]
            assert links == [Path(os.devnull)] * 3
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(60) == 0
    finally:
        broker.kill()
        broker.wait()
    text = (tmp_path / "broker.log").read_text()
    assert "Traceback" not in text
    assert ("strandline ready" in text) == (how != "all closed")
    assert (tmp_path / "data" / CLEAN_MARK).exists()


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_terminal_that_is_closed_stops_the_broker_cleanly_unless_nohup_started_it(
    tmp_path: Path, is_ignored: bool
) -> None:
    reserved = ReservedPort()
    chosen = signal.SIG_IGN if is_ignored else signal.SIG_DFL

    def as_chosen() -> None:
        signal.signal(signal.SIGHUP, chosen)

    broker = start(tmp_path, reserved.number, stdout=subprocess.DEVNULL, before=as_chosen)
    try:
        eventually(lambda: broker.poll() is not None or serves(reserved.number))
        broker.send_signal(signal.SIGHUP)
        if is_ignored:
            assert serves(reserved.number)
            broker.send_signal(signal.SIGTERM)
        assert broker.wait(60) == 0
    finally:
        broker.kill()
        broker.wait()
    assert (tmp_path / "data" / CLEAN_MARK).exists()


def test_a_child_process_of_a_broker_without_standard_streams_has_all_three(tmp_path: Path) -> None:
    """Else its first connection would have the number of standard error."""
    looks = (
        "import os, subprocess, sys\n"
        "from strandline.broker.server.standard_streams import occupy_closed\n"
        "os.closerange(0, 3)\n"
        "occupy_closed()\n"
        "child = 'import os, sys; [os.fstat(number) for number in range(3)]'\n"
        "sys.exit(subprocess.call([sys.executable, '-c', child]))\n"
    )
    assert subprocess.call([sys.executable, "-c", looks], cwd=tmp_path) == 0


def run_command(
    *words: str,
    before: Callable[[], None] | None = None,
    stdout: int = subprocess.PIPE,
    **environment: str,
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "strandline", *words],
        check=False,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / ".namespace"), **environment},
        preexec_fn=before,
    )


@pytest.fixture
def listing(tmp_path: Path) -> tuple[str, ...]:
    """A command that prints a table."""
    return ("archive", "ls", *Archive(tmp_path).options)


@pytest.mark.parametrize("number", range(3))
def test_a_command_whose_parent_closed_a_stream_succeeds(
    listing: tuple[str, ...], number: int
) -> None:
    ended = run_command(*listing, before=lambda: os.close(number))
    assert (ended.returncode, b"Traceback" in ended.stderr) == (0, False)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_command_escapes_characters_that_the_encoding_of_the_terminal_lacks(
    listing: tuple[str, ...], encoding: str
) -> None:
    ended = run_command(*listing, PYTHONIOENCODING=encoding)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"\\u2500" in ended.stdout


def test_a_command_that_cannot_write_its_output_fails_with_a_reason(
    listing: tuple[str, ...],
) -> None:
    for words in (("docs",), listing):
        with open("/dev/full", "wb") as full:
            ended = run_command(*words, stdout=full.fileno())
        assert ended.returncode == 1
        (line,) = ended.stderr.decode().splitlines()
        assert line.startswith("strandline: [Errno 28] No space left on device; the volume is full")
