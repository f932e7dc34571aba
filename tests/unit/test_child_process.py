"""A child that cannot be started is one kind of failure, whatever there is too little of."""

from __future__ import annotations

import errno
import multiprocessing.connection
import re
import socket

import pytest

from strandline.storage.child_process import ChildFailed, ChildProcess
from strandline.storage.remote.started_child import StartedChild


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        ImportError("failed to map segment from shared object"),
        MemoryError("out of memory"),
    ],
)
def test_a_child_that_there_is_no_socket_for_is_a_failed_child(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Who wants it waits and tries again; anything else would count as a mistake of ours."""

    def refuse(*, duplex: bool) -> None:
        raise error

    monkeypatch.setattr(multiprocessing.connection, "Pipe", refuse)
    with pytest.raises(ChildFailed, match=f"cannot start a child process: .*{error.args[-1]}"):
        ChildProcess("pass")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os; os.kill(os.getpid(), 7)", "ended by SIGBUS: a file .* cannot be read"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL: .* no memory"),
        ("raise SystemExit(3)", "died with status 3"),
    ],
)
def test_of_a_child_that_died_it_is_said_what_of(program: str, said: str) -> None:
    """A disk that cannot read a mapped file raises no error, but a signal."""
    child = ChildProcess(program)
    assert re.search(said, str(child.died()))
    child.kill()


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), MemoryError("out of memory")]
)
def test_a_downloading_child_that_there_are_no_channels_for_is_a_failed_child(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Who starts it marks that it does; anything else would let nobody start one ever again."""

    def refuse() -> None:
        raise error

    monkeypatch.setattr(socket, "socketpair", refuse)
    with pytest.raises(ChildFailed, match=f"cannot set up a child process: .*{error.args[-1]}"):
        StartedChild(4, 0.0)
