"""All of `log.dirs`: who owns them, what lies in them, where new partitions go.

    <log.dir>/.lock                                held by one process while it runs
    <log.dir>/meta.properties                      whose folder this is
    <log.dir>/<topic>-<partition>/                 a log, see log.py
    <log.dir>/<topic>-<partition>.<id>-delete/     a removed one, until it is purged
    <log.dir>/<topic>-<partition>.<id>-stray/      one that the cluster does not know; kept
    <log.dir>/*-checkpoint                         see checkpoint.py
    <log.dir>/.kafka_cleanshutdown                 there if the last stop was clean

Start:  1 lock  2 meta.properties  3 read and remove the clean-shutdown mark  4 open the logs
Stop:   1 close every log  2 checkpoints  3 clean-shutdown mark, last  4 unlock

The mark is removed before anything else is touched, so a crash at any later point is unclean.

A folder that fails takes only its own partitions offline. Folders with names that are none of the
above are somebody's and stay.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.errors import CorruptFile, DiskError, LogDirLocked, UnsupportedFormat
from strandline.storage.local import checkpoint
from strandline.storage.local.log import LocalLog
from strandline.storage.log_config import LogConfig
from strandline.storage.model import ZERO_TOPIC_ID, TopicId, TopicPartition

log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
# File systems end names at 255 bytes; a removed folder's name loses the end of its topic instead.
NAME_BYTES_MAX = 255
# Each log is synced by itself, and a file system writes what several threads wait for in one go:
# creating or closing 2,000 logs takes a fraction of the time.
SYNC_THREADS = 8

_PARTITION_FOLDER = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_RENAMED_FOLDER = re.compile(r".+\.[0-9a-f]{32}-(delete|stray|future)")

ConfigFor: TypeAlias = Callable[[TopicPartition, TopicId], LogConfig | None]


@dataclass(slots=True)
class _DeletedFolder:
    path: Path
    remove_at_ms: int


class LogDir:
    """One folder of `log.dirs`."""

    def __init__(self, path: Path, lock_descriptor: int) -> None:
        self.path = path
        self.logs: dict[TopicPartition, LocalLog] = {}
        self.was_clean = False
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        # Up to where each compacted log is clean; logs that were compacted once stay in here.
        self.cleaned_offsets: dict[TopicPartition, int] = {}
        self.failure: DiskError | None = None
        self._lock_descriptor = lock_descriptor

    def unlock(self) -> None:
        if self._lock_descriptor >= 0:
            descriptor, self._lock_descriptor = self._lock_descriptor, -1
            os.close(descriptor)

    def __repr__(self) -> str:
        state = f"failed: {self.failure}" if self.failure else f"{len(self.logs)} logs"
        return f"<LogDir {self.path} {state}>"


class LogDirs:
    """All log folders of one broker. `open`, `load`, `write_checkpoints` and `close` block."""

    def __init__(
        self,
        directories: Sequence[LogDir],
        failures: Mapping[Path, DiskError],
        cluster_id: str,
        clock: Clock,
    ) -> None:
        self.cluster_id = cluster_id
        self.directories = tuple(directories)
        self.failures = dict(failures)
        self._clock = clock
        self._deleted: list[_DeletedFolder] = []
        # Checkpoints are written from worker threads, one at a time: they share temporary names.
        self._checkpoint_lock = threading.Lock()

    @classmethod
    def open(
        cls, paths: Sequence[Path], *, node_id: int, cluster_id: str | None, clock: Clock
    ) -> LogDirs:
        """Locks every folder and checks whose it is; `cluster_id` None takes or makes one.

        Raises LogDirLocked, CorruptFile for a folder of another broker or cluster, and DiskError
        if no folder is usable; a single unusable one is noted in `failures`.
        """
        assert paths, "at least one log folder"
        directories: list[LogDir] = []
        failures: dict[Path, DiskError] = {}
        try:
            for path in paths:
                try:
                    directories.append(_lock_directory(path))
                except LogDirLocked:
                    raise
                except DiskError as error:
                    failures[path] = error
                    log.error(
                        "log folder offline",
                        extra={"fields": {"folder": str(path), "reason": str(error)}},
                    )
            if not directories:
                raise DiskError("; ".join(str(error) for error in failures.values()))
            cluster_id = _agree_on_identity(directories, node_id, cluster_id)
            for directory in directories:
                _read_state(directory)
        except BaseException:
            for directory in directories:
                directory.unlock()
            raise
        return cls(directories, failures, cluster_id, clock)

    # --- what is here ----------------------------------------------------------------------------

    @property
    def logs(self) -> dict[TopicPartition, LocalLog]:
        """All open logs."""
        # Copied in one step each: worker threads create and delete logs.
        found: dict[TopicPartition, LocalLog] = {}
        for directory in self.directories:
            found |= directory.logs
        return found

    @property
    def log_start_offsets(self) -> dict[TopicPartition, int]:
        """Log starts as the checkpoints had them when the folders were opened."""
        return {
            key: offset
            for directory in self.directories
            for key, offset in directory.log_starts.items()
        }

    @property
    def high_watermarks(self) -> dict[TopicPartition, int]:
        """High watermarks as the checkpoints had them when the folders were opened."""
        return {
            key: offset
            for directory in self.directories
            for key, offset in directory.high_watermarks.items()
        }

    def load(self, config_for: ConfigFor) -> dict[TopicPartition, LocalLog]:
        """Opens every log, recovering where the last stop was not clean.

        `config_for` returns None for a partition the cluster does not know: its folder is renamed
        to -stray and kept. A topic id of zeros stands for a folder that has none. Raises
        CorruptFile if two folders hold the same partition.
        """
        found: dict[TopicPartition, LocalLog] = {}
        for directory in self.directories:
            try:
                self._load_directory(directory, config_for, found)
            except DiskError as error:
                self._take_offline(directory, error)
        return found

    def _load_directory(
        self, directory: LogDir, config_for: ConfigFor, found: dict[TopicPartition, LocalLog]
    ) -> None:
        for path in _subfolders(directory.path):
            renamed = _RENAMED_FOLDER.fullmatch(path.name)
            if renamed is not None:
                if renamed[1] != "stray":
                    self._deleted.append(_DeletedFolder(path, self._clock.now_ms()))
                continue
            key = partition_of(path.name)
            if key is None:
                log.debug("folder is no partition", extra={"fields": {"folder": str(path)}})
                continue
            if key in found:
                raise CorruptFile(
                    f"{key} lies in {path} and in {found[key].directory}; remove one of them"
                )
            opened = self._load_log(directory, path, key, config_for)
            if opened is not None:
                directory.logs[key] = found[key] = opened
        # What is not opened is gone for good, and must not come back through a checkpoint.
        for offsets in (directory.log_starts, directory.high_watermarks, directory.cleaned_offsets):
            for key in [key for key in offsets if key not in directory.logs]:
                del offsets[key]

    def _load_log(
        self, directory: LogDir, path: Path, key: TopicPartition, config_for: ConfigFor
    ) -> LocalLog | None:
        topic_id = checkpoint.read_topic_id(path) or ZERO_TOPIC_ID
        config = config_for(key, topic_id)
        if config is None:
            target = path.with_name(_renamed(path.name, STRAY_SUFFIX))
            files.rename(path, target)
            log.warning(
                "partition is unknown to the cluster, folder kept as stray",
                extra={"fields": {"folder": str(target)}},
            )
            return None
        return LocalLog.open(
            path,
            topic_partition=key,
            topic_id=topic_id,
            config=config,
            clock=self._clock,
            recovery_point=directory.recovery_points.get(key, 0),
            log_start_offset=directory.log_starts.get(key, 0),
            clean_shutdown=directory.was_clean,
            was_compacted=key in directory.cleaned_offsets,
        )

    def _take_offline(self, directory: LogDir, error: DiskError) -> None:
        directory.failure = error
        self.failures[directory.path] = error
        log.error(
            "log folder offline",
            extra={"fields": {"folder": str(directory.path), "reason": str(error)}},
        )

    # --- logs come and go ------------------------------------------------------------------------

    def create_log(
        self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig
    ) -> LocalLog:
        """`create_logs` of one."""
        (created,) = self.create_logs((topic_partition,), topic_id, config)
        return created

    def create_logs(
        self, topic_partitions: Sequence[TopicPartition], topic_id: TopicId, config: LogConfig
    ) -> list[LocalLog]:
        """New, empty logs of a topic, each in the folder that holds the fewest; they are durable.

            1 each partition's folder, its topic id and files   2 sync the folders that hold them

        Blocks. Raises DiskError.
        """
        usable = [directory for directory in self.directories if directory.failure is None]
        if not usable:
            raise DiskError("every log folder is offline")
        counts = {directory: len(directory.logs) for directory in usable}
        targets: list[LogDir] = []
        for _ in topic_partitions:
            target = min(usable, key=counts.__getitem__)
            counts[target] += 1
            targets.append(target)

        def create(directory: LogDir, topic_partition: TopicPartition) -> LocalLog:
            return self._create_folder(directory, topic_partition, topic_id, config)

        with ThreadPoolExecutor(SYNC_THREADS, "create") as pool:
            created = list(pool.map(create, targets, topic_partitions))
        for directory in dict.fromkeys(targets):
            files.sync_directory(directory.path)
        for directory, new in zip(targets, created, strict=True):
            directory.logs[new.topic_partition] = new
        return created

    def _create_folder(
        self,
        directory: LogDir,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
    ) -> LocalLog:
        path = directory.path / str(topic_partition)
        if path.exists():
            raise DiskError(f"{path} exists already")
        # The folder gets its name when it is whole: a crash leaves nothing that looks like a log.
        files.make_directory(path, sync=False)
        checkpoint.write_topic_id(path, topic_id)
        return LocalLog.open(
            path,
            topic_partition=topic_partition,
            topic_id=topic_id,
            config=config,
            clock=self._clock,
            recovery_point=0,
            log_start_offset=0,
            clean_shutdown=True,
        )

    def delete_log(self, deleted: LocalLog) -> None:
        """Takes a log away: its folder is renamed now and purged after file.delete.delay.ms.

        Blocks. Raises DiskError.
        """
        directory = self._directory_of(deleted)
        key = deleted.topic_partition
        del directory.logs[key]
        for offsets in (
            directory.recovery_points,
            directory.log_starts,
            directory.high_watermarks,
            directory.cleaned_offsets,
        ):
            offsets.pop(key, None)
        path = deleted.directory
        target = path.with_name(_renamed(path.name, DELETE_SUFFIX))
        files.rename(path, target)
        self._deleted.append(
            _DeletedFolder(target, self._clock.now_ms() + deleted.config.file_delete_delay_ms)
        )

    def _directory_of(self, opened: LocalLog) -> LogDir:
        directory = self._find_directory(opened)
        if directory is not None:
            return directory
        raise AssertionError(f"{opened} is not one of ours")

    def purge_deleted(self, now_ms: int) -> int:
        """Unlinks files and folders whose delay is over; how many. May run in a worker thread."""
        due = [folder for folder in list(self._deleted) if folder.remove_at_ms <= now_ms]
        for folder in due:
            files.remove_tree(folder.path)
            self._deleted.remove(folder)
        return len(due) + sum(opened.purge_deleted(now_ms) for opened in self.logs.values())

    # --- compaction ------------------------------------------------------------------------------

    def cleaned_offset(self, opened: LocalLog) -> int | None:
        """Up to where a log is compacted; None if it never was."""
        directory = self._find_directory(opened)
        return None if directory is None else directory.cleaned_offsets.get(opened.topic_partition)

    def write_cleaned_offset(self, opened: LocalLog, offset: int) -> None:
        """Makes durable up to where a log is compacted. Blocks; thread-safe. Raises DiskError."""
        with self._checkpoint_lock:
            directory = self._find_directory(opened)
            if directory is None or directory.failure is not None:
                return
            directory.cleaned_offsets[opened.topic_partition] = offset
            checkpoint.write_offsets(
                directory.path / checkpoint.CLEANED_OFFSETS, dict(directory.cleaned_offsets)
            )

    def _find_directory(self, opened: LocalLog) -> LogDir | None:
        for directory in self.directories:
            if directory.logs.get(opened.topic_partition) is opened:
                return directory
        return None

    # --- checkpoints and the end -----------------------------------------------------------------

    def write_checkpoints(
        self,
        log_starts: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> None:
        """Writes the three checkpoints of every folder, synced. May run in a worker thread."""
        with self._checkpoint_lock:
            for directory in self.directories:
                if directory.failure is not None:
                    continue
                try:
                    _write_directory_checkpoints(directory, log_starts, high_watermarks)
                except DiskError as error:
                    self._take_offline(directory, error)

    def close(
        self,
        log_starts: Mapping[TopicPartition, int] | None = None,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Closes every log and leaves the clean-shutdown mark where all went well."""
        with ThreadPoolExecutor(SYNC_THREADS, "close") as pool:
            for directory in self.directories:
                for closing in [pool.submit(opened.close) for opened in directory.logs.values()]:
                    try:
                        closing.result()
                    except DiskError as error:
                        self._take_offline(directory, error)
        self.write_checkpoints(log_starts or {}, high_watermarks or {})
        for directory in self.directories:
            if directory.failure is None:
                files.write_atomically(
                    directory.path / checkpoint.CLEAN_SHUTDOWN, checkpoint.CLEAN_SHUTDOWN_CONTENT
                )
            directory.unlock()

    def __repr__(self) -> str:
        return f"<LogDirs {list(self.directories)}>"


