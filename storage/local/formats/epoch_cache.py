"""The leader epochs of a log and their start offsets: `leader-epoch-checkpoint`.

    (epoch 0, 0) (epoch 3, 120) (epoch 4, 200)   and end 260:
    epoch 0 wrote [0, 120), 1 and 2 wrote nothing, 3 wrote [120, 200), 4 writes [200, ...)

Epochs and start offsets both grow strictly. The lineage begins at the *log* start, which may be in
the remote tier: removing local segments does not shorten it, moving the log start does. So it does
not grow without bound over restarts.

A new epoch is in memory at once and in the file a little later: replacing a file may wait for the
device, and after a restart every partition begins an epoch with its first append. Until then
recovery reads it from the batches behind the recovery point: `flush` writes the file, or syncs one
that was only written, before it moves that point.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import CorruptFile, DiskError
from strandline.storage.local.formats import checkpoint
from strandline.storage.model import NO_EPOCH, EpochStart


class LeaderEpochCache:
    """The leader-epoch lineage of one partition, and its file."""

    def __init__(self, path: Path | str, starts: Iterable[EpochStart] = ()) -> None:
        # Text and not a Path: a start creates thousands of them.
        self._path = path
        self._starts: tuple[EpochStart, ...] = tuple(starts)
        self.latest_epoch = self._starts[-1].epoch if self._starts else NO_EPOCH
        # Whether the file lacks an epoch that was assigned.
        self.is_unwritten = False
        # Whether a power cut may lose the last write of the file.
        self.is_unsynced = False
        # Worker threads also write the file.
        self._write_lock = threading.Lock()

    @classmethod
    def open(cls, path: Path | str) -> LeaderEpochCache:
        """Reads the file. Raises CorruptFile if its epochs or offsets do not grow."""
        starts = checkpoint.read_epochs(path)
        for before, after in pairwise(starts):
            if after.epoch <= before.epoch or after.start_offset < before.start_offset:
                raise CorruptFile(f"{path}: {after} after {before}")
        return cls(path, starts)

    @property
    def path(self) -> Path:
        return Path(self._path)

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        return self._starts

    def assign(self, epoch: int, start_offset: int) -> None:
        """Notes that `epoch` begins to write at `start_offset`; the file follows with `write`.

        An epoch that is not newer than the latest changes nothing. Epochs that were assigned but
        never wrote anything (their start is not before `start_offset`) are dropped.
        """
        if epoch <= self.latest_epoch:
            return
        kept = tuple(start for start in self._starts if start.start_offset < start_offset)
        self._starts = (*kept, EpochStart(epoch, start_offset))
        self.latest_epoch = epoch
        self.is_unwritten = True

    def epoch_for(self, offset: int) -> int:
        """Returns the epoch that wrote `offset`; -1 before the start of the lineage."""
        found = bisect_right(self._starts, offset, key=lambda start: start.start_offset)
        return self._starts[found - 1].epoch if found else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochStart:
        """The answer of OffsetForLeaderEpoch: the largest epoch <= `epoch`, and where it ended.

        (-1, -1) if `epoch` is newer than the latest one.
        """
        if epoch == NO_EPOCH or not self._starts or epoch > self.latest_epoch:
            return EpochStart(NO_EPOCH, -1)
        found = bisect_right(self._starts, epoch, key=lambda start: start.epoch)
        if epoch == self.latest_epoch:
            return EpochStart(epoch, log_end_offset)
        if found == 0:
            # Older than the oldest known epoch: its records are gone, so it ends where we begin.
            return EpochStart(epoch, self._starts[0].start_offset)
        return EpochStart(self._starts[found - 1].epoch, self._starts[found].start_offset)

    def truncate_from_start(self, start_offset: int) -> None:
        """Drops epochs of records before `start_offset`; the file follows with `write`.

        As Kafka's LeaderEpochFileCache.truncateFromStartAsyncFlush: the epoch that wrote at
        `start_offset` begins there from now on.
        """
        found = bisect_right(self._starts, start_offset, key=lambda start: start.start_offset)
        if not found or self._starts[0].start_offset >= start_offset:
            return
        first = EpochStart(self._starts[found - 1].epoch, start_offset)
        self._starts = (first, *self._starts[found:])
        self.is_unwritten = True

    def truncate_from_end(self, end_offset: int) -> None:
        """Drops epochs that begin at or after `end_offset`."""
        found = bisect_left(self._starts, end_offset, key=lambda start: start.start_offset)
        if found < len(self._starts):
            self.replace(self._starts[:found])

    def replace(self, starts: Iterable[EpochStart]) -> None:
        """Replaces the lineage and writes the file."""
        self._starts = tuple(starts)
        self.latest_epoch = self._starts[-1].epoch if self._starts else NO_EPOCH
        # Not synced: epochs after the recovery point are read again from the batches themselves.
        self.write(sync=False)

    def write(self, *, sync: bool) -> None:
        """Brings the file up to date. Blocks; may be called from any thread. Raises DiskError."""
        with self._write_lock:
            # Cleared first, so that an epoch assigned meanwhile stays marked as not written.
            self.is_unwritten, self.is_unsynced = False, not sync
            try:
                checkpoint.write_epochs(self._path, self._starts, sync=sync)
            except (DiskError, MemoryError):
                self.is_unwritten = self.is_unsynced = True
                raise

    def sync(self) -> None:
        """Syncs the file as it is; the caller makes its name durable. Blocks, like `write`."""
        with self._write_lock:
            self.is_unsynced = False
            try:
                files.sync_file(self.path)
            except (DiskError, MemoryError):
                self.is_unsynced = True
                raise

    def __repr__(self) -> str:
        return f"<LeaderEpochCache {list(map(tuple, self._starts))}>"
