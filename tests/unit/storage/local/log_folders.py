"""Log folders with a few logs, opened and killed as a broker does it."""

from __future__ import annotations

from pathlib import Path

from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicPartition
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import (
    NOW_MS,
    TOPIC_ID,
    fill,
)

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


def kill(dirs: LogDirs) -> None:
    """What the kernel does for a process that died."""
    for directory in dirs.directories:
        directory.unlock()


def two_filled_folders(parent: Path) -> LogDirs:
    """Folders `a` and `b` below `parent`: T0 is in the one, T1 in the other, 50 records each."""
    dirs = open_dirs(parent / "a", parent / "b")
    for key in (T0, T1):
        fill(dirs.create_log(key, TOPIC_ID, CONFIG), 5)
    return dirs