def partition_of(name: str) -> TopicPartition | None:
    """The partition whose folder has this name; None if it is no such name."""
    match = _PARTITION_FOLDER.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def _renamed(name: str, suffix: str) -> str:
    ending = f".{uuid.uuid4().hex}{suffix}"
    return name[: NAME_BYTES_MAX - len(ending)] + ending


def _subfolders(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError as error:
        raise DiskError(f"cannot list {path}: {error.strerror}") from error


def _lock_directory(path: Path) -> LogDir:
    """Creates the folder if need be and locks it. Raises LogDirLocked, DiskError."""
    files.make_directory(path)
    lock_path = path / LOCK_FILE
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DiskError(f"cannot open {lock_path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise LogDirLocked(
            f"{path} is in use by another process; every broker needs log.dirs of its own"
        ) from error
    return LogDir(path, descriptor)


def _agree_on_identity(directories: Sequence[LogDir], node_id: int, cluster_id: str | None) -> str:
    """Checks meta.properties of all folders and completes them; the cluster id they agree on."""
    known = {
        directory.path: checkpoint.read_properties(directory.path / checkpoint.META_PROPERTIES)
        for directory in directories
    }
    for path, properties in known.items():
        if properties is None:
            continue
        file = path / checkpoint.META_PROPERTIES
        if properties.get("version") not in ("0", "1"):
            raise UnsupportedFormat(f"{file} has version {properties.get('version')}")
        # Version 0, of Kafka with ZooKeeper, has broker.id instead.
        owner = properties.get("node.id", properties.get("broker.id"))
        if owner != str(node_id):
            raise CorruptFile(f"{file} belongs to node.id={owner}, this broker is {node_id}")
        owner_cluster = properties.get("cluster.id")
        if owner_cluster is not None:
            if cluster_id is None:
                cluster_id = owner_cluster
            elif owner_cluster != cluster_id:
                raise CorruptFile(
                    f"{file} belongs to cluster.id={owner_cluster}, this is {cluster_id}"
                )
    agreed = cluster_id or checkpoint.random_id()
    for path, properties in known.items():
        wanted = {
            **(properties or {}),
            "version": str(checkpoint.META_PROPERTIES_VERSION),
            "node.id": str(node_id),
            "cluster.id": agreed,
        }
        wanted.pop("broker.id", None)
        wanted.setdefault("directory.id", checkpoint.random_id())
        if wanted != properties:
            checkpoint.write_properties(path / checkpoint.META_PROPERTIES, wanted)
    return agreed


def _read_state(directory: LogDir) -> None:
    """Reads the checkpoints, and takes the clean-shutdown mark away."""
    mark = directory.path / checkpoint.CLEAN_SHUTDOWN
    directory.was_clean = mark.exists()
    if directory.was_clean:
        files.remove(mark)
        files.sync_directory(directory.path)
    directory.recovery_points = _read_offsets(directory, checkpoint.RECOVERY_POINTS)
    directory.log_starts = _read_offsets(directory, checkpoint.LOG_STARTS)
    directory.high_watermarks = _read_offsets(directory, checkpoint.HIGH_WATERMARKS)
    directory.cleaned_offsets = _read_offsets(directory, checkpoint.CLEANED_OFFSETS)


def _read_offsets(directory: LogDir, name: str) -> dict[TopicPartition, int]:
    """A checkpoint; a damaged one counts as absent, which costs time but never data."""
    path = directory.path / name
    try:
        return checkpoint.read_offsets(path)
    except (CorruptFile, UnsupportedFormat) as error:
        log.warning("checkpoint not used", extra={"fields": {"reason": str(error)}})
        directory.was_clean = directory.was_clean and name != checkpoint.RECOVERY_POINTS
        return {}


def _write_directory_checkpoints(
    directory: LogDir,
    log_starts: Mapping[TopicPartition, int],
    high_watermarks: Mapping[TopicPartition, int],
) -> None:
    logs = dict(directory.logs)
    recovery_points = {key: opened.recovery_point for key, opened in logs.items()}
    starts = {key: log_starts.get(key, opened.log_start_offset) for key, opened in logs.items()}
    watermarks = {key: offset for key, offset in high_watermarks.items() if key in logs}
    checkpoint.write_offsets(directory.path / checkpoint.RECOVERY_POINTS, recovery_points)
    checkpoint.write_offsets(directory.path / checkpoint.LOG_STARTS, starts)
    checkpoint.write_offsets(directory.path / checkpoint.HIGH_WATERMARKS, watermarks)
