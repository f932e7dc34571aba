"""A command that waits for a store that does not answer says so, instead of nothing."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.remote.silence import Silence, silent_places
from tests.support.broker import eventually
from tests.support.forked import PYTHON_PATH, STRANDLINE, ForkedProcess, start_process
from tests.support.manual_clock import ManualClock

TABLE = ("--topic", "t", "--table", "lake.t")


def test_a_place_is_silent_while_a_request_is_under_way_without_progress() -> None:
    clock = ManualClock()
    place = Silence("s3://b/a", clock)
    clock.advance_ms(5000)
    assert "s3://b/a" not in silent_places(2.0)
    with place:
        clock.advance_ms(1500)
        place.note_progress()
        clock.advance_ms(1500)
        assert "s3://b/a" not in silent_places(2.0)
        clock.advance_ms(500)
        assert "s3://b/a" in silent_places(2.0)
        place.note_progress(next_bytes=8 * 1024 * 1024)
        clock.advance_ms(9000)
        assert "s3://b/a" not in silent_places(2.0)
    assert "s3://b/a" not in silent_places(0.1)


def test_a_folder_that_does_not_answer_is_silent(tmp_path: Path) -> None:
    store = LocalDirectoryStore(tmp_path / "archive")
    store.put("a", b"")
    with open(tmp_path / "archive" / "a", "rb") as held, ThreadPoolExecutor() as threads:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threads.submit(store.put, "a", b"")
        eventually(lambda: store.url in silent_places(0.1))
        fcntl.flock(held, fcntl.LOCK_UN)
        waiting.result()
    assert store.url not in silent_places(0.1)


@pytest.mark.slow
def test_each_command_names_the_store_that_does_not_answer_while_it_waits(tmp_path: Path) -> None:
    """Buckets, folders, tables and catalogs."""
    hanging = tmp_path / "hanging"
    hanging.mkdir()
    os.mkfifo(hanging / "cluster.json")
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        s3 = ("--remote", "s3://bkt/a", "--endpoint-url", server)
        commands: dict[tuple[str, ...], str] = {
            ("archive", "ls", *s3): "s3://bkt/a",
            ("table", "sync", *s3, *TABLE, "--format", "delta"): "table s3://bkt/a-tables/lake/t",
            ("table", "check", *s3, *TABLE, "--catalog", server): f"the catalog {server}",
            ("lake", "plan", "--remote", f"file://{hanging}", "--topic", "t"): f"file://{hanging}",
        }
        waiting = [(one, stack.enter_context(running(tmp_path, one))) for one in commands]
        for command, process in waiting:
            assert process.stderr is not None
            said = f"{commands[command]} has not answered for 2 s, still waiting\n"
            assert process.stderr.readline() == said, command


@contextmanager
def running(
    folder: Path, command: Sequence[str]
) -> Iterator[subprocess.Popen[str] | ForkedProcess]:
    environment = {**os.environ, **PYTHON_PATH}
    environment |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    with open(os.devnull, "wb") as nothing:
        process = start_process(
            [*STRANDLINE, *command],
            folder=folder,
            environment=environment,
            stdout=nothing,
            stderr=subprocess.PIPE,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
