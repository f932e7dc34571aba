"""Which logs a start loads, what it passes over, and what it refuses."""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
import uuid
from pathlib import Path

import pytest

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import CorruptFile, DiskError
from strandline.storage.local.formats.checkpoint import PARTITION_METADATA
from strandline.storage.local.log import closed_log
from strandline.storage.local.log_dirs import loading as log_loading
from strandline.storage.local.log_dirs.move import LogMove
from strandline.storage.model import ZERO_TOPIC_ID, TopicId, TopicPartition
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import (
    NOW_MS,
    TOPIC_ID,
    assert_dense,
    batch,
    fill,
    read_bytes,
)
from tests.unit.storage.local.log_folders import (
    CONFIG,
    T0,
    T1,
    T2,
    kill,
    load_all,
    open_dirs,
    two_filled_folders,
)


def test_logs_come_back_as_they_were_after_a_clean_stop(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    contents = {}
    for partition in (T0, T1, T2):
        log = dirs.create_log(partition, TOPIC_ID, CONFIG)
        fill(log, 20)
        contents[partition] = read_bytes(log)
    dirs.finish({T0: 100})
    dirs.unlock()
    again = open_dirs(tmp_path / "a", tmp_path / "b")
    assert again.log_start_offsets == {T0: 100, T1: 0, T2: 0}
    first, second = again.directories
    assert first.high_watermarks | second.high_watermarks == {T0: 200, T1: 200, T2: 200}
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


def test_logs_are_in_one_order_whichever_thread_is_done_first(tmp_path: Path) -> None:
    """Flushes, and all other walks over them, then go the same way after each start."""
    dirs = open_dirs(tmp_path)
    for partition in (T0, T1, T2):
        dirs.create_log(partition, TOPIC_ID, CONFIG)
    dirs.close()
    # As after a kill: else this thread opens all of them.
    (tmp_path / closed_log.FILE_NAME).unlink(missing_ok=True)
    (tmp_path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    again, others = open_dirs(tmp_path), threading.Barrier(3)

    def config_for(partition: TopicPartition, _topic_id: TopicId) -> LogConfig:
        others.wait(10)
        if partition != T2:
            # The last one is opened first.
            time.sleep(0.05 if partition == T1 else 0.1)
        return CONFIG

    again.load(config_for, threads_per_directory=3)
    (directory,) = again.directories
    assert list(directory.logs) == [T0, T1, T2]
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


def test_where_no_log_folder_can_be_loaded_the_systems_own_error_stays_behind_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = open_dirs(tmp_path / "a")
    directories.close()

    def refuse(_path: Path) -> list[Path]:
        cause = OSError(errno.EMFILE, "Too many open files")
        raise DiskError("cannot list: Too many open files") from cause

    monkeypatch.setattr(log_loading, "subfolders", refuse)
    directories = open_dirs(tmp_path / "a")
    with pytest.raises(DiskError, match="Too many open files") as refused:
        load_all(directories)
    directories.close()
    assert refused.value.__cause__ is not None
    assert isinstance(refused.value.__cause__.__cause__, OSError)


def test_the_high_watermark_comes_back_as_far_as_the_log_does(tmp_path: Path) -> None:
    """Its checkpoint may name records that a crash cut off, or that only this replica had."""
    dirs = open_dirs(tmp_path)
    stays, loses = (dirs.create_log(key, TOPIC_ID, CONFIG) for key in (T0, T1))
    for log in (stays, loses):
        fill(log, 5)
        log.append(batch(10), leader_epoch=0)
        assert (log.high_watermark, log.end_offset) == (50, 60)
    dirs.write_checkpoints({})
    kill(dirs)
    with open(loses.active_segment.log_path, "r+b") as file:
        file.truncate(loses.active_segment.size_bytes // 2)
    again = load_all(open_dirs(tmp_path))
    assert (again[T0].high_watermark, again[T0].end_offset) == (50, 60)
    assert again[T1].high_watermark == again[T1].end_offset < 50
    # An owner that is alone moves it to the end at once.
    again[T0].advance_high_watermark(60)
    assert again[T0].high_watermark == 60


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
    killed.write_checkpoints({T0: 0})
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


@pytest.mark.parametrize("has_records", [False, True])
def test_a_folder_that_lost_its_partition_metadata_is_stray_and_says_how_to_have_it_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_records: bool
) -> None:
    """As in Kafka, which only notes it at INFO; without records there is nothing to have back."""
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    if has_records:
        fill(log, 1)
    dirs.close()
    lost = tmp_path / "t-0" / PARTITION_METADATA
    content = lost.read_text()
    lost.unlink()
    again = open_dirs(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert again.load(lambda _, topic_id: CONFIG if topic_id == TOPIC_ID else None) == {}
    (said,) = [record for record in caplog.records if "stray" in record.message]
    assert said.levelno == (logging.ERROR if has_records else logging.WARNING)
    assert ("write that file with the id of the topic" in said.message) == has_records
    again.create_log(T0, TOPIC_ID, CONFIG)
    again.close()
    # What the message says.
    (stray,) = tmp_path.glob("t-0.*-stray")
    (stray / PARTITION_METADATA).write_text(content)
    shutil.rmtree(tmp_path / "t-0")
    stray.rename(tmp_path / "t-0")
    back = open_dirs(tmp_path)
    loaded = back.load(lambda _, topic_id: CONFIG if topic_id == TOPIC_ID else None)
    assert (loaded[T0].end_offset > 0) == has_records
    back.close()


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


def test_who_keeps_no_empty_strays_loses_no_record_with_them(tmp_path: Path) -> None:
    """Those of a replica: of topics that were deleted while it was down, this time and before."""
    dirs = open_dirs(tmp_path)
    for key in (T0, T1, T2):
        dirs.create_log(key, TOPIC_ID, CONFIG)
    fill(dirs.logs[T0], 1)
    (tmp_path / "t-1" / "set-aside").mkdir()
    dirs.close()
    (tmp_path / f"old-0.{7:032x}-stray").mkdir()
    again = open_dirs(tmp_path)
    assert again.load(lambda _key, _topic_id: None, keep_empty_strays=False) == {}
    again.purge_deleted(NOW_MS * 2)
    kept = sorted(path.name.split(".")[0] for path in tmp_path.iterdir() if path.is_dir())
    assert kept == ["t-0", "t-1"]
    assert len(list(tmp_path.glob("t-*-stray"))) == 2
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


@pytest.mark.parametrize("is_first", [True, False])
def test_a_folder_of_a_deleted_topic_does_not_stand_in_for_the_partition_of_its_name(
    tmp_path: Path, *, is_first: bool
) -> None:
    """The topic was deleted while that log folder was offline, and created again."""
    paths = tmp_path / "a", tmp_path / "b"
    kept, stale = reversed(paths) if is_first else paths
    for path, topic_id in ((kept, TOPIC_ID), (stale, uuid.uuid4())):
        dirs = open_dirs(path)
        fill(dirs.create_log(T0, topic_id, CONFIG), 3)
        dirs.close()
    again = open_dirs(*paths)
    loaded = again.load(lambda _, topic_id: CONFIG if topic_id == TOPIC_ID else None)
    assert {key: log.directory.parent for key, log in loaded.items()} == {T0: kept}
    assert len(list(stale.glob("t-0.*-stray"))) == 1
    again.close()


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "has no version"), (bytes(5000), "is no key=value")]
)
def test_a_properties_file_that_a_power_cut_emptied_is_damage_and_named_in_one_line(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    """The error says where to read what to do; a later version would not."""
    file = tmp_path / "meta.properties"
    file.write_bytes(content)
    with pytest.raises(CorruptFile, match=reason) as refused:
        open_dirs(tmp_path)
    assert str(file) in str(refused.value)
    assert len(str(refused.value)) < 500


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


@pytest.mark.parametrize("which", ["the old log", "the copy"])
def test_a_folder_in_which_a_move_cannot_be_settled_takes_only_its_partitions_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    dirs = open_dirs(a, b)
    moved = dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.create_log(T1, TOPIC_ID, CONFIG)
    assert moved.directory.parent == a
    fill(moved, 3)
    move = LogMove(moved, b / moved.directory.name, clock=ManualClock(NOW_MS))
    move.prepare()
    if which == "the old log":
        move.copy_closed([])
        move.open_copy(0)
        move.take_over(log_start_offset=0)
    kill(dirs)
    failing, left = (a, T1) if which == "the old log" else (b, T0)
    rename = files.rename

    def fail_in_one(source: Path, target: Path, *, sync: bool = True) -> None:
        if source.is_relative_to(failing):
            raise DiskError("input/output error")
        rename(source, target, sync=sync)

    monkeypatch.setattr(files, "rename", fail_in_one)
    again = open_dirs(a, b)
    logs = load_all(again)
    assert list(again.failures) == [failing]
    assert left in logs
    assert all(one.directory.parent != failing for one in logs.values())
    if which == "the old log":
        assert logs[T0].end_offset == 30
    again.close()


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
    dirs = two_filled_folders(tmp_path)
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
