"""Deleted logs: gone at once, purged later, and never mistaken for those of their name."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import uuid
import weakref
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from strandline.storage import files
from strandline.storage.errors import CorruptFile, DiskError
from strandline.storage.local.formats.names import partition_of
from strandline.storage.local.log_dirs import leftovers
from strandline.storage.local.log_dirs.deleted_folders import DeletedFolders
from strandline.storage.model import TopicPartition
from strandline.storage.tiering.log.unified_log import UnifiedLog
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import NOW_MS, TOPIC_ID, fill
from tests.unit.storage.local.log_folders import CONFIG, T0, T1, T2, kill, load_all, open_dirs


def _open_files() -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return found


def test_a_deleted_log_is_gone_at_once_and_purged_after_the_delay(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    dirs = open_dirs(tmp_path, clock=clock)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 5)
    held = log.read(0, bytes_max=1 << 20).range
    assert held is not None
    expected = held.read()
    dirs.delete_log(log)
    assert T0 not in dirs.logs
    assert not (tmp_path / "t-0").exists()
    assert len(list(tmp_path.glob("t-0.*-delete"))) == 1
    dirs.purge_deleted(clock.monotonic_s())
    assert len(list(tmp_path.glob("t-0.*-delete"))) == 1
    clock.advance_ms(CONFIG.file_delete_delay_ms)
    dirs.purge_deleted(clock.monotonic_s())
    assert not list(tmp_path.glob("t-0*"))
    assert held.read() == expected
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.close()


def test_a_deleted_log_holds_no_file_open_and_waits_for_no_collector(tmp_path: Path) -> None:
    """An open file keeps its room on the disk, and a quiet process collects garbage never."""
    clock = ManualClock(NOW_MS)
    dirs = open_dirs(tmp_path, clock=clock)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    tiers = UnifiedLog(log)
    fill(log, 5)
    gone = weakref.ref(log)
    gc.collect()
    gc.disable()
    try:
        dirs.delete_log(log)
        clock.advance_ms(CONFIG.file_delete_delay_ms)
        dirs.purge_deleted(clock.monotonic_s())
        del log, tiers
        assert gone() is None
        # Whole paths: other tests leave files open, and the folder of all may be `pytest-0`.
        own = str(tmp_path / "t-0")
        assert not [name for name in _open_files() if name.startswith(own)]
    finally:
        gc.enable()
    dirs.close()


def test_a_log_deleted_before_a_crash_is_purged_after_the_next_start(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    dirs.delete_log(dirs.create_log(T0, TOPIC_ID, CONFIG))
    dirs.close()
    again = open_dirs(tmp_path)
    assert load_all(again) == {}
    assert again.purge_deleted(NOW_MS) == 1
    assert not list(tmp_path.glob("t-0*"))


@pytest.mark.parametrize("when", ["at once", "after a restart", "after a checkpoint"])
def test_a_new_log_has_nothing_of_a_deleted_one_with_its_name_after_a_kill(
    tmp_path: Path, when: str
) -> None:
    dirs = open_dirs(tmp_path)
    deleted = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(deleted, 20)
    deleted.flush()
    dirs.write_checkpoints({T0: 15})
    dirs.write_cleaned_offset(deleted, 20)
    dirs.delete_log(deleted)
    if when == "after a restart":
        kill(dirs)
        dirs = open_dirs(tmp_path)
        load_all(dirs)
    elif when == "after a checkpoint":
        dirs.write_checkpoints({})
    fill(dirs.create_log(T0, uuid.uuid4(), CONFIG), 3)
    kill(dirs)

    again = open_dirs(tmp_path)
    assert again.log_start_offsets == again.directories[0].high_watermarks == {}
    opened = load_all(again)[T0]
    assert (opened.log_start_offset, opened.end_offset) == (0, 30)
    assert again.cleaned_offset(opened) is None
    # Nothing of it was ever synced, so all of it is looked at.
    assert opened.recovery_report.segments_checked == 1
    assert opened.recovery_report.problems == []
    again.close()


def test_what_cannot_be_unlinked_holds_nothing_else_back_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder whose disk is broken does not fill the others."""
    clock = ManualClock(NOW_MS)
    dirs = open_dirs(tmp_path / "a", tmp_path / "b", clock=clock)
    logs = [dirs.create_log(key, TOPIC_ID, CONFIG) for key in (T0, T1)]
    dirs.delete_log(logs[0])
    rest = [logs[1], dirs.create_log(T2, TOPIC_ID, CONFIG)]
    for log in rest:
        fill(log, 20)
        log.delete_segments(log.segments[:2])
    broken = tmp_path / "b" / "t-1"
    clock.advance_ms(60_000)
    real_remove = files.remove

    def remove(path: Path) -> None:
        if path.parent == broken:
            raise DiskError("input/output error")
        real_remove(path)

    def fail(path: Path) -> None:
        raise DiskError(f"input/output error: {path}")

    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", remove)
        patch.setattr(files, "remove_tree", fail)
        for _ in range(2):
            with pytest.raises(DiskError, match=r"t-0\..*-delete"):
                dirs.purge_deleted(clock.monotonic_s())
    assert not list((tmp_path / "a" / "t-2").glob("*.deleted"))
    assert list(broken.glob("*.deleted"))
    assert dirs.purge_deleted(clock.monotonic_s()) > 1
    assert not list(tmp_path.glob("*/*.deleted"))
    assert not list(tmp_path.glob("*/*-delete"))
    dirs.close()


