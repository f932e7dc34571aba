"""What the machine refuses is told with what to do about it."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.broker.commands.error_hints import remedy_for
from strandline.broker.config.listeners import CannotListen, Listener, listen_at
from strandline.storage import files
from strandline.storage.errors import DiskError, OutOfResources, StrandlineError


def refused_by(error: OSError) -> CannotListen:
    def listen(host: str, port: int, name: str) -> int:
        raise error

    with pytest.raises(CannotListen) as caught:
        listen_at([Listener(name="PLAINTEXT", host="broker", port=92)], listen)
    return caught.value


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (refused_by(PermissionError(errno.EACCES, "Permission denied")), "ports below 1024"),
        (refused_by(socket.gaierror(socket.EAI_NONAME, "Name not known")), "/etc/hosts"),
        (refused_by(socket.gaierror(socket.EAI_AGAIN, "Temporary failure")), "/etc/hosts"),
        (OutOfResources("cannot begin another thread"), "ulimit -u"),
    ],
    ids=["privileged port", "unknown host", "no name server", "no thread"],
)
def test_a_refusal_has_the_remedy_of_its_own_cause(error: StrandlineError, advice: str) -> None:
    remedy = remedy_for(error, command="serve")
    assert advice in remedy
    assert "chown" not in remedy


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_a_log_folder_that_is_none_is_told_from_one_that_is_there(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    if kind == "file":
        path.write_text("")
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(DiskError) as caught:
        files.make_directory(path)
    assert "Name another folder" in remedy_for(caught.value, command="serve")


@pytest.mark.parametrize("words", [("verify",), ("dump-log",)], ids=" ".join)
def test_a_path_that_nobody_may_look_into_is_not_called_absent(
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Root may look everywhere, so the refusal is made here."""
    hidden = tmp_path / "hidden"
    real = os.stat

    def stat(path: object, *args: object, **kwargs: object) -> os.stat_result:
        if str(path) == str(hidden):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **kwargs)  # type: ignore[arg-type]  # passed on as given

    monkeypatch.setattr(os, "stat", stat)
    assert main([*words, str(hidden)]) == 1
    told = capsys.readouterr().err
    assert "Permission denied" in told
    assert "chown" in told
    assert "no such" not in told
