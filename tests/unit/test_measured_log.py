"""What clients can cause is not a line of the log each time."""

from __future__ import annotations

import logging

import pytest

from strandline.broker import measured_log
from strandline.broker.measured_log import QUIET_S, MeasuredLog
from strandline.storage.clock import ManualClock


def test_the_same_about_the_same_is_said_once_a_minute_with_how_often_it_was_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock(0)
    said = MeasuredLog(logging.getLogger("test"), clock)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            said.say(logging.WARNING, "append failed", "t-0", {"partition": "t-0"})
        said.say(logging.WARNING, "append failed", "t-1", {"partition": "t-1"})
        said.say(logging.WARNING, "read failed", "t-0", {"partition": "t-0"})
        clock.advance_ms(int(QUIET_S * 1000))
        said.say(logging.WARNING, "append failed", "t-0", {"partition": "t-0"})
    assert [(r.message, r.fields) for r in caplog.records] == [  # type: ignore[attr-defined]
        ("append failed", {"partition": "t-0"}),
        ("append failed", {"partition": "t-1"}),
        ("read failed", {"partition": "t-0"}),
        ("append failed", {"partition": "t-0", "not_logged": 2}),
    ]


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_log, "SUBJECTS_MAX", 3)
    said = MeasuredLog(logging.getLogger("test"), ManualClock(0))
    for number in range(10):
        said.say(logging.DEBUG, "append failed", number, {})
    assert len(said._said) == 3
