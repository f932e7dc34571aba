"""Cold reads get what live traffic leaves: never less than a floor, never more than is on time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from strandline.broker.quotas.cold_pace import (
    ANSWER_BYTES_MIN,
    CUT_S,
    DRAIN_S_MAX,
    LATE_S_MAX,
    LIVE_S,
    QUIET_PART,
    QUIET_S,
    RATIO,
    TICK_S,
    TURN_BYTES,
    ColdPace,
    PaceConfig,
)

FLOOR = 4 * 1024 * 1024
SETTING_S = 0.00025
CHUNK_BYTES = 8 * 1024 * 1024
SETTINGS = PaceConfig(lateness_s_max=SETTING_S, floor_bytes_per_s=FLOOR)


class Rewind:
    """A consumer that takes every turn it gets, beside live traffic, on a clock of its own."""

    def __init__(self, settings: PaceConfig = SETTINGS) -> None:
        self.pace = ColdPace(lambda: settings)
        self.now_s = 1000.0
        self.sent_bytes = 0
        self.paused_ticks = 0
        self.pace.saw_live(self.now_s)

    @property
    def limit(self) -> float:
        return self.pace.statistics(self.now_s).limit_bytes_per_s

    @property
    def late_s(self) -> float:
        return self.pace.statistics(self.now_s).lateness_s_max

    def tick(self, lateness_s: float, *, wants: bool = True) -> bool:
        """One tick with live traffic; whether cold stood still before it."""
        self.now_s += TICK_S
        self.pace.saw_live(self.now_s)
        is_paused = self.pace.stands_still
        self.pace.ticked(lateness_s, self.now_s)
        while wants and (turn_bytes := self.pace.turn_bytes(self.now_s)):
            self.pace.sent(turn_bytes)
            self.sent_bytes += turn_bytes
        self.paused_ticks += is_paused
        return is_paused

    def run(self, seconds: float, lateness_s: float, *, wants: bool = True) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.tick(lateness_s, wants=wants)


def test_without_live_traffic_nothing_holds_a_rewind() -> None:
    pace = ColdPace(lambda: SETTINGS)
    assert not pace.is_held(0.0)
    assert pace.download_wait_s(0.0) == 0
    assert pace.answer_bytes_max(0.0) is None
    assert pace.statistics(0.0).limit_bytes_per_s == 0


def test_a_rewind_is_held_while_something_was_live_lately_and_then_let_go() -> None:
    pace = ColdPace(lambda: SETTINGS)
    pace.saw_live(100.0)
    assert pace.is_held(100.0)
    assert pace.is_held(100.0 + 0.9 * LIVE_S)
    assert not pace.is_held(100.0 + LIVE_S)
    pace.saw_live(200.0)
    assert pace.is_held(200.0)


def test_a_setting_of_0_never_makes_way() -> None:
    never = PaceConfig(lateness_s_max=0, floor_bytes_per_s=FLOOR)
    pace = ColdPace(lambda: never)
    pace.saw_live(100.0)
    assert not pace.is_held(100.0)


def test_downloads_of_a_time_without_limits_are_no_debt_later() -> None:
    pace = ColdPace(lambda: SETTINGS)
    pace.saw_live(100.0)
    assert pace.download_wait_s(100.0) == 0
    for _ in range(100):
        pace.download_began(CHUNK_BYTES, 100.0 + LIVE_S)
    pace.saw_live(100.0 + LIVE_S)
    assert pace.download_wait_s(100.0 + LIVE_S) == 0


def test_late_ticks_lower_the_limit_to_the_floor_and_never_below() -> None:
    rewind = Rewind()
    first = rewind.limit
    rewind.run(0.1, 1.0)
    assert FLOOR < rewind.limit < first
    rewind.run(10, 1.0)
    assert rewind.limit == FLOOR


def test_a_raised_floor_holds_at_the_next_tick() -> None:
    settings = [SETTINGS]
    rewind = Rewind()
    rewind.pace = ColdPace(lambda: settings[0])
    rewind.pace.saw_live(rewind.now_s)
    rewind.run(10, 1.0)
    assert rewind.limit == FLOOR
    settings[0] = replace(SETTINGS, floor_bytes_per_s=2 * FLOOR)
    rewind.tick(0.0)
    assert rewind.limit == 2 * FLOOR


def test_one_cause_that_makes_several_ticks_late_counts_once() -> None:
    rewind = Rewind()
    rewind.run(0.1, 0.0)
    cuts = rewind.pace.statistics(rewind.now_s).cuts_total
    for _ in range(round(CUT_S / TICK_S) - 1):
        rewind.tick(1.0)
    assert rewind.pace.statistics(rewind.now_s).cuts_total == cuts + 1


@pytest.mark.parametrize("interval_us", [1000, 2000, 2500, 4000, 5000, 10_000])
def test_ticks_do_not_keep_step_with_requests_that_come_at_fixed_times(
    interval_us: int,
) -> None:
    """Else a rewind is held by its floor, or not at all, by the chance of when it began."""
    in_a_while = range(7680)
    tenths = Counter(
        number * round(TICK_S * 1e6) % interval_us * 10 // interval_us for number in in_a_while
    )
    assert len(tenths) == 10
    assert max(tenths.values()) <= 1.1 * min(tenths.values())


def test_ticks_on_time_raise_the_limit_only_while_cold_waits_for_it() -> None:
    rewind = Rewind()
    rewind.run(1, 0.0, wants=False)
    before = rewind.limit
    rewind.run(1, 0.0, wants=False)
    assert rewind.limit == before
    rewind.run(1, 0.0)
    assert rewind.limit > before


@pytest.mark.parametrize(
    ("late_part", "is_slowed"), [(0.002, False), (0.05, True)], ids=["rarely late", "often late"]
)
def test_one_late_tick_in_a_hundred_is_the_balance(late_part: float, is_slowed: bool) -> None:
    chance = random.Random(6)
    rewind = Rewind()
    first = rewind.limit
    for _ in range(5_000):
        # Pauses find that it is not late without cold: it is cold that makes it late.
        is_late = chance.random() < late_part and not rewind.pace.stands_still
        rewind.tick(2 * SETTING_S if is_late else 0.0)
    assert (rewind.limit < first) == is_slowed


def test_a_loop_that_is_later_the_more_is_sent_is_kept_at_its_bound() -> None:
    """The plant: waiting grows with the bytes sent, exponentially distributed."""
    chance = random.Random(6)
    rewind = Rewind()
    late = ticks = 0
    for number in range(20_000):
        is_paused = rewind.pace.stands_still
        # At 100 MB/s one tick in a hundred waits longer than the setting.
        mean_s = 0.0 if is_paused else SETTING_S / 4.6 * rewind.limit / 100e6
        lateness_s = chance.expovariate(1 / mean_s) if mean_s else 0.0
        rewind.tick(lateness_s)
        if number > 5_000 and not is_paused:
            ticks += 1
            late += lateness_s > SETTING_S
    assert 0.005 < late / ticks < 0.02
    assert 60e6 < rewind.limit < 160e6


def test_what_goes_is_what_the_limit_says() -> None:
    rewind = Rewind()
    rewind.run(10, 1.0)
    rewind.sent_bytes = rewind.paused_ticks = 0
    rewind.run(10, 1.0)
    assert rewind.sent_bytes <= 10 * FLOOR + TURN_BYTES


def test_what_was_not_used_is_not_caught_up_on() -> None:
    rewind = Rewind()
    rewind.run(5, 1.0, wants=False)
    rewind.sent_bytes = 0
    rewind.tick(1.0)
    assert rewind.sent_bytes <= 3 * TURN_BYTES


def test_a_rewind_never_starves() -> None:
    """However late every tick is, and though each look for a quiet moment ends without one."""
    rewind = Rewind()
    rewind.pace.download_began(CHUNK_BYTES, rewind.now_s)  # and never ends
    rewind.run(20, 10.0)
    assert rewind.sent_bytes >= 0.9 * 20 * FLOOR


def test_downloads_begin_at_the_rate_of_the_limit() -> None:
    rewind = Rewind()
    rewind.run(10, 10.0)
    begun = 0
    for _ in range(round(20 / TICK_S)):
        rewind.tick(10.0)
        if not rewind.pace.download_wait_s(rewind.now_s):
            rewind.pace.download_began(CHUNK_BYTES, rewind.now_s)
            rewind.pace.download_ended()
            begun += 1
    assert 0.9 * 20 * FLOOR <= begun * CHUNK_BYTES <= 20 * FLOOR + CHUNK_BYTES


def test_looks_take_a_small_part_of_the_time() -> None:
    rewind = Rewind()
    ticks = round(20 / TICK_S)
    rewind.run(20, 0.0)
    assert 0 < rewind.paused_ticks <= ticks / QUIET_PART + QUIET_S / TICK_S


def test_nothing_cold_goes_while_it_is_looked_at_how_it_is_without() -> None:
    rewind = Rewind()
    while not rewind.pace.stands_still:
        rewind.tick(0.0)
    sent, began_s = rewind.sent_bytes, rewind.now_s
    while rewind.pace.stands_still:
        assert rewind.sent_bytes == sent
        assert rewind.pace.download_wait_s(rewind.now_s) > 0
        rewind.tick(0.0)
    assert rewind.now_s - began_s >= QUIET_S
    assert rewind.sent_bytes > sent


def test_ticks_that_are_late_without_cold_are_no_reason_to_slow_it() -> None:
    """A machine with much else to do: cold may make it worse by RATIO, not be blamed for it."""
    usual_s = 0.005
    rewind = Rewind()
    rewind.run(10, usual_s)
    assert usual_s < rewind.late_s <= RATIO * usual_s * 1.5
    low = rewind.limit
    rewind.run(5, usual_s)
    assert rewind.limit >= low


def test_a_lowered_setting_holds_at_once() -> None:
    settings = [PaceConfig(lateness_s_max=0.1, floor_bytes_per_s=FLOOR)]
    rewind = Rewind()
    rewind.pace = ColdPace(lambda: settings[0])
    for _ in range(20_000):
        rewind.tick(0.0001)
    assert rewind.paused_ticks > 100
    assert rewind.late_s == 0.1
    settings[0] = SETTINGS
    assert rewind.late_s == SETTING_S


def test_a_look_waits_for_downloads_under_way_but_not_for_ever() -> None:
    rewind = Rewind()
    rewind.pace.download_began(CHUNK_BYTES, rewind.now_s)
    while not rewind.pace.stands_still:
        rewind.tick(0.0)
    began_s = rewind.now_s
    while rewind.pace.stands_still:
        rewind.tick(LATE_S_MAX)
    assert DRAIN_S_MAX <= rewind.now_s - began_s <= DRAIN_S_MAX + 2 * TICK_S
    # What was late then was no quiet moment's lateness.
    assert rewind.late_s == SETTING_S


def test_a_look_that_ticks_were_missing_for_is_given_up() -> None:
    rewind = Rewind()
    while not rewind.pace.stands_still:
        rewind.tick(0.0)
    rewind.pace.stood_still(rewind.now_s)
    assert rewind.pace.turn_bytes(rewind.now_s + TICK_S)


def test_an_answer_is_bounded_by_what_goes_out_soon() -> None:
    rewind = Rewind()
    rewind.run(10, 10.0)
    alone = rewind.pace.answer_bytes_max(rewind.now_s)
    rewind.pace.waiting_count = 9
    beside = rewind.pace.answer_bytes_max(rewind.now_s)
    rewind.pace.waiting_count = 1_000_000
    crowded = rewind.pace.answer_bytes_max(rewind.now_s)
    assert alone is not None
    assert beside is not None
    assert ANSWER_BYTES_MIN == crowded < beside < alone < FLOOR


def test_time_that_cold_waits_is_counted() -> None:
    rewind = Rewind()
    rewind.run(10, 10.0)
    held_s = rewind.pace.statistics(rewind.now_s).held_s_total
    assert 5 < held_s <= 10
