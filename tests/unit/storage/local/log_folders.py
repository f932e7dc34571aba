"""Log folders with a few logs, opened and killed as a broker does it."""

from __future__ import annotations

from pathlib import Path

from strandline.storage.clock import ManualClock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicPartition
from tests.unit.storage.local.builders import NOW_MS

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
