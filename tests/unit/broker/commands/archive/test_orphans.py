"""`strandline archive orphans`: what cannot be undone is shown first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.broker.cli import main
from tests.unit.broker.commands.archive_rig import Archive
from tests.unit.storage.tiering.harness import ID_PARTITION

PARTITION_FOLDER = f"topics/{ID_PARTITION.topic}-{ID_PARTITION.topic_id}/0"


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, typed: str) -> Iterator[None]:
    """Somebody sits there, and types."""
    ours, theirs = os.openpty()
    os.write(ours, typed.encode() + b"\n")
    with (
        open(theirs) as keyboard,
        open(os.dup(theirs), "w") as screen,
        monkeypatch.context() as patched,
    ):
        patched.setattr(sys, "stdin", keyboard)
        patched.setattr(sys, "stderr", screen)
        yield
    os.close(ours)


def test_what_a_lost_manifest_owns_is_named_and_stays_until_somebody_says_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(tmp_path)
    archive.store.delete([archive.manifest_key])
    words = ["archive", "orphans", *archive.options, "--grace-hours", "-1", "--delete-all"]
    words += ["--topic", ID_PARTITION.topic]
    assert main(words) == 2
    told = capsys.readouterr()
    assert all(key in told.out for key in archive.named)
    assert "its partition has no manifest: the one that was lost may own it" in told.out
    assert f"{PARTITION_FOLDER}: 5 objects" in told.err
    assert "their records may be nowhere else" in told.err
    assert "nothing was done yet" in told.err
    assert archive.named <= archive.there
    with terminal(monkeypatch, "y"):
        assert main(words) == 1
    assert archive.named <= archive.there
    with terminal(monkeypatch, "yes"):
        assert main(words) == 0
    assert not archive.named & archive.there


def test_nothing_is_asked_where_nothing_is_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = Archive(tmp_path)
    assert main(["archive", "orphans", *archive.options, "--delete-all"]) == 0
    assert "0 deleted" in capsys.readouterr().out
