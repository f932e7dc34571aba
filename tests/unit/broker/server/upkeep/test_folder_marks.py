"""Marks in log folders."""

from __future__ import annotations

from pathlib import Path

from strandline.broker.server.upkeep.folder_marks import check_no_replica, check_not_interrupted


def test_a_folder_that_cannot_be_looked_into_is_left_to_who_locks_it(tmp_path: Path) -> None:
    """Where permissions are missing it is the same; a test may run as root."""
    folder = tmp_path / ("x" * 300)
    check_no_replica([folder])
    check_not_interrupted([folder])
