"""The quotas of the remote tier, with a manual clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.errors import TierUnavailable
from strandline.storage.tiering.policy.quota import QuotaExceeded, QuotaLimits, ReadGate, TierQuota
from tests.sim.loop import VirtualClock
from tests.support.manual_clock import ManualClock
from tests.unit.storage.tiering.harness import CONFIG, Rig, virtual


def test_a_quota_is_kept_over_its_windows_and_forgets_what_is_older() -> None:
    clock = ManualClock()
    quota = TierQuota(QuotaLimits(bytes_per_second_max=100), clock)
    quota.record(100)
    assert quota.throttle_s() == 0, "what a window may have, however soon it came"
    quota.record(400)
    assert quota.throttle_s() == pytest.approx(4.0)
    clock.advance_ms(4000)
    assert quota.throttle_s() == pytest.approx(1.0)
    clock.advance_ms(1000)
    assert quota.throttle_s() == 0, "500 bytes in 5 seconds"
    quota.record(600)
    assert quota.throttle_s() == pytest.approx(6.0), "1,100 bytes in as many"
    clock.advance_ms(6000)
    assert quota.throttle_s() == 0
    assert quota.bytes_total == 1100


def test_who_was_silent_may_have_no_more_at_once_for_it() -> None:
    """Kafka's SimpleRate: the limit is there to protect a link, from its first second on."""
    clock = ManualClock()
    quota = TierQuota(QuotaLimits(bytes_per_second_max=100, window_s=2), clock)
    clock.advance_ms(3_600_000)
    quota.record(200)
    assert quota.throttle_s() == 0
    quota.record(1)
    assert quota.throttle_s() > 0


def test_an_altered_limit_counts_what_was_sent_before() -> None:
    clock = ManualClock()
    quota = TierQuota(QuotaLimits(bytes_per_second_max=100), clock)
    quota.record(1000)
    before_s = quota.throttle_s()
    assert before_s > 0
    quota.limits = QuotaLimits(bytes_per_second_max=1000)
    assert quota.throttle_s() == 0
    quota.limits = QuotaLimits(bytes_per_second_max=50)
    assert quota.throttle_s() > before_s


def test_no_limit_never_throttles() -> None:
    quota = TierQuota(QuotaLimits(), ManualClock())
    quota.record(1 << 60)
    assert quota.throttle_s() == 0


def test_reads_beyond_the_bound_and_beyond_the_quota_are_refused_for_the_moment() -> None:
    clock = ManualClock()
    gate = ReadGate(
        reads_max=2, quota=TierQuota(QuotaLimits(bytes_per_second_max=10, window_count=2), clock)
    )
    with gate.waiting("a"), gate.waiting("b"):
        assert gate.reads == 2
        gate.check_quota("c")
        with pytest.raises(TierUnavailable, match="2 remote reads"), gate.waiting("c"):
            pass
    assert gate.reads == 0
    gate.quota.record(25)
    with pytest.raises(QuotaExceeded):
        gate.check_quota("c")
    clock.advance_ms(2000)
    gate.check_quota("c")


@virtual
async def test_copies_wait_for_their_quota_and_nothing_is_freed_meanwhile(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, clock=VirtualClock()) as rig:
        rig.produce_segments(1)
        size_bytes = rig.log.local.segments[0].size_bytes
        rig.manager.copy_quota.limits = QuotaLimits(bytes_per_second_max=size_bytes * 3 // 2)
        rig.produce_segments(2)
        copied = []
        for _ in range(4):
            await rig.manager._partitions[rig.log.topic_partition].step()
            copied.append(len(rig.archived))
        assert copied == [1, 2, 2, 2]
        waited_s = rig.clock.monotonic_s()
        assert waited_s > 0
        rig.pass_ms(30_000)
        await rig.manager._partitions[rig.log.topic_partition].step()
        assert len(rig.archived) == 3
        assert rig.manager.copy_quota.throttled_s == pytest.approx(waited_s)


@virtual
async def test_what_goes_of_the_open_segment_counts_and_waits_for_the_quota_of_copies(
    tmp_path: Path,
) -> None:
    upload_ms = 10_000
    config = replace(CONFIG, strandline_remote_active_segment_upload_ms=upload_ms)
    async with Rig(tmp_path, config=config, clock=VirtualClock()) as rig:
        step = rig.manager._partitions[rig.log.topic_partition].step

        def uploaded() -> int:
            return rig.manifest.tail[-1].end_offset if rig.manifest and rig.manifest.tail else 0

        rig.produce(10)
        await step()
        rig.pass_ms(upload_ms)
        await step()
        assert uploaded() == 10
        size_bytes = rig.manager.copy_quota.bytes_total
        assert size_bytes == rig.log.local.active_segment.size_bytes
        rig.manager.copy_quota.limits = QuotaLimits(bytes_per_second_max=size_bytes // 50)
        rig.produce(5)
        await step()
        rig.pass_ms(upload_ms)
        assert await step(), "it waits for a part of the time, and asks again"
        assert uploaded() == 10
        # What went before is forgotten after the windows.
        rig.pass_ms(2000)
        await step()
        assert uploaded() == 15
