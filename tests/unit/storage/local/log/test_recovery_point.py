"""What lies below the recovery point is on the disk, whatever is flushed or cut meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

from strandline.storage.local.log.recovery_point import RecoveryPoint
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


def test_one_cut_waits_for_another_whose_disk_hangs_and_writes_its_own_down() -> None:
    """Else it would take the lower one of memory for the one that is on the disk."""
    point = RecoveryPoint()
    point.raise_to(100, cut_count=0)
    began, hangs, written = threading.Event(), threading.Event(), []

    def write_down() -> None:
        began.set()
        hangs.wait(60)
        written.append(point.offset)

    def cut(offset: int) -> None:
        with point.cutting(offset, write_down):
            pass

    cuts = [threading.Thread(target=cut, args=(50,))]
    cuts[0].start()
    began.wait(60)
    cuts.append(threading.Thread(target=cut, args=(40,)))
    cuts[1].start()
    cuts[1].join(0.05)
    assert cuts[1].is_alive()
    hangs.set()
    for one in cuts:
        one.join(60)
    assert written == [50, 40]
