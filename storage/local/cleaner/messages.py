"""Messages between the broker and the child process that cleans; see `process.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from strandline.storage.config.log_config import LONG_MAX, LogConfig
from strandline.storage.local.cleaner.plan import CleanableFacts
from strandline.storage.local.segment.cleaned_segment import CleanedFacts
from strandline.storage.model import AbortedTransaction

# Loading numba takes a second or two of CPU and 100 MB; plain Python cleans this much in that time.
PLAIN_BYTES_MAX = 16 * 1024 * 1024
PLAIN_OFFSETS_MAX = 100_000


class ProducerTail(NamedTuple):
    """The last offset that a producer wrote; `last_data_offset` is -1 if that was a marker."""

    producer_id: int
    epoch: int
    last_data_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRequest:
    """One log to be cleaned. `segments` are the closed ones below the first uncleanable offset.

    `aborted` are the aborted transactions that touch them, `producers` those that may go on.
    Tombstones and markers at or above `horizon_end_offset` are kept even after their horizon. With
    `keeps_segments` no segment becomes empty: the header of its last batch is kept. With
    `asks_for_segments` the child requests each one before it reads it, and needs one at a time.
    `key_bytes_max` is this cleaner's share of log.cleaner.dedupe.buffer.size, `io_bytes` that of
    log.cleaner.io.buffer.size.
    """

    directory: Path
    config: LogConfig
    segments: tuple[CleanableFacts, ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    producers: tuple[ProducerTail, ...]
    aborted: tuple[AbortedTransaction, ...]
    now_ms: int
    key_bytes_max: int
    load_factor: float
    io_bytes: int
    io_bytes_per_s: float
    horizon_end_offset: int = LONG_MAX
    keeps_segments: bool = False
    asks_for_segments: bool = False
    group_starts: frozenset[int] = frozenset()

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def is_large(self) -> bool:
        """Whether compiled loops are worth loading."""
        dirty_offsets = self.first_uncleanable_offset - self.first_dirty_offset
        return self.size_bytes > PLAIN_BYTES_MAX or dirty_offsets > PLAIN_OFFSETS_MAX


@dataclass(frozen=True, slots=True)
class Proceed:
    """From the broker: the group is swapped in, or the wanted segment is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateAltered:
    """From the broker: this cleaning may read and write so much from now on."""

    io_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentWanted:
    """A request of the child: it needs the file of this segment to go on."""

    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup:
    """Segments and the one that replaces them; `facts` is None if the cleaning changes nothing."""

    sources: tuple[CleanableFacts, ...]
    facts: CleanedFacts | None


@dataclass(slots=True, kw_only=True)
class CleaningStatistics:
    """Totals of a cleaning; `key_share` is how full the memory for keys became, 0 to 1."""

    next_dirty_offset: int
    key_count: int = 0
    key_share: float = 0.0
    indexed_bytes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    keyless_records: int = 0
    unreadable_batches: int = 0


@dataclass(slots=True)
class CleanerFigures:
    """Figures of the last search for work, of the last cleaning, and totals since the start."""

    last_look_ms: int
    # The dirty ratio of the dirtiest log, 0 to 1.
    dirty_ratio_max: float = 0.0
    uncleanable_partitions: int = 0
    uncleanable_bytes: int = 0
    # How far the log that waits longest is beyond max.compaction.lag.ms.
    delay_ms_max: int = 0

    # How full the memory for keys became, 0 to 1, and how long the cleaning took.
    key_share: float = 0.0
    clean_s: float = 0.0

    cleanings_total: int = 0
    read_bytes_total: int = 0
    written_bytes_total: int = 0

    def note_cleaning(self, done: CleaningStatistics, *, elapsed_s: float) -> None:
        """Adds a finished cleaning."""
        self.key_share = done.key_share
        self.clean_s = elapsed_s
        self.cleanings_total += 1
        self.read_bytes_total += done.indexed_bytes + done.bytes_read
        self.written_bytes_total += done.bytes_written
