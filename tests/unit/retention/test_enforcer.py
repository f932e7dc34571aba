"""Retention rounds: steps come in order, and the failure of one log does not stop the others."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from strandline.retention.enforcer import RetentionEnforcer
from strandline.retention.jump_guard import JumpGuard
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import Offset
from strandline.storage.tiering.log.unified_log import UnifiedLog
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import NOW_MS, fill, open_log

# Of six segments the newest stays.
KEEPS_LITTLE = LogConfig(retention_bytes=1)


class Broker:
    """Logs in one tier, and a disk that takes their log starts or does not."""

    def __init__(self, folder: Path) -> None:
        self.logs = [UnifiedLog(_filled(folder / name)) for name in ("a", "b")]
        self.failure: DiskError | None = None
        # Whether the disk takes no file, and how often files were unlinked.
        self.is_full = False
        self.unlinked_count = 0

    async def unlink(self, _now_s: float) -> None:
        self.unlinked_count += 1
        self.is_full = False

    async def note_time(self, _now_ms: int) -> None:
        if self.is_full:
            raise DiskError("full")

    async def write_log_starts(self) -> Collection[Path]:
        if self.failure is not None:
            raise self.failure
        return ()

    def rounds(self, count: int = 1) -> list[int]:
        clock = ManualClock(NOW_MS)
        enforcer = RetentionEnforcer(
            lambda: self.logs,
            write_log_starts=self.write_log_starts,
            purge_deleted=self.unlink,
            wake_tiering=lambda _partition: None,
            clock=clock,
            guard=JumpGuard(clock),
            note_time=self.note_time,
            interval_ms=1,
        )

        async def run() -> list[int]:
            return [await enforcer.run_once() for _ in range(count)]

        return asyncio.run(run())

    @property
    def local_starts(self) -> list[Offset]:
        return [log.local.segments[0].base_offset for log in self.logs]


def _filled(folder: Path) -> LocalLog:
    local = open_log(folder, config=KEEPS_LITTLE)
    for _ in range(5):
        fill(local, 1)
        local.roll()
    return local


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    for log in made.logs:
        log.local.close()


def test_local_segments_go_once_the_log_start_is_durable(broker: Broker) -> None:
    broker.failure = DiskError("full")
    (held,) = broker.rounds()
    assert held == 0
    assert broker.local_starts == [0, 0]
    broker.failure = None
    (freed,) = broker.rounds()
    assert freed > 0
    assert min(broker.local_starts) > 0


def test_a_log_that_fails_holds_up_no_other_and_is_told_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_now_ms: int) -> bool:
        raise DiskError("broken")

    first, _ = broker.logs
    monkeypatch.setattr(first.local, "roll_if_expired", fail)
    broker.rounds(3)
    assert broker.local_starts[0] == 0
    assert broker.local_starts[1] > 0
    assert caplog.text.count("retention does not succeed") == 1


def test_files_are_unlinked_before_anything_is_written_to_their_disk(broker: Broker) -> None:
    broker.is_full = True
    broker.rounds()
    assert (broker.unlinked_count, broker.is_full) == (1, False)
