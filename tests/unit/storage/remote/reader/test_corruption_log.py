"""A damaged chunk is told once for a while, not with each request of a consumer before it."""

from __future__ import annotations

import logging

import pytest

from strandline.storage.errors import CorruptRecords
from strandline.storage.quiet_log import QuietLog
from strandline.storage.remote.reader import corruption_log
from strandline.storage.remote.reader.corruption_log import TOLD_AGAIN_S
from strandline.storage.remote.segment.index import ChunkKey
from tests.support.manual_clock import ManualClock

WRONG = CorruptRecords("crc is wrong")


class Told:
    """A log under test, its clock, and how often it told somebody."""

    def __init__(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self._caplog = caplog
        self.clock = ManualClock()
        quiet_log = QuietLog(corruption_log.log, self.clock, quiet_s=TOLD_AGAIN_S)
        monkeypatch.setattr(corruption_log, "_quiet_log", quiet_log)

    def tell(self, position: int = 0, source: str = "download") -> int:
        """How many warnings came of it."""
        self._caplog.clear()
        key = ChunkKey("t/0/1.log", position, position + 10)
        corruption_log.log_corrupt_chunk(key, source, WRONG)
        return sum(one.levelno == logging.WARNING for one in self._caplog.records)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Told:
    caplog.set_level(logging.DEBUG)
    return Told(caplog, monkeypatch)


def test_a_chunk_that_is_asked_for_again_and_again_is_told_once(told: Told) -> None:
    assert [told.tell() for _ in range(5)] == [1, 0, 0, 0, 0]


def test_another_chunk_and_another_place_are_told_too(told: Told) -> None:
    assert [told.tell(0), told.tell(10), told.tell(0, "disk cache"), told.tell(10)] == [1, 1, 1, 0]


def test_what_is_still_damaged_is_told_again_later(told: Told) -> None:
    told.tell()
    told.clock.advance_ms(round(TOLD_AGAIN_S * 1000) - 1)
    assert told.tell() == 0
    told.clock.advance_ms(1)
    assert told.tell() == 1
