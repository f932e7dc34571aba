"""What the cleaner tells of itself, in plain numbers that an exporter reads."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage.local.cleaner.messages import CleaningStatistics


@dataclass(slots=True)
class CleanerFigures:
    """Of the last look for work, of the last cleaning, and since the start."""

    last_look_ms: int
    # The dirtiest log, 0 to 1.
    dirty_ratio_max: float = 0.0
    uncleanable_partitions: int = 0
    uncleanable_bytes: int = 0
    # How long max.compaction.lag.ms has been over for the log that waits longest.
    delay_ms_max: int = 0

    # How full the memory for keys became, 0 to 1, and how long it all took.
    key_share: float = 0.0
    clean_s: float = 0.0

    cleanings_total: int = 0
    read_bytes_total: int = 0
    written_bytes_total: int = 0

    def note_cleaning(self, done: CleaningStatistics, *, elapsed_s: float) -> None:
        """A log was cleaned."""
        self.key_share = done.key_share
        self.clean_s = elapsed_s
        self.cleanings_total += 1
        self.read_bytes_total += done.indexed_bytes + done.bytes_read
        self.written_bytes_total += done.bytes_written
