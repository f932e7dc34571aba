"""Points in time and lengths of time, as people type them."""

from __future__ import annotations

import pytest

from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.timestamps import duration_ms, moment_ago_ms, moment_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("2013-01-01T10:00:00Z", 1357034400000),
        ("2013-01-01T11:00:00+01:00", 1357034400000),
        ("2013-01-01 10:00:00", 1357034400000),
        ("2013-01-01", 1356998400000),
        ("1357034400123", 1357034400123),
        # Negative times ask for something else: -1 for the end of the log.
        ("1969-12-31T23:59:59.999Z", 0),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_moment_is_iso_or_milliseconds_and_utc_unless_it_says(
    text: str, expected_ms: int
) -> None:
    assert moment_ms(text) == expected_ms


def test_seconds_are_no_moment() -> None:
    with pytest.raises(WrongUse, match="looks like seconds: in milliseconds write 1357034400000"):
        moment_ms("1357034400")
    assert moment_ms("1970-01-16T16:57:14.400Z") == 1357034400


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("90s", 90_000),
        ("15m", 900_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("250ms", 250),
        ("PT1H30M", 5_400_000),
        ("P1DT2S", 86_402_000),
    ],
)
def test_a_length_of_time_is_short_or_iso(text: str, expected_ms: int) -> None:
    assert duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "soon", "P", "PT", "-5m", "5", "5 m", "1x"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="no duration"):
        duration_ms(text)


def test_longer_ago_than_there_are_times_is_the_first_of_them() -> None:
    assert moment_ago_ms("15m", 1_000_000) == 100_000
    assert moment_ago_ms("99999999999d", 1_000_000) == 0


@pytest.mark.parametrize("text", ["yesterday", "2013-13-01", "-1", "", "²", str(2**63)])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="no moment"):
        moment_ms(text)
