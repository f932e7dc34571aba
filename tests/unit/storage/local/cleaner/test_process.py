"""A child that compacts is given up when it takes no request or does not move."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Event

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.cleaner import process as process_module
from strandline.storage.local.cleaner.cleaner import CleanerConfig, LogCleaner
from strandline.storage.local.cleaner.messages import (
    CleaningRequest,
    ProducerTail,
    RateAltered,
)
from strandline.storage.local.cleaner.process import (
    CleanerProcess,
    CleaningFailed,
    _Throttle,
)
from strandline.storage.system import child_process
from strandline.storage.system.child_process import ChildFailed, ChildProcess
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.compaction import CompactedLog
from tests.unit.storage.tiering.threaded_cleaner import ThreadedCleaner


class HurriedClock(ManualClock):
    """Minutes go by between two looks."""

    def monotonic_s(self) -> float:
        self.advance_ms(60_000)
        return super().monotonic_s()


class TickingClock(ManualClock):
    """A second goes by between two looks."""

    def monotonic_s(self) -> float:
        self.advance_ms(1000)
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

    monkeypatch.setattr(child_process, "STILL_S_MAX", 0.05)
    process = CleanerProcess(ManualClock(), DeafChild)
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

    process = CleanerProcess(HurriedClock(), StoppedChild)
    process.begin(_request(tmp_path))
    with pytest.raises(ChildFailed, match="did not move"):
        process.next()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    process.stop()


def test_a_raised_rate_holds_for_the_cleaning_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the rate that it began with it would take hours."""
    monkeypatch.setattr(child_process, "POLL_S", 0.001)
    log = CompactedLog(tmp_path, settings=CleanerConfig(io_bytes_per_s=1))
    for _ in range(2):
        log.append((b"a", b"v" * 1500))
        log.seal()
    begun = Event()

    class Begun(ThreadedCleaner):
        def begin(self, request: CleaningRequest) -> None:
            super().begin(request)
            begun.set()

    log.cleaner = LogCleaner(
        lambda: [log.log],
        offsets=log.dirs,
        executor=ThreadPoolExecutor(1),
        clock=log.clock,
        settings=lambda: log.settings,
        make_process=Begun,
    )

    def alter() -> None:
        assert begun.wait(60)
        log.settings = CleanerConfig(io_bytes_per_s=float("inf"))

    with ThreadPoolExecutor(1) as other:
        altered = other.submit(alter)
        assert log.clean() == 1
        altered.result()
    assert [record.offset for record in log.records()] == [1]


def test_a_lowered_rate_holds_from_the_next_bytes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "THROTTLE_SLEEP_S_MAX", 0)
    ours, theirs = Pipe(duplex=True)
    clock = TickingClock()
    throttle = _Throttle(theirs, 1e9, clock)
    throttle.spend(1_000_000)
    before_s = clock.monotonic_s()
    ours.send(RateAltered(io_bytes_per_s=1))
    throttle.spend(100)
    assert 100 <= clock.monotonic_s() - before_s < 110, "of these bytes, and of none before"


def test_a_rate_that_comes_after_the_end_of_a_cleaning_does_no_harm(tmp_path: Path) -> None:
    cleaner = ThreadedCleaner(ManualClock())
    for _ in range(2):
        cleaner.begin(_request(tmp_path))
        with pytest.raises(CleaningFailed):
            cleaner.next()
        cleaner.send(RateAltered(io_bytes_per_s=1))
    cleaner.close()
