"""Points in time as people type them, in commands and in options."""

from __future__ import annotations

import pytest

from strandline.storage.moments import checked_ms, moment_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("2013-01-01T11:00:00.5+01:00", 1357034400500),
        ("2013-01-01", 1356998400000),
        ("+1357034400123", 1357034400123),
        ("-5", -5),
        ("0", 0),
        # Of nine digits, and of eleven: nobody's seconds today.
        ("999999999", 999999999),
        ("10000000000", 10**10),
    ],
)
def test_a_moment_is_iso_or_milliseconds(text: str, expected_ms: int) -> None:
    assert moment_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["1_000", "\uff11", "1.0", "9" * 19, "1" + "0" * 40, "today", ""])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no moment: write 2026-11-20T18:00:00Z or milli"):
        moment_ms(text)


def test_seconds_are_refused_with_what_to_write_for_each_of_the_two_times() -> None:
    with pytest.raises(ValueError, match="seconds") as refused:
        moment_ms("1706745600")
    assert str(refused.value) == (
        "1706745600 looks like seconds: in milliseconds write 1706745600000; the time in 1970 is"
        " 1970-01-20T18:05:45.600+00:00"
    )
    assert moment_ms("1970-01-20T18:05:45.600+00:00") == 1706745600
    for number in (10**9, 10**10 - 1):
        with pytest.raises(ValueError, match="looks like seconds"):
            checked_ms(number)
