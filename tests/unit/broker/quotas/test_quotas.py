"""What clients have taken is counted against their quotas, and each pause has its bound."""

from __future__ import annotations

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import QuotaEntity, quota_records
from strandline.broker.quotas.quotas import (
    CLIENTS_MAX,
    ClientQuotas,
    ConnectionRates,
    QuotaWindows,
)
from strandline.storage.rates import THROTTLE_MS_MAX
from tests.support.manual_clock import ManualClock
from tests.unit.broker.cluster.controlled import since, since_nothing

TWO_PER_SECOND = ConnectionRates(all_listeners=2.0, by_listener={})


def image_with(names: dict[str, str], **quotas: float) -> MetadataImage:
    return MetadataImage().apply_entry(quota_records(QuotaEntity.of(names), {}, quotas))


def active(names: dict[str, str], **quotas: float) -> tuple[ClientQuotas, ManualClock]:
    clock = ManualClock()
    client_quotas = ClientQuotas(clock, QuotaWindows())
    assert not client_quotas.is_active
    client_quotas.follow(*since_nothing(image_with(names, **quotas)))
    assert client_quotas.is_active
    return client_quotas, clock


def test_clients_of_one_user_share_and_others_have_their_own() -> None:
    quotas, _ = active({"user": ""}, producer_byte_rate=100)
    assert quotas.produced("alice", "a", 900) == 0
    assert quotas.produced("alice", "b", 200) == 1000
    assert quotas.produced("bob", "a", 900) == 0


def test_a_quota_that_is_taken_away_limits_nobody() -> None:
    quotas, _ = active({"user": ""}, producer_byte_rate=100)
    quotas.follow(*since(image_with({"user": ""}, producer_byte_rate=100), MetadataImage()))
    assert not quotas.is_active
    assert quotas.produced("alice", "a", 10**9) == 0


def test_a_raised_quota_counts_at_once_and_history_stays() -> None:
    quotas, _ = active({"user": ""}, producer_byte_rate=100)
    assert quotas.produced("alice", "a", 2000) == 10_000
    before, after = (image_with({"user": ""}, producer_byte_rate=rate) for rate in (100, 150))
    quotas.follow(*since(before, after))
    assert quotas.produced("alice", "a", 0) == 3333


def test_time_of_the_broker_is_paused_for_one_window_at_most() -> None:
    quotas, _ = active({"client-id": "app"}, request_percentage=1)
    assert quotas.requested("alice", "app", 0.05) == 0
    assert quotas.requested("alice", "app", 60.0) == 1000


def test_a_fetch_is_never_larger_than_what_its_quota_can_ever_allow() -> None:
    quotas, _ = active({"client-id": "app"}, consumer_byte_rate=100)
    assert quotas.fetch_bytes_max("alice", "app") == 1000
    assert quotas.fetch_bytes_max("alice", "other") == float("inf")
    assert quotas.fetched("alice", "app", 2000) == 10_000
    quotas.unfetched("alice", "app", 2000)
    assert quotas.fetched("alice", "app", 0) == 0


def test_mutations_are_refused_or_waited_for() -> None:
    quotas, clock = active({"user": "alice"}, controller_mutation_rate=1)
    strict = quotas.mutation("alice", "app", strict=True)
    assert strict is not None
    assert strict.take(13)
    assert not strict.take(1)
    assert strict.throttle_ms == 2000
    permissive = quotas.mutation("alice", "old", strict=False)
    assert permissive is not None
    assert permissive.take(5)
    assert permissive.throttle_ms == 7000
    clock.advance_ms(7000)
    assert strict.take(1)
    assert quotas.mutation("bob", "app", strict=True) is None


def test_a_clock_that_is_put_back_holds_no_client_up() -> None:
    quotas, clock = active({"user": "alice"}, producer_byte_rate=100, controller_mutation_rate=1)
    quotas.produced("alice", "app", 100)
    mutation = quotas.mutation("alice", "app", strict=True)
    assert mutation is not None
    assert mutation.take(1)
    clock.advance_ms(-2 * 3_600_000)
    for _ in range(60):
        clock.advance_ms(1000)
        assert quotas.produced("alice", "app", 90) == 0
        assert mutation.take(1)


def test_a_quota_that_shuts_clients_out_asks_for_a_pause_that_an_answer_can_say() -> None:
    quotas, _ = active({"user": "alice"}, producer_byte_rate=1, controller_mutation_rate=1e-300)
    assert quotas.produced("alice", "app", 100 * 1024 * 1024) == THROTTLE_MS_MAX
    mutation = quotas.mutation("alice", "app", strict=False)
    assert mutation is not None
    assert mutation.take(1)
    assert mutation.throttle_ms == THROTTLE_MS_MAX


def test_only_so_many_clients_are_remembered() -> None:
    quotas, _ = active({"client-id": ""}, producer_byte_rate=1)
    for number in range(CLIENTS_MAX + 10):
        quotas.produced("alice", f"client-{number}", 1)
    assert f"produced={CLIENTS_MAX}" in repr(quotas)


def quotas(clock: ManualClock) -> ClientQuotas:
    return ClientQuotas(clock, QuotaWindows())


def test_no_rate_makes_nobody_wait() -> None:
    found = quotas(ManualClock())
    unlimited = ConnectionRates(all_listeners=None, by_listener={})
    assert not any(found.accepted("A", unlimited) for _ in range(1000))


def test_a_burst_of_what_the_windows_hold_is_free_and_then_one_waits() -> None:
    clock = ManualClock()
    found = quotas(clock)
    # Ten windows of a second at two each.
    assert [found.accepted("A", TWO_PER_SECOND) for _ in range(20)] == [0] * 20
    assert found.accepted("B", TWO_PER_SECOND) == 500


def test_no_wait_is_longer_than_a_window() -> None:
    found = quotas(ManualClock())
    assert max(found.accepted("A", TWO_PER_SECOND) for _ in range(100)) == 1000


def test_over_time_the_rate_is_kept_by_those_who_wait_as_they_are_told() -> None:
    clock = ManualClock()
    found = quotas(clock)
    began_ms = clock.now_ms()
    for _ in range(220):
        clock.advance_ms(found.accepted("A", TWO_PER_SECOND))
    assert 90_000 <= clock.now_ms() - began_ms <= 110_000


def test_a_listener_of_its_own_rate_waits_for_whichever_is_slower() -> None:
    found = quotas(ManualClock())
    rates = ConnectionRates(all_listeners=100.0, by_listener={"SLOW": 1.0})
    assert [found.accepted("SLOW", rates) for _ in range(11)] == [0] * 10 + [1000]
    assert found.accepted("FAST", rates) == 0
