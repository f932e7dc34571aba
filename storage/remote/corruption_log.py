"""Damaged chunks in the log: each is told once for a while, however often it is asked for.

A consumer that stands before damage asks again several times a second, and each time the chunk is
fetched anew and found wrong twice. The counters count all of it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import CorruptRecords
from strandline.storage.remote.segment_index import ChunkKey

log = logging.getLogger(__name__)

TOLD_AGAIN_S = 600.0
# Of more damaged chunks than that, the one that was told longest ago is told again.
REMEMBERED = 1024


class CorruptionLog:
    """Says which chunk was wrong, and where it was found so. May be used by several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told_s: OrderedDict[tuple[str, int, str], float] = OrderedDict()

    def tell(self, key: ChunkKey, source: str, error: CorruptRecords) -> None:
        """A WARNING the first time in `TOLD_AGAIN_S`, DEBUG after that."""
        log.log(
            logging.WARNING if self._is_new((key.log_key, key.position, source)) else logging.DEBUG,
            "chunk has wrong checksum",
            extra={
                "fields": {
                    "key": key.log_key,
                    "position": key.position,
                    "source": source,
                    "error": str(error),
                    "next": "`strandline archive verify` says what else is damaged",
                }
            },
        )

    def _is_new(self, what: tuple[str, int, str]) -> bool:
        now_s = self._clock.monotonic_s()
        with self._lock:
            told_s = self._told_s.get(what)
            if told_s is not None and now_s < told_s + TOLD_AGAIN_S:
                return False
            self._told_s[what] = now_s
            self._told_s.move_to_end(what)
            if len(self._told_s) > REMEMBERED:
                self._told_s.popitem(last=False)
            return True


corruption_log = CorruptionLog(SystemClock())
