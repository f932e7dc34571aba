"""Rate-limited log lines for events that clients or devices can cause: once a minute each.

A client retries a failure as fast as it can, and a broken disk or store fails at every
use. One line each time would fill the disk with the log; so suppressed lines are
counted, and the next line says how many it stands for.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Hashable, Mapping

from strandline.storage.clock import Clock, SystemClock

QUIET_S = 60.0
# Subjects are mostly partitions or files. Beyond this many the one that was silent longest is
# dropped, and may be logged again.
SUBJECTS_MAX = 10_000


class QuietLog:
    """Logs each event about a subject once per interval, and counts the rest. Thread-safe."""

    def __init__(
        self,
        log: logging.Logger,
        clock: Clock | None = None,
        *,
        quiet_s: float = QUIET_S,
        subjects_max: int = SUBJECTS_MAX,
    ) -> None:
        """Without a `clock` it uses the machine's."""
        self._log = log
        self._clock = clock or SystemClock()
        self._quiet_s = quiet_s
        self._subjects_max = subjects_max
        self._lock = threading.Lock()
        # By subject: when it was logged last, and how many lines were suppressed since.
        self._said: dict[Hashable, tuple[float, int]] = {}

    def say(
        self,
        level: int,
        event: str,
        about: Hashable,
        fields: Mapping[str, object],
        *,
        error: BaseException | None = None,
    ) -> None:
        """Writes the line, unless one of this event about this subject was written lately.

        It is at DEBUG then. With an `error` its traceback is written too. The field `not_logged`
        counts the suppressed lines.
        """
        unsaid_count = self._take_turn((event, about))
        if unsaid_count is None:
            level, more = logging.DEBUG, {}
        else:
            more = {"not_logged": unsaid_count} if unsaid_count else {}
        self._log.log(level, event, extra={"fields": {**fields, **more}}, exc_info=error)

    def _take_turn(self, subject: Hashable) -> int | None:
        """Returns how many lines were suppressed since the last one; None if this one is, too."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            said_s, unsaid_count = self._said.pop(subject, (None, 0))
            if said_s is not None and now_s - said_s < self._quiet_s:
                self._said[subject] = (said_s, unsaid_count + 1)
                return None
            while len(self._said) >= self._subjects_max:
                del self._said[next(iter(self._said))]
            self._said[subject] = (now_s, 0)
            return unsaid_count

    def __repr__(self) -> str:
        return f"<QuietLog {self._log.name} subjects={len(self._said)}>"


def place_of(error: BaseException) -> tuple[type[BaseException], str, int]:
    """Returns the subject of an unexpected error: its class, and the file and line that raised it.

    Not its text, part of which may come from a client.
    """
    file, line = "", 0
    for frame, line_number in traceback.walk_tb(error.__traceback__):
        file, line = frame.f_code.co_filename, line_number
    return type(error), file, line
