"""The retention verdict against a slow, obvious statement of the same rules."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.retention.policy import (
    DropReason,
    RetentionLimits,
    RetentionUnit,
    RetentionVerdict,
    judge,
)
from strandline.storage.config.log_config import LogConfig

NOW_MS = 1_700_000_000_000
UNLIMITED = RetentionLimits(retention_ms=-1, retention_bytes=-1)


def unit(end_offset: int, size_bytes: int = 100, age_ms: int = 0) -> RetentionUnit:
    return RetentionUnit(
        end_offset=end_offset,
        size_bytes=size_bytes,
        newest_ms=NOW_MS - age_ms,
    )


def active(base_offset: int, size_bytes: int, *, age_ms: int, written_age_ms: int) -> RetentionUnit:
    return RetentionUnit(
        end_offset=base_offset + 10,
        size_bytes=size_bytes,
        newest_ms=NOW_MS - age_ms,
        is_active=True,
        written_ms=NOW_MS - written_age_ms,
    )


def decide(
    units: list[RetentionUnit],
    limits: RetentionLimits,
    *,
    now_ms: int = NOW_MS,
    log_start_offset: int = 0,
    gate_offset: int | None = None,
) -> RetentionVerdict:
    return judge(
        units, limits, now_ms=now_ms, log_start_offset=log_start_offset, gate_offset=gate_offset
    )


def age(retention_ms: int) -> RetentionLimits:
    return RetentionLimits(retention_ms=retention_ms, retention_bytes=-1)


def size(retention_bytes: int) -> RetentionLimits:
    return RetentionLimits(retention_ms=-1, retention_bytes=retention_bytes)


def test_unlimited_retention_drops_nothing_however_old_and_large() -> None:
    units = [unit(10, 10**15, age_ms=10**12), unit(20, 10**15, age_ms=10**12)]
    assert decide(units, UNLIMITED).drop_count == 0


def test_a_segment_goes_when_its_newest_record_reaches_the_age_limit() -> None:
    units = [unit(10, age_ms=1000), unit(20, age_ms=999)]
    verdict = decide(units, age(1000))
    assert (verdict.drop_count, verdict.end_offset) == (1, 10)
    assert verdict.reasons == (DropReason.AGE,)


def test_a_young_segment_protects_the_older_looking_ones_behind_it() -> None:
    units = [unit(10, age_ms=0), unit(20, age_ms=10**9)]
    assert decide(units, age(1000)).drop_count == 0


def test_a_timestamp_in_the_future_is_not_old() -> None:
    assert decide([unit(10, age_ms=-(10**9))], age(0)).drop_count == 0


def test_an_age_limit_longer_than_history_is_no_limit() -> None:
    """KAFKA-17995: the negative cutoff deleted segments whose records carry timestamp 0 or -1."""
    oldest = RetentionUnit(end_offset=10, size_bytes=1, newest_ms=-(2**62))
    assert decide([oldest], age(NOW_MS + 1)).drop_count == 0
    assert decide([oldest], age(2**63 - 1)).drop_count == 0


def test_size_retention_keeps_at_least_the_limit() -> None:
    units = [unit(10, 100), unit(20, 100), unit(30, 100)]
    assert decide(units, size(200)).drop_count == 1
    assert decide(units, size(201)).drop_count == 0
    assert decide(units, size(150)).drop_count == 1
    assert decide(units, size(100)).drop_count == 2


def test_the_active_segment_counts_for_size_but_is_never_dropped() -> None:
    units = [unit(10, 100), active(10, 100, age_ms=10**9, written_age_ms=0)]
    verdict = decide(units, RetentionLimits(retention_ms=-1, retention_bytes=1))
    assert verdict.drop_count == 1
    assert decide(units[1:], size(0)).drop_count == 0


def test_segments_below_the_log_start_go_whatever_the_limits_are() -> None:
    units = [unit(10), unit(20), unit(30)]
    verdict = decide(units, UNLIMITED, log_start_offset=25)
    assert (verdict.drop_count, verdict.end_offset) == (2, 20)
    assert verdict.reasons == (DropReason.LOG_START, DropReason.LOG_START)


def test_the_gate_stops_the_drop() -> None:
    units = [unit(10, age_ms=5000), unit(20, age_ms=5000)]
    assert decide(units, age(1000), gate_offset=10).drop_count == 1
    assert decide(units, age(1000), gate_offset=0).drop_count == 0
    assert decide(units, age(1000)).drop_count == 2


def test_an_idle_active_segment_that_outlived_the_age_limit_is_rolled() -> None:
    old = active(0, 100, age_ms=1000, written_age_ms=1000)
    assert decide([old], age(1000)).roll_active
    assert not decide([old], age(1001)).roll_active
    assert not decide([old], UNLIMITED).roll_active


def test_an_empty_active_segment_is_not_rolled() -> None:
    empty = active(0, 0, age_ms=10**9, written_age_ms=10**9)
    assert not decide([empty], RetentionLimits(retention_ms=0, retention_bytes=0)).roll_active


def test_a_backfill_of_old_records_does_not_cut_a_segment_at_each_check() -> None:
    backfill = active(0, 100, age_ms=10**10, written_age_ms=999)
    assert not decide([backfill], age(1000)).roll_active
    assert decide([active(0, 100, age_ms=10**10, written_age_ms=1000)], age(1000)).roll_active


def test_a_size_limit_of_zero_rolls_whatever_is_there() -> None:
    assert decide([active(0, 1, age_ms=0, written_age_ms=0)], size(0)).roll_active
    assert not decide([active(0, 1, age_ms=0, written_age_ms=0)], size(1)).roll_active


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LogConfig(retention_ms=7, retention_bytes=8), (7, 8)),
        (LogConfig(retention_ms=7, retention_bytes=8, local_retention_ms=3), (3, 8)),
        (LogConfig(retention_ms=-1, retention_bytes=-1, local_retention_bytes=3), (-1, 3)),
    ],
)
def test_minus_two_means_that_the_local_tier_keeps_as_much_as_the_log(
    config: LogConfig, expected: tuple[int, int]
) -> None:
    limits = RetentionLimits.local(config)
    assert (limits.retention_ms, limits.retention_bytes) == expected


# --- brute force ------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> list[RetentionUnit]:
    units = []
    offset = draw(st.integers(0, 20))
    for _ in range(draw(st.integers(0, 8))):
        end_offset = offset + draw(st.integers(1, 10))
        units.append(unit(end_offset, draw(st.integers(0, 50)), draw(st.integers(-5, 50))))
        offset = end_offset
    if draw(st.booleans()):
        units.append(
            active(
                offset,
                draw(st.integers(0, 50)),
                age_ms=draw(st.integers(-5, 50)),
                written_age_ms=draw(st.integers(0, 50)),
            )
        )
    return units


def slow_drop_count(
    units: list[RetentionUnit],
    limits: RetentionLimits,
    now_ms: int,
    log_start_offset: int,
    gate_offset: int | None,
) -> int:
    """The longest prefix of which every unit may go, tried one prefix at a time."""
    longest = 0
    for count in range(1, len(units) + 1):
        dropped, last = units[:count], units[count - 1]
        kept_bytes = sum(u.size_bytes for u in units[count:])
        may_go = (
            last.end_offset <= log_start_offset
            or (
                limits.retention_ms >= 0
                and now_ms >= limits.retention_ms
                and now_ms - last.newest_ms >= limits.retention_ms
            )
            or (limits.retention_bytes >= 0 and kept_bytes >= limits.retention_bytes)
        )
        gated = gate_offset is not None and last.end_offset > gate_offset
        if not may_go or gated or any(u.is_active for u in dropped):
            break
        longest = count
    return longest


@given(
    units=logs(),
    retention_ms=st.integers(-1, 60),
    retention_bytes=st.integers(-1, 300),
    log_start_offset=st.integers(0, 80),
    gate_offset=st.none() | st.integers(0, 80),
    now_ms=st.sampled_from([NOW_MS, NOW_MS - 10**9, 0, 30, 59]),
)
def test_the_verdict_equals_brute_force(
    units: list[RetentionUnit],
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
    gate_offset: int | None,
    now_ms: int,
) -> None:
    limits = RetentionLimits(retention_ms=retention_ms, retention_bytes=retention_bytes)
    verdict = judge(
        units, limits, now_ms=now_ms, log_start_offset=log_start_offset, gate_offset=gate_offset
    )
    slow = slow_drop_count(units, limits, now_ms, log_start_offset, gate_offset)
    assert verdict.drop_count == slow == len(verdict.reasons)
    assert verdict.end_offset == (units[slow - 1].end_offset if slow else None)


@given(
    units=logs(),
    retention_ms=st.integers(-1, 2**63 - 1),
    retention_bytes=st.integers(-1, 300),
    log_start_offset=st.integers(0, 80),
    gate_offset=st.integers(0, 80),
)
def test_nothing_young_small_or_gated_is_ever_dropped(
    units: list[RetentionUnit],
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
    gate_offset: int,
) -> None:
    limits = RetentionLimits(retention_ms=retention_ms, retention_bytes=retention_bytes)
    verdict = decide(units, limits, log_start_offset=log_start_offset, gate_offset=gate_offset)
    kept_bytes = sum(u.size_bytes for u in units)
    for dropped, reason in zip(units, verdict.reasons, strict=False):
        kept_bytes -= dropped.size_bytes
        assert not dropped.is_active
        assert dropped.end_offset <= gate_offset
        match reason:
            case DropReason.LOG_START:
                assert dropped.end_offset <= log_start_offset
            case DropReason.AGE:
                assert retention_ms != -1
                assert dropped.newest_ms + retention_ms <= NOW_MS
            case DropReason.SIZE:
                assert kept_bytes >= retention_bytes >= 0


@given(
    units=logs(),
    cuts=st.sets(st.integers(1, 7)),
    retention_ms=st.integers(-1, 60),
    retention_bytes=st.integers(-1, 300),
    log_start_offset=st.integers(0, 80),
)
def test_pages_are_judged_like_the_segments_in_them(
    units: list[RetentionUnit],
    cuts: set[int],
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
) -> None:
    """Dropping whole pages never drops more than segment by segment, and stops inside one page."""
    limits = RetentionLimits(retention_ms=retention_ms, retention_bytes=retention_bytes)
    closed = [u for u in units if not u.is_active]
    borders = [0, *sorted(c for c in cuts if c < len(closed)), len(closed)]
    pages = [closed[start:end] for start, end in pairwise(borders) if end > start]
    aggregated = [
        RetentionUnit(
            end_offset=page[-1].end_offset,
            size_bytes=sum(u.size_bytes for u in page),
            newest_ms=max(u.newest_ms for u in page),
        )
        for page in pages
    ]
    by_page = decide(aggregated, limits, log_start_offset=log_start_offset)
    by_segment = decide(closed, limits, log_start_offset=log_start_offset)
    segments_in_dropped_pages = sum(len(page) for page in pages[: by_page.drop_count])
    assert segments_in_dropped_pages <= by_segment.drop_count
