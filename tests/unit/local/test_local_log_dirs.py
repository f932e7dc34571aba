"""The log folders of a broker: locks, identity, what is loaded, deleted, written at the end."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import uuid
import weakref
from contextlib import suppress
from pathlib import Path

import pytest

from strandline.storage import files
from strandline.storage.clock import ManualClock
from strandline.storage.errors import CorruptFile, DiskError, LogDirLocked, UnsupportedFormat
from strandline.storage.local import checkpoint
from strandline.storage.local.folder_names import partition_of
from strandline.storage.local.log import LocalLog
from strandline.storage.local.log_dir import LogDirs
from strandline.storage.log_config import LogConfig
from strandline.storage.model import ZERO_TOPIC_ID, TopicId, TopicPartition
from strandline.storage.tiering.unified_log import UnifiedLog
from tests.unit.local.builders import NOW_MS, TOPIC_ID, assert_dense, fill, read_bytes

CONFIG = LogConfig(segment_bytes=4000)
T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


def open_dirs(
    *paths: Path,
    node_id: int = 1,
    cluster_id: str | None = "cluster-of-the-tests00",
    clock: ManualClock | None = None,
) -> LogDirs:
    return LogDirs.open(
        paths, node_id=node_id, cluster_id=cluster_id, clock=clock or ManualClock(NOW_MS)
    )


def load_all(dirs: LogDirs) -> dict[TopicPartition, LocalLog]:
    return dirs.load(lambda _partition, _topic_id: CONFIG)


def _open_files() -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return found


# --- locks and identity --------------------------------------------------------------------------


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    with pytest.raises(LogDirLocked, match=str(tmp_path)):
        open_dirs(tmp_path)
    dirs.close()
    open_dirs(tmp_path).close()


def test_a_folder_that_another_broker_made_anew_stays_offline(tmp_path: Path) -> None:
    folder, away = tmp_path / "data", tmp_path / "away"
    dirs = open_dirs(folder)
    load_all(dirs)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    folder.rename(away)
    others = open_dirs(folder)
    [ours] = dirs.directories
    with pytest.raises(DiskError, match="is another broker using it"):
        ours.check_present()
    log.on_failure(DiskError("the disk went away"))
    assert dirs.revive() == []
    others.close()
    assert dirs.revive() == []
    assert dirs.has_failed
    dirs.close()


def test_a_copy_of_the_folder_in_its_place_is_locked_and_taken_up_again(tmp_path: Path) -> None:
    """As when its device went and came back: another file to the system, and the same folder."""
    folder, away = tmp_path / "data", tmp_path / "away"
    dirs = open_dirs(folder)
    load_all(dirs)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    folder.rename(away)
    shutil.copytree(away, folder)
    log.on_failure(DiskError("the disk went away"))
    with pytest.raises(DiskError):
        dirs.directories[0].check_present()
    [revived] = dirs.revive()
    assert revived.new.topic_partition == T0
    dirs.directories[0].check_present()
    with pytest.raises(LogDirLocked):
        open_dirs(folder)
    dirs.close()


@pytest.mark.slow
def test_the_lock_of_a_dead_process_does_not_count(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from strandline.storage.clock import ManualClock;"
        "from strandline.storage.local.log_dir import LogDirs;"
        "LogDirs.open([Path(sys.argv[1])], node_id=1, cluster_id=None, clock=ManualClock());"
        "os._exit(9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == 9
    open_dirs(tmp_path, cluster_id=None).close()


def test_where_no_folder_is_usable_the_systems_own_error_stays_behind_ours(tmp_path: Path) -> None:
    """The command line says by it what to do."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DiskError, match=r"a.*b") as caught:
        open_dirs(tmp_path / "file" / "a", tmp_path / "file" / "b")
    cause = caught.value.__cause__
    assert isinstance(cause, DiskError)
    assert isinstance(cause.__cause__, NotADirectoryError)


def test_one_locked_folder_frees_the_others_again(tmp_path: Path) -> None:
    holder = open_dirs(tmp_path / "b")
    with pytest.raises(LogDirLocked):
        open_dirs(tmp_path / "a", tmp_path / "b")
    holder.close()
    open_dirs(tmp_path / "a", tmp_path / "b").close()


def test_a_cluster_id_is_made_once_and_kept(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path / "a", cluster_id=None)
    made = dirs.cluster_id
    assert len(made) == 22
    dirs.close()
    again = open_dirs(tmp_path / "a", tmp_path / "b", cluster_id=None)
    assert again.cluster_id == made
    again.close()
    properties = [checkpoint.read_properties(tmp_path / name / "meta.properties") for name in "ab"]
    assert properties[0] is not None
    assert properties[1] is not None
    assert properties[0]["version"] == "1"
    assert properties[0]["node.id"] == properties[1]["node.id"] == "1"
    assert properties[0]["cluster.id"] == properties[1]["cluster.id"] == made
    assert properties[0]["directory.id"] != properties[1]["directory.id"]


