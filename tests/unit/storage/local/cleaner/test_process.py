"""A child that compacts is given up when it takes no request or does not move."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.cleaner.messages import CleaningRequest, ProducerTail
from strandline.storage.local.cleaner.process import CleanerProcess
from strandline.storage.system import child_process
from strandline.storage.system.child_process import ChildFailed, ChildProcess
from tests.support.manual_clock import ManualClock


class HurriedClock(ManualClock):
    """Minutes go by between two looks."""

    def monotonic_s(self) -> float:
        self.advance_ms(60_000)
        return super().monotonic_s()


def _request(directory: Path, *, producer_count: int = 0) -> CleaningRequest:
    return CleaningRequest(
        directory=directory,
        config=LogConfig(),
        segments=(),
        first_dirty_offset=0,
        first_uncleanable_offset=0,
        producers=tuple(ProducerTail(number, 0, number) for number in range(producer_count)),
        aborted=(),
        now_ms=0,
        key_bytes_max=1024,
        load_factor=0.9,
        io_bytes=1024,
        io_bytes_per_s=float("inf"),
        horizon_end_offset=0,
    )


def test_a_compacting_child_that_takes_no_request_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped between two cleanings, and this one's request is larger than a socket."""
    pids: list[int] = []

    class DeafChild(ChildProcess):
        def __init__(self, program: str) -> None:
            super().__init__("import time; time.sleep(3600)")
            pids.append(self.pid)

    monkeypatch.setattr(child_process, "ChildProcess", DeafChild)
    monkeypatch.setattr(child_process, "STILL_S_MAX", 0.05)
    process = CleanerProcess(ManualClock())
    with pytest.raises(ChildFailed, match="took nothing"):
        process.begin(_request(tmp_path, producer_count=100_000))
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    process.stop()


def test_a_compacting_child_that_does_not_move_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that hangs in the system: its thread, and the log, would be lost to the broker."""
    monkeypatch.setattr(child_process, "POLL_S", 0.01)
    pids: list[int] = []

    class StoppedChild(ChildProcess):
        def __init__(self, program: str) -> None:
            super().__init__(program)
            pids.append(self.pid)
            os.kill(self.pid, signal.SIGSTOP)

    monkeypatch.setattr(child_process, "ChildProcess", StoppedChild)
    process = CleanerProcess(HurriedClock())
    process.begin(_request(tmp_path))
    with pytest.raises(ChildFailed, match="did not move"):
        process.next()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    process.stop()
