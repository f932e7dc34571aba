"""Trying a request within its bounds; and what S3's codes mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.storage.backoff import Backoff
from strandline.storage.errors import (
    ObjectNotFound,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.object_store.interface import Deadlines
from strandline.storage.remote.s3 import attempts
from strandline.storage.remote.s3.attempts import AgainError, Attempts, Failure
from strandline.storage.remote.silence import Silence
from tests.support.manual_clock import ManualClock

UNAVAILABLE = TierUnavailable("k", "get", "busy")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "PAUSES", Backoff(0.0001, 0.0001))


def classify(error: Exception, key: str, operation: str) -> Failure:
    del key, operation
    if isinstance(error, AgainError):
        return Failure(error.error, is_worth_repeating=True)
    if isinstance(error, OSError):
        return Failure(TierError("k", "get", "for good"))
    raise error


def make(clock: ManualClock | None = None, *, attempts_max: int = 4) -> Attempts:
    deadlines = Deadlines(request_s=30, attempts_max=attempts_max)
    clock = clock or ManualClock()
    silence = Silence("s3://bucket", clock)
    return Attempts(deadlines=deadlines, clock=clock, silence=silence, classify=classify)


def failing(times: int, error: Exception) -> Callable[[float], str]:
    """Fails so many times, then answers."""
    left = [times]

    def attempt(deadline_s: float) -> str:
        del deadline_s
        if left[0]:
            left[0] -= 1
            raise error
        return "done"

    return attempt


def test_what_may_pass_is_repeated() -> None:
    tried = make()
    assert tried.run("k", "get", failing(3, AgainError(UNAVAILABLE))) == "done"
    assert tried.statistics().requests == {"get": 4}
    assert tried.statistics().failed_attempt_count == 3


def test_attempts_are_bounded() -> None:
    tried = make(attempts_max=3)
    with pytest.raises(TierUnavailable, match="busy"):
        tried.run("k", "get", failing(99, AgainError(UNAVAILABLE)))
    assert tried.statistics().requests == {"get": 3}


def test_what_fails_for_good_is_not_repeated() -> None:
    tried = make()
    with pytest.raises(TierError, match="for good"):
        tried.run("k", "get", failing(1, OSError()))
    with pytest.raises(ObjectNotFound):
        tried.run("k", "get", failing(1, ObjectNotFound("k", "get")))
    assert tried.statistics().requests == {"get": 2}


def test_our_own_mistakes_come_through() -> None:
    with pytest.raises(ZeroDivisionError):
        make().run("k", "get", failing(1, ZeroDivisionError()))


def test_no_attempt_begins_after_the_deadline() -> None:
    clock = ManualClock()
    tried = make(clock, attempts_max=1000)

    def slow(deadline_s: float) -> str:
        assert deadline_s == 30
        clock.advance_ms(8_000)
        raise AgainError(UNAVAILABLE)

    with pytest.raises(TierUnavailable):
        tried.run("k", "get", slow)
    assert tried.statistics().requests == {"get": 4}


def test_a_transfer_gets_time_for_its_size_but_never_more_than_the_whole() -> None:
    tried = make()
    seen: list[float] = []
    tried.run("k", "put", seen.append, size_bytes=10 * 2**20)
    tried.run("k", "put", seen.append, give_up_s=5)
    assert seen == [40, 5]


def test_nothing_is_repeated_after_close() -> None:
    tried = make(attempts_max=1000)

    def close_meanwhile(_: float) -> None:
        tried.close()
        raise AgainError(UNAVAILABLE)

    with pytest.raises(TierUnavailable):
        tried.run("k", "get", close_meanwhile)
    assert tried.statistics().requests == {"get": 1}


def test_nothing_is_begun_after_close() -> None:
    tried = make()
    tried.close()
    with pytest.raises(TierUnavailable, match="closed"):
        tried.run("k", "get", failing(0, AgainError(UNAVAILABLE)))
    assert tried.statistics().requests == {}
