"""Groups of real clients: members come and go while data flows, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tests.support.broker import BrokerProcess, eventually, faultless_broker
from tests.support.wire import WireClient
from tests.system.calls import create_topic
from tests.system.group_calls import new_group
from tests.system.groups.group_members import (
    PARTITIONS,
    PATIENCE_S,
    RECORDS,
    AiokafkaMember,
    CooperativeMember,
    KafkaPythonCooperativeMember,
    KafkaPythonMember,
    LibrdkafkaMember,
    RunningMember,
    SteadyProducer,
    assert_each_record_was_delivered_once,
    crash_and_hang,
)

pytestmark = [pytest.mark.clients, pytest.mark.slow]


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "group.initial.rebalance.delay.ms": "300",
        "group.min.session.timeout.ms": "1000",
    }
    with faultless_broker(tmp_path_factory.mktemp("clients"), settings=settings) as running:
        yield running


@pytest.fixture
def topic(group_broker: BrokerProcess, topic_name: str) -> str:
    with WireClient(group_broker.port) as client:
        create_topic(client, topic_name, PARTITIONS)
    return topic_name


StartMember = Callable[[BrokerProcess, str, str], RunningMember]


@pytest.mark.parametrize(
    "start",
    [
        LibrdkafkaMember,
        CooperativeMember,
        KafkaPythonMember,
        KafkaPythonCooperativeMember,
        AiokafkaMember,
    ],
)
def test_members_come_and_go_and_each_record_is_delivered_once(
    group_broker: BrokerProcess, topic: str, start: StartMember, crew: list[RunningMember]
) -> None:
    group_id, members = new_group(), crew
    producer = SteadyProducer(group_broker, topic)
    members.append(start(group_broker, topic, group_id))
    assert eventually(lambda: members[0].delivered)
    for _ in range(2):
        members.append(start(group_broker, topic, group_id))
        newest = members[-1]
        assert eventually(lambda newest=newest: newest.delivered, timeout_s=PATIENCE_S)
    members[0].stop()
    producer.finish()
    assert eventually(
        lambda: sum(len(member.delivered) for member in members) >= RECORDS, timeout_s=PATIENCE_S
    )
    for member in members[1:]:
        member.stop()
    assert_each_record_was_delivered_once(members)


def test_members_of_different_clients_share_a_group(
    group_broker: BrokerProcess, topic: str, crew: list[RunningMember]
) -> None:
    """All three know the range assignor, so they can be in one group."""
    group_id, members = new_group(), crew
    producer = SteadyProducer(group_broker, topic)
    for start in (KafkaPythonMember, LibrdkafkaMember, AiokafkaMember):
        members.append(start(group_broker, topic, group_id))
        newest = members[-1]
        assert eventually(lambda newest=newest: newest.delivered, timeout_s=PATIENCE_S)
    producer.finish()
    assert eventually(
        lambda: sum(len(member.delivered) for member in members) >= RECORDS, timeout_s=PATIENCE_S
    )
    for member in members:
        member.stop()
    assert_each_record_was_delivered_once(members)


@pytest.mark.parametrize(
    ("client", "start"),
    [
        ("librdkafka", LibrdkafkaMember),
        ("kafka-python", KafkaPythonMember),
        ("aiokafka", AiokafkaMember),
    ],
)
def test_the_partitions_of_members_that_crash_or_hang_are_taken_over(
    group_broker: BrokerProcess,
    topic: str,
    client: str,
    start: StartMember,
    crew: list[RunningMember],
) -> None:
    crash_and_hang(client, group_broker, topic, new_group(), start, crew)


def test_operators_see_groups_with_librdkafkas_admin_client(
    group_broker: BrokerProcess, topic: str, crew: list[RunningMember]
) -> None:
    group_id = new_group()
    producer = SteadyProducer(group_broker, topic)
    member = LibrdkafkaMember(group_broker, topic, group_id)
    crew.append(member)
    assert eventually(lambda: member.delivered, timeout_s=PATIENCE_S)
    admin = AdminClient({"bootstrap.servers": group_broker.bootstrap})
    (found,) = [
        group
        for group in admin.list_consumer_groups(request_timeout=60).result().valid
        if group.group_id == group_id
    ]
    assert found.state is ConsumerGroupState.STABLE
    described = admin.describe_consumer_groups([group_id], request_timeout=60)[group_id].result()
    assert described.partition_assignor == "range"
    (one,) = described.members
    assert {p.partition for p in one.assignment.topic_partitions} == set(range(PARTITIONS))
    producer.finish()
    assert eventually(lambda: len(member.delivered) == RECORDS, timeout_s=PATIENCE_S)
    member.stop()
    deleted = admin.delete_consumer_groups([group_id], request_timeout=60)
    deleted[group_id].result()
    left = admin.list_consumer_groups(request_timeout=60).result().valid
    assert group_id not in {group.group_id for group in left}
