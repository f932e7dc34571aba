"""Producer snapshots stand at the borders of segments and at the end of the log."""

from __future__ import annotations

from pathlib import Path

from tests.unit.storage.local.restarts import killed, reopen, with_producers


def test_snapshots_at_segment_borders_are_kept_and_others_removed(tmp_path: Path) -> None:
    log = with_producers(tmp_path)
    log.close()
    (tmp_path / f"{15:020d}.snapshot").write_bytes(b"stray")
    again = reopen(tmp_path, clean=True)
    borders = {segment.base_offset for segment in again.segments[1:]} | {again.end_offset}
    assert {int(path.stem) for path in tmp_path.glob("*.snapshot")} == borders


def test_a_segment_knows_the_producers_at_its_end(tmp_path: Path) -> None:
    log = with_producers(tmp_path / "log")
    again = reopen(killed(log, tmp_path / "killed"))
    for before, after in zip(log.segments[:-1], again.segments[:-1], strict=True):
        assert after.snapshot_path.read_bytes() == before.snapshot_path.read_bytes()
