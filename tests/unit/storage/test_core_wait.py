"""What a thread waited for a core since it was last asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strandline.storage.system.core_wait import CoreWait


def test_what_is_read_is_what_came_since_the_last_time(tmp_path: Path) -> None:
    counted = tmp_path / "schedstat"
    counted.write_text("123456 2000000000 7\n")
    wait = CoreWait(counted)
    try:
        assert wait.read_s() == 0
        counted.write_text("123499 2250000000 8\n")
        assert wait.read_s() == pytest.approx(0.25, abs=0.001)
        assert wait.read_s() == 0
    finally:
        wait.close()


def test_to_be_given_a_free_core_is_no_wait_however_often_it_is(tmp_path: Path) -> None:
    counted = tmp_path / "schedstat"
    counted.write_text("0 0 0\n")
    wait = CoreWait(counted)
    try:
        # Ten microseconds each time.
        counted.write_text("1000000000 100000000 10000\n")
        assert wait.read_s() == 0
    finally:
        wait.close()


def test_the_kernel_counts_it_for_this_thread() -> None:
    wait = CoreWait()
    try:
        assert wait.read_s() >= 0
    finally:
        wait.close()


def test_where_it_is_not_counted_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        CoreWait(tmp_path / "schedstat")


def test_closing_gives_the_descriptor_back_once(tmp_path: Path) -> None:
    counted = tmp_path / "schedstat"
    counted.write_text("0 0 0\n")
    wait = CoreWait(counted)
    descriptor = wait._descriptor
    wait.close()
    wait.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
