"""Guards retention decisions against jumps of the wall clock.

    wall        12:00  12:01  |  14:07:30 2036   2036 + 1 min   ...   2036 + 60 min
    believed    12:00  12:01  |  12:02           12:03          ...   the wall clock again

A clock that jumps forward makes every record look old, and a minute later the log is gone. The
guard compares the wall clock with the monotonic one: after a forward jump it continues on the old
time line and logs that. If the new time persists for `HOLD_S`, it is believed: a machine that was
asleep, or booted without a time, must not keep its data for ever. If the clock jumps again
meanwhile, the wait restarts.

A clock that was wrong before the start does not jump: so the believed time is noted in the log
folders (`storage/local/log_dirs/last_known_time.py`), and a start whose clock is more than
START_GAP_MS ahead of the note continues from there, for as long. A machine that boots in the wrong
year must not delete its log and its archive before the time service has corrected it; one that was
switched off for a while begins to delete an hour later.

Jumps back are believed at once: they make records look younger, so that nothing is deleted early.
The following jump forward is like any other, so a clock that jumps back and forth leaves the
believed time behind by as much as it went back, until it has been steady for HOLD_S.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from strandline.storage.clock import Clock
from strandline.storage.model import TimestampMs

# Steps up to this size are ordinary clock discipline.
JUMP_MS_MIN = 60_000
# Long enough for an operator, or the time service, to correct a wrong clock.
HOLD_S = 3600.0
# A start after a shorter absence is not delayed. Clocks that are wrong at the start are wrong by a
# time zone, or by years.
START_GAP_MS = 3_600_000

log = logging.getLogger(__name__)


class JumpGuard:
    """The clock by which records expire; ask it at least as often as decisions are made."""

    def __init__(self, clock: Clock, *, last_ms: TimestampMs | None = None) -> None:
        """`last_ms` is the last believed time before this start, None if unknown."""
        self._clock = clock
        self._believed_ms = clock.now_ms()
        self._asked_s = clock.monotonic_s()
        if last_ms is not None and self._believed_ms - last_ms > START_GAP_MS:
            self._believed_ms = last_ms
        self._jumped_s: float | None = None
        # Position of the wall clock, relative to the monotonic one, after a jump.
        self._jumped_to_ms = 0

    def now_ms(self) -> TimestampMs:
        """Returns the time for decisions: the wall clock, unless it has just jumped forward."""
        wall_ms, asked_s = self._clock.now_ms(), self._clock.monotonic_s()
        expected_ms = self._believed_ms + int((asked_s - self._asked_s) * 1000)
        self._asked_s = asked_s
        if wall_ms - expected_ms <= JUMP_MS_MIN:
            self._jumped_s = None
            self._believed_ms = wall_ms
        elif self._holds(asked_s, wall_ms, jump_ms=wall_ms - expected_ms):
            self._believed_ms = expected_ms
        else:
            log.warning("clock jump accepted", extra={"fields": {"now": _text(wall_ms)}})
            self._jumped_s = None
            self._believed_ms = wall_ms
        return self._believed_ms

    def _holds(self, asked_s: float, wall_ms: TimestampMs, *, jump_ms: int) -> bool:
        stands_ms = wall_ms - int(asked_s * 1000)
        if self._jumped_s is None or abs(stands_ms - self._jumped_to_ms) > JUMP_MS_MIN:
            self._jumped_s, self._jumped_to_ms = asked_s, stands_ms
            log.warning(
                "clock jumped forward, age limits continue with the old time",
                extra={
                    "fields": {
                        "jump_ms": jump_ms,
                        "old": _text(wall_ms - jump_ms),
                        "new": _text(wall_ms),
                        "hold_s": HOLD_S,
                    }
                },
            )
        return asked_s - self._jumped_s < HOLD_S

    def __repr__(self) -> str:
        return f"<JumpGuard believed_ms={self._believed_ms} holding={self._jumped_s is not None}>"


def _text(moment_ms: TimestampMs) -> str:
    """Formats the time, within the calendar's range; a clock may have any value."""
    try:
        return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{moment_ms} ms"
