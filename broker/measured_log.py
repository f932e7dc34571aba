"""Lines of the log that clients can cause: the same about the same thing once a minute.

A client repeats what failed as fast as it can. Were each refusal a line, it would fill the disk
that the log lies on; so what is left out is counted, and the next line says how many it stands for.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping

from strandline.storage.clock import Clock

QUIET_S = 60.0
# Things are partitions mostly. Beyond so many the one that was silent longest is
# forgotten, and may be said anew.
SUBJECTS_MAX = 10_000


class MeasuredLog:
    """Used by one thread."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        # By what it is about: when it was said, and how often it was not since.
        self._said: dict[Hashable, tuple[float, int]] = {}

    def say(self, level: int, event: str, about: Hashable, fields: Mapping[str, object]) -> None:
        """Writes the line, unless one of this event about this was written lately."""
        now_s = self._clock.monotonic_s()
        subject = (event, about)
        said_s, unsaid_count = self._said.pop(subject, (-QUIET_S, 0))
        if now_s - said_s < QUIET_S:
            self._said[subject] = (said_s, unsaid_count + 1)
            self._log.debug(event, extra={"fields": fields})
            return
        while len(self._said) >= SUBJECTS_MAX:
            del self._said[next(iter(self._said))]
        self._said[subject] = (now_s, 0)
        more = {"not_logged": unsaid_count} if unsaid_count else {}
        self._log.log(level, event, extra={"fields": {**fields, **more}})
