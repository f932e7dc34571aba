"""Lines of the log that others can cause: the same about the same thing once a minute.

A client repeats what failed as fast as it can, and a disk or a store that fails does so at every
use. Were each time a line, it would fill the disk that the log lies on; so what is left out is
counted, and the next line says how many it stands for.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Hashable, Mapping

from strandline.storage.clock import Clock, SystemClock

QUIET_S = 60.0
# Things are partitions or files mostly. Beyond so many the one that was silent longest is
# forgotten, and may be said anew.
SUBJECTS_MAX = 10_000


class QuietLog:
    """Says each thing, and is quiet about it for a while. May be used by several threads."""

    def __init__(
        self,
        log: logging.Logger,
        clock: Clock | None = None,
        *,
        quiet_s: float = QUIET_S,
        subjects_max: int = SUBJECTS_MAX,
    ) -> None:
        """Without a `clock` it goes by the machine's."""
        self._log = log
        self._clock = clock or SystemClock()
        self._quiet_s = quiet_s
        self._subjects_max = subjects_max
        self._lock = threading.Lock()
        # By what it is about: when it was said, and how often it was not since.
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
        """Writes the line, unless one of this event about this was written lately.

        It is at DEBUG then. With an `error` its traceback is written too. The field `not_logged`
        counts the lines that were left out.
        """
        unsaid_count = self._take_turn((event, about))
        if unsaid_count is None:
            level, more = logging.DEBUG, {}
        else:
            more = {"not_logged": unsaid_count} if unsaid_count else {}
        self._log.log(level, event, extra={"fields": {**fields, **more}}, exc_info=error)

    def _take_turn(self, subject: Hashable) -> int | None:
        """How often it was not said since it was; None if it is not to be said now."""
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
    """What an unexpected error is about: its class, and the file and line that raised it.

    Not its text, of which a client may have sent a part.
    """
    file, line = "", 0
    for frame, line_number in traceback.walk_tb(error.__traceback__):
        file, line = frame.f_code.co_filename, line_number
    return type(error), file, line
