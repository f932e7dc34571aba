"""Figures of the cleaner, in plain numbers for the metrics exporter."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage.local.cleaner.messages import CleaningStatistics


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
