"""Verdicts on local segments: copy, wait with a reason, or free."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.tiering.policy.lifecycle import (
    PartitionView,
    SegmentState,
    SegmentView,
    judge,
)


def segments(*borders: int) -> tuple[SegmentView, ...]:
    """segments(0, 10, 20) is [0,10) closed, then the active [10,20)."""
    pairs = list(pairwise(borders))
    return tuple(
        SegmentView(
            base_offset=base,
            end_offset=end,
            size_bytes=100,
            is_active=index == len(pairs) - 1,
        )
        for index, (base, end) in enumerate(pairs)
    )


def view(
    *borders: int,
    remote_end_offset: int | None = None,
    log_start_offset: int = 0,
    durable_log_start_offset: int | None = None,
    last_stable_offset: int | None = None,
) -> PartitionView:
    return PartitionView(
        segments=segments(*borders),
        log_start_offset=log_start_offset,
        durable_log_start_offset=(
            log_start_offset if durable_log_start_offset is None else durable_log_start_offset
        ),
        last_stable_offset=borders[-1] if last_stable_offset is None else last_stable_offset,
        remote_end_offset=remote_end_offset,
    )


def states(partition: PartitionView) -> list[str]:
    return [segment.state.name for segment in judge(partition).segments]


def freeable(partition: PartitionView) -> int | None:
    return judge(partition).freeable_end_offset


def test_closed_segments_are_copied_in_order() -> None:
    partition = view(0, 10, 20, 30, 40, remote_end_offset=10)
    assert states(partition) == ["ARCHIVED", "NEXT", "QUEUED", "ACTIVE"]
    verdict = judge(partition)
    assert verdict.next_copies()[0].base_offset == 10
    assert [s.base_offset for s in verdict.pending] == [10, 20, 30]


def test_a_segment_that_reaches_past_the_last_stable_offset_waits() -> None:
    assert states(view(0, 10, 20, 30, last_stable_offset=15)) == ["NEXT", "UNSTABLE", "ACTIVE"]
    assert states(view(0, 10, 20, 30, last_stable_offset=5)) == ["UNSTABLE", "UNSTABLE", "ACTIVE"]


def test_only_archived_segments_may_be_freed() -> None:
    assert freeable(view(0, 10, 20, 30, remote_end_offset=None)) is None
    assert freeable(view(0, 10, 20, 30, remote_end_offset=10)) == 10
    assert freeable(view(0, 10, 20, 30, remote_end_offset=20)) == 20


def test_an_archive_that_ends_inside_a_segment_frees_nothing_of_it() -> None:
    partition = view(0, 10, 20, remote_end_offset=9)
    assert freeable(partition) is None
    assert states(partition) == ["NEXT", "ACTIVE"]
    assert [(s.base_offset, s.end_offset) for s in judge(partition).next_copies()] == [(9, 10)]


def test_a_segment_goes_on_behind_the_archive_whether_the_cleaner_was_there_or_not() -> None:
    partition = replace(view(0, 10, 20, 30, remote_end_offset=9), cleaned_offset=0)
    assert states(partition) == ["NEXT", "UNCLEANED", "ACTIVE"]


def test_a_segment_that_begins_with_other_records_than_the_archive_stays() -> None:
    partition = replace(view(0, 10, 20, remote_end_offset=9), has_archived_past=False)
    assert freeable(partition) is None
    assert states(partition) == ["OVERLAP", "ACTIVE"]
    assert states(replace(partition, remote_end_offset=15)) == ["ARCHIVED", "OVERLAP"]


def test_what_another_broker_archived_frees_nothing() -> None:
    partition = replace(view(0, 10, 20, 30, remote_end_offset=20), fenced=True)
    assert freeable(partition) is None
    assert freeable(replace(partition, log_start_offset=10, durable_log_start_offset=10)) == 10


def test_nothing_is_freed_for_the_archive_before_this_disk_says_where_the_log_starts() -> None:
    """Without that an archive that is lost later would look like one that was never begun."""
    partition = replace(view(0, 10, 20, 30, remote_end_offset=20), is_log_start_noted=False)
    assert freeable(partition) is None


def test_the_active_segment_is_never_freed() -> None:
    assert freeable(view(0, 10, remote_end_offset=10, log_start_offset=10)) is None


def test_segments_below_the_log_start_are_not_copied() -> None:
    partition = view(0, 10, 20, 30, log_start_offset=15)
    assert states(partition) == ["DELETED", "NEXT", "ACTIVE"]


def test_a_log_start_that_only_memory_knows_frees_nothing() -> None:
    partition = view(0, 10, 20, 30, log_start_offset=20, durable_log_start_offset=0)
    assert freeable(partition) is None
    assert freeable(replace(partition, durable_log_start_offset=20)) == 20


def test_the_archive_goes_on_above_deleted_records() -> None:
    partition = view(
        20, 30, 40, remote_end_offset=10, log_start_offset=25, durable_log_start_offset=25
    )
    assert states(partition) == ["NEXT", "ACTIVE"]


def test_missing_records_between_archive_and_local_log_are_a_gap() -> None:
    assert states(view(20, 30, 40, remote_end_offset=10)) == ["GAP", "ACTIVE"]


def test_a_single_missing_record_is_a_gap() -> None:
    assert states(view(11, 20, 30, remote_end_offset=10)) == ["GAP", "ACTIVE"]
    assert states(view(11, 20, 30, remote_end_offset=10, log_start_offset=11)) == ["NEXT", "ACTIVE"]


def test_of_a_compacted_log_only_what_is_clean_to_its_end_is_copied() -> None:
    partition = view(0, 10, 20, 30)
    assert states(replace(partition, cleaned_offset=10)) == ["NEXT", "UNCLEANED", "ACTIVE"]
    assert states(replace(partition, cleaned_offset=19)) == ["NEXT", "UNCLEANED", "ACTIVE"]
    assert states(replace(partition, cleaned_offset=20)) == ["NEXT", "QUEUED", "ACTIVE"]


def test_a_lost_archive_is_a_gap_and_not_a_fresh_start() -> None:
    """Segments were freed once, but the bucket knows nothing: wrong bucket, or an emptied one."""
    assert states(view(20, 30, 40, remote_end_offset=None)) == ["GAP", "ACTIVE"]


def test_nothing_is_decided_before_the_manifest_is_known() -> None:
    partition = replace(view(0, 10, 20, remote_end_offset=10), manifest_known=False)
    assert states(partition) == ["MANIFEST_UNKNOWN", "ACTIVE"]
    assert freeable(partition) is None


def test_each_way_of_not_copying_has_its_own_reason() -> None:
    partition = view(0, 10, 20)
    assert states(replace(partition, copy_disabled=True)) == ["COPY_DISABLED", "ACTIVE"]
    assert states(replace(partition, fenced=True)) == ["FENCED", "ACTIVE"]
    assert states(replace(partition, tiering_enabled=False)) == ["TIERING_DISABLED"] * 2


def test_archived_segments_stay_freeable_when_copying_is_disabled() -> None:
    partition = replace(view(0, 10, 20, 30, remote_end_offset=10), copy_disabled=True)
    assert freeable(partition) == 10


@given(
    borders=st.lists(st.integers(0, 60), min_size=2, max_size=8, unique=True).map(sorted),
    remote_end_offset=st.none() | st.integers(0, 60),
    log_start_offset=st.integers(0, 60),
    durable_lag=st.integers(0, 60),
    last_stable_offset=st.integers(0, 60),
    switches=st.tuples(*[st.booleans()] * 5),
)
def test_invariants_hold_for_any_partition(
    borders: list[int],
    remote_end_offset: int | None,
    log_start_offset: int,
    durable_lag: int,
    last_stable_offset: int,
    switches: tuple[bool, bool, bool, bool, bool],
) -> None:
    durable = max(0, log_start_offset - durable_lag)
    partition = replace(
        view(
            *borders,
            remote_end_offset=remote_end_offset,
            log_start_offset=log_start_offset,
            durable_log_start_offset=durable,
            last_stable_offset=last_stable_offset,
        ),
        tiering_enabled=switches[0],
        copy_disabled=switches[1],
        manifest_known=switches[2],
        fenced=switches[3],
        is_log_start_noted=switches[4],
    )
    is_relied_upon = partition.manifest_known and partition.is_log_start_noted
    archived_end = (remote_end_offset or 0) if is_relied_upon and not partition.fenced else 0
    verdict = judge(partition)
    assert len(verdict.segments) == len(partition.segments)
    following = [s for s in verdict.segments if s.state is SegmentState.NEXT]
    assert len(following) <= 1
    for segment in following:
        assert segment.end_offset <= last_stable_offset
        assert segment.base_offset >= (remote_end_offset or 0)
        assert segment.end_offset > log_start_offset
        assert segment.base_offset <= max(log_start_offset, remote_end_offset or 0)
    for segment, seen in zip(partition.segments, verdict.segments, strict=True):
        if seen.freeable:
            assert not segment.is_active
            assert segment.end_offset <= max(durable, archived_end)


def lagging(*, newest_ms: tuple[int, ...], now_ms: int, lag_ms: int, lag_bytes: int) -> list[str]:
    partition = view(*range(0, 10 * len(newest_ms) + 1, 10))
    dated = [
        replace(segment, newest_ms=ms)
        for segment, ms in zip(partition.segments, newest_ms, strict=True)
    ]
    return states(
        replace(
            partition,
            segments=dated,
            now_ms=now_ms,
            copy_lag_ms=lag_ms,
            copy_lag_bytes=lag_bytes,
        )
    )


def test_a_segment_waits_until_it_is_as_old_as_the_copy_lag() -> None:
    lag = partial(lagging, newest_ms=(10, 20, 30), lag_ms=100, lag_bytes=-1)
    assert lag(now_ms=109) == ["DELAYED", "DELAYED", "ACTIVE"]
    assert lag(now_ms=110) == ["NEXT", "DELAYED", "ACTIVE"]
    assert lag(now_ms=120) == ["NEXT", "QUEUED", "ACTIVE"]


def test_enough_newer_bytes_let_a_segment_go_before_its_time() -> None:
    lag = partial(lagging, newest_ms=(10, 20, 30), now_ms=20, lag_ms=100)
    assert lag(lag_bytes=100) == ["NEXT", "QUEUED", "ACTIVE"]
    assert lag(lag_bytes=101) == ["NEXT", "DELAYED", "ACTIVE"]
    assert lag(lag_bytes=200) == ["NEXT", "DELAYED", "ACTIVE"]
    assert lag(lag_bytes=201) == ["DELAYED", "DELAYED", "ACTIVE"]


def test_no_lag_in_one_of_the_two_is_no_lag_at_all() -> None:
    lag = partial(lagging, newest_ms=(10, 20), now_ms=20)
    assert lag(lag_ms=0, lag_bytes=10**9) == ["NEXT", "ACTIVE"]
    assert lag(lag_ms=10**9, lag_bytes=0) == ["NEXT", "ACTIVE"]


def test_nothing_is_copied_when_neither_age_nor_size_can_allow_it() -> None:
    assert lagging(newest_ms=(10, 20), now_ms=20, lag_ms=-1, lag_bytes=-1) == ["DELAYED", "ACTIVE"]


def test_a_record_from_the_future_is_no_reason_to_wait() -> None:
    assert lagging(newest_ms=(99, 20), now_ms=20, lag_ms=5, lag_bytes=-1) == ["NEXT", "ACTIVE"]


def test_an_older_segment_goes_before_a_younger_one_that_may_go_already() -> None:
    assert lagging(newest_ms=(90, 10, 99), now_ms=100, lag_ms=50, lag_bytes=-1) == [
        "DELAYED",
        "QUEUED",
        "ACTIVE",
    ]
