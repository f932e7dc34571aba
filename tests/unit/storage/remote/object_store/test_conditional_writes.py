"""Looking at a server whether two brokers on one archive would be safe there."""

from __future__ import annotations

import threading

import pytest

from strandline.storage.errors import (
    AccessDenied,
    InvalidConfig,
    PreconditionFailed,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.object_store.conditional_writes import (
    RACERS,
    Conditions,
    check_conditional_writes,
)
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectInfo,
    PutBody,
)
from strandline.storage.remote.object_store.interface import PutCondition as Condition
from tests.support.memory_store import Fault, MemoryStore

WAIT_S = 60.0


class Ignores(MemoryStore):
    """Writes whatever one kind of condition says."""

    def __init__(self, kind: type[IfAbsent] | type[IfMatches]) -> None:
        super().__init__()
        self._kind = kind

    def put(self, key: str, body: PutBody, *, condition: Condition | None = None) -> ObjectInfo:
        kept = None if isinstance(condition, self._kind) else condition
        return super().put(key, body, condition=kept)


class Answers(MemoryStore):
    """Answers every If-Match in one way."""

    def __init__(self, error: TierError) -> None:
        super().__init__()
        self._error = error

    def put(self, key: str, body: PutBody, *, condition: Condition | None = None) -> ObjectInfo:
        if isinstance(condition, IfMatches):
            raise self._error
        return super().put(key, body, condition=condition)


class LooksThenWrites(MemoryStore):
    """Keeps a condition as it looks, and writes later; of a race, when all have looked."""

    def __init__(self, kind: type[IfAbsent] | type[IfMatches]) -> None:
        super().__init__()
        self._kind = kind
        self._all_looked = threading.Barrier(RACERS)

    def put(self, key: str, body: PutBody, *, condition: Condition | None = None) -> ObjectInfo:
        is_raced = isinstance(body, bytes) and b" by " in body
        if not is_raced or not isinstance(condition, self._kind):
            return super().put(key, body, condition=condition)
        holds = self._holds(key, condition)
        self._all_looked.wait(WAIT_S)
        if not holds:
            raise PreconditionFailed(key, "put", "looked")
        return super().put(key, body)

    def _holds(self, key: str, condition: IfAbsent | IfMatches) -> bool:
        if isinstance(condition, IfAbsent):
            return key not in self.keys()
        return self.head(key).etag == condition.etag


@pytest.mark.parametrize(("kind", "header"), [(IfAbsent, "If-None-Match"), (IfMatches, "If-Match")])
def test_a_server_that_ignores_a_condition_is_refused_with_what_to_do(
    kind: type[IfAbsent] | type[IfMatches], header: str
) -> None:
    store = Ignores(kind)
    with pytest.raises(InvalidConfig, match=rf"ignores {header}: .* Use a server with conditional"):
        check_conditional_writes(store)
    assert store.keys() == []


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (PreconditionFailed("k", "put", "412"), "refuses If-Match with the ETag that it gave"),
        (TierError("k", "put", "501 NotImplemented: no"), "does not know If-Match .*501"),
    ],
)
def test_a_server_that_takes_no_if_match_is_refused(error: TierError, what: str) -> None:
    store = Answers(error)
    with pytest.raises(InvalidConfig, match=what):
        check_conditional_writes(store)
    assert store.keys() == []


@pytest.mark.parametrize("error", [TierUnavailable, AccessDenied])
def test_a_server_that_cannot_be_asked_now_is_not_judged(error: type[TierError]) -> None:
    store = Answers(error("k", "put", "not now"))
    with pytest.raises(error):
        check_conditional_writes(store)
    assert store.keys() == []


@pytest.mark.parametrize("kind", [IfAbsent, IfMatches])
def test_a_server_that_keeps_conditions_one_request_at_a_time_is_taken_with_a_warning(
    kind: type[IfAbsent] | type[IfMatches], caplog: pytest.LogCaptureFixture
) -> None:
    store = LooksThenWrites(kind)
    assert check_conditional_writes(store) is Conditions.ONE_AT_A_TIME
    assert store.keys() == []
    (row,) = caplog.records
    assert "only one request at a time" in row.message
    assert "safe with this broker alone" in row.message


def test_a_server_that_keeps_conditions_is_asked_a_bounded_number_of_times() -> None:
    store = MemoryStore()
    assert check_conditional_writes(store) is Conditions.AT_ONCE
    assert store.keys() == []
    assert store.count_requests("put") == 4 + 2 * RACERS


def test_racers_that_fail_for_another_reason_say_nothing() -> None:
    store = MemoryStore()
    store.add_fault(Fault(operation="put", error=TierUnavailable, skip=4, times=-1))
    assert check_conditional_writes(store) is Conditions.AT_ONCE


def test_a_write_that_is_forbidden_is_the_only_request() -> None:
    """It is asked again every few seconds, for as long as the right is missing."""
    store = MemoryStore()
    store.add_fault(Fault(operation="put", error=AccessDenied, times=-1))
    with pytest.raises(AccessDenied):
        check_conditional_writes(store)
    assert len(store.requests) == 1


@pytest.mark.parametrize(
    ("error", "level", "text"),
    [
        (AccessDenied, "WARNING", "refuses to delete"),
        (TierUnavailable, "INFO", "are deleted later"),
    ],
)
def test_a_store_that_deletes_nothing_is_taken_and_told(
    error: type[TierError], level: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store = MemoryStore()
    store.add_fault(Fault(operation="delete", error=error, times=-1))
    assert check_conditional_writes(store) is Conditions.AT_ONCE
    (row,) = caplog.records
    assert (row.levelname, text in row.message) == (level, True)
