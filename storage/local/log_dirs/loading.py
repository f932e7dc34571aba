"""Loads log folders at start-up: finds the logs in them and opens them in parallel.

    1 unwanted copies are removed               2 folders are classified by their names
    3 each log is opened, with recovery unless the last stop was clean

A log folder that fails is reported and loads nothing; the others continue.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import CorruptFile, DiskError, UnsupportedFormat
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.formats.names import (
    DELETE_SUFFIX,
    LOG_SUFFIX,
    STRAY_SUFFIX,
    file_name,
    is_put_aside,
    is_removable,
    partition_of,
    put_aside,
    subfolders,
)
from strandline.storage.local.log import closed_log
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs import move as log_move
from strandline.storage.local.log_dirs.log_dir import LogDir
from strandline.storage.local.segment.partition_folder import segment_bases
from strandline.storage.model import ZERO_TOPIC_ID, TopicId, TopicPartition

log = logging.getLogger(__name__)

ConfigFor: TypeAlias = Callable[[TopicPartition, TopicId], LogConfig | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLogs:
    """The logs in the log folders. A folder is in `logs` or in `failures`."""

    logs: Mapping[LogDir, Sequence[LocalLog]]
    failures: Mapping[LogDir, DiskError]
    # Folders of deleted partitions, to be purged.
    removable: Sequence[Path]
    # The target folder of each partition whose move was pending at the stop.
    wanted_moves: Mapping[tuple[TopicPartition, Path], TopicId]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """Folders with marks of moves between log folders, see move.py; searched once."""

    wanted: Mapping[tuple[TopicPartition, Path], TopicId]
    # Folders of unfinished copies.
    unfinished: frozenset[str]
    # Folders of copies that took over.
    moved: frozenset[str]


def load_logs(
    directories: Sequence[LogDir],
    config_for: ConfigFor,
    *,
    clock: Clock,
    threads_per_directory: int,
    keep_empty_strays: bool = True,
) -> LoadedLogs:
    """Opens every log; blocks. See LogDirs.load. Raises CorruptFile."""
    failures: dict[LogDir, DiskError] = {}
    marks = _settle_moves(directories, failures)
    places: dict[TopicPartition, list[Path]] = {}
    loading: dict[LogDir, _Loading] = {}
    removable: list[Path] = []
    with ExitStack() as pools:
        unaided: list[_Loading] = []
        for directory in directories:
            if directory in failures:
                continue
            try:
                folders = _partition_folders(directory, marks, places)
                removable += _removable_folders(directory, keep_empty_strays=keep_empty_strays)
            except DiskError as error:
                failures[directory] = error
                continue
            empty_strays = None if keep_empty_strays else removable
            load = partial(_load_log, directory, marks, config_for, clock, empty_strays)
            known = deque(item for item in folders.items() if item[1].name in directory.closed_logs)
            waiting = deque(
                item for item in folders.items() if item[1].name not in directory.closed_logs
            )
            loading[directory] = logs = _Loading(load, known)
            # These wait for no disk, so more threads would only contend for the GIL.
            logs.go_on()
            if logs.error is not None or not waiting:
                continue
            logs.waiting = waiting
            pool = pools.enter_context(
                ThreadPoolExecutor(threads_per_directory, f"load-{directory.path.name}")
            )
            try:
                for _ in range(threads_per_directory):
                    pool.submit(logs.go_on)
            except (RuntimeError, MemoryError):
                unaided.append(logs)
        # Runs here if the system refused a thread.
        for logs in unaided:
            logs.go_on()
    for directory, logs in loading.items():
        if isinstance(logs.error, DiskError):
            failures[directory] = logs.error
        elif logs.error is not None:
            raise logs.error
    return LoadedLogs(
        # In one order, whichever thread was done first.
        logs={
            one: sorted(logs.opened, key=attrgetter("topic_partition"))
            for one, logs in loading.items()
            if one not in failures
        },
        failures=failures,
        removable=removable,
        wanted_moves=marks.wanted,
    )


@dataclass(slots=True)
class _Loading:
    """The logs of one folder, which several threads open in parallel."""

    load: Callable[[TopicPartition, Path], LocalLog | None]
    waiting: deque[tuple[TopicPartition, Path]]
    opened: list[LocalLog] = field(default_factory=list)
    # The first one.
    error: BaseException | None = None

    def go_on(self) -> None:
        """Opens waiting logs until none is left; stops after a failure.

        One job for each thread, not for each log: a log opens in a quarter of a millisecond, and
        jobs for thousands would take a tenth of the start. Results are kept here: another thread
        may run a job whose own thread was refused.
        """
        while True:
            try:
                key, path = self.waiting.popleft()
            except IndexError:
                return
            try:
                loaded = self.load(key, path)
            except BaseException as error:  # raised again by the thread that waits for all
                self.waiting.clear()
                self.error = self.error or error
                return
            if loaded is not None:
                self.opened.append(loaded)


def _settle_moves(directories: Sequence[LogDir], failures: dict[LogDir, DiskError]) -> _Marks:
    """Removes logs whose copy took over, and copies that are not among the wanted moves.

    A log folder where that fails is noted in `failures`.
    """
    folders: list[Path] = []
    wanted: dict[tuple[TopicPartition, Path], TopicId] = {}
    for directory in directories:
        with suppress(DiskError):  # the load reports it, and takes the folder offline
            folders += subfolders(directory.path)
            wanted |= _wanted_moves(directory)
    folders = [path for path in folders if partition_of(path.name) is not None]
    # A log that was not being moved has no mark.
    at_rest = {f"{d.path}/{name}" for d in directories for name in d.closed_logs}
    moving = [path for path in folders if str(path) not in at_rest]
    moved = {path.name: path for path in moving if log_move.has_taken_over(path)}
    unfinished: set[str] = set()
    for path in folders if moved else moving:
        key = partition_of(path.name)
        is_unfinished = str(path) not in at_rest and log_move.is_unfinished(path)
        if is_unfinished and key and (key, path.parent) in wanted:
            unfinished.add(str(path))
            continue
        if is_unfinished or moved.get(path.name, path) != path:
            target = path.with_name(put_aside(path.name, DELETE_SUFFIX))
            try:
                files.rename(path, target)
            except DiskError as error:
                [owner] = (one for one in directories if one.path == path.parent)
                failures.setdefault(owner, error)
                continue
            log.info(
                "folder of a move between log folders removed",
                extra={"fields": {"folder": str(path), "finished": path.name in moved}},
            )
    return _Marks(
        wanted=wanted,
        unfinished=frozenset(unfinished),
        moved=frozenset(map(str, moved.values())),
    )


def _wanted_moves(directory: LogDir) -> dict[tuple[TopicPartition, Path], TopicId]:
    try:
        noted = checkpoint.read_moves(directory.path / checkpoint.MOVES)
    except (CorruptFile, UnsupportedFormat) as error:
        # The move of a partition that stays where it is can be requested again.
        log.warning("moves between log folders dropped", extra={"fields": {"reason": str(error)}})
        return {}
    return {(key, directory.path): topic_id for key, topic_id in noted.items()}


def _partition_folders(
    directory: LogDir,
    marks: _Marks,
    places: dict[TopicPartition, list[Path]],
) -> dict[TopicPartition, Path]:
    """Returns the partition folders in `directory`, which are noted in `places` as well."""
    folders: dict[TopicPartition, Path] = {}
    for path in subfolders(directory.path):
        if is_put_aside(path.name) or str(path) in marks.unfinished:
            continue
        key = partition_of(path.name)
        if key is None:
            log.debug("folder is no partition", extra={"fields": {"folder": str(path)}})
            continue
        others = places.setdefault(key, [])
        for other in others:
            if not _are_of_two_topics(path, other):
                raise CorruptFile(f"{key} lies in {path} and in {other}; remove one of them")
        others.append(path)
        folders[key] = path
    return folders


def _are_of_two_topics(path: Path, other: Path) -> bool:
    """Whether one of these folders is of a topic that was deleted while its log folder was offline.

    The cluster does not know its id, so its folder is renamed: perhaps the other one already is.
    """
    try:
        topic_ids = {checkpoint.read_topic_id(path), checkpoint.read_topic_id(other)}
    except CorruptFile:
        return False
    return (len(topic_ids) == 2 and None not in topic_ids) or not other.exists()


def _removable_folders(directory: LogDir, *, keep_empty_strays: bool) -> list[Path]:
    """Folders that are no logs any more, and may be deleted with their content."""
    return [
        path
        for path in subfolders(directory.path)
        if is_removable(path.name)
        or (is_put_aside(path.name) and not keep_empty_strays and not _has_records(path))
    ]


def _has_records(path: Path) -> bool:
    """Whether a partition's folder has records; set-aside ones lie in a folder of their own."""
    return bool(subfolders(path)) or any(
        files.size_bytes(path / file_name(base_offset, LOG_SUFFIX))
        for base_offset in segment_bases(path)
    )


