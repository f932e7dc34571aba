"""Failed logins in the log and in the metrics, of few clients and of very many."""

from __future__ import annotations

import pytest

from strandline.broker.handlers.auth.failed_logins import (
    ADDRESSES_MAX,
    LOG_S,
    OTHERS,
    FailedLogins,
)
from tests.support.manual_clock import ManualClock


def fail(failed: FailedLogins, address: str, user: str) -> None:
    failed.add(
        peer=f"{address}:4711",
        listener="CLIENTS",
        mechanism="PLAIN",
        user=user,
        reason="no such user, or a wrong password",
    )


def test_the_line_names_the_user_and_repeats_of_an_address_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    failed = FailedLogins(clock)
    for user in ("alice", "bob", "carol"):
        fail(failed, "10.0.0.1", user)
    fail(failed, "fe80::1", "dave")
    clock.advance_ms(int(LOG_S * 1000))
    fail(failed, "10.0.0.1", "erin")
    said = [record.fields for record in caplog.records if record.message == "login failed"]  # type: ignore[attr-defined]
    assert [(one["user"], one.get("not_logged", 0)) for one in said] == [
        ("alice", 0),
        ("dave", 0),
        ("erin", 2),
    ]
    assert failed.by_address() == {"10.0.0.1": 4, "fe80::1": 1}


def test_very_many_addresses_share_one_counter_and_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = FailedLogins(ManualClock())
    for number in range(ADDRESSES_MAX + 500):
        fail(failed, f"10.0.{number >> 8}.{number & 255}", "root")
    counts = failed.by_address()
    assert len(counts) == ADDRESSES_MAX + 1
    assert counts[OTHERS] == 500
    assert len(caplog.records) == ADDRESSES_MAX + 1
