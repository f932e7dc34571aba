"""The most specific quota wins, and says who shares it (KIP-55)."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import ClientQuotasSet, QuotaEntity
from strandline.broker.quotas.quotas import CLIENTS_MAX, ClientQuotas
from strandline.broker.quotas.rates import THROTTLE_MS_MAX, QuotaWindows
from strandline.broker.quotas.table import Limit, QuotaKey, QuotaTable
from strandline.storage.clock import ManualClock

KEY = QuotaKey.PRODUCER_BYTE_RATE
USER, CLIENT = "alice", "app"
# From the most specific to the least; each with who shares it.
PRECEDENCE = [
    ({"user": USER, "client-id": CLIENT}, (USER, CLIENT)),
    ({"user": USER, "client-id": ""}, (USER, CLIENT)),
    ({"user": USER}, (USER, "")),
    ({"user": "", "client-id": CLIENT}, (USER, CLIENT)),
    ({"user": "", "client-id": ""}, (USER, CLIENT)),
    ({"user": ""}, (USER, "")),
    ({"client-id": CLIENT}, ("", CLIENT)),
    ({"client-id": ""}, ("", CLIENT)),
]


def table(*rows: dict[str, str], key: str = KEY) -> QuotaTable:
    return QuotaTable(
        {QuotaEntity.of(names): {key: float(number)} for number, names in enumerate(rows, 1)}
    )


@pytest.mark.parametrize("row", range(len(PRECEDENCE)))
def test_the_most_specific_quota_wins(row: int) -> None:
    names, sharers = PRECEDENCE[row]
    found = table(*(names for names, _ in PRECEDENCE[row:])).find(KEY, USER, CLIENT)
    assert found == Limit(1.0, sharers), names


def test_others_are_not_limited_by_it() -> None:
    quotas = table({"user": USER, "client-id": CLIENT}, {"user": USER}, {"client-id": CLIENT})
    assert quotas.find(KEY, "bob", "other") is None
    assert quotas.find(QuotaKey.CONSUMER_BYTE_RATE, USER, CLIENT) is None


def test_a_quota_of_another_key_does_not_hide_a_less_specific_one() -> None:
    quotas = QuotaTable(
        {
            QuotaEntity.of({"user": USER}): {QuotaKey.REQUEST_PERCENTAGE: 5.0},
            QuotaEntity.of({"client-id": ""}): {KEY: 7.0},
        }
    )
    assert quotas.find(KEY, USER, CLIENT) == Limit(7.0, ("", CLIENT))


def test_an_addresss_own_rate_wins_over_the_default() -> None:
    rate = QuotaKey.CONNECTION_CREATION_RATE
    quotas = table({"ip": "10.0.0.1"}, {"ip": ""}, key=rate)
    assert (quotas.find_address("10.0.0.1"), quotas.find_address("10.0.0.2")) == (1.0, 2.0)
    assert quotas.has_addresses
    assert not quotas.has_clients


def active(names: dict[str, str], **quotas: float) -> tuple[ClientQuotas, ManualClock]:
    clock = ManualClock()
    client_quotas = ClientQuotas(clock, QuotaWindows())
    assert not client_quotas.is_active
    image = MetadataImage().apply(ClientQuotasSet(entity=QuotaEntity.of(names), quotas=quotas))
    client_quotas.follow(image)
    assert client_quotas.is_active
    return client_quotas, clock


def test_clients_of_one_user_share_and_others_have_their_own() -> None:
    quotas, _ = active({"user": ""}, producer_byte_rate=100)
    assert quotas.produced("alice", "a", 900) == 0
    assert quotas.produced("alice", "b", 200) == 1000
    assert quotas.produced("bob", "a", 900) == 0


def test_a_quota_that_is_taken_away_limits_nobody() -> None:
    quotas, _ = active({"user": ""}, producer_byte_rate=100)
    quotas.follow(MetadataImage())
    assert not quotas.is_active
    assert quotas.produced("alice", "a", 10**9) == 0


def test_a_raised_quota_counts_at_once_and_history_stays() -> None:
    quotas, _ = active({"user": ""}, producer_byte_rate=100)
    assert quotas.produced("alice", "a", 2000) == 10_000
    entity = QuotaEntity.of({"user": ""})
    quotas.follow(
        MetadataImage().apply(ClientQuotasSet(entity=entity, quotas={"producer_byte_rate": 150}))
    )
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
