"""The members of a group change their way of assigning one after the other: kafkatest's
consumer_rolling_upgrade_test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import Consumer

from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import create_topic

pytestmark = [pytest.mark.clients, pytest.mark.slow]

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
RANGE, ROUND_ROBIN = "range", "roundrobin"
BY_RANGE = [{0, 1}, {2, 3}]
BY_TURNS = [{0, 2}, {1, 3}]


class Members:
    """Two of a group; each may leave and come back with other strategies."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._broker, self._topic = broker, topic
        self._all: dict[int, Consumer] = {}

    def restart(self, number: int, *strategies: str) -> None:
        self.stop(number)
        member = Consumer(
            {
                "bootstrap.servers": self._broker.bootstrap,
                "group.id": f"of-{self._topic}",
                "partition.assignment.strategy": ",".join(strategies),
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
            }
        )
        member.subscribe([self._topic])
        self._all[number] = member

    def stop(self, number: int) -> None:
        with suppress(KeyError):
            self._all.pop(number).close()

    def await_assigned(self, expected: list[set[int]]) -> None:
        def assigned() -> bool:
            for member in self._all.values():
                member.poll(0.05)
            held = [{one.partition for one in who.assignment()} for who in self._all.values()]
            return sorted(held, key=min) == expected if all(held) else False

        eventually(assigned)


@pytest.fixture
def members(broker: BrokerProcess, topic_name: str) -> Iterator[Members]:
    with WireClient(broker.port) as client:
        create_topic(client, topic_name, 4)
    running = Members(broker, topic_name)
    yield running
    for number in range(2):
        running.stop(number)


def test_a_group_changes_its_strategy_once_all_members_have_the_new_one(members: Members) -> None:
    for number in range(2):
        members.restart(number, RANGE)
    members.await_assigned(BY_RANGE)
    # The first of those that all members have is taken.
    members.restart(0, ROUND_ROBIN, RANGE)
    members.await_assigned(BY_RANGE)
    members.restart(1, ROUND_ROBIN, RANGE)
    members.await_assigned(BY_TURNS)
    for number in range(2):
        members.restart(number, ROUND_ROBIN)
        members.await_assigned(BY_TURNS)
