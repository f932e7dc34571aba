"""Logs data that readers cannot read, once per interval however often it is requested.

A consumer at a corrupt chunk fetches several times a second, and each time the chunk is downloaded
and found corrupt twice, or an object is missing. The counters count every attempt.
"""

from __future__ import annotations

import logging
from enum import Enum

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
# Beyond this number of corrupt chunks, the one logged least recently is forgotten.
REMEMBERED = 1024


class Unreadable(Enum):
    """Why a read needs an operator to succeed; the value is a metric label."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    ARCHIVED = "archived"
    DENIED = "denied"

    @classmethod
    def of(cls, error: StorageError) -> Unreadable | None:
        """Returns the reason for `error`; None for errors that may pass by themselves."""
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


_quiet_log = QuietLog(log, quiet_s=TOLD_AGAIN_S, subjects_max=REMEMBERED)


def log_corrupt_chunk(key: ChunkKey, source: str, error: CorruptRecords) -> None:
    """Logs a WARNING the first time in `TOLD_AGAIN_S`, DEBUG after that. Thread-safe."""
    _quiet_log.say(
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


def log_unreadable(reason: Unreadable, error: StorageError) -> None:
    """As `log_corrupt_chunk`, for a failed read."""
    _quiet_log.say(
        logging.WARNING,
        "archived object cannot be read",
        error.key if isinstance(error, TierError) else str(error),
        {
            "reason": reason.value,
            "error": str(error),
            "next": "readers wait there; `strandline archive verify` says what else is lost",
        },
    )
