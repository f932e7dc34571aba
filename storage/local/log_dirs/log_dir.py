"""One folder of `log.dirs`: its lock, its identity, and the checkpoints in it.

log_dirs.py has all folders of a broker.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import CorruptFile, DiskError, LogDirLocked, UnsupportedFormat
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.log import closed_log
from strandline.storage.local.log.closed_log import ClosedLog
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs import last_run
from strandline.storage.local.log_dirs.last_run import LastRun
from strandline.storage.model import TopicPartition

log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
PROBE_FILE = ".strandline-probe"
# A failed folder is retried at once. If it failed again soon after a return, it waits first, twice
# as long each time up to the maximum: a folder that can be written may still be unreadable, and
# each return costs the recovery of all its logs.
REVIVAL_PAUSE_S = 2.0
REVIVAL_PAUSE_S_MAX = 60.0
# Why a checkpoint is postponed; logged once.
_FULL = "log folder full: appends are refused until there is room"
_TOO_MANY_OPEN = "checkpoints wait: the process has too many open files"
ALL_CHECKPOINTS = (
    checkpoint.RECOVERY_POINTS,
    checkpoint.LOG_STARTS,
    checkpoint.HIGH_WATERMARKS,
    checkpoint.CLEANED_OFFSETS,
)


class LogDir:
    """One folder of `log.dirs`, with its lock and its checkpoints."""

    def __init__(self, path: Path, lock_descriptor: int) -> None:
        self.path = path
        self.logs: dict[TopicPartition, LocalLog] = {}
        self.was_clean = False
        # Under which the controllers knew the broker at its clean stop; -1 after any other one.
        self.clean_broker_epoch = checkpoint.NO_BROKER_EPOCH
        # What the run before noted; see last_run.py.
        self.last_run: LastRun | None = None
        # False: its logs are unknown, because one could not be opened at the start.
        self.is_loaded = True
        # Rows of logs at a clean stop, by the names of their folders, until they are loaded.
        self.closed_logs: Mapping[str, ClosedLog] = {}
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        # The offset up to which each log is compacted; a log that was ever compacted stays here.
        self.cleaned_offsets: dict[TopicPartition, int] = {}
        # Partitions without a log here, which the checkpoint files may still name.
        self.forgotten: set[TopicPartition] = set()
        # Whether the checkpoint of `cleaned_offsets` on disk is up to date.
        self.is_cleaning_noted = True
        self.failure: DiskError | None = None
        # When an append was refused last for want of room, in monotonic seconds.
        self.refused_s = -math.inf
        # Checkpoints are written from worker threads, one at a time: they share temporary names.
        self.checkpoint_lock = threading.Lock()
        # The time of its last return, the wait before the next one, and its earliest time.
        self.revived_s = -math.inf
        self._revival_pause_s = 0.0
        self._revival_due_s = -math.inf
        # Whether the last checkpoint found no room or no descriptor; logged once.
        self.is_checkpoint_late = False
        # The directory id in meta.properties; empty until that was read.
        self.directory_id = ""
        self._lock_descriptor = lock_descriptor

    @property
    def _offsets(self) -> tuple[dict[TopicPartition, int], ...]:
        return self.recovery_points, self.log_starts, self.high_watermarks, self.cleaned_offsets

    @property
    def known_keys(self) -> set[TopicPartition]:
        """The partitions in the checkpoints when they were read."""
        return set().union(*self._offsets)

    @property
    def place(self) -> str:
        """Tells this folder from a copy of it. Raises DiskError."""
        folder, lock = (files.mark(str(one)) for one in (self.path, self.path / LOCK_FILE))
        return f"{files.device(self.path)}:{folder.inode}:{lock.inode}"

    @property
    def lost_synced(self) -> bool:
        """Whether a log ended below its checkpointed recovery point when it was opened."""
        synced = self.recovery_points
        return any(one.recovery_point < synced.get(key, 0) for key, one in self.logs.items())

    def forget_state(self, key: TopicPartition) -> None:
        """Drops the checkpointed state of a removed log; `forget` makes it durable."""
        for offsets in self._offsets:
            offsets.pop(key, None)
        self.forgotten.add(key)

    def note_late(self, error: DiskError) -> None:
        """Postpones a checkpoint that found no room or no descriptor; logs it once."""
        if not self.is_checkpoint_late:
            self.is_checkpoint_late = True
            log.error(
                _FULL if error.is_full else _TOO_MANY_OPEN,
                extra={"fields": {"folder": str(self.path), "reason": str(error)}},
            )

    def postpone_revival(self, now_s: float) -> None:
        """Notes a failure at the monotonic time `now_s`."""
        if now_s - self.revived_s >= REVIVAL_PAUSE_S_MAX:
            self._revival_pause_s = 0.0
        else:
            longer_s = max(2 * self._revival_pause_s, REVIVAL_PAUSE_S)
            self._revival_pause_s = min(longer_s, REVIVAL_PAUSE_S_MAX)
        self._revival_due_s = now_s + self._revival_pause_s

    def may_be_revived(self, now_s: float) -> bool:
        """Returns whether it has waited long enough."""
        return now_s >= self._revival_due_s

    def check_present(self) -> None:
        """Raises DiskError if this is not the folder that was locked at the start.

        An unmounted volume leaves an empty, writable folder; records written there are lost when
        the volume is mounted again. A folder that was removed and created again may belong to
        another broker.
        """
        if not self._is_locked_one():
            raise DiskError(f"{self.path} is not what it was: is another broker using it?")

    def lock_again(self) -> None:
        """Locks a folder that came back, if its lock file is not the one that was locked.

        The system may see a device that was removed and attached as another one. Raises DiskError
        if the folder is missing, belongs to another broker, or is in use.
        """
        if self._is_locked_one():
            return
        file = self.path / checkpoint.META_PROPERTIES
        try:
            found = checkpoint.read_properties(file) or {}
        except CorruptFile as error:
            raise DiskError(str(error)) from error
        if found.get("directory.id") != self.directory_id:
            raise DiskError(f"{self.path} is another folder than before: see {file}")
        try:
            descriptor = _lock(self.path)
        except LogDirLocked as error:
            raise DiskError(str(error)) from error
        self.unlock()
        self._lock_descriptor = descriptor

    def _is_locked_one(self) -> bool:
        """Raises DiskError if there is no lock file at all."""
        try:
            found = (self.path / LOCK_FILE).stat()
        except OSError as error:
            raise DiskError(f"{self.path} is not what it was: is its volume mounted?") from error
        descriptor = self._lock_descriptor
        return descriptor >= 0 and os.path.samestat(found, os.fstat(descriptor))

    def unlock(self) -> None:
        if self._lock_descriptor >= 0:
            descriptor, self._lock_descriptor = self._lock_descriptor, -1
            os.close(descriptor)

    def __repr__(self) -> str:
        state = f"failed: {self.failure}" if self.failure else f"{len(self.logs)} logs"
        return f"<LogDir {self.path} {state}>"


def probe(path: Path) -> None:
    """Raises DiskError unless a file can be written to the folder and synced."""
    probe = path / PROBE_FILE
    files.write_atomically(probe, b"is this folder writable?\n")
    files.remove(probe)


def lock_directory(path: Path) -> LogDir:
    """Creates the folder if necessary and locks it. Raises LogDirLocked, DiskError."""
    files.make_directory(path)
    return LogDir(path, _lock(path))


def _lock(path: Path) -> int:
    """Returns the descriptor that holds the lock of a folder. Raises LogDirLocked, DiskError."""
    lock_path = path / LOCK_FILE
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DiskError(f"cannot open {lock_path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise LogDirLocked(
            f"log folder {path} is in use by another process;"
            " every broker needs log.dirs of its own"
        ) from error
    return descriptor


def lock_usable(
    paths: Sequence[Path], directories: list[LogDir], failures: dict[Path, DiskError]
) -> None:
    """Adds each folder to `directories`, locked, or to `failures` if it cannot be used.

    Raises LogDirLocked, and DiskError if none is usable.
    """
    for path in paths:
        try:
            directories.append(lock_directory(path))
        except LogDirLocked:
            raise
        except DiskError as error:
            _note_unusable(path, error, failures)
    _check_any(directories, failures)


def drop_unreadable(
    directories: list[LogDir],
    failures: dict[Path, DiskError],
    read: Callable[[LogDir], object],
) -> None:
    """Moves folders that `read` cannot read to `failures`; the others serve, as in Kafka.

    Raises DiskError if none is left, and other errors of `read`.
    """
    for directory in list(directories):
        try:
            read(directory)
        except DiskError as error:
            if not error.condemns_folder:
                raise
            directories.remove(directory)
            directory.unlock()
            _note_unusable(directory.path, error, failures)
    _check_any(directories, failures)


def _note_unusable(path: Path, error: DiskError, failures: dict[Path, DiskError]) -> None:
    failures[path] = error
    log.error("log folder offline", extra={"fields": {"folder": str(path), "reason": str(error)}})


def _check_any(directories: Sequence[LogDir], failures: Mapping[Path, DiskError]) -> None:
    if not directories:
        reasons = "; ".join(str(error) for error in failures.values())
        raise DiskError(reasons) from next(iter(failures.values()))


def read_identity(directory: LogDir) -> Mapping[str, str] | None:
    """meta.properties; None if missing or damaged, which is reported later. Raises DiskError."""
    try:
        return checkpoint.read_properties(directory.path / checkpoint.META_PROPERTIES)
    except CorruptFile:
        return None


def agree_on_identity(directories: Sequence[LogDir], node_id: int, cluster_id: str | None) -> str:
    """Checks and completes meta.properties of all folders; returns their common cluster id."""
    known = {
        directory.path: checkpoint.read_properties(directory.path / checkpoint.META_PROPERTIES)
        for directory in directories
    }
    for path, properties in known.items():
        if properties is None:
            continue
        file = path / checkpoint.META_PROPERTIES
        if "version" not in properties:
            raise CorruptFile(f"{file} has no version")
        if properties["version"] not in ("0", "1"):
            raise UnsupportedFormat(
                f"{file} has version {properties['version']}, this release reads 0 and 1: a later"
                " release, or a later Kafka, wrote it, start that one"
            )
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
    for directory in directories:
        path, properties = directory.path, known[directory.path]
        wanted = {
            **(properties or {}),
            "version": str(checkpoint.META_PROPERTIES_VERSION),
            "node.id": str(node_id),
            "cluster.id": agreed,
        }
        wanted.pop("broker.id", None)
        directory.directory_id = wanted.setdefault("directory.id", checkpoint.random_id())
        if wanted != properties:
            checkpoint.write_properties(path / checkpoint.META_PROPERTIES, wanted)
    return agreed


def read_state(directory: LogDir) -> None:
    """Reads the checkpoints, and removes the clean-shutdown mark with its rows of closed logs."""
    mark = directory.path / checkpoint.CLEAN_SHUTDOWN
    directory.was_clean = mark.exists()
    if directory.was_clean:
        directory.clean_broker_epoch = checkpoint.read_clean_shutdown(mark)
        directory.closed_logs = closed_log.read_rows(directory.path)
        files.remove(mark)
    files.remove(directory.path / closed_log.FILE_NAME)
    if directory.was_clean:
        files.sync_directory(directory.path)
    directory.last_run = last_run.read(directory.path)
    directory.recovery_points = _read_offsets(directory, checkpoint.RECOVERY_POINTS)
    directory.log_starts = _read_offsets(directory, checkpoint.LOG_STARTS)
    directory.high_watermarks = _read_offsets(directory, checkpoint.HIGH_WATERMARKS)
    directory.cleaned_offsets = _read_offsets(directory, checkpoint.CLEANED_OFFSETS)


def _read_offsets(directory: LogDir, name: str) -> dict[TopicPartition, int]:
    """Returns a checkpoint; a damaged one counts as missing, which costs time but never data."""
    path = directory.path / name
    try:
        return checkpoint.read_offsets(path)
    except (CorruptFile, UnsupportedFormat) as error:
        log.warning("checkpoint not used", extra={"fields": {"reason": str(error)}})
        directory.was_clean = directory.was_clean and name != checkpoint.RECOVERY_POINTS
        return {}


def write_checkpoints(
    directory: LogDir,
    log_starts: Mapping[TopicPartition, int],
) -> None:
    """Replaces the checkpoints of the folder, each synced; blocks. Raises DiskError.

    A log without an entry in `log_starts` is noted with its own `log_start_offset`.
    """
    directory.check_present()
    logs = dict(directory.logs)
    forgotten = directory.forgotten.difference(logs)
    starts = {key: log_starts.get(key, opened.log_start_offset) for key, opened in logs.items()}
    watermarks = {key: opened.high_watermark for key, opened in logs.items()}
    write_recovery_points(directory, logs)
    checkpoint.write_offsets(directory.path / checkpoint.LOG_STARTS, starts)
    checkpoint.write_offsets(directory.path / checkpoint.HIGH_WATERMARKS, watermarks)
    # The cleaner's checkpoint is not written each time, and may still name them.
    if forgotten or not directory.is_cleaning_noted:
        write_cleaned_offsets(directory)
    directory.forgotten -= forgotten


def write_recovery_points(directory: LogDir, logs: Mapping[TopicPartition, LocalLog]) -> None:
    """Replaces the checkpoint of recovery points and syncs it. Raises DiskError."""
    recovery_points = {key: opened.recovery_point for key, opened in logs.items()}
    checkpoint.write_offsets(directory.path / checkpoint.RECOVERY_POINTS, recovery_points)


def forget(directory: LogDir, keys: Iterable[TopicPartition]) -> None:
    """Removes deleted logs of these names from the checkpoints, durably.

    Must precede a new log of that name: after a kill it would take over the log start and the
    recovery point of the deleted one. Raises DiskError.
    """
    gone = directory.forgotten.intersection(keys)
    if not gone:
        return
    for name in ALL_CHECKPOINTS:
        found = _read_offsets(directory, name)
        kept = {key: offset for key, offset in found.items() if key not in gone}
        if len(kept) < len(found):
            checkpoint.write_offsets(directory.path / name, kept)
    directory.forgotten -= gone


def write_cleaned_offsets(directory: LogDir) -> None:
    """Replaces the cleaner's checkpoint and syncs it. Raises DiskError."""
    checkpoint.write_offsets(
        directory.path / checkpoint.CLEANED_OFFSETS, dict(directory.cleaned_offsets)
    )
    directory.is_cleaning_noted = True


def mark_clean(directory: LogDir, broker_epoch: int) -> None:
    """Writes the clean-shutdown mark. If that fails, the next start recovers this folder."""
    try:
        checkpoint.write_clean_shutdown(directory.path / checkpoint.CLEAN_SHUTDOWN, broker_epoch)
    except DiskError as error:
        log.error(
            "log folder could not be marked as stopped cleanly, the next start recovers it",
            extra={"fields": {"folder": str(directory.path), "reason": str(error)}},
        )
