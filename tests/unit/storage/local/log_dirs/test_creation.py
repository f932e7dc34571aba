"""Where a new partition's log is created."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs import creation, log_dirs
from strandline.storage.local.log_dirs.log_dir import LogDir
from strandline.storage.model import TopicPartition
from tests.unit.storage.local.builders import TOPIC_ID
from tests.unit.storage.local.log_folders import CONFIG, load_all, open_dirs

# --- logs ----------------------------------------------------------------------------------------


def test_new_partitions_go_where_there_are_fewest(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    for partition in range(7):
        dirs.create_log(TopicPartition("t", partition), TOPIC_ID, CONFIG)
    counts = [len(list((tmp_path / name).glob("t-*"))) for name in "abc"]
    assert sorted(counts) == [2, 2, 3]
    assert len(dirs.logs) == 7
    dirs.close()


def test_no_log_is_created_in_the_place_of_a_volume_that_was_just_unmounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    dirs = open_dirs(folder)

    def unmount_then_spread(usable: Sequence[LogDir], log_count: int) -> list[LogDir]:
        """The volume is there when the folders are checked, and not when the logs are made."""
        folder.rename(tmp_path / "volume")
        folder.mkdir()
        return creation.spread(usable, log_count)

    monkeypatch.setattr(log_dirs, "spread", unmount_then_spread)
    [created] = dirs.create_logs([TopicPartition("t", 0)], TOPIC_ID, CONFIG)
    assert isinstance(created, DiskError)
    assert "is its volume mounted?" in str(created)
    assert list(folder.iterdir()) == []
    dirs.close()


def test_new_partitions_leave_descriptors_for_clients_and_checkpoints(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    load_all(dirs)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # At least half of them are free when the first partition comes.
    limit = 2 * max(160, *(int(entry.name) + 1 for entry in Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        keys = [TopicPartition("t", number) for number in range(limit)]
        created = dirs.create_logs(keys, TOPIC_ID, CONFIG)
        left = [os.dup(0) for _ in range(limit // 32)]
        assert dirs.write_checkpoints({}) == frozenset()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for descriptor in left:
        os.close(descriptor)
    refused = [found for found in created if isinstance(found, DiskError)]
    assert 0 < len(refused) < limit
    assert all(error.is_out_of_descriptors for error in refused)
    assert not dirs.has_failed
    assert len(list(tmp_path.glob("t-*"))) == limit - len(refused)
    dirs.close()


def test_a_new_log_is_what_a_start_finds_in_its_folder(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    created = dirs.create_log(TopicPartition("t", 0), TOPIC_ID, CONFIG)
    created.close()
    names = sorted(path.name for path in created.directory.iterdir())
    found = LocalLog.open(
        created.directory,
        topic_partition=created.topic_partition,
        topic_id=TOPIC_ID,
        config=CONFIG,
        clock=created.clock,
        recovery_point=0,
        log_start_offset=0,
        clean_shutdown=True,
    )
    assert [segment.base_offset for segment in found.segments] == [0]
    assert (found.start_offset, found.end_offset, found.high_watermark) == (0, 0, 0)
    assert (created.start_offset, created.end_offset, created.high_watermark) == (0, 0, 0)
    assert found.leader_epochs.starts == created.leader_epochs.starts == ()
    assert found.recovery_report.problems == []
    assert sorted(path.name for path in created.directory.iterdir()) == names
    found.close()
    dirs.close()
