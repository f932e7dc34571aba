"""Consumers' quotas by user, and by user and client id together (KIP-13, KIP-124), over SCRAM.

The most specific quota counts: that of (user, client id) before that of the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from strandline.broker.protocol.messages.produce import ProduceResponse
from tests.support.broker import BrokerProcess
from tests.support.quotas import Quotas, is_held_up
from tests.support.users import (
    BOB,
    CAROL,
    PASSWORD,
    SETTINGS,
    librdkafka_login,
    listener_ports,
    make_users,
)
from tests.support.wire import WireClient
from tests.system.calls import batch, create_topic, produce_request

pytestmark = [pytest.mark.slow, pytest.mark.clients]

TOPIC = "read"
BATCHES = 3
BATCH_BYTES = 30_000
# Two batches are more than its windows allow, and a first one always comes (KIP-74).
SLOW, FAST = 1000.0, 1e9
BOBS: Mapping[str, str | None] = {"user": BOB}
BROKER_SETTINGS = SETTINGS


@pytest.fixture(scope="module", autouse=True)
def users(broker: BrokerProcess) -> None:
    make_users(broker)
    with WireClient(broker.port) as client:
        create_topic(client, TOPIC)
        for _ in range(BATCHES):
            request = produce_request(TOPIC, batch(value=bytes(BATCH_BYTES)))
            client.ask(request, ProduceResponse, 9)


@pytest.fixture
def quotas(broker: BrokerProcess) -> Iterator[Quotas]:
    made = Quotas(broker.port)
    yield made
    made.clear()


def is_slowed(broker: BrokerProcess, user: str, client_id: str) -> bool:
    """Whether a consumer of the whole topic is told to wait on its way."""
    login = librdkafka_login(listener_ports(broker)["CLIENTS"], user, PASSWORD)
    return is_held_up({**login, "client.id": client_id}, TOPIC, records=BATCHES)


def test_a_users_quota_counts_whatever_its_clients_call_themselves(
    broker: BrokerProcess, quotas: Quotas
) -> None:
    assert not is_slowed(broker, BOB, "any")
    quotas.set(BOBS, SLOW)
    assert is_slowed(broker, BOB, "one")
    assert is_slowed(broker, BOB, "another")
    assert not is_slowed(broker, CAROL, "one")


def test_the_quota_of_every_user_counts_for_who_has_none(
    broker: BrokerProcess, quotas: Quotas
) -> None:
    quotas.set({"user": None}, SLOW)
    quotas.set(BOBS, FAST)
    assert is_slowed(broker, CAROL, "any-of-carol")
    assert not is_slowed(broker, BOB, "any-of-bob")


def test_a_quota_of_user_and_client_counts_for_both_together_only(
    broker: BrokerProcess, quotas: Quotas
) -> None:
    quotas.set({"user": BOB, "client-id": "slow"}, SLOW)
    assert is_slowed(broker, BOB, "slow")
    assert not is_slowed(broker, BOB, "quick")
    assert not is_slowed(broker, CAROL, "slow")


def test_it_counts_before_the_users_own(broker: BrokerProcess, quotas: Quotas) -> None:
    quotas.set(BOBS, SLOW)
    quotas.set({"user": BOB, "client-id": "let-go"}, FAST)
    assert not is_slowed(broker, BOB, "let-go")
    assert is_slowed(broker, BOB, "not-let-go")
    quotas.set(BOBS, FAST)
    quotas.set({"user": BOB, "client-id": "held"}, SLOW)
    assert is_slowed(broker, BOB, "held")
    assert not is_slowed(broker, BOB, "not-held")
