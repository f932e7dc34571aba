"""Moves of partitions between the log folders of this broker, one at a time (KIP-113).

    asked -> copying -> taken over            `storage/local/log_dirs/move.py` has the steps on disk
               |  \\-> restarted               a segment was replaced under the copy
               \\----> dropped                 asked for another folder, topic deleted, disk error

A worker thread makes the copy while the partition is served; the loop hands it the tail piece by
piece. Near the end, where pieces are small, the copy is synced and, if nothing was appended
meanwhile, takes over at once. A partition that never pauses gets that one sync on the loop instead:
a stall of milliseconds rather than a gap in durability.

A requested move is noted in the target folder before the answer, and resumes after a restart from
the segments already copied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TypeVar

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.crash_points import (
    MOVE_AFTER_COPY,
    MOVE_AFTER_MARK,
    MOVE_AFTER_SWAP,
    MOVE_AFTER_SYNC,
    MOVE_BEFORE_SWAP,
    crash_point,
)
from strandline.storage.errors import DiskError, StorageError
from strandline.storage.files import FileRange
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.log_dirs import move as log_move
from strandline.storage.local.log_dirs.copy_pace import CopyPace
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.local.log_dirs.move import LAST_PIECE_BYTES, LogMove, SourceChanged
from strandline.storage.model import TopicId, TopicPartition
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# A log that keeps changing under the copy is given up; each try reads all of it.
TRIES_MAX = 5
# How often the copy is synced off the loop, in the hope that no append comes meanwhile.
SYNCS_MAX = 10

T = TypeVar("T")


class LogDirNotFound(StorageError):
    """The requested folder is not in `log.dirs`."""

    kafka_code = 57  # LOG_DIR_NOT_FOUND


class _Dropped(Exception):
    """The move is obsolete."""


class ReplicaMoves:
    """Owner of the requested moves between log folders and of the running copy.

    Call `ask` and then `note` before answering.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        log_dirs: LogDirs,
        *,
        worker: Executor,
        clock: Clock,
        pace: CopyPace,
        cleaning_paused: Callable[[TopicPartition], AbstractContextManager[None]],
        on_moved: Callable[[], None] = lambda: None,
    ) -> None:
        """`worker` makes the copies; it has no other work, which would wait behind gigabytes.
        `on_moved` is called after each. `pace` holds them to their throttle.

        A log is not compacted while it is copied, as in Kafka.
        """
        self._cleaning_paused = cleaning_paused
        self._on_moved = on_moved
        self._replicas = replicas
        self._log_dirs = log_dirs
        self._worker = worker
        self._clock = clock
        self._pace = pace
        # In the order requested; bounded by the number of partitions.
        self._wanted: dict[TopicPartition, Path] = {}
        self._current: LogMove | None = None
        self._requested = asyncio.Event()
        # Copies begun before the start that may have left files.
        self._leftovers: set[tuple[TopicPartition, Path]] = set()
        # Noted moves by folder. One writer at a time, which does not wait for a copy.
        self._noted: dict[Path, Mapping[TopicPartition, TopicId]] = {}
        self._noting = asyncio.Lock()
        self._quiet_log = QuietLog(log, clock)
        self._resume()

    def _resume(self) -> None:
        """Resumes moves requested before the start, if the partition is still the same."""
        for (key, folder), topic_id in self._log_dirs.wanted_moves.items():
            self._leftovers.add((key, folder))
            self._noted[folder] = {**self._noted.get(folder, {}), key: topic_id}
            served = self._replicas.partition(key.topic, key.partition)
            if served is None or served.topic_id != topic_id:
                continue
            if served.log.local.directory.parent != folder:
                self._wanted[key] = folder
                self._requested.set()

    # --- requests ----------------------------------------------------------------------------

    def request(self, served: Partition, path: Path) -> None:
        """Requests that the partition moves to this folder; its current folder cancels a move.

        Raises LogDirNotFound, and DiskError for a folder that is offline.
        """
        target = self._log_dirs.directory_at(path)
        if self._is_offline(path):
            raise DiskError(f"log folder {path} is offline")
        if target is None:
            raise LogDirNotFound(f"{path} is none of log.dirs")
        key = served.topic_partition
        current = self._current
        if current is not None and current.source.topic_partition == key:
            if current.target.parent == target.path:
                return
            current.cancel()
        before = self._wanted.pop(key, None)
        if before is not None:
            self._leftovers.add((key, before))
        if served.log.local.directory.parent != target.path:
            self._wanted[key] = target.path

    async def note(self) -> frozenset[Path]:
        """Makes the requested moves durable, and starts them.

        Returns the folders where that failed; nothing moves into them.
        """
        failed: set[Path] = set()
        async with self._noting:
            wanted: dict[Path, dict[TopicPartition, TopicId]] = {path: {} for path in self._noted}
            for key, folder in self._all_wanted().items():
                served = self._replicas.partition(key.topic, key.partition)
                if served is not None:
                    wanted.setdefault(folder, {})[key] = served.topic_id
            for folder, moves in wanted.items():
                if self._noted.get(folder, {}) == moves or self._is_offline(folder):
                    continue
                write = partial(checkpoint.write_moves, folder / checkpoint.MOVES, moves)
                try:
                    await asyncio.to_thread(write)
                except DiskError as error:
                    self._quiet_log.say(
                        logging.ERROR,
                        "move not recorded",
                        folder,
                        {"reason": str(error)},
                    )
                    failed.add(folder)
                else:
                    self._noted[folder] = moves
            self._wanted = {
                key: folder for key, folder in self._wanted.items() if folder not in failed
            }
        self._requested.set()
        return frozenset(failed)

    def _is_offline(self, folder: Path) -> bool:
        return any(failed.absolute() == folder.absolute() for failed in self._log_dirs.failures)

    def _all_wanted(self) -> dict[TopicPartition, Path]:
        current = self._current
        if current is None or current.cancelled:
            return dict(self._wanted)
        return {current.source.topic_partition: current.target.parent, **self._wanted}

    def current(self) -> LogMove | None:
        """Returns the running copy, for DescribeLogDirs."""
        return self._current

    def waiting(self) -> Mapping[TopicPartition, Path]:
        """Returns the target folders of pending moves."""
        return self._wanted

    # --- moving ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs the moves one after the other, for ever."""
        while True:
            while self._wanted:
                key, folder = next(iter(self._wanted.items()))
                del self._wanted[key]
                served = self._replicas.partition(key.topic, key.partition)
                if served is None:
                    self._leftovers.add((key, folder))
                else:
                    await self._move(served, folder)
                await self.note()
            await self._remove_leftovers()
            await self.note()
            self._requested.clear()
            if not self._wanted and not self._leftovers:
                await self._requested.wait()

    async def _remove_leftovers(self) -> None:
        """Removes obsolete copies from before the start."""
        while self._leftovers:
            key, folder = self._leftovers.pop()
            copy = folder / str(key)
            if self._wanted.get(key) != folder and log_move.is_unfinished(copy):
                await self._in_worker(partial(log_move.remove_copy, copy))

    async def _move(self, served: Partition, folder: Path) -> None:
        key = served.topic_partition
        fields = {"partition": str(key), "folder": str(folder)}
        for _ in range(TRIES_MAX):
            move = LogMove(served.log.local, folder / str(key), clock=self._clock, pace=self._pace)
            self._current = move
            try:
                with self._cleaning_paused(key):
                    await self._copy(served, move)
            except SourceChanged as error:
                log.info(
                    "move between log folders begins again",
                    extra={"fields": {**fields, "reason": str(error)}},
                )
                await self._abandon(move)
                continue
            except asyncio.CancelledError:
                # The broker stops: the worker must stop copying, and a start resumes the move.
                move.cancel()
                raise
            except _Dropped:
                log.info("move between log folders dropped", extra={"fields": fields})
                await self._abandon(move)
            except StorageError as error:
                log.error(
                    "move between log folders failed",
                    extra={"fields": {**fields, "reason": str(error)}},
                )
                await self._abandon(move)
            else:
                log.info("partition moved to another log folder", extra={"fields": fields})
                self._on_moved()
            finally:
                self._current = None
            return
        log.error(
            "move between log folders abandoned: the log changes faster than it is copied",
            extra={"fields": fields},
        )

    async def _copy(self, served: Partition, move: LogMove) -> None:
        """Carries out steps 1 to 7 of `log_move`."""
        source = move.source
        await self._replicas.checkpoint_log_starts()
        # Marks of an earlier move say that this folder wins over another; that ends now.
        await self._in_worker(partial(log_move.remove_marks, source.directory))
        folder = self._log_dirs.directory_at(move.target.parent)
        assert folder is not None, move.target
        await self._in_worker(folder.check_present)
        self._check(served, move)
        await self._in_worker(move.prepare)  # 1
        crash_point(MOVE_AFTER_MARK)
        self._check(served, move)
        source.roll()
        closed = [segment for segment in source.segments if not segment.is_active]
        end_offset = source.active_segment.base_offset
        await self._in_worker(partial(move.copy_closed, closed))  # 2
        self._check(served, move)
        await self._in_worker(partial(move.open_copy, end_offset))  # 3
        crash_point(MOVE_AFTER_COPY)
        is_synced = await self._catch_up(served, move)  # 4
        crash_point(MOVE_BEFORE_SWAP)
        taken_over = move.take_over(served.log.log_start_offset, is_synced=is_synced)  # 5
        served.replace_local(taken_over)
        crash_point(MOVE_AFTER_SWAP)
        self._log_dirs.replace_log(source, taken_over)
        # The mark must be durable before the old name goes: without either, a start finds no log.
        # They are on two file systems, each of which persists names at its own time.
        await self._in_worker(partial(files.sync_directory, move.target))
        crash_point(MOVE_AFTER_SYNC)
        await self._in_worker(partial(self._log_dirs.put_aside, source))  # 6
        await self._replicas.checkpoint_log_starts()
        await self._in_worker(partial(log_move.remove_marks, move.target))  # 7

    async def _catch_up(self, served: Partition, move: LogMove) -> bool:
        """Copies the tail until it is short; returns whether the copy is complete and synced."""
        for _ in range(SYNCS_MAX):
            while (piece := move.next_piece()) is not None:
                await self._append(served, move, piece)
                if piece.length < LAST_PIECE_BYTES:
                    break
            await self._in_worker(move.sync)
            self._check(served, move)
            if move.offset_lag == 0:
                return True
        while (piece := move.next_piece()) is not None and piece.length >= LAST_PIECE_BYTES:
            await self._append(served, move, piece)
        return False

    async def _append(self, served: Partition, move: LogMove, piece: FileRange) -> None:
        await self._in_worker(partial(move.append, piece))
        self._check(served, move)
        self._pace.copied(piece.length)
        while pause_s := self._pace.pause_s():
            await asyncio.sleep(pause_s)
            self._check(served, move)

    def _check(self, served: Partition, move: LogMove) -> None:
        """Raises _Dropped if the partition is gone or the move cancelled, SourceChanged if its log
        was reopened meanwhile (the copy lacks what was appended then), and DiskError if the log
        has stopped: it may be reopened before it is served again. Also if the target is offline.
        """
        key = served.topic_partition
        if move.cancelled or self._replicas.partition(key.topic, key.partition) is not served:
            raise _Dropped
        if served.log.local is not move.source:
            raise SourceChanged(f"{key} was opened anew")
        if move.source.failure is not None:
            raise DiskError(f"{key} has stopped: {move.source.failure}")
        if self._is_offline(move.target.parent):
            raise DiskError(f"log folder {move.target.parent} is offline")

    async def _abandon(self, move: LogMove) -> None:
        if log_move.has_taken_over(move.target):
            return  # A failure after the swap: the copy is the log, a start finishes the rest.
        try:
            await self._in_worker(move.abandon)
        except StorageError as error:
            log.error(
                "copy of a partition could not be removed; a restart does it",
                extra={"fields": {"folder": str(move.target), "reason": str(error)}},
            )

    async def _in_worker(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)
