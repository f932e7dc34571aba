"""Rate limit of cold reads beside live traffic. Pure: callers pass the time.

    live    produce requests, whose records consumers at the end of the log wait for
    cold    answers from the archive, and their downloads

After a produce request, cold answers go in turns of TURN_BYTES for LIVE_S, and no faster than a
limit; downloads begin no faster than that either. The limit follows the lateness of timer ticks
(`storage/system/timer.py`): a live request of the same moment waited as long for the loop or a
core.

    the tick was late    limit x DECREASE, once in CUT_S
    it was not           limit x INCREASE, if the limit is what cold waits for

These balance when one tick in a hundred is late, so they bound the 99th percentile of the wait.
The limit never falls below a floor, so a rewind always advances.

A tick is late if it is later than the setting or, on a busy machine, than RATIO times its lateness
without cold reads. Regular pauses of cold reads measure the latter:

    cold ..........| draining | looking |..................... QUIET_PART times as long ........|
                   no turn, no download begins; ticks count once no download is under way

Without live traffic there is no limit and no tick, and cold answers have the turns of all answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.storage.config.definition import DOUBLE, LONG, MIB, key
from strandline.storage.rates import TokenBucket

# A producer that sends every second is live all the time.
LIVE_S = 1.5
# Takes a tenth of a millisecond to send.
TURN_BYTES = 64 * 1024
# A prime number of microseconds, so that ticks do not keep step with clients that send every
# millisecond, or every ten: in step, all of them would come beside a request or none of them would.
# At the default floor about a turn falls due with each tick; more ticks would bring only work.
TICK_S = 0.015629
# Unused allowance expires after so many ticks.
BURST_TICKS = 2
# log(1 / DECREASE) is a hundred times log(INCREASE).
DECREASE = 0.7
INCREASE = 1.0036
# One cause makes several ticks late.
CUT_S = 10 * TICK_S
FIRST_LIMIT = 64e6
# Beyond what a loop can send: there is no limit then, and it must not take long to come back.
LIMIT_MAX = 2e9

RATIO = 1.3
# Ticks that are looked at in a pause: most of the 99th percentile is known from earlier ones.
QUIET_S = 0.08
# Most downloads finish within this time.
DRAIN_S_MAX = 0.5
# The share of time for pauses is one in so many.
QUIET_PART = 25
# Steps of the percentile: up where a tick was later, down by a hundredth of that where it was not.
QUIET_UP = 0.5
# From here on the percentile grows: what the kernel's timer itself is late by. It keeps nothing of
# the setting, which may be lowered.
QUIET_S_MIN = 10e-6
# A tick as late as this is late on any machine: such a wait is not live traffic any more.
LATE_S_MAX = 0.1

# An answer is bounded by what goes out in this time: its client waits for it to the end.
ANSWER_S = 0.5
ANSWER_BYTES_MIN = TURN_BYTES
# Meanwhile the limit may have risen, or live traffic may have ended.
ASK_AGAIN_S = 0.1
# Without cold reads for this long, the rewind is over, or waits for the store.
IDLE_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceConfig:
    """Settings of the pace of cold reads."""

    lateness_s_max: float = key(
        "strandline.remote.fetch.yield.ms",
        DOUBLE,
        0.25,
        "While producers send, the broker throttles cold reads until 99 of 100 requests wait for"
        " their turn at most this long, in ms, or 1.3 times as long as without cold reads."
        " 0: cold reads never yield.",
        minimum=0,
        dynamic=True,
        convert=lambda ms: ms / 1000,
    )
    floor_bytes_per_s: int = key(
        "strandline.remote.fetch.yield.floor.bytes.per.second",
        LONG,
        4 * MIB,
        "Minimum rate of all cold reads together, in bytes per second, however busy the broker"
        " is, so that each of them advances.",
        minimum=64 * 1024,
        dynamic=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceStatistics:
    """The limit (0: none now), the lateness that counts as late, and the time cold reads waited."""

    limit_bytes_per_s: float
    lateness_s_max: float
    waiting_answers: int
    held_s_total: float
    cuts_total: int


class _UsualLateness:
    """Running estimate of the 99th percentile of tick lateness without cold reads."""

    __slots__ = ("_lateness_s",)

    def __init__(self) -> None:
        self._lateness_s = QUIET_S_MIN

    def late_s(self, setting_s: float) -> float:
        """Returns the lateness above which a tick counts as late."""
        return max(setting_s, min(RATIO * self._lateness_s, LATE_S_MAX))

    def record(self, lateness_s: float) -> None:
        """Records the lateness of a tick without cold reads."""
        known_s = self._lateness_s
        if lateness_s > known_s:
            self._lateness_s = min(lateness_s, known_s * (1 + QUIET_UP), LATE_S_MAX)
        else:
            self._lateness_s = max(known_s * (1 - QUIET_UP / 100), QUIET_S_MIN)


class ColdPace:
    """Rate limiter of cold answers and downloads. Used on the event loop only."""

    def __init__(self, settings: Callable[[], PaceConfig]) -> None:
        """`settings` are asked for at every use: they may be altered."""
        self._settings = settings
        # Answers that wait for a turn; the scheduler of the turns maintains it.
        self.waiting_count = 0
        self._live_s = -LIVE_S
        self._cold_s = -IDLE_S
        self._limit = FIRST_LIMIT
        self._answers = TokenBucket()
        self._downloads = TokenBucket()
        self._running_downloads = 0
        # Whether cold waited for its limit since the last tick.
        self._is_short = False
        self._waits_since_s: float | None = None
        self._cut_s = 0.0
        self._usual = _UsualLateness()
        self._pause_began_s: float | None = None
        self._measuring_began_s: float | None = None
        self._next_pause_s = 0.0
        self._held_s = 0.0
        self._cuts_total = 0

    def __repr__(self) -> str:
        return f"<ColdPace limit={self._limit:.0f} waiting={self.waiting_count}>"

    # --- events ------------------------------------------------------------------------------

    def saw_live(self, now_s: float) -> None:
        """Notes a produce request."""
        self._live_s = now_s

    def is_held(self, now_s: float) -> bool:
        """Returns whether cold reads have a limit and small turns now."""
        return now_s - self._live_s < LIVE_S and self._settings().lateness_s_max > 0

    @property
    def stands_still(self) -> bool:
        """Whether cold reads pause for a measurement."""
        return self._pause_began_s is not None

    def ticked(self, lateness_s: float, now_s: float) -> None:
        """Adjusts the limit after a tick that came `lateness_s` after its time."""
        settings = self._settings()
        if self._pause_began_s is not None:
            self._measure_quiet(lateness_s, now_s)
            return
        if lateness_s > self._usual.late_s(settings.lateness_s_max):
            if now_s - self._cut_s >= CUT_S:
                self._cut_s = now_s
                self._cuts_total += 1
                self._limit *= DECREASE
        elif self._is_short:
            self._limit = min(self._limit * INCREASE, LIMIT_MAX)
        self._limit = max(self._limit, settings.floor_bytes_per_s)
        self._is_short = False
        if now_s >= self._next_pause_s:
            self._pause_began_s = now_s

    def _measure_quiet(self, lateness_s: float, now_s: float) -> None:
        """Measures the lateness of ticks during a pause of cold reads."""
        assert self._pause_began_s is not None
        paused_s = now_s - self._pause_began_s
        if self._measuring_began_s is None:
            if not self._running_downloads:
                # The next tick is the first that is due with nothing cold under way.
                self._measuring_began_s = now_s
            elif paused_s > DRAIN_S_MAX:
                self._end_pause(now_s)
            return
        self._usual.record(lateness_s)
        if now_s - self._measuring_began_s >= QUIET_S:
            self._end_pause(now_s)

    def _end_pause(self, now_s: float) -> None:
        assert self._pause_began_s is not None
        paused_s = now_s - self._pause_began_s
        self._next_pause_s = now_s + (QUIET_PART - 1) * paused_s
        self._pause_began_s = self._measuring_began_s = None

    def is_idle(self, now_s: float) -> bool:
        """Returns whether there are too few cold reads to need ticks."""
        is_under_way = self.waiting_count or self._running_downloads
        return not is_under_way and now_s - self._cold_s >= IDLE_S

    def stood_still(self, now_s: float) -> None:
        """Notes the end of the ticks: no read is cold, or no traffic is live."""
        self._waits_since_s = None
        if self._pause_began_s is not None:
            self._end_pause(now_s)

    # --- answers -----------------------------------------------------------------------------

    def turn_bytes(self, now_s: float) -> int:
        """Bytes that a waiting cold answer may send now; 0 if none may."""
        burst_bytes = self._limit * BURST_TICKS * TICK_S
        allowed_bytes = self._answers.tokens(now_s, per_s=self._limit, burst=burst_bytes)
        if allowed_bytes > 0 and not self.stands_still:
            self._cold_s = now_s
            if self._waits_since_s is not None:
                self._held_s += now_s - self._waits_since_s
                self._waits_since_s = None
            return TURN_BYTES
        self._is_short = True
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        return 0

    def sent(self, size_bytes: int) -> None:
        """Counts the bytes of a turn."""
        self._answers.take(size_bytes)

    def answer_bytes_max(self, now_s: float) -> int | None:
        """Size limit of a cold answer beside the waiting ones; None without a limit."""
        if not self.is_held(now_s):
            return None
        share = self._limit * ANSWER_S / (self.waiting_count + 1)
        return max(int(share), ANSWER_BYTES_MIN)

    # --- downloads ---------------------------------------------------------------------------

    def download_wait_s(self, now_s: float) -> float:
        """Returns 0 if a download may begin now, else the seconds after which to ask again."""
        if not self.is_held(now_s):
            return 0.0
        self._cold_s = now_s
        if self.stands_still:
            return TICK_S
        if self._downloads.tokens(now_s, per_s=self._limit, burst=1) > 0:
            return 0.0
        self._is_short = True
        return min(self._downloads.debt_ms(self._limit) / 1000 + TICK_S, ASK_AGAIN_S)

    def download_began(self, size_bytes: int, now_s: float) -> None:
        self._running_downloads += 1
        if self.is_held(now_s):
            self._downloads.take(size_bytes)

    def download_ended(self) -> None:
        self._running_downloads -= 1

    # --- report ------------------------------------------------------------------------------

    def statistics(self, now_s: float) -> PaceStatistics:
        return PaceStatistics(
            limit_bytes_per_s=self._limit if self.is_held(now_s) else 0.0,
            lateness_s_max=self._usual.late_s(self._settings().lateness_s_max),
            waiting_answers=self.waiting_count,
            held_s_total=self._held_s,
            cuts_total=self._cuts_total,
        )
