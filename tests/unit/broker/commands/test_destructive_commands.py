"""What cannot be undone is shown first, and is done only when somebody says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.storage.clock import ManualClock
from strandline.storage.remote.manifest.topic_info import save_topic_info
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from tests.unit.storage.tiering.harness import CONFIG, ID_PARTITION, Rig, asynchronous, keys_of

CLOCK = ManualClock(1_700_000_000_000)
UPLOAD_MS = 1000
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


class Archive:
    """Of one partition, in a folder: two segments, and two pieces of the open one."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalDirectoryStore(folder / "archive", clock=CLOCK)
        self.options = ("--remote", f"file://{folder}/archive")
        config = replace(
            CONFIG,
            strandline_remote_active_segment_upload_ms=UPLOAD_MS,
            local_retention_ms=10**9,
        )

        @asynchronous
        async def fill() -> None:
            async with Rig(folder / "disk", store=self.store, config=config) as rig:
                rig.produce_segments(2)
                await rig.settle()
                rig.produce()
                for _ in range(4):
                    rig.pass_ms(UPLOAD_MS)
                    await rig.settle()
                save_topic_info(self.store, rig.topic_info)
                self.manifest_key = rig.manifest_key
                self.named = keys_of(rig.manifest)
                assert rig.manifest is not None
                self.pieces = [part.key for part in rig.manifest.tail]

        fill()
        assert self.pieces

    @property
    def there(self) -> set[str]:
        return {info.key for info in self.store.list("topics/")}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


def test_what_a_lost_manifest_owns_is_named_and_stays_until_somebody_says_otherwise(
    archive: Archive, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["archive", "orphans", *archive.options, "--delete-all"]) == 0
    assert "0 deleted" in capsys.readouterr().out


def test_pieces_of_the_open_segment_are_given_up_when_somebody_says_so(
    archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.store.delete(archive.pieces[:1])
    before = archive.store.get(archive.manifest_key)
    words = ["archive", "verify", *archive.options, "--drop-pieces"]
    assert main(words) == 2
    told = capsys.readouterr()
    assert archive.pieces[0] in told.out
    assert "add --yes" in told.err
    assert archive.store.get(archive.manifest_key) == before
    main([*words, "--yes"])
    assert f"dropped: {archive.pieces[0]}" in capsys.readouterr().out
