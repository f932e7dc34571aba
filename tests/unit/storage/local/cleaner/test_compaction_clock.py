"""What compaction lets go after a time, under a clock that jumps, and what it waits for."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.system.child_process import ChildFailed
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.compaction import CONFIG, CompactedLog

YEAR_MS = 365 * 24 * 3600 * 1000


class JumpingClock(ManualClock):
    """Its monotonic half goes on as ever; the wall goes where it is told."""

    def jump_ms(self, delta_ms: int) -> None:
        self._now_ms += delta_ms


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


def test_a_clock_that_jumps_ahead_makes_no_tombstone_go(
    tmp_path: Path, clock: JumpingClock
) -> None:
    """Whoever reads slowly would keep the key for ever."""
    log = CompactedLog(tmp_path, clock=clock)
    log.append((b"a", b"1"))
    log.append((b"a", None))
    log.seal_and_clean()
    clock.jump_ms(YEAR_MS)
    log.append((b"b", b"1"))
    log.append((b"c", None))
    log.seal_and_clean()
    assert log.table() == {b"a": None, b"b": b"1", b"c": None}
    # And the year is in no horizon that is written meanwhile.
    clock.jump_ms(-YEAR_MS)
    log.append((b"d", b"1"))
    clock.advance_ms(CONFIG.delete_retention_ms)
    log.seal_and_clean()
    assert log.table() == {b"b": b"1", b"d": b"1"}


def test_a_clock_that_jumps_ahead_makes_no_record_old_enough_to_be_compacted(
    tmp_path: Path, clock: JumpingClock
) -> None:
    config = replace(CONFIG, min_compaction_lag_ms=3_600_000)
    log = CompactedLog(tmp_path, config=config, clock=clock)
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.seal()
    clock.jump_ms(YEAR_MS)
    assert log.clean() == 0
    clock.jump_ms(-YEAR_MS)
    clock.advance_ms(3_600_001)
    assert log.clean() == 1


def test_a_topic_that_is_created_again_pays_for_no_death_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CompactedLog(tmp_path)
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.seal()

    def die(**_asked: object) -> None:
        raise ChildFailed("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(log.process, "next", die)
        assert log.clean() == 1
    # Between two looks of the cleaner.
    log.dirs.delete_log(log.log)
    log.log = log.dirs.create_log(log.log.topic_partition, uuid.uuid4(), log.config)
    log.append((b"b", b"1"))
    log.append((b"b", b"2"))
    log.seal()
    assert log.clean() == 1
    assert len(log.records()) == 1
