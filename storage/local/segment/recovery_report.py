"""The report of opening a log: problems found and repairs made."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """Problems and repairs of opening a log; complete when the log is open."""

    clean_shutdown: bool
    # Whether the log was opened from the row of its clean close, without a check of its files.
    was_resumed: bool = False
    segments_checked: int = 0
    batches_checked: int = 0
    # After kill -9 that is an unacknowledged torn tail at most.
    bytes_cut: int = 0
    # Whether more is gone than that: records that were once in the log as a whole.
    has_lost_records: bool = False
    segments_removed: int = 0
    indexes_rebuilt: int = 0
    files_removed: int = 0
    producer_batches_replayed: int = 0
    problems: list[str] = field(default_factory=list)

    def note_problem(self, directory: Path, text: str) -> None:
        """Adds a problem, and logs it."""
        self.problems.append(text)
        log.warning("log repaired", extra={"fields": {"folder": str(directory), "problem": text}})