def _tell_stray(path: Path, target: Path, *, is_nobodys: bool) -> None:
    """Logs a stray folder. Without partition.metadata it is stray to Kafka too, which writes that
    file before the first record. If there are records the file was lost: an error for operators.
    """
    if is_nobodys and _has_records(path):
        log.error(
            "folder has records and no partition.metadata: it is not served, and kept as stray;"
            " to have it back: stop, write that file with the id of the topic, and give the folder"
            " its name again, in place of the empty one that has it now",
            extra={"fields": {"folder": str(target), "name": path.name}},
        )
        return
    log.warning(
        "partition is unknown to the cluster, folder kept as stray",
        extra={"fields": {"folder": str(target)}},
    )


def _load_log(
    directory: LogDir,
    marks: _Marks,
    config_for: ConfigFor,
    clock: Clock,
    empty_strays: list[Path] | None,
    key: TopicPartition,
    path: Path,
) -> LocalLog | None:
    """None for a folder unknown to the cluster; one without records joins `empty_strays`."""
    row = directory.closed_logs.get(path.name)
    try:
        if row is None:
            topic_id = checkpoint.read_topic_id(path) or ZERO_TOPIC_ID
        else:
            topic_id = checkpoint.decode_id(row.topic_id)
        marked = log_move.marked_log_start(path) if str(path) in marks.moved else 0
    except CorruptFile as error:
        # The topic of these records is unknown, so they are not opened. In Kafka, too, such a file
        # is an error of its log folder.
        raise DiskError(f"{path}: {error}") from error
    if marked:
        directory.log_starts[key] = max(marked, directory.log_starts.get(key, 0))
    config = config_for(key, topic_id)
    if config is None:
        if empty_strays is not None and not _has_records(path):
            target = path.with_name(put_aside(path.name, DELETE_SUFFIX))
            files.rename(path, target)
            empty_strays.append(target)
            return None
        target = path.with_name(put_aside(path.name, STRAY_SUFFIX))
        _tell_stray(path, target, is_nobodys=topic_id == ZERO_TOPIC_ID)
        files.rename(path, target)
        return None
    resumed = None
    if row is not None and directory.was_clean:
        resumed = closed_log.resume_log(path, row, config=config, now_ms=clock.now_ms())
    return LocalLog.open(
        path,
        topic_partition=key,
        topic_id=topic_id,
        config=config,
        clock=clock,
        recovery_point=directory.recovery_points.get(key, 0),
        log_start_offset=directory.log_starts.get(key, 0),
        clean_shutdown=directory.was_clean,
        was_compacted=key in directory.cleaned_offsets,
        loaded=resumed,
    )
