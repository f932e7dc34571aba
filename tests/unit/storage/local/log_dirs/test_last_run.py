"""Whether the folders have all that the last run wrote, and what its note is not believed for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.storage import files
from strandline.storage.errors import DiskError
from strandline.storage.local.formats.checkpoint import META_PROPERTIES, NO_BROKER_EPOCH
from strandline.storage.local.log_dirs import last_run
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from tests.unit.storage.local.builders import TOPIC_ID, batch, fill, log_files
from tests.unit.storage.local.log_folders import (
    CONFIG,
    T0,
    T1,
    kill,
    load_all,
    open_dirs,
    two_filled_folders,
)

EPOCH = 17


def boot(name: str = "first") -> Callable[[Path], str | None]:
    return lambda _folder: name


def killed_run(parent: Path, epoch: int = EPOCH) -> tuple[Path, Path]:
    """Two folders with a log each, of a broker that noted its run and was killed."""
    dirs = two_filled_folders(parent)
    dirs.note_run(epoch, boot())
    kill(dirs)
    return parent / "a", parent / "b"


def epoch_of(*folders: Path, boot_name: str = "first") -> int:
    dirs = open_dirs(*folders)
    try:
        return dirs.last_epoch(boot(boot_name))
    finally:
        kill(dirs)


def test_a_killed_run_is_known_by_its_epoch_while_the_machine_is_up(tmp_path: Path) -> None:
    folders = killed_run(tmp_path)
    assert epoch_of(*folders) == EPOCH
    # A start that was killed before it registered changes nothing.
    assert epoch_of(*folders) == EPOCH
    assert epoch_of(*reversed(folders)) == EPOCH


def test_it_is_not_when_the_machine_went_down_or_nobody_knows_that(tmp_path: Path) -> None:
    folders = killed_run(tmp_path)
    assert epoch_of(*folders, boot_name="second") == NO_BROKER_EPOCH
    dirs = open_dirs(*folders)
    assert dirs.last_epoch(lambda _: None) == NO_BROKER_EPOCH
    # One of the folders is behind a file system that says nothing.
    known = boot()
    assert dirs.last_epoch(lambda one: None if one.name == "b" else known(one)) == NO_BROKER_EPOCH
    kill(dirs)


def test_a_clean_stop_needs_no_note_and_goes_before_one(tmp_path: Path) -> None:
    dirs = two_filled_folders(tmp_path)
    dirs.note_run(EPOCH, boot())
    dirs.finish({}, broker_epoch=18)
    dirs.unlock()
    assert epoch_of(tmp_path / "a", tmp_path / "b", boot_name="second") == 18


def test_a_run_that_cannot_vouch_leaves_no_note_of_an_earlier_one(tmp_path: Path) -> None:
    folders = killed_run(tmp_path)
    dirs = open_dirs(*folders)
    dirs.note_run(18, lambda one: None if one.name == "b" else "first")
    kill(dirs)
    assert not any((one / last_run.FILE_NAME).exists() for one in folders)


def test_folders_of_two_runs_have_no_common_past(tmp_path: Path) -> None:
    """A note that could be written to one of them alone, say."""
    first, second = killed_run(tmp_path)
    dirs = open_dirs(first, second)
    dirs.note_run(18, boot())
    kill(dirs)
    note = (first / last_run.FILE_NAME).read_bytes()
    dirs = open_dirs(first, second)
    dirs.note_run(19, boot())
    kill(dirs)
    (first / last_run.FILE_NAME).write_bytes(note)
    assert epoch_of(first, second) == NO_BROKER_EPOCH


@pytest.mark.parametrize("how", ["copied", "linked", "moved away and copied back"])
def test_a_copy_is_not_the_folder(tmp_path: Path, how: str) -> None:
    first, second = killed_run(tmp_path)
    if how == "moved away and copied back":
        first.rename(tmp_path / "away")
        shutil.copytree(tmp_path / "away", first)
    else:
        copy = shutil.copy2 if how == "copied" else Path.hardlink_to
        first.rename(tmp_path / "away")
        first.mkdir()
        for path in (tmp_path / "away").iterdir():
            if path.is_dir():
                shutil.copytree(path, first / path.name)
            elif copy is shutil.copy2:
                shutil.copy2(path, first / path.name)
            else:
                (first / path.name).hardlink_to(path)
    assert epoch_of(first, second) == NO_BROKER_EPOCH


def test_a_folder_more_or_less_or_another_one_is_another_past(tmp_path: Path) -> None:
    first, second = killed_run(tmp_path)
    assert epoch_of(first) == NO_BROKER_EPOCH
    assert epoch_of(first, second, tmp_path / "c") == NO_BROKER_EPOCH
    shutil.rmtree(second)
    assert epoch_of(first, second) == NO_BROKER_EPOCH


def test_a_folder_that_was_emptied_by_hand_is_another_one(tmp_path: Path) -> None:
    """`rm -rf folder/*` leaves what begins with a dot, and a part of it even more."""
    first, second = killed_run(tmp_path)
    for path in second.iterdir():
        if not path.name.startswith("."):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert epoch_of(first, second) == NO_BROKER_EPOCH


def test_a_folder_without_its_identity_is_a_new_one(tmp_path: Path) -> None:
    folders = killed_run(tmp_path)
    (folders[1] / META_PROPERTIES).unlink()
    assert epoch_of(*folders) == NO_BROKER_EPOCH


def test_a_folder_that_cannot_be_used_counts(tmp_path: Path) -> None:
    first, second = killed_run(tmp_path)
    second.rename(tmp_path / "away")
    second.write_text("in the way")
    assert epoch_of(first, second) == NO_BROKER_EPOCH


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 300, None])
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, content: bytes | None) -> None:
    folders = killed_run(tmp_path)
    path = folders[0] / last_run.FILE_NAME
    path.write_bytes(path.read_bytes()[:-5] if content is None else content)
    assert epoch_of(*folders) == NO_BROKER_EPOCH


def test_a_folder_that_fails_takes_the_note_from_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not synced in it may be lost, and the kill comes at once."""
    dirs = two_filled_folders(tmp_path)
    dirs.note_run(EPOCH, boot())

    def fail(*_: object) -> None:
        raise DiskError("input/output error")

    dirs.logs[T1].append(batch(1), leader_epoch=0)
    monkeypatch.setattr(files.OpenFile, "sync", fail)
    with pytest.raises(DiskError):
        dirs.logs[T1].flush()
    assert dirs.has_failed
    kill(dirs)
    assert epoch_of(tmp_path / "a", tmp_path / "b") == NO_BROKER_EPOCH


