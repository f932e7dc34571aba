"""What one machine alone has: records, bytes and the age of the oldest, whatever is uploaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from strandline.storage.errors import TierUnavailable
from strandline.storage.tiering.log.exposure import (
    MOMENTS_MAX,
    Covered,
    Exposure,
    ExposureAge,
)
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import CONFIG, PARTITION, Rig, asynchronous

UPLOAD_MS = 10_000
CONFIGURED = replace(CONFIG, strandline_remote_active_segment_upload_ms=UPLOAD_MS)


def exposed(rig: Rig) -> Exposure | None:
    found = rig.manager.statistics_of(PARTITION)
    assert found is not None
    return found.exposed


@asynchronous
async def test_records_are_exposed_until_they_are_in_the_bucket_and_no_longer(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        await rig.manager.run_once()
        assert exposed(rig) == Exposure()
        rig.produce(10)
        await rig.manager.run_once()
        size_bytes = rig.log.local.size_bytes
        rig.pass_ms(4_000)
        assert exposed(rig) == Exposure(record_count=10, size_bytes=size_bytes, age_s=4.0)
        rig.pass_ms(UPLOAD_MS)
        await rig.manager.run_once()
        assert exposed(rig) == Exposure()
        # The next records count from behind the piece: in records, bytes and seconds.
        rig.produce(3)
        rig.pass_ms(2_000)
        found = exposed(rig)
        assert found is not None
        assert found == Exposure(
            record_count=3, size_bytes=rig.log.local.size_bytes - size_bytes, age_s=2.0
        )


@asynchronous
async def test_records_that_wait_longer_than_their_topic_promises_are_late(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        await rig.manager.run_once()
        rig.produce(10)
        rig.memory.add_fault(Fault(operation="put", error=TierUnavailable, times=-1))
        for _ in range(5):
            rig.pass_ms(UPLOAD_MS)
            await rig.manager.run_once()
        found = exposed(rig)
        assert found is not None
        assert (found.record_count, found.age_s, found.late_s) == (10, 50.0, 40.0)


@asynchronous
async def test_nothing_is_said_of_a_log_whose_archive_is_not_known_yet(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce(10)
        rig.pass_ms(UPLOAD_MS)
        await rig.manager.run_once()
    rig.memory.add_fault(Fault(operation="get", error=TierUnavailable, times=-1))
    async with Rig(tmp_path, config=CONFIGURED, store=rig.memory) as again:
        assert exposed(again) is None


# --- ages --------------------------------------------------------------------------------------


def test_an_age_is_that_of_the_oldest_record_that_is_not_covered() -> None:
    age = ExposureAge()
    ends = {0: 0, 10: 0, 20: 5, 30: 9, 40: 12}
    ages = [
        age.note(Covered(end_offset=0), end, now_s=now_s, now_ms=0) for now_s, end in ends.items()
    ]
    # Records 0 to 4 arrived between 10 and 20.
    assert ages == [0, 0, 10, 20, 30]
    assert age.note(Covered(end_offset=5), 12, now_s=50, now_ms=0) == 30
    assert age.note(Covered(end_offset=9), 12, now_s=50, now_ms=0) == 20
    assert age.note(Covered(end_offset=12), 12, now_s=60, now_ms=0) == 0
    assert age.note(Covered(end_offset=12), 13, now_s=61, now_ms=0) == 1


def test_records_of_an_earlier_process_are_as_old_as_the_last_upload_at_most() -> None:
    covered = Covered(end_offset=5, since_ms=1_000_000)
    assert ExposureAge().note(covered, 8, now_s=7, now_ms=1_030_000) == 30
    # A clock that went back makes no age below zero.
    assert ExposureAge().note(covered, 8, now_s=7, now_ms=900_000) == 0


def test_however_long_the_store_is_away_a_log_remembers_few_moments_and_its_oldest_record() -> None:
    age = ExposureAge()
    for second in range(10_000):
        assert age.note(Covered(end_offset=0), second, now_s=second, now_ms=0) == (second or 0)
        assert len(age._moments) <= MOMENTS_MAX
    # A moment between is at most one of those that were dropped too early.
    half = age.note(Covered(end_offset=9_000), 9_999, now_s=10_000, now_ms=0)
    assert 1_000 <= half <= 10_000


def test_a_log_that_was_cut_keeps_the_age_of_what_is_left() -> None:
    age = ExposureAge()
    age.note(Covered(end_offset=0), 0, now_s=0, now_ms=0)
    age.note(Covered(end_offset=0), 9, now_s=10, now_ms=0)
    assert age.note(Covered(end_offset=0), 4, now_s=30, now_ms=0) == 30
    assert age.note(Covered(end_offset=0), 6, now_s=40, now_ms=0) == 40
