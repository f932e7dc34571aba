"""Retention over both tiers under a wall clock that jumps, and records that lie about their time.

The model knows what time it really is. A record may go when the newest timestamp of its segment is
older than `retention.ms` in real time, never before; and in the end, when the clock is right again
for long enough, everything that is too old has gone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LONG_MAX
from tests.support.manual_clock import ManualClock
from tests.unit.storage.tiering.harness import CONFIG, Rig, asynchronous

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS
ACTIONS = ["produce"] * 4 + ["roll", "pass", "pass", "pass", "back", "ahead", "heal"]


class JumpingClock(ManualClock):
    """Its monotonic half is real time; the wall goes where it is told."""

    def __init__(self) -> None:
        super().__init__()
        self._start_ms = self.now_ms()

    @property
    def real_ms(self) -> int:
        return self._start_ms + round(self.monotonic_s() * 1000)

    def be_wrong_by(self, delta_ms: int) -> None:
        self._now_ms = self.real_ms + delta_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A batch of one record."""

    offset: int
    timestamp_ms: int


class Life:
    """One partition and what it was sent."""

    def __init__(self, rig: Rig, clock: JumpingClock, draw: random.Random) -> None:
        self.rig = rig
        self.clock = clock
        self.draw = draw
        self.sent: list[Sent] = []
        self._ahead_since_ms: int | None = None

    async def step(self, action: str) -> None:
        draw, clock, rig = self.draw, self.clock, self.rig
        match action:
            case "produce":
                lie_ms = draw.choice([0] * 12 + [-2 * DAY_MS, -3 * HOUR_MS, DAY_MS, YEAR_MS])
                sent = Sent(offset=rig.log.end_offset, timestamp_ms=clock.real_ms + lie_ms)
                rig.produce(1, timestamp_ms=sent.timestamp_ms)
                self.sent.append(sent)
            case "roll":
                rig.roll()
            case "pass":
                self._pass(draw.choice([1, 10, 30]) * MINUTE_MS)
            case "back":
                clock.be_wrong_by(-draw.choice([HOUR_MS, 3 * DAY_MS, 30 * YEAR_MS]))
                self._ahead_since_ms = None
            case "ahead":
                clock.be_wrong_by(draw.choice([2 * MINUTE_MS, 5 * HOUR_MS, DAY_MS, 12 * YEAR_MS]))
                self._ahead_since_ms = self._ahead_since_ms or clock.real_ms
            case "heal":
                self.heal()
        if action not in ("produce", "roll"):
            # Retention sees each jump when it happens, as one does that runs every five minutes.
            await rig.settle()
            self.assert_nothing_went_early()

    def heal(self) -> None:
        self.clock.be_wrong_by(0)
        self._ahead_since_ms = None

    def _pass(self, delta_ms: int) -> None:
        """A wrong clock is put right within the hour that retention waits for it."""
        since_ms = self._ahead_since_ms
        if since_ms is not None and self.clock.real_ms + delta_ms - since_ms >= HOUR_MS:
            self.heal()
        self.clock.advance_ms(delta_ms)

    def assert_nothing_went_early(self) -> None:
        retention_ms = self.rig.config.retention_ms
        for sent in self.sent:
            if sent.offset < self.rig.log.log_start_offset:
                assert sent.timestamp_ms + retention_ms <= self.clock.real_ms, sent

    async def come_to_rest(self) -> None:
        """The clock is right, and believed; everything is copied."""
        self.heal()
        for _ in range(4):
            await self.rig.settle()
            self.clock.advance_ms(31 * MINUTE_MS)
        await self.rig.settle()
        self.assert_nothing_went_early()

    def assert_nothing_is_late(self) -> None:
        """The oldest segment that is left, in whichever tier, is young, or still written."""
        unified_log = self.rig.log
        start = unified_log.log_start_offset
        borders = [end for _, end in self.rig.archived if end > start]
        borders += [s.end_offset for s in unified_log.local.segments if not s.is_active]
        end_offset = min((border for border in borders if border > start), default=None)
        if end_offset is None:
            return
        newest_ms = max(s.timestamp_ms for s in self.sent if start <= s.offset < end_offset)
        assert newest_ms + self.rig.config.retention_ms > self.clock.real_ms


@pytest.mark.parametrize("is_tiered", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_no_clock_makes_retention_early_and_none_makes_it_late_for_ever(
    tmp_path: Path, seed: int, is_tiered: bool
) -> None:
    @asynchronous
    async def run() -> None:
        draw = random.Random(seed)
        config = replace(
            CONFIG,
            remote_storage_enable=is_tiered,
            retention_ms=draw.choice([20 * MINUTE_MS, 2 * HOUR_MS, DAY_MS, 100 * YEAR_MS]),
            local_retention_ms=draw.choice([MINUTE_MS, 20 * MINUTE_MS]),
            message_timestamp_after_max_ms=LONG_MAX,
            segment_ms=LONG_MAX,
        )
        clock = JumpingClock()
        async with Rig(tmp_path, config=config, clock=clock) as rig:
            life = Life(rig, clock, draw)
            for _ in range(80):
                await life.step(draw.choice(ACTIONS))
            await life.come_to_rest()
            life.assert_nothing_is_late()
            if config.retention_ms == 100 * YEAR_MS:
                assert rig.log.log_start_offset == 0
                await rig.assert_everything_is_readable()

    run()
