"""What readers cannot read, in the log: each is told once for a while, however often it is asked.

A consumer that stands before damage asks again several times a second, and each time the chunk is
fetched anew and found wrong twice, or an object is not there. The counters count all of it.
"""

from __future__ import annotations

import logging
from enum import Enum

from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    CorruptRecords,
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    StorageError,
    TierError,
)
from strandline.storage.quiet_log import QuietLog
from strandline.storage.remote.segment.index import ChunkKey

log = logging.getLogger(__name__)

TOLD_AGAIN_S = 600.0
# Of more damaged chunks than that, the one that was silent longest is told again.
REMEMBERED = 1024


class Unreadable(Enum):
    """Why somebody has to act before what a manifest names can be read; the value is a label."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    ARCHIVED = "archived"
    DENIED = "denied"

    @classmethod
    def of(cls, error: StorageError) -> Unreadable | None:
        """None for what may pass by itself."""
        match error:
            case ObjectNotFound():
                return cls.MISSING
            case ObjectCorrupt() | CorruptFile():
                return cls.CORRUPT
            case ObjectArchived():
                return cls.ARCHIVED
            case AccessDenied():
                return cls.DENIED
            case _:
                return None


class CorruptionLog:
    """Says which chunk was wrong, and where it was found so. May be used by several threads."""

    def __init__(self, clock: Clock) -> None:
        self._quiet_log = QuietLog(log, clock, quiet_s=TOLD_AGAIN_S, subjects_max=REMEMBERED)

    def tell(self, key: ChunkKey, source: str, error: CorruptRecords) -> None:
        """A WARNING the first time in `TOLD_AGAIN_S`, DEBUG after that."""
        self._quiet_log.say(
            logging.WARNING,
            "chunk has wrong checksum",
            (key.log_key, key.position, source),
            {
                "key": key.log_key,
                "position": key.position,
                "source": source,
                "error": str(error),
                "next": "`strandline archive verify` says what else is damaged",
            },
        )

    def tell_unreadable(self, reason: Unreadable, error: StorageError) -> None:
        """As `tell`, of a read that could not be done."""
        self._quiet_log.say(
            logging.WARNING,
            "what a manifest names cannot be read",
            error.key if isinstance(error, TierError) else str(error),
            {
                "reason": reason.value,
                "error": str(error),
                "next": "readers wait there; `strandline archive verify` says what else is lost",
            },
        )


corruption_log = CorruptionLog(SystemClock())
