"""A child that cannot be started is one kind of failure, whatever there is too little of."""

from __future__ import annotations

import errno
import multiprocessing.connection

import pytest

from strandline.storage.child_process import ChildFailed, ChildProcess


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
