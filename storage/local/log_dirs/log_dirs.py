"""The folders of `log.dirs`: locks, logs, checkpoints, and the choice of a folder for a new log.

    <log.dir>/.lock                                held by one process while it runs
    <log.dir>/meta.properties                      broker and cluster of this folder
    <log.dir>/<topic>-<partition>/                 a log, see log.py; with a mark it is being moved
                                                   here, see move.py
    <log.dir>/<topic>-<partition>.<id>-<why>/      a former log, see names.py
    <log.dir>/*-checkpoint                         see checkpoint.py
    <log.dir>/.kafka_cleanshutdown                 exists if the last stop was clean
    <log.dir>/last-run                             of a broker of a cluster, see last_run.py

Start:  1 lock  2 meta.properties  3 make room, see leftovers.py
        4 read and remove the clean-shutdown mark  5 open the logs, see loading.py
Stop:   1 close every log  2 checkpoints  3 the state of the closed logs, see closed_log.py
        4 clean-shutdown mark, last  5 unlock

The mark is removed before anything else is touched, so a crash at any later point is unclean.

A folder that fails takes only its own partitions offline: their logs refuse everything with
KAFKA_STORAGE_ERROR until `revive` finds that the folder can be written again and reopens them,
with the recovery that follows an unclean stop. A folder whose logs could not be loaded stays
offline until the next start: its logs are unknown. A full disk is no failure: appends are refused
until there is room, and reads and retention continue.

Folders with other names stay, as they are not the broker's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from strandline.storage.clock import Clock
from strandline.storage.concurrency.maps import together
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError, StorageError
from strandline.storage.local.formats.checkpoint import NO_BROKER_EPOCH
from strandline.storage.local.log import closed_log
from strandline.storage.local.log.closed_log import ClosedLog
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs import last_run
from strandline.storage.local.log_dirs.creation import create_logs, spread
from strandline.storage.local.log_dirs.deleted_folders import DeletedFolders
from strandline.storage.local.log_dirs.last_run import LastRun
from strandline.storage.local.log_dirs.leftovers import remove_leftovers
from strandline.storage.local.log_dirs.loading import ConfigFor, load_logs
from strandline.storage.local.log_dirs.log_dir import (
    LogDir,
    agree_on_identity,
    drop_unreadable,
    forget,
    lock_usable,
    mark_clean,
    read_identity,
    read_state,
    write_checkpoints,
    write_cleaned_offsets,
    write_recovery_points,
)
from strandline.storage.local.log_dirs.revival import RevivedLog, reopen_logs
from strandline.storage.model import TopicId, TopicPartition

log = logging.getLogger(__name__)


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
        self._deleted = DeletedFolders()
        # The target folder of each partition whose move was pending at the stop.
        self.wanted_moves: dict[tuple[TopicPartition, Path], TopicId] = {}
        # Whether a write found no room since `make_room`. Set from any thread.
        self.is_short_of_room = False
        # Partitions whose logs lack what they had at the last stop, or are gone.
        self.lost: frozenset[TopicPartition] = frozenset()
        self._is_run_noted = any(one.last_run is not None for one in directories)

    @classmethod
    def open(
        cls, paths: Sequence[Path], *, node_id: int, cluster_id: str | None, clock: Clock
    ) -> LogDirs:
        """Locks every folder and checks its identity; `cluster_id` None reads or creates one.

        Raises LogDirLocked, CorruptFile for a folder of another broker or cluster, and DiskError
        if no folder is usable; a single unusable one is noted in `failures`.
        """
        assert paths, "at least one log folder"
        directories: list[LogDir] = []
        failures: dict[Path, DiskError] = {}
        try:
            lock_usable(paths, directories, failures)
            drop_unreadable(directories, failures, read_identity)
            cluster_id = agree_on_identity(directories, node_id, cluster_id)
            for directory in directories:
                remove_leftovers(directory)
            drop_unreadable(directories, failures, read_state)
        except BaseException:
            for directory in directories:
                directory.unlock()
            raise
        return cls(directories, failures, cluster_id, clock)

    # --- the open logs ---------------------------------------------------------------------------

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
        """Log starts in the checkpoints when the folders were opened."""
        return {
            key: offset
            for directory in self.directories
            for key, offset in directory.log_starts.items()
        }

    def load(
        self,
        config_for: ConfigFor,
        *,
        threads_per_directory: int = 1,
        keep_empty_strays: bool = True,
    ) -> dict[TopicPartition, LocalLog]:
        """Opens every log, recovering where the last stop was not clean.

        Folders are loaded in parallel, each by so many threads, which call `config_for`.
        It returns None for a partition that the cluster does not know: its folder is renamed
        to -stray and kept, or removed if it has no records and `keep_empty_strays` is False. The
        topic id is zeros for a folder without one. Raises CorruptFile if two folders hold the same
        partition, DiskError if no log folder could be loaded.
        """
        loaded = load_logs(
            self.directories,
            config_for,
            clock=self._clock,
            threads_per_directory=threads_per_directory,
            keep_empty_strays=keep_empty_strays,
        )
        if len(loaded.failures) == len(self.directories):
            reasons = "; ".join(str(error) for error in loaded.failures.values())
            raise DiskError(reasons) from next(iter(loaded.failures.values()))
        for path in loaded.removable:
            self._deleted.add(path, remove_at_s=self._clock.monotonic_s())
        self.wanted_moves = dict(loaded.wanted_moves)
        for directory in self.directories:
            directory.closed_logs = {}
            if directory in loaded.failures:
                directory.is_loaded = False
                self._take_offline(directory, loaded.failures[directory])
                continue
            directory.logs |= {
                opened.topic_partition: self._watched(directory, opened)
                for opened in loaded.logs[directory]
            }
            self._note_losses(directory)
        opened = self.logs
        damaged = {key for key, one in opened.items() if one.recovery_report.has_lost_records}
        missing: set[TopicPartition] = set()
        for directory in self.directories:
            # A log that is not opened now is gone, and must not return through a checkpoint.
            gone = directory.known_keys - directory.logs.keys()
            if directory.is_loaded:
                missing |= gone - opened.keys()
            for key in gone:
                directory.forget_state(key)
        self.lost = frozenset(damaged | missing)
        return opened

    def _watched(self, directory: LogDir, opened: LocalLog) -> LocalLog:
        opened.on_failure = partial(self._take_offline, directory)
        opened.cleaned_offset = directory.cleaned_offsets.get(opened.topic_partition)
        # A crash may have lost records that were below it.
        high_watermark = directory.high_watermarks.get(opened.topic_partition, 0)
        opened.advance_high_watermark(min(high_watermark, opened.end_offset))
        opened.on_cleaning_undone = partial(self.write_cleaned_offset, opened)
        opened.on_cut = partial(self._note_cut, directory)
        opened.on_full = partial(self._note_refused, directory)
        if directory.failure is not None:
            opened.stop(directory.failure)
        return opened

    def _take_offline(self, directory: LogDir, error: DiskError) -> None:
        """Stops all logs of a folder. May be called from any thread, and more than once."""
        if directory.failure is not None:
            return
        directory.postpone_revival(self._clock.monotonic_s())
        directory.failure = error
        self.failures[directory.path] = error
        for opened in list(directory.logs.values()):
            opened.stop(error)
        if self._is_run_noted:
            # Whatever was not synced there may be lost.
            self.forget_run()
        log.error(
            "log folder offline",
            extra={"fields": {"folder": str(directory.path), "reason": str(error)}},
        )

    @property
    def has_failed(self) -> bool:
        """Whether a folder that was locked at the start is offline now."""
        return any(directory.failure is not None for directory in self.directories)

    @property
    def are_offline(self) -> bool:
        """Whether no folder is left."""
        return all(directory.failure is not None for directory in self.directories)

    def revive(self, within: Sequence[LogDir] | None = None) -> list[RevivedLog]:
        """Opens the logs of offline folders, or of those in `within`, that can be written again.

        Blocks.

        Records that were not synced when the folder failed may be lost. A folder that keeps failing
        waits longer each time.
        """
        revived: list[RevivedLog] = []
        for directory in self.directories if within is None else within:
            if directory.failure is None or not directory.is_loaded:
                continue
            if not directory.may_be_revived(self._clock.monotonic_s()):
                continue
            try:
                opened = reopen_logs(directory, clock=self._clock)
                with directory.checkpoint_lock:
                    logs = {pair.new.topic_partition: pair.new for pair in opened}
                    write_recovery_points(directory, logs)
            except (StorageError, MemoryError) as error:
                log.debug(
                    "log folder stays offline",
                    extra={"fields": {"folder": str(directory.path), "reason": str(error)}},
                )
                continue
            directory.failure = None
            directory.revived_s = self._clock.monotonic_s()
            self.failures.pop(directory.path, None)
            for pair in opened:
                pair.old.abandon()
                directory.logs[pair.new.topic_partition] = self._watched(directory, pair.new)
            revived += opened
            log.info(
                "log folder online again",
                extra={"fields": {"folder": str(directory.path), "logs": len(opened)}},
            )
        return revived

    # --- create and delete logs ------------------------------------------------------------------

    def create_log(
        self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig
    ) -> LocalLog:
        """As `create_logs`, for one partition. Raises DiskError."""
        (created,) = self.create_logs((topic_partition,), topic_id, config)
        if isinstance(created, DiskError):
            raise created
        return created

    def create_logs(
        self,
        topic_partitions: Sequence[TopicPartition],
        topic_id: TopicId,
        config: LogConfig,
        *,
        may_be_archived: bool = False,
        within: Sequence[LogDir] | None = None,
    ) -> list[LocalLog | DiskError]:
        """New, empty logs of a topic, each in the folder that holds the fewest; they are durable.

        `may_be_archived`: these are not the first folders of the partitions. `within` are the
        folders to choose from; None: all.

            1 remove deleted partitions of these names from the checkpoints
            2 create them, see creation.py

        A log that cannot be created is an error in its place, without leftovers. Blocks.
        """
        usable = self._usable(within)
        if not usable:
            return [DiskError("every log folder is offline")] * len(topic_partitions)
        targets = spread(usable, len(topic_partitions))
        try:
            self.forget(targets, topic_partitions)
        except DiskError as error:
            return [error] * len(topic_partitions)
        created = create_logs(
            targets,
            topic_partitions,
            topic_id,
            config,
            clock=self._clock,
            may_be_archived=may_be_archived,
        )
        for directory, new in zip(targets, created, strict=True):
            if isinstance(new, LocalLog):
                directory.logs[new.topic_partition] = self._watched(directory, new)
            elif new.is_full:
                self.note_full()
        return created

    def _usable(self, within: Sequence[LogDir] | None = None) -> list[LogDir]:
        usable = []
        for directory in self.directories if within is None else within:
            if directory.failure is not None:
                continue
            try:
                directory.check_present()
            except DiskError as error:
                self._take_offline(directory, error)
            else:
                usable.append(directory)
        return usable

    def forget(
        self, directories: Iterable[LogDir], topic_partitions: Sequence[TopicPartition]
    ) -> None:
        """Removes deleted logs of these names from the checkpoints of these folders.

        Blocks. Raises DiskError.
        """
        for directory in dict.fromkeys(directories):
            with directory.checkpoint_lock:
                forget(directory, topic_partitions)

    def delete_log(self, deleted: LocalLog) -> None:
        """Removes a log: its folder is renamed now and purged after file.delete.delay.ms.

        Blocks. Raises DiskError.
        """
        directory = self.directory_at(deleted.directory.parent)
        assert directory is not None, deleted
        key = deleted.topic_partition
        # A revived folder may have a reopened log over the same files, not served yet.
        for opened in {deleted, directory.logs.pop(key, deleted)}:
            # A running flush may find its folder gone; that is not a disk failure.
            opened.drop_callbacks()
            opened.stop(DiskError(f"{key} was deleted"))
        directory.forget_state(key)
        self.put_aside(deleted)

    def replace_log(self, old: LocalLog, new: LocalLog) -> None:
        """Replaces a log by its copy in another folder; `put_aside` must follow for the old one.

        Does not wait for a disk.
        """
        directory = self._find_directory(old)
        assert directory is not None, f"{old} is not one of ours"
        target = self.directory_at(new.directory.parent)
        assert target is not None, new
        key = old.topic_partition
        # As in delete_log: errors of running calls in the old folder are not disk failures.
        old.drop_callbacks()
        del directory.logs[key]
        target.logs[key] = self._watched(target, new)
        if key in directory.cleaned_offsets:
            target.cleaned_offsets[key] = directory.cleaned_offsets[key]
            target.is_cleaning_noted = directory.is_cleaning_noted = False
            new.cleaned_offset = old.cleaned_offset
        directory.forget_state(key)

    def put_aside(self, removed: LocalLog) -> None:
        """Renames the folder of a replaced log to -delete. Raises DiskError.

        Blocks: the name is durable.
        """
        remove_at_s = self._clock.monotonic_s() + removed.config.file_delete_delay_ms / 1000
        self._deleted.put(removed.directory, remove_at_s=remove_at_s)

    def directory_at(self, path: Path) -> LogDir | None:
        """The log folder with this path, relative or absolute; None if it is not in `log.dirs`."""
        wanted = path.absolute()
        return next((d for d in self.directories if d.path.absolute() == wanted), None)

    def _note_refused(self, directory: LogDir) -> None:
        """A log refuses an append for want of room. May be called from any thread."""
        directory.refused_s = self._clock.monotonic_s()
        self.note_full()

    def note_full(self) -> None:
        """Takes note that a write found no room. May be called from any thread."""
        self.is_short_of_room = True

    def make_room(self, within: Sequence[LogDir] | None = None) -> int:
        """Unlinks all that waits for its deletion, whatever its delay; returns how many. Blocks.

        In `within`, or in all folders.

        A reader may still use such a file: its descriptor stays good. Files in a folder that a full
        disk took offline go too: it returns only with room. Raises DiskError.
        """
        self.is_short_of_room = False
        of = self.directories if within is None else within
        full = [one for one in of if one.failure is not None and one.failure.is_full]
        for directory in full:
            directory.check_present()
        return self._purge(math.inf, [*self._usable(of), *full])

    def purge_deleted(self, now_s: float, within: Sequence[LogDir] | None = None) -> int:
        """Unlinks files and folders whose delay is over by monotonic time; returns how many.

        In `within`, or in all log folders. May run in a worker thread.

        A failed unlink is tried again and delays no other; the first DiskError is raised at the
        end. Files in an offline folder wait until it is online.
        """
        return self._purge(now_s, self._usable(within))

    def _purge(self, now_s: float, directories: Sequence[LogDir]) -> int:
        purged, first_error = self._deleted.purge(now_s, within={one.path for one in directories})
        for opened in [log for one in directories for log in list(one.logs.values())]:
            try:
                purged += opened.purge_deleted(now_s)
            except DiskError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return purged

    # --- compaction ------------------------------------------------------------------------------

    def cleaned_offset(self, opened: LocalLog) -> int | None:
        """Returns the offset up to which a log is compacted; None if it never was."""
        directory = self._find_directory(opened)
        return None if directory is None else directory.cleaned_offsets.get(opened.topic_partition)

    def write_cleaned_offset(self, opened: LocalLog, offset: int) -> None:
        """Stores up to which offset a log is compacted. Blocks; thread-safe. Raises DiskError."""
        directory = self._find_directory(opened)
        if directory is None:
            return
        with directory.checkpoint_lock:
            if (
                directory.failure is not None
                or directory.logs.get(opened.topic_partition) is not opened
            ):
                return
            directory.cleaned_offsets[opened.topic_partition] = opened.cleaned_offset = offset
            write_cleaned_offsets(directory)

    def _find_directory(self, opened: LocalLog) -> LogDir | None:
        for directory in self.directories:
            if directory.logs.get(opened.topic_partition) is opened:
                return directory
        return None

    # --- checkpoints and stop --------------------------------------------------------------------

    def _note_cut(self, directory: LogDir) -> None:
        """Lowers the recovery point of a cut log in its checkpoint. Blocks. Raises DiskError."""
        with directory.checkpoint_lock:
            if directory.failure is not None:
                raise directory.failure
            directory.check_present()
            write_recovery_points(directory, dict(directory.logs))

    def _note_losses(self, directory: LogDir) -> None:
        """As `_note_cut`, for logs that ended below their recovery point when they were opened."""
        if not directory.lost_synced:
            return
        try:
            self._note_cut(directory)
        except DiskError as error:
            # Without room the checkpoint of the next minute does it.
            if not (error.is_full or error.is_out_of_descriptors):
                self._take_offline(directory, error)

    def write_checkpoints(self, log_starts: Mapping[TopicPartition, int]) -> frozenset[Path]:
        """As `write_checkpoint`, in every folder; returns those where that failed."""
        return frozenset(
            one.path for one in self.directories if not self.write_checkpoint(log_starts, one)
        )

    def write_checkpoint(self, log_starts: Mapping[TopicPartition, int], directory: LogDir) -> bool:
        """Writes the three checkpoints of a folder, synced. May run in a worker thread.

        False: that failed, and its earlier checkpoints remain valid.
        """
        with directory.checkpoint_lock:
            if directory.failure is not None:
                return False
            try:
                write_checkpoints(directory, log_starts)
            except DiskError as error:
                if not (error.is_full or error.is_out_of_descriptors):
                    self._take_offline(directory, error)
                else:
                    self.is_short_of_room |= error.is_full
                    directory.note_late(error)
                return False
            directory.is_checkpoint_late = False
            return True

    def close(self) -> None:
        """`finish` and `unlock`, with the log starts of the logs themselves."""
        self.finish({})
        self.unlock()

    @property
    def clean_broker_epoch(self) -> int:
        """The broker epoch of the last stop, if it was clean in all folders; else -1.

        Without all of them what they had is not known to be there.
        """
        return self._agreed(one.clean_broker_epoch for one in self.directories)

    def last_epoch(self, boot_of: Callable[[Path], str | None]) -> int:
        """The broker epoch of the last run, if these folders have all that it wrote; else -1.

        That is, if it stopped cleanly, or the machine has not gone down since (last_run.py).
        `boot_of` returns the boot that keeps what was written to a folder. Blocks.
        """
        if (clean := self.clean_broker_epoch) != NO_BROKER_EPOCH:
            return clean
        epochs = []
        for directory in self.directories:
            noted = directory.last_run
            if noted is None or noted != self._run(directory, noted.broker_epoch, boot_of):
                return NO_BROKER_EPOCH
            epochs.append(noted.broker_epoch)
        return self._agreed(epochs)

    def _agreed(self, epochs: Iterable[int]) -> int:
        found = set(epochs)
        return found.pop() if len(found) == 1 and not self.failures else NO_BROKER_EPOCH

    def note_run(self, broker_epoch: int, boot_of: Callable[[Path], str | None]) -> None:
        """Notes in every folder that this run has it, and all that the runs before it wrote.

        Without that note the next start counts as one after a loss of power. Blocks.
        """
        runs = {one: self._run(one, broker_epoch, boot_of) for one in self.directories}
        self._is_run_noted = True
        try:
            for directory, run in runs.items():
                if run is not None:
                    last_run.write(directory.path, run)
        except DiskError as error:
            log.info("run not noted", extra={"fields": {"reason": str(error)}})
        if self.failures or None in runs.values():
            self.forget_run()

    def forget_run(self) -> None:
        """Removes what `note_run` noted. May be called from any thread."""
        for directory in self.directories:
            last_run.remove(directory.path)

    def _run(
        self, directory: LogDir, broker_epoch: int, boot_of: Callable[[Path], str | None]
    ) -> LastRun | None:
        """Returns what a note of this run says; None if it can say nothing."""
        try:
            boot, place = boot_of(directory.path), directory.place
        except DiskError:
            return None
        if boot is None:
            return None
        folders = tuple(sorted(one.directory_id for one in self.directories))
        return LastRun(broker_epoch=broker_epoch, boot=boot, place=place, folders=folders)

    def finish(
        self,
        log_starts: Mapping[TopicPartition, int],
        *,
        is_clean: bool = True,
        broker_epoch: int = NO_BROKER_EPOCH,
    ) -> None:
        """Closes every log, and writes the clean-shutdown mark where all succeeded if `is_clean`.

        The folders stay locked: no other process may use them yet. `broker_epoch` is that under
        which controllers elsewhere know the broker.
        """
        rows: dict[LogDir, list[ClosedLog]] = {}
        for directory in self.directories:
            rows[directory] = []
            closings = [partial(closed_log.close, one) for one in directory.logs.values()]
            for closed in together(closings, "close"):
                if isinstance(closed, DiskError):
                    self._take_offline(directory, closed)
                elif closed is not None:
                    rows[directory].append(closed)
        self.write_checkpoints(log_starts)
        for directory in self.directories:
            if directory.failure is None and is_clean:
                # Without space for the rows the next start is slower, but loses nothing.
                with suppress(DiskError):
                    closed_log.write_rows(directory.path, rows[directory])
                mark_clean(directory, broker_epoch)

    def unlock(self) -> None:
        for directory in self.directories:
            directory.unlock()

    def __repr__(self) -> str:
        return f"<LogDirs {list(self.directories)}>"