def test_the_folder_of_another_broker_or_cluster_is_refused(tmp_path: Path) -> None:
    open_dirs(tmp_path).close()
    with pytest.raises(CorruptFile, match=r"belongs to node.id=1, this broker is 2"):
        open_dirs(tmp_path, node_id=2)
    with pytest.raises(CorruptFile, match=r"belongs to cluster.id=cluster-of-the-tests00"):
        open_dirs(tmp_path, cluster_id="another")
    open_dirs(tmp_path).close()


def test_a_folder_of_a_later_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=7\nnode.id=1\n")
    with pytest.raises(UnsupportedFormat, match="version 7"):
        open_dirs(tmp_path)


def test_a_folder_of_an_old_kafka_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=old\n")
    dirs = open_dirs(tmp_path, cluster_id=None)
    assert dirs.cluster_id == "old"
    dirs.close()


# --- logs ----------------------------------------------------------------------------------------


def test_new_partitions_go_where_there_are_fewest(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    for partition in range(7):
        dirs.create_log(TopicPartition("t", partition), TOPIC_ID, CONFIG)
    counts = [len(list((tmp_path / name).glob("t-*"))) for name in "abc"]
    assert sorted(counts) == [2, 2, 3]
    assert len(dirs.logs) == 7
    dirs.close()


def test_logs_come_back_as_they_were_after_a_clean_stop(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    contents = {}
    for partition in (T0, T1, T2):
        log = dirs.create_log(partition, TOPIC_ID, CONFIG)
        fill(log, 20)
        contents[partition] = read_bytes(log)
    dirs.close({T0: 100}, {T0: 200, T1: 150})
    again = open_dirs(tmp_path / "a", tmp_path / "b")
    assert again.log_start_offsets == {T0: 100, T1: 0, T2: 0}
    assert again.high_watermarks == {T0: 200, T1: 150}
    asked: list[tuple[TopicPartition, TopicId]] = []

    def config_for(partition: TopicPartition, topic_id: TopicId) -> LogConfig:
        asked.append((partition, topic_id))
        return CONFIG

    logs = again.load(config_for)
    assert sorted(asked) == [(partition, TOPIC_ID) for partition in (T0, T1, T2)]
    for partition, log in logs.items():
        assert read_bytes(log) == contents[partition]
        assert log.recovery_report.clean_shutdown
        assert log.recovery_report.segments_checked == 0
        assert log.topic_id == TOPIC_ID
    assert logs[T0].log_start_offset == 100
    assert logs[T0].start_offset == 0
    again.close()


@pytest.mark.parametrize("threads", [1, 3, 40])
def test_every_log_is_opened_once_however_many_threads_load(tmp_path: Path, threads: int) -> None:
    wanted = {TopicPartition("t", partition) for partition in range(30)}
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    for partition in wanted:
        dirs.create_log(partition, TOPIC_ID, CONFIG)
    dirs.close()
    again = open_dirs(tmp_path / "a", tmp_path / "b")
    asked: list[TopicPartition] = []

    def config_for(partition: TopicPartition, _topic_id: TopicId) -> LogConfig:
        asked.append(partition)
        return CONFIG

    assert again.load(config_for, threads_per_directory=threads).keys() == wanted
    assert sorted(asked) == sorted(wanted)
    again.close()


@pytest.mark.parametrize("error", [IndexError, CorruptFile])
def test_a_log_that_cannot_be_loaded_is_not_passed_over(
    tmp_path: Path, error: type[Exception]
) -> None:
    dirs = open_dirs(tmp_path)
    for partition in (T0, T1, T2):
        dirs.create_log(partition, TOPIC_ID, CONFIG)
    dirs.close()
    again = open_dirs(tmp_path)

    def config_for(partition: TopicPartition, _topic_id: TopicId) -> LogConfig:
        if partition == T1:
            raise error("odd")
        return CONFIG

    with pytest.raises(error, match="odd"):
        again.load(config_for, threads_per_directory=2)


def test_a_start_takes_the_clean_mark_away_so_that_a_kill_is_noticed(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    fill(dirs.create_log(T0, TOPIC_ID, CONFIG), 20)
    dirs.close()
    mark = tmp_path / ".kafka_cleanshutdown"
    assert mark.exists()
    killed = open_dirs(tmp_path)
    assert not mark.exists()
    log = load_all(killed)[T0]
    fill(log, 5)
    killed.write_checkpoints({T0: 0}, {T0: 200})
    for directory in killed.directories:
        directory.unlock()  # What the kernel does for a dead process.
    after = open_dirs(tmp_path)
    recovered = load_all(after)[T0]
    assert not recovered.recovery_report.clean_shutdown
    assert recovered.recovery_report.segments_checked > 0
    assert recovered.end_offset == 250
    # Checkpointed while it ran: what the flush at the last stop had made safe.
    assert recovered.recovery_point == 200
    assert_dense(recovered)


@pytest.mark.parametrize(
    "damage", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"]
)
@pytest.mark.parametrize("content", ["", "0\n5\n", "garbage", f"0\n1\nt 0 {2**63}\n", None])
def test_missing_or_damaged_checkpoints_cost_time_and_not_data(
    tmp_path: Path, damage: str, content: str | None
) -> None:
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 20)
    expected = read_bytes(log)
    dirs.close()
    path = tmp_path / damage
    path.unlink()
    if content is not None:
        path.write_text(content)
    again = load_all(open_dirs(tmp_path))[T0]
    assert read_bytes(again) == expected


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.close()
    for name in ("lost+found", "notes", "t-x", "-1", "ümlaut-0", "t-0.backup"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keep").write_text("mine")
    (tmp_path / "t-9").write_text("a file")
    again = open_dirs(tmp_path)
    assert list(load_all(again)) == [T0]
    again.purge_deleted(NOW_MS * 2)
    for name in ("lost+found", "notes", "t-x", "-1", "ümlaut-0", "t-0.backup"):
        assert (tmp_path / name / "keep").exists()
    again.close()


def test_a_partition_the_cluster_does_not_know_is_kept_as_stray(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    fill(dirs.create_log(T0, TOPIC_ID, CONFIG), 1)
    dirs.create_log(T1, uuid.uuid4(), CONFIG)
    dirs.close()
    again = open_dirs(tmp_path)
    loaded = again.load(lambda _, topic_id: None if topic_id == TOPIC_ID else CONFIG)
    assert list(loaded) == [T1]
    strays = list(tmp_path.glob("t-0.*-stray"))
    assert len(strays) == 1
    assert (strays[0] / f"{0:020d}.log").stat().st_size > 0
    again.purge_deleted(NOW_MS * 2)
    assert strays[0].exists()
    # The name is free again, for the topic's next incarnation.
    fresh = again.create_log(T0, uuid.uuid4(), CONFIG)
    assert (fresh.start_offset, fresh.end_offset) == (0, 0)
    again.close()


def test_a_folder_without_a_topic_id_is_shown_with_zeros(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.close()
    (tmp_path / "t-0" / "partition.metadata").unlink()
    seen = []
    again = open_dirs(tmp_path)
    again.load(lambda _, topic_id: seen.append(topic_id) or CONFIG)
    assert seen == [ZERO_TOPIC_ID]


def test_a_partition_in_two_folders_is_refused(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.close()
    (tmp_path / "b" / "t-0").mkdir()
    (tmp_path / "a" / "t-0").mkdir(exist_ok=True)
    with pytest.raises(CorruptFile, match="t-0 lies in"):
        load_all(open_dirs(tmp_path / "a", tmp_path / "b"))


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
    dirs.purge_deleted(clock.now_ms())
    assert len(list(tmp_path.glob("t-0.*-delete"))) == 1
    clock.advance_ms(CONFIG.file_delete_delay_ms)
    dirs.purge_deleted(clock.now_ms())
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
        dirs.purge_deleted(clock.now_ms())
        del log, tiers
        assert gone() is None
        assert not [name for name in _open_files() if "t-0" in name]
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
    dirs.write_checkpoints({T0: 15}, {T0: 20})
    dirs.write_cleaned_offset(deleted, 20)
    dirs.delete_log(deleted)
    if when == "after a restart":
        kill(dirs)
        dirs = open_dirs(tmp_path)
        load_all(dirs)
    elif when == "after a checkpoint":
        dirs.write_checkpoints({}, {})
    fill(dirs.create_log(T0, uuid.uuid4(), CONFIG), 3)
    kill(dirs)

    again = open_dirs(tmp_path)
    assert (again.log_start_offsets, again.high_watermarks) == ({}, {})
    opened = load_all(again)[T0]
    assert (opened.log_start_offset, opened.end_offset) == (0, 30)
    assert again.cleaned_offset(opened) is None
    # Nothing of it was ever synced, so all of it is looked at.
    assert opened.recovery_report.segments_checked == 1
    assert opened.recovery_report.problems == []
    again.close()


def kill(dirs: LogDirs) -> None:
    """What the kernel does for a process that died."""
    for directory in dirs.directories:
        directory.unlock()


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
                dirs.purge_deleted(clock.now_ms())
    assert not list((tmp_path / "a" / "t-2").glob("*.deleted"))
    assert list(broken.glob("*.deleted"))
    assert dirs.purge_deleted(clock.now_ms()) > 1
    assert not list(tmp_path.glob("*/*.deleted"))
    assert not list(tmp_path.glob("*/*-delete"))
    dirs.close()


def test_the_longest_topic_name_can_be_deleted(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    partition = TopicPartition("n" * 249, 12345)
    dirs.delete_log(dirs.create_log(partition, TOPIC_ID, CONFIG))
    assert len(list(tmp_path.glob("nnn*-delete"))) == 1


def test_names_of_partition_folders() -> None:
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


# --- a folder fails ------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_takes_only_itself_offline(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    dirs = open_dirs(tmp_path / "file", tmp_path / "good")
    assert list(dirs.failures) == [tmp_path / "file"]
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.close()
    with pytest.raises(DiskError):
        open_dirs(tmp_path / "file")


def test_a_folder_that_fails_while_loading_takes_only_its_partitions_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.create_log(T1, TOPIC_ID, CONFIG)
    dirs.close()
    real_open = files.OpenFile.__init__

    def fail_in_a(
        file: files.OpenFile, path: Path | str, *, writable: bool, create: bool = False
    ) -> None:
        if Path(path).is_relative_to(tmp_path / "a"):
            file._descriptor = -1
            raise DiskError("input/output error")
        real_open(file, path, writable=writable, create=create)

    monkeypatch.setattr(files.OpenFile, "__init__", fail_in_a)
    again = open_dirs(tmp_path / "a", tmp_path / "b")
    assert list(load_all(again)) == [T1]
    assert list(again.failures) == [tmp_path / "a"]
    # New partitions avoid the failed folder, though it looks emptier.
    assert again.create_log(T2, TOPIC_ID, CONFIG).directory.parent == tmp_path / "b"
    again.close()
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"garbage",
        b"",
        b"\xff\xfe",
        b"version: 0\n",
        b"version: 0\ntopic_id: x\n",
        # A letter that is none, in the place of another one; and Kafka's id of no topic.
        b"version: 0\ntopic_id: Dw4NDAsKSQi!HBgUEAwIBAA\n",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n",
    ],
)
def test_a_topic_id_that_cannot_be_read_takes_its_folder_offline_until_the_next_start(
    tmp_path: Path, content: bytes
) -> None:
    """LogManager does the same: whose log it is is not guessed, and the other folders serve."""
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    for key in (T0, T1):
        fill(dirs.create_log(key, TOPIC_ID, CONFIG), 5)
    dirs.close()
    file = tmp_path / "a" / "t-0" / "partition.metadata"
    whole = file.read_bytes()
    file.write_bytes(content)
    again = open_dirs(tmp_path / "a", tmp_path / "b")
    assert list(load_all(again)) == [T1]
    assert str(file.parent) in str(again.failures[tmp_path / "a"])
    # The folder can be written, but what lies in it is not known: it must not be marked as clean.
    assert again.revive() == []
    assert again.has_failed
    again.close()
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    file.write_bytes(whole)
    repaired = load_all(open_dirs(tmp_path / "a", tmp_path / "b"))
    assert repaired[T0].recovery_report.segments_checked == 1
    assert repaired[T0].end_offset == 50


def test_a_start_without_any_folder_that_can_be_loaded_is_refused(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.close()
    (tmp_path / "t-0" / "partition.metadata").write_text("garbage")
    with pytest.raises(DiskError, match=r"t-0/partition.metadata has no version 0 and topic_id"):
        load_all(open_dirs(tmp_path))


def test_a_log_that_could_not_be_closed_leaves_no_clean_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path)
    dirs.create_log(T0, TOPIC_ID, CONFIG)

    def fail(_log: LocalLog) -> None:
        raise DiskError("input/output error")

    monkeypatch.setattr(LocalLog, "flush", fail)
    dirs.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_folder_without_room_for_its_clean_mark_keeps_the_others_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    for key in (T0, T1):
        fill(dirs.create_log(key, TOPIC_ID, CONFIG), 5)
    real_write = files.write_atomically

    def write(path: Path, content: bytes, *, sync: bool = True) -> None:
        if path == tmp_path / "a" / ".kafka_cleanshutdown":
            raise DiskError("no space left on device")
        real_write(path, content, sync=sync)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", write)
        dirs.close()
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()
    again = load_all(open_dirs(tmp_path / "a", tmp_path / "b"))
    assert [opened.end_offset for opened in again.values()] == [50, 50]
