"""Incremental fetch sessions follow KIP-227."""

from __future__ import annotations

from strandline.broker.handlers.fetch.sessions import (
    EVICTION_IDLE_S,
    FetchSession,
    FetchSessionCache,
    WantedPartition,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.manual_clock import ManualClock


def wanted(topic: str, partition: int, offset: int = 0) -> WantedPartition:
    return WantedPartition(topic, None, partition, offset, 1000, -1)


def begin(cache: FetchSessionCache, *partitions: WantedPartition) -> FetchSession:
    session = cache.begin(partitions, uses_topic_ids=False)
    assert session is not None
    return session


def test_an_incremental_request_continues_with_the_next_epoch() -> None:
    cache = FetchSessionCache(10, ManualClock())
    session = begin(cache, wanted("a", 0))
    assert cache.resume(session.session_id, 1, uses_topic_ids=False) is session
    assert cache.resume(session.session_id, 2, uses_topic_ids=False) is session


def test_a_repeated_or_skipped_epoch_is_refused() -> None:
    cache = FetchSessionCache(10, ManualClock())
    session = begin(cache, wanted("a", 0))
    cache.resume(session.session_id, 1, uses_topic_ids=False)
    for epoch in (1, 3):
        refused = cache.resume(session.session_id, epoch, uses_topic_ids=False)
        assert refused == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_an_unknown_or_ended_session_is_refused() -> None:
    cache = FetchSessionCache(10, ManualClock())
    session = begin(cache, wanted("a", 0))
    cache.end(session.session_id)
    refused = cache.resume(session.session_id, 1, uses_topic_ids=False)
    assert refused == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_of_names_refuses_topic_ids() -> None:
    cache = FetchSessionCache(10, ManualClock())
    session = begin(cache, wanted("a", 0))
    refused = cache.resume(session.session_id, 1, uses_topic_ids=True)
    assert refused == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_an_update_moves_offsets_adds_and_forgets() -> None:
    session = begin(FetchSessionCache(10, ManualClock()), wanted("a", 0), wanted("a", 1))
    session.update([wanted("a", 0, offset=7), wanted("b", 0)], [("a", 1)], lambda _: None)
    assert [(p.topic, p.partition, p.fetch_offset) for p in session.partitions.values()] == [
        ("a", 0, 7),
        ("b", 0, 0),
    ]


def test_partitions_that_had_records_are_served_last_next_time() -> None:
    session = begin(FetchSessionCache(10, ManualClock()), *(wanted("a", n) for n in range(3)))
    session.rotate([("a", 0)])
    assert [p.partition for p in session.partitions.values()] == [1, 2, 0]


def test_a_full_cache_evicts_only_a_session_that_is_long_idle() -> None:
    clock = ManualClock()
    cache = FetchSessionCache(1, clock)
    first = begin(cache, wanted("a", 0))
    assert cache.begin([wanted("b", 0)], uses_topic_ids=False) is None
    clock.advance_ms(int(EVICTION_IDLE_S * 1000) + 1)
    second = begin(cache, wanted("b", 0))
    assert cache.session_count == 1
    assert second.session_id != first.session_id


# --- bounds in memory ----------------------------------------------------------------------------


def many(topic: str, count: int) -> list[WantedPartition]:
    return [wanted(topic, number) for number in range(count)]


def test_sessions_together_have_a_bound_in_bytes() -> None:
    one = sum(partition.memory_bytes for partition in many("a", 100))
    cache = FetchSessionCache(10, ManualClock(), memory_bytes_max=2 * one)
    first, second = begin(cache, *many("a", 100)), begin(cache, *many("a", 100))
    assert cache.begin(many("a", 1), uses_topic_ids=False) is None
    assert (cache.memory_bytes, cache.partition_count, cache.session_count) == (2 * one, 200, 2)
    cache.end(first.session_id)
    assert cache.partition_count == 100
    begin(cache, *many("a", 50))
    assert cache.resume(second.session_id, 1, uses_topic_ids=False) is second


def test_a_session_of_long_names_costs_more() -> None:
    assert wanted("a" * 5000, 0).memory_bytes > wanted("a", 0).memory_bytes + 5000


def test_idle_sessions_make_room_and_busy_ones_do_not() -> None:
    clock = ManualClock()
    one = sum(partition.memory_bytes for partition in many("a", 10))
    cache = FetchSessionCache(10, clock, memory_bytes_max=2 * one)
    idle = begin(cache, *many("a", 10))
    clock.advance_ms(int(EVICTION_IDLE_S * 1000))
    begin(cache, *many("a", 10))
    begin(cache, *many("a", 10))
    assert cache.evictions_total == 1
    refused = cache.resume(idle.session_id, 1, uses_topic_ids=False)
    assert refused == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_that_grows_beyond_all_room_is_answered_once_more_and_ends() -> None:
    one = sum(partition.memory_bytes for partition in many("a", 10))
    cache = FetchSessionCache(10, ManualClock(), memory_bytes_max=one)
    session = begin(cache, *many("a", 10))
    assert cache.resume(session.session_id, 1, uses_topic_ids=False) is session
    cache.update(session, many("b", 10), ())
    assert len(session.partitions) == 20
    assert (cache.session_count, cache.memory_bytes, cache.partition_count) == (0, 0, 0)


def test_what_is_forgotten_makes_room() -> None:
    cache = FetchSessionCache(10, ManualClock())
    session = begin(cache, *many("a", 10))
    cache.update(session, (), [("a", number) for number in range(9)])
    assert cache.partition_count == 1
    assert cache.memory_bytes == wanted("a", 9).memory_bytes


def test_a_session_of_another_user_looks_as_if_there_were_none() -> None:
    """Its topics would be in the answer, and its own client would lose it."""
    cache = FetchSessionCache(10, ManualClock())
    session = cache.begin([wanted("a", 0)], uses_topic_ids=False, user="alice")
    assert session is not None
    number = session.session_id
    for epoch in (1, 7):
        refused = cache.resume(number, epoch, uses_topic_ids=False, user="mallory")
        assert refused is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    cache.end_of("mallory", number)
    assert cache.resume(number, 1, uses_topic_ids=False, user="alice") is session
    cache.end_of("alice", number)
    assert cache.session_count == 0