def test_what_was_deleted_goes_after_its_folder_was_away_and_nothing_that_lies_there_meanwhile(
    tmp_path: Path,
) -> None:
    """A volume is unmounted, and somebody else has a folder of these names at its mount point."""
    clock = ManualClock(NOW_MS)
    mount_point, volume = tmp_path / "a", tmp_path / "volume"
    dirs = open_dirs(mount_point, tmp_path / "b", clock=clock)
    dirs.delete_log(dirs.create_log(T0, TOPIC_ID, CONFIG))
    log = dirs.create_log(T2, TOPIC_ID, CONFIG)
    fill(log, 20)
    log.delete_segments(log.segments[:2])
    names = [file.relative_to(mount_point) for file in mount_point.glob("t-*/*.deleted")]
    names += [file.relative_to(mount_point) for file in mount_point.glob("t-*-delete/*.log")]
    assert len(names) > 2
    mount_point.rename(volume)
    for name in names:
        (mount_point / name).parent.mkdir(parents=True, exist_ok=True)
        (mount_point / name).touch()
    clock.advance_ms(60_000)
    assert dirs.purge_deleted(clock.monotonic_s()) == 0
    assert dirs.has_failed
    assert all((mount_point / name).exists() for name in names)

    shutil.rmtree(mount_point)
    volume.rename(mount_point)
    clock.advance_ms(600_000)
    assert dirs.revive()
    dirs.purge_deleted(clock.monotonic_s())
    assert not any((mount_point / name).exists() for name in names)
    assert not list(mount_point.glob("*-delete"))
    dirs.close()


def test_the_longest_topic_name_can_be_deleted(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    partition = TopicPartition("n" * 249, 12345)
    dirs.delete_log(dirs.create_log(partition, TOPIC_ID, CONFIG))
    assert len(list(tmp_path.glob("nnn*-delete"))) == 1


def test_only_names_that_kafka_gives_partition_folders_are_taken_for_such() -> None:
    assert partition_of("a-0") == TopicPartition("a", 0)
    assert partition_of("a.b_c-d-12") == TopicPartition("a.b_c-d", 12)
    for name in (
        "a",
        "a-",
        "-0",
        "a-b",
        "a-0-delete",
        "a-0.x-stray",
        "a/b-0",
        "ä-0",
        "a-٣",
        "a-00",
        "a-07",
    ):
        assert partition_of(name) is None


def test_a_folder_that_cannot_be_removed_holds_no_other_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = DeletedFolders()
    for name in ("t-0.a-delete", "t-1.b-delete"):
        (tmp_path / name).mkdir()
        folders.add(tmp_path / name, remove_at_s=5)
    remove_tree = files.remove_tree

    def fail_for_the_first(path: Path) -> None:
        if path.name == "t-0.a-delete":
            raise DiskError("input/output error")
        remove_tree(path)

    assert folders.purge(4, within={tmp_path}) == (0, None), "before their time"
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove_tree", fail_for_the_first)
        count, error = folders.purge(5, within={tmp_path})
    assert (count, str(error)) == (1, "input/output error")
    assert [path.name for path in tmp_path.iterdir()] == ["t-0.a-delete"]
    assert folders.purge(5, within={tmp_path}) == (1, None)


# --- a full disk -------------------------------------------------------------------------------


def _without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs("/")
    little = SimpleNamespace(f_bavail=1, f_frsize=found.f_frsize)
    monkeypatch.setattr(os, "statvfs", lambda _: little)


def _leave_garbage(folder: Path) -> list[Path]:
    """A removed segment and a folder of a deleted partition, as a killed broker leaves them."""
    dirs = open_dirs(folder)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 60)
    log.delete_segments(log.segments[:1])
    dirs.delete_log(dirs.create_log(T1, TOPIC_ID, CONFIG))
    kill(dirs)
    garbage = [*folder.rglob("*.deleted"), *folder.glob("*-delete")]
    assert len({path.suffix for path in garbage}) == 2
    return garbage


def test_a_start_on_a_full_disk_removes_its_leftovers_before_it_writes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    garbage = _leave_garbage(tmp_path)
    kept = sorted(tmp_path.glob("t-0/*.log"))
    _without_room(monkeypatch)
    dirs = open_dirs(tmp_path)
    assert [path for path in garbage if path.exists()] == []
    assert sorted(tmp_path.glob("t-0/*.log")) == kept
    assert load_all(dirs)[T0].end_offset == 600


def test_with_room_a_start_leaves_them_for_later_and_another_brokers_folder_alone_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    garbage = _leave_garbage(tmp_path)
    with monkeypatch.context() as patch:
        _without_room(patch)
        with pytest.raises(CorruptFile, match="belongs to node"):
            open_dirs(tmp_path, node_id=2)
    monkeypatch.setattr(leftovers, "ROOM_BYTES", 1)
    kill(open_dirs(tmp_path))
    assert all(path.exists() for path in garbage)


def test_what_waits_for_its_deletion_goes_at_once_when_a_write_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 60)
    log.delete_segments(log.segments[:1])
    dirs.delete_log(dirs.create_log(T1, TOPIC_ID, CONFIG))

    def fails(_descriptor: int, _data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert not dirs.is_short_of_room
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fails)
        with pytest.raises(DiskError):
            fill(log, 1)
    assert dirs.is_short_of_room
    assert dirs.make_room() >= 2
    assert [*tmp_path.rglob("*.deleted"), *tmp_path.glob("*-delete")] == []
    assert not dirs.is_short_of_room
    fill(log, 1)


def test_a_folder_that_a_full_disk_took_offline_is_freed_as_well_since_it_returns_only_with_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 60)
    log.delete_segments(log.segments[:1])

    def no_room(_path: Path) -> None:
        raise DiskError("full") from OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_directory", no_room)
        with pytest.raises(DiskError):
            log.flush()
    assert dirs.has_failed
    assert dirs.is_short_of_room
    assert dirs.make_room() >= 1
    assert list(tmp_path.rglob("*.deleted")) == []
    assert len(dirs.revive()) == 1
