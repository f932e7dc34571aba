"""What lies below the recovery point is on the disk, whatever is flushed or cut meanwhile."""

from __future__ import annotations

from pathlib import Path

from tests.unit.storage.local.builders import (
    fill,
    open_log,
)


def test_rolling_does_not_move_the_recovery_point_and_flushing_does(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 3)
    log.roll()
    assert log.recovery_point == 0
    assert not log.segments[0].is_durable
    log.flush()
    assert log.recovery_point == 30
    assert log.segments[0].is_durable
    # Sealed after its data were synced: its index files still need the next flush.
    fill(log, 1)
    log.flush()
    log.roll()
    assert not log.segments[1].is_durable
    log.flush()
    assert log.segments[1].is_durable
