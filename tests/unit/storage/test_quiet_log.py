"""What others can cause is not a line of the log each time."""

from __future__ import annotations

import logging

import pytest

from strandline.storage.quiet_log import QUIET_S, QuietLog
from tests.support.manual_clock import ManualClock

LOG = logging.getLogger("test")


def lines_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    """The lines above DEBUG, each with its fields."""
    return [
        (record.message, record.fields)  # type: ignore[attr-defined]
        for record in caplog.records
        if record.levelno > logging.DEBUG
    ]


def test_the_same_about_the_same_is_said_once_a_minute_with_how_often_it_was_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    said = QuietLog(LOG, clock)
    quiet_ms = int(QUIET_S * 1000)
    with caplog.at_level(logging.DEBUG):
        for later_ms in (0, 1000, quiet_ms - 1001):
            clock.advance_ms(later_ms)
            said.say(logging.WARNING, "append failed", "t-0", {"partition": "t-0"})
        said.say(logging.WARNING, "append failed", "t-1", {"partition": "t-1"})
        said.say(logging.WARNING, "read failed", "t-0", {"partition": "t-0"})
        for later_ms in (1, quiet_ms):
            clock.advance_ms(later_ms)
            said.say(logging.WARNING, "append failed", "t-0", {"partition": "t-0"})
    assert lines_of(caplog) == [
        ("append failed", {"partition": "t-0"}),
        ("append failed", {"partition": "t-1"}),
        ("read failed", {"partition": "t-0"}),
        ("append failed", {"partition": "t-0", "not_logged": 2}),
        ("append failed", {"partition": "t-0"}),
    ]


def test_each_time_is_a_line_for_who_asks_for_all(caplog: pytest.LogCaptureFixture) -> None:
    said = QuietLog(LOG, ManualClock())
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            said.say(logging.ERROR, "append failed", "t-0", {})
    assert [record.levelno for record in caplog.records] == [
        logging.ERROR,
        logging.DEBUG,
        logging.DEBUG,
    ]


def test_an_error_comes_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    error = ZeroDivisionError("a mistake of ours")
    QuietLog(LOG).say(logging.ERROR, "request failed", "here", {}, error=error)
    assert "a mistake of ours" in caplog.text


def test_what_is_remembered_has_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    """And it is the one that was silent longest that is forgotten, and said anew."""
    said = QuietLog(LOG, subjects_max=2)
    for about in (0, 1, 0, 2, 0, 1):
        said.say(logging.WARNING, "append failed", about, {"about": about})
    assert [fields["about"] for _, fields in lines_of(caplog)] == [0, 1, 2, 1]