def test_a_run_over_a_folder_that_has_failed_is_not_noted(tmp_path: Path) -> None:
    folders = killed_run(tmp_path)
    (folders[1] / "t-1" / "partition.metadata").write_text("damaged")
    dirs = open_dirs(*folders)
    load_all(dirs)
    assert dirs.has_failed
    dirs.note_run(18, boot())
    kill(dirs)
    assert not any((one / last_run.FILE_NAME).exists() for one in folders)


def test_a_disk_without_room_for_the_note_ends_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = killed_run(tmp_path)
    dirs = open_dirs(*folders)

    def refuse(*_: object, **_more: object) -> None:
        raise DiskError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", refuse)
        dirs.note_run(18, boot())
    kill(dirs)
    # The controller knows a later epoch.
    assert epoch_of(*folders) == EPOCH


# --- what logs lack ------------------------------------------------------------------------------


def lost_by(dirs: LogDirs) -> frozenset[object]:
    load_all(dirs)
    kill(dirs)
    return frozenset(dirs.lost)


def test_a_kill_loses_no_record_and_a_torn_batch_is_none(tmp_path: Path) -> None:
    folders = killed_run(tmp_path)
    assert lost_by(open_dirs(*folders)) == frozenset()
    (path,) = log_files(folders[0] / "t-0")
    path.write_bytes(path.read_bytes() + bytes(batch(3))[:-4])
    assert lost_by(open_dirs(*folders)) == frozenset()


def test_a_log_that_is_cut_elsewhere_has_lost_records(tmp_path: Path) -> None:
    folders = killed_run(tmp_path)
    (path,) = log_files(folders[1] / "t-1")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert lost_by(open_dirs(*folders)) == {T1}
    # It is repaired now, and nobody sees it again.
    assert lost_by(open_dirs(*folders)) == frozenset()


def test_a_log_that_is_gone_has_lost_records_and_a_deleted_one_has_not(tmp_path: Path) -> None:
    dirs = two_filled_folders(tmp_path)
    dirs.write_checkpoints({})
    kill(dirs)
    shutil.rmtree(tmp_path / "a" / "t-0")
    assert lost_by(open_dirs(tmp_path / "a", tmp_path / "b")) == {T0}
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    dirs.delete_log(load_all(dirs)[T1])
    dirs.write_checkpoints({})
    kill(dirs)
    assert lost_by(open_dirs(tmp_path / "a", tmp_path / "b")) == frozenset()


def test_a_log_that_was_stopped_cleanly_has_no_torn_batch(tmp_path: Path) -> None:
    dirs = two_filled_folders(tmp_path)
    dirs.close()
    (path,) = log_files(tmp_path / "a" / "t-0")
    path.write_bytes(path.read_bytes()[:-4])
    assert lost_by(open_dirs(tmp_path / "a", tmp_path / "b")) == {T0}


def test_a_log_that_ends_before_what_was_synced_has_lost_records(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    made = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(made, 5)
    made.flush()
    dirs.write_checkpoints({})
    kill(dirs)
    (path,) = log_files(tmp_path / "t-0")
    border = made.active_segment.locate(40)
    assert border is not None
    path.write_bytes(path.read_bytes()[: border.position])
    assert lost_by(open_dirs(tmp_path)) == {T0}
