"""Creates new logs: chooses a folder of `log.dirs` for each, and makes them durable.

    1 each partition's folder, its topic id and files (several threads)
    2 check that the volume is still there: from now on the open files hold it
    3 sync the folders that hold them

Before 1 the caller removes deleted logs of these names from the checkpoints (`log_dir.forget`). A
log that cannot be created is an error in its place, without leftovers; the others are created. As
with Kafka's LogManager, a new log goes to the folder with the fewest.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.concurrency.maps import together
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log.recovery import LoadedLog
from strandline.storage.local.log_dirs import missing_folder_mark
from strandline.storage.local.log_dirs.log_dir import LogDir
from strandline.storage.model import TopicId, TopicPartition


def spread(usable: Sequence[LogDir], log_count: int) -> list[LogDir]:
    """For each of `log_count` new logs the folder with the fewest logs, new ones counted."""
    counts = {directory: len(directory.logs) for directory in usable}
    targets: list[LogDir] = []
    for _ in range(log_count):
        target = min(usable, key=counts.__getitem__)
        counts[target] += 1
        targets.append(target)
    return targets


def create_logs(
    targets: Sequence[LogDir],
    topic_partitions: Sequence[TopicPartition],
    topic_id: TopicId,
    config: LogConfig,
    *,
    clock: Clock,
    may_be_archived: bool = False,
) -> list[LocalLog | DiskError]:
    """New, empty logs, each in the folder of its place in `targets`; they are durable. Blocks.

    `may_be_archived`: the partitions are older than their folders; see missing_folder_mark.py.
    """
    created = together(
        [
            partial(_create_log, *pair, topic_id, config, clock, may_be_archived)
            for pair in zip(targets, topic_partitions, strict=True)
        ],
        "create",
    )
    unsynced: dict[LogDir, DiskError] = {}
    for directory in dict.fromkeys(targets):
        try:
            directory.check_present()
            files.sync_directory(directory.path)
        except DiskError as error:
            unsynced[directory] = error
    settled: list[LocalLog | DiskError] = []
    for directory, new in zip(targets, created, strict=True):
        if directory in unsynced and isinstance(new, LocalLog):
            new.close()
            _discard(new.directory)
            settled.append(unsynced[directory])
        else:
            settled.append(new)
    return settled


def _create_log(
    directory: LogDir,
    topic_partition: TopicPartition,
    topic_id: TopicId,
    config: LogConfig,
    clock: Clock,
    may_be_archived: bool,
) -> LocalLog | DiskError:
    path = directory.path / str(topic_partition)
    if path.exists():
        return DiskError(f"{path} exists already")
    try:
        # Its active segment stays open for the life of the partition.
        files.check_descriptors_left()
        if may_be_archived:
            missing_folder_mark.make_marked(path)
        else:
            files.make_directory(path, sync=False)
        checkpoint.write_topic_id(path, topic_id)
        return LocalLog.open(
            path,
            topic_partition=topic_partition,
            topic_id=topic_id,
            config=config,
            clock=clock,
            recovery_point=0,
            log_start_offset=0,
            clean_shutdown=True,
            loaded=LoadedLog.of_new_folder(path, config=config, now_ms=clock.now_ms()),
        )
    except DiskError as error:
        _discard(path)
        return error
    except MemoryError:
        _discard(path)
        return DiskError(f"{path}: no memory for a log")


def _discard(path: Path) -> None:
    """Removes an incomplete folder, which would block the next attempt."""
    with suppress(DiskError):
        files.remove_tree(path)
