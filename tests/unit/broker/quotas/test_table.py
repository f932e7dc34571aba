"""The most specific quota wins, and says who shares it (KIP-55)."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.records import QuotaEntity
from strandline.broker.quotas.table import Limit, QuotaKey, QuotaTable

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
