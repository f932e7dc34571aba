"""What is synced, when, and never on the path of an append."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.formats.epoch_cache import LeaderEpochCache
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import EpochStart
from strandline.storage.records.batch.marker import MarkerType
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import (
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    append,
    append_marker,
    batch,
    fill,
    open_log,
)

CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=300)


class Syncs:
    """Every fsync, by the name of what was synced."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failing = ""

    def record(self, descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH119, PTH115
        if self.failing and name.endswith(self.failing):
            raise OSError(5, "Input/output error")
        self.names.append(name)

    def taken(self) -> list[str]:
        names, self.names = self.names, []
        return names


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    recorder = Syncs()
    monkeypatch.setattr(os, "fsync", recorder.record)
    return recorder


def test_appending_rolling_reading_and_deleting_never_sync(tmp_path: Path, syncs: Syncs) -> None:
    log = open_log(tmp_path, config=CONFIG)
    for epoch in range(4):
        append(log, batch(10), leader_epoch=epoch)
    fill(log, 40)
    log.read(0, bytes_max=100)
    log.delete_segments(log.segments[:1])
    log.purge_deleted(NOW_MS * 2)
    assert len(log.segments) > 2
    assert syncs.taken() == []


def test_a_flush_syncs_logs_before_their_indexes_and_the_folder(
    tmp_path: Path, syncs: Syncs
) -> None:
    log = open_log(tmp_path / "t-0", config=CONFIG)
    fill(log, 10)
    first, active = log.segments
    log.flush()
    assert syncs.taken() == [
        first.log_path.name,
        first.index_path.name,
        first.time_index_path.name,
        first.snapshot_path.name,
        "leader-epoch-checkpoint",
        "t-0",
        active.log_path.name,
    ]
    log.flush()
    assert syncs.taken() == []
    fill(log, 1)
    log.flush()
    assert syncs.taken() == [active.log_path.name]


def test_aborts_are_synced_with_their_markers(tmp_path: Path, syncs: Syncs) -> None:
    """Closed where it was synced, a segment is trusted: nothing else would tell of the aborts."""
    log = open_log(tmp_path / "t-0", config=CONFIG)
    fill(log, 1)
    log.flush()
    append(log, batch(producer_id=8, producer_epoch=0, base_sequence=0, transactional=True))
    append_marker(log, MarkerType.ABORT, producer_id=8)
    syncs.taken()
    log.flush()
    (segment,) = log.segments
    assert syncs.taken() == [segment.log_path.name, segment.txn_index_path.name, "t-0"]


def test_a_flush_up_to_the_end_of_a_segment_syncs_nothing_behind_it(
    tmp_path: Path, syncs: Syncs
) -> None:
    log = open_log(tmp_path / "t-0", config=CONFIG)
    fill(log, 30)
    first, second, *_, active = log.segments
    log.flush(first.end_offset)
    assert log.recovery_point == first.end_offset
    assert first.is_durable
    assert second.log_path.name not in syncs.taken()
    log.flush(active.base_offset)
    assert log.recovery_point == active.base_offset
    assert active.log_path.name not in syncs.taken()


def test_the_recovery_point_passes_each_segment_when_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in the middle of a long flush reads again only what was not synced."""
    log = open_log(tmp_path, config=CONFIG)
    fill(log, 30)
    points: dict[str, int] = {}
    monkeypatch.setattr(
        LogSegment,
        "sync",
        lambda segment: points.update({segment.log_path.stem: log.recovery_point}),
    )
    log.flush()
    assert list(points.values()) == [segment.base_offset for segment in log.segments]


def test_who_wants_one_segment_does_not_wait_for_the_rest_of_another_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, config=CONFIG)
    fill(log, 30)
    first, active = log.segments[0], log.segments[-1]
    is_stuck, may_go_on = threading.Event(), threading.Event()
    real = LogSegment.sync

    def late(segment: LogSegment) -> None:
        if segment is active:
            is_stuck.set()
            assert may_go_on.wait(60)
        real(segment)

    monkeypatch.setattr(LogSegment, "sync", late)
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(log.flush)
        try:
            assert is_stuck.wait(60)
            pool.submit(log.flush, first.end_offset).result(60)
            assert not whole.done()
        finally:
            may_go_on.set()
        whole.result(60)
    assert log.recovery_point == log.end_offset


def test_what_a_cut_took_while_segments_were_synced_is_not_taken_for_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, config=CONFIG)
    fill(log, 30)
    cut_at = log.segments[1].base_offset
    real = LogSegment.sync

    def cut_once(segment: LogSegment) -> None:
        real(segment)
        if log.cut_count == 0:
            log.truncate_to(cut_at)
            fill(log, 30)

    monkeypatch.setattr(LogSegment, "sync", cut_once)
    log.flush()
    assert log.recovery_point <= cut_at
    log.flush()
    assert log.recovery_point == log.end_offset


@pytest.mark.parametrize("failing", [".log", ".index", ".snapshot", "t-0"])
def test_after_a_sync_that_failed_nothing_counts_as_synced_until_the_log_is_opened_anew(
    tmp_path: Path, syncs: Syncs, failing: str
) -> None:
    """The kernel may have dropped what it could not write, and calls the next sync a success."""
    log = open_log(tmp_path / "t-0", config=CONFIG)
    fill(log, 10)
    syncs.failing = failing
    with pytest.raises(DiskError):
        log.flush()
    syncs.failing = ""
    syncs.taken()
    with pytest.raises(DiskError, match="is stopped"):
        log.flush()
    assert (log.recovery_point, syncs.taken()) == (0, [])
    log = open_log(
        tmp_path / "t-0", config=CONFIG, clean_shutdown=False, recovery_point=log.recovery_point
    )
    log.flush()
    assert log.recovery_point == 100
    assert log.segments[0].is_durable


def test_a_segment_is_synced_again_with_its_indexes_once_it_is_closed(
    tmp_path: Path, syncs: Syncs
) -> None:
    log = open_log(tmp_path / "t-0", config=CONFIG)
    fill(log, 3)
    log.flush()
    log.roll()
    syncs.taken()
    log.flush()
    assert set(syncs.taken()) >= {log.segments[0].index_path.name, log.segments[0].log_path.name}
    assert log.segments[0].is_durable


def test_the_clean_mark_is_the_last_thing_that_is_written(tmp_path: Path, syncs: Syncs) -> None:
    clock = ManualClock(NOW_MS)
    dirs = LogDirs.open([tmp_path], node_id=1, cluster_id=None, clock=clock)
    fill(dirs.create_log(PARTITION, TOPIC_ID, CONFIG), 5)
    syncs.taken()
    dirs.close()
    names = syncs.taken()
    folder = tmp_path.name
    order = [
        names.index(f"{0:020d}.log"),
        names.index("recovery-point-offset-checkpoint.tmp"),
        names.index(".kafka_cleanshutdown.tmp"),
    ]
    assert order == sorted(order)
    assert names[-2:] == [".kafka_cleanshutdown.tmp", folder]


def test_a_new_epoch_is_in_its_file_before_the_recovery_point_passes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, config=CONFIG)
    append(log, batch(2), leader_epoch=1)
    append(log, batch(2), leader_epoch=4)
    path = log.leader_epochs.path
    assert not path.exists() or "4 2" not in path.read_text()
    points: list[int] = []
    real = LeaderEpochCache.write

    def write(cache: LeaderEpochCache, *, sync: bool) -> None:
        points.append(log.recovery_point)
        real(cache, sync=sync)

    monkeypatch.setattr(LeaderEpochCache, "write", write)
    log.flush()
    assert points == [0]
    assert log.recovery_point == 4
    assert LeaderEpochCache.open(path).starts == log.leader_epochs.starts
    log.flush()
    assert points == [0]


@pytest.mark.parametrize("written_by", ["this process", "one that was killed"])
def test_an_epoch_that_was_only_written_is_synced_before_the_recovery_point_passes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_by: str
) -> None:
    """The file may otherwise be an earlier one after a loss of power, and is believed."""
    log = open_log(tmp_path / "t-0", config=CONFIG)
    append(log, batch(2), leader_epoch=1)
    log.write_epochs()
    if written_by != "this process":
        log = open_log(tmp_path / "t-0", config=CONFIG, clean_shutdown=False)
    points: dict[str, int] = {}

    def note(descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH119, PTH115
        points[name] = log.recovery_point

    monkeypatch.setattr(os, "fsync", note)
    log.flush()
    assert points["leader-epoch-checkpoint"] == points["t-0"] == 0
    assert list(points)[-2:] == ["leader-epoch-checkpoint", "t-0"]
    assert log.recovery_point == 2
    points.clear()
    append(log, batch(2), leader_epoch=1)
    log.flush()
    assert "leader-epoch-checkpoint" not in points


def test_the_name_of_an_epoch_file_that_was_only_written_is_synced_with_it(
    tmp_path: Path, syncs: Syncs
) -> None:
    log = open_log(tmp_path / "t-0", config=CONFIG)
    append(log, batch(2), leader_epoch=1)
    log.flush()
    append(log, batch(2), leader_epoch=4)
    log.write_epochs()
    syncs.taken()
    log.flush()
    # It took the place of another file: without the folder that one may be there again.
    assert syncs.taken()[-2:] == ["leader-epoch-checkpoint", "t-0"]


def test_what_is_appended_during_a_flush_waits_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, config=CONFIG)
    fill(log, 2)

    def append_meanwhile(_descriptor: int) -> None:
        if log.end_offset < 30:
            fill(log, 1)

    monkeypatch.setattr(os, "fsync", append_meanwhile)
    log.flush()
    assert (log.recovery_point, log.end_offset) == (20, 30)
    log.flush()
    assert log.recovery_point == 30


@pytest.mark.parametrize("written", [False, True])
def test_an_epoch_that_was_not_written_yet_is_found_after_a_kill(
    tmp_path: Path, written: bool
) -> None:
    log = open_log(tmp_path, config=CONFIG)
    append(log, batch(2), leader_epoch=1)
    log.flush()
    append(log, batch(2), leader_epoch=4)
    if written:
        log.write_epochs()
    assert log.leader_epochs.is_unwritten is not written
    again = open_log(
        tmp_path, config=CONFIG, recovery_point=log.recovery_point, clean_shutdown=False
    )
    assert again.leader_epochs.starts == log.leader_epochs.starts
    assert LeaderEpochCache.open(log.leader_epochs.path).starts == log.leader_epochs.starts


def test_an_epoch_that_begins_while_the_file_is_written_is_written_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LeaderEpochCache(tmp_path / "leader-epoch-checkpoint")
    cache.assign(1, 0)
    written = checkpoint.write_epochs

    def begins_meanwhile(path: Path, starts: tuple[EpochStart, ...], *, sync: bool) -> None:
        written(path, starts, sync=sync)
        cache.assign(4, 10)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_epochs", begins_meanwhile)
        cache.write(sync=False)
    assert cache.is_unwritten
    cache.write(sync=False)
    assert not cache.is_unwritten
    assert LeaderEpochCache.open(cache.path).starts == cache.starts == ((1, 0), (4, 10))


def test_an_epoch_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", config=CONFIG)
    append(log, batch(2), leader_epoch=1)
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    with pytest.raises(DiskError):
        log.leader_epochs.write(sync=False)
    assert log.leader_epochs.is_unwritten
    (tmp_path / "elsewhere").rename(tmp_path / "t-0")
    log.write_epochs()
    assert LeaderEpochCache.open(log.leader_epochs.path).starts == log.leader_epochs.starts


@pytest.mark.parametrize("step", ["write_epochs", "sync_directory"])
def test_a_flush_that_memory_is_too_short_for_leaves_to_the_next_one_what_it_did_not_sync(
    tmp_path: Path, syncs: Syncs, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    log = open_log(tmp_path / "t-0", config=CONFIG)
    append(log, batch(2), leader_epoch=1)

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr({"write_epochs": checkpoint, "sync_directory": files}[step], step, no_memory)
        with pytest.raises(MemoryError):
            log.flush()
    assert log.recovery_point == 0
    syncs.taken()
    log.flush()
    assert syncs.taken()[-1] == "t-0"
    assert LeaderEpochCache.open(log.leader_epochs.path).starts == ((1, 0),)


def test_segments_that_were_removed_unsynced_leave_nothing_to_flush(tmp_path: Path) -> None:
    """A follower frees what its leader archived; who waits for the flush would wait for ever."""
    log = open_log(tmp_path, config=CONFIG)
    fill(log, 40)
    log.delete_segments(log.segments[:-1])
    assert log.recovery_point < log.start_offset
    log.flush(log.active_segment.base_offset)
    assert log.recovery_point == log.start_offset
