"""Forecasts of retention limits."""

from __future__ import annotations

import uuid

from strandline.retention.forecast import Forecast, forecast
from strandline.retention.policy import DropReason, RetentionLimits
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.manifest.entries import SegmentEntry

PARTITION = TopicIdPartition("t", uuid.uuid4(), 0)
NOW_MS = 1_000_000


def segment(number: int, *, newest_ms: int, uploaded_ms: int = 0) -> SegmentEntry:
    """Ten records and 100 bytes."""
    return SegmentEntry(
        base_offset=10 * number,
        end_offset=10 * number + 10,
        size_bytes=100,
        record_count=10,
        min_timestamp_ms=newest_ms,
        max_timestamp_ms=newest_ms,
        uploaded_ms=uploaded_ms,
        has_transactions=False,
        leader_epochs=(),
        log_key="",
        meta_key="",
        log_crc32c=0,
        meta_size_bytes=1,
        meta_crc32c=0,
    )


AGED = [segment(number, newest_ms=NOW_MS - 1000 * (5 - number)) for number in range(5)]


def of(segments: list[SegmentEntry], *, ms: int = -1, size: int = -1, start: int = 0) -> Forecast:
    limits = RetentionLimits(retention_ms=ms, retention_bytes=size)
    return forecast(PARTITION, segments, limits, now_ms=NOW_MS, log_start_offset=start)


def test_without_limits_nothing_goes() -> None:
    found = of(AGED)
    assert (found.drop_count, found.drop_bytes, found.log_start_offset) == (0, 0, 0)
    assert found.oldest_left_ms == NOW_MS - 5000


def test_age_takes_the_segments_whose_newest_record_is_old_enough() -> None:
    found = of(AGED, ms=3000)
    assert (found.drop_count, found.drop_bytes, found.drop_records) == (3, 300, 30)
    assert (found.log_start_offset, found.oldest_left_ms) == (30, NOW_MS - 2000)
    assert found.reasons == {DropReason.AGE}


def test_size_leaves_at_least_what_the_limit_says() -> None:
    found = of(AGED, size=250)
    assert (found.drop_count, found.size_bytes - found.drop_bytes) == (2, 300)
    assert found.reasons == {DropReason.SIZE}


def test_records_without_a_time_are_as_old_as_their_upload() -> None:
    timeless = [segment(0, newest_ms=-1, uploaded_ms=NOW_MS - 10), segment(1, newest_ms=-1)]
    assert of(timeless, ms=5).drop_count == 2
    assert of(timeless, ms=100).drop_count == 0
    assert of(timeless, ms=100).oldest_left_ms is None


def test_what_lies_below_the_log_start_goes_without_any_limit() -> None:
    found = of(AGED, start=25)
    assert (found.drop_count, found.log_start_offset) == (2, 25)
    assert found.reasons == {DropReason.LOG_START}
