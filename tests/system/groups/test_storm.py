"""A thousand members join one group at once: bounded memory, and other clients are served."""

from __future__ import annotations

import threading

import pytest

from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import create_topic, software
from tests.system.group_calls import GroupMember, commit, committed, listed

pytestmark = [pytest.mark.slow]

MEMBERS = 1000
PARTITIONS = 60
# Each is heard once in a round, and a round of a thousand takes its time.
SESSION_MS = 60_000
# What a thousand members may cost: a few kilobytes each for connection, futures and state, and
# the answers that wait to be sent. The leader's alone names all of them.
GROWTH_MIB_MAX = 60


class Bystander:
    """Another client: it commits and fetches offsets of its own group all the time."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.rounds = 0
        self.failure: BaseException | None = None
        self._broker = broker
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with WireClient(self._broker.port) as client:
                while not self._stopping.is_set():
                    assert commit(client, "bystander", {("t", 0): self.rounds}) == [0]
                    assert committed(client, "bystander", "t") == self.rounds
                    client.ask(software(), ApiVersionsResponse, 3)
                    self.rounds += 1
        except BaseException as error:
            self.failure = error
            raise

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert self.failure is None, self.failure


BROKER_SETTINGS = {
    # Members that still come prolong it, so that all of them are in the first generation.
    "group.initial.rebalance.delay.ms": "1000",
    "max.connections": str(2 * MEMBERS + 100),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
}


@pytest.fixture(scope="module", autouse=True)
def topic_and_bystander(broker: BrokerProcess) -> None:
    with WireClient(broker.port) as client:
        create_topic(client, "t", PARTITIONS)
        commit(client, "bystander", {("t", 0): 0})


def test_many_classic_members_at_once_get_their_assignments_and_hold_up_nobody(
    broker: BrokerProcess, many_descriptors: None
) -> None:
    before_mib = broker.resident_mib()
    members = [GroupMember(broker.port, "classic-storm", topics=["t"]) for _ in range(MEMBERS)]
    bystander = Bystander(broker)
    try:
        for member in members:
            member.ask_to_join(version=3, session_timeout_ms=SESSION_MS)
        answers = [member.joined(version=3) for member in members]
        assert {answer.error_code for answer in answers} == {0}
        assert {answer.generation_id for answer in answers} == {1}
        (leader,) = [answer for answer in answers if answer.members]
        assert len(leader.members) == MEMBERS
        for member in members:
            is_leader = member.member_id == leader.member_id
            mine = {one.member_id: one.member_id.encode() for one in members}
            member.ask_to_sync(mine if is_leader else None, version=2)
        for member in members:
            assert bytes(member.synced(version=2).assignment) == member.member_id.encode()
        assert {member.beat(version=2) for member in members} == {0}
        assert broker.resident_mib() - before_mib < GROWTH_MIB_MAX
    finally:
        bystander.stop()
        for member in members:
            member.close()
    assert bystander.rounds > 10


@pytest.mark.heavy
def test_many_members_of_the_new_protocol_get_their_partitions_and_hold_up_nobody(
    broker: BrokerProcess, many_descriptors: None
) -> None:
    before_mib = broker.resident_mib()
    clients = [WireClient(broker.port) for _ in range(MEMBERS)]
    bystander = Bystander(broker)
    epochs = [0] * MEMBERS
    owned: list[list[HeartbeatTopicPartitions]] = [[] for _ in range(MEMBERS)]

    def beat(position: int) -> None:
        is_new = epochs[position] == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id="storm",
            member_id=f"member-{position}",
            member_epoch=epochs[position],
            rebalance_timeout_ms=60_000 if is_new else -1,
            subscribed_topic_names=["t"] if is_new else None,
            topic_partitions=owned[position],
        )
        answer = clients[position].ask(request, ConsumerGroupHeartbeatResponse, 1)
        assert answer.error_code == 0, answer
        epochs[position] = answer.member_epoch
        if answer.assignment is not None:
            owned[position] = list(answer.assignment.topic_partitions)

    try:
        for position in range(MEMBERS):
            beat(position)
        # The first is told to give back, gives back, and then the others get what there is.
        for _ in range(2):
            for position in range(MEMBERS):
                beat(position)
        assert set(epochs) == {MEMBERS}
        held = [
            (position, p) for position, rows in enumerate(owned) for r in rows for p in r.partitions
        ]
        assert sorted(p for _, p in held) == list(range(PARTITIONS))
        assert len({position for position, _ in held}) == PARTITIONS
        assert broker.resident_mib() - before_mib < GROWTH_MIB_MAX
        assert listed(clients[0])["storm"].group_state == "Stable"
    finally:
        bystander.stop()
        for client in clients:
            client.close()
    assert bystander.rounds > 10
