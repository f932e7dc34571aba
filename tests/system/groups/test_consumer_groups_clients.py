"""Groups of the new protocol (KIP-848) with librdkafka, while data flows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.support.broker import BrokerProcess, eventually, faultless_broker
from tests.support.wire import WireClient
from tests.system.calls import create_topic
from tests.system.group_calls import new_group
from tests.system.groups.group_members import (
    EVERYTHING,
    PARTITIONS,
    PATIENCE_S,
    RECORDS,
    SESSION_MS,
    CommittingMember,
    CooperativeMember,
    LibrdkafkaMember,
    NewProtocolMember,
    RunningMember,
    SteadyProducer,
    assert_each_record_was_delivered_once,
    crash_and_hang,
)

pytestmark = [pytest.mark.clients, pytest.mark.slow]

# Members learn of a rebalance within their short heartbeats; so less data will do.
PRODUCE_S = 3.0
# Each comes and goes again: two rebalances.
GUESTS = 8
SETTINGS = {
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    # As SESSION_MS of the others: a silence of the machine's is no end of a member.
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": "1000",
}


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with faultless_broker(tmp_path_factory.mktemp("consumers"), settings=SETTINGS) as running:
        yield running


@pytest.fixture
def topic(group_broker: BrokerProcess, topic_name: str) -> str:
    with WireClient(group_broker.port) as client:
        create_topic(client, topic_name, PARTITIONS)
    return topic_name


def group_type(broker: BrokerProcess, group_id: str) -> ConsumerGroupType:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (found,) = [
        group
        for group in admin.list_consumer_groups(request_timeout=60).result().valid
        if group.group_id == group_id
    ]
    return found.type


def test_members_come_and_go_and_each_record_is_delivered_once(
    group_broker: BrokerProcess, topic: str, crew: list[RunningMember]
) -> None:
    group_id = new_group()
    producer = SteadyProducer(group_broker, topic, seconds=PRODUCE_S)
    for _ in range(3):
        member = NewProtocolMember(group_broker, topic, group_id)
        crew.append(member)
        assert eventually(lambda member=member: member.delivered, timeout_s=PATIENCE_S)
    crew[0].stop()
    producer.finish()
    assert eventually(
        lambda: sum(len(member.delivered) for member in crew) >= RECORDS, timeout_s=PATIENCE_S
    )
    for member in crew[1:]:
        member.stop()
    assert_each_record_was_delivered_once(crew)


def test_no_commit_of_those_who_stay_fails_while_others_come_and_go(
    group_broker: BrokerProcess, topic: str, crew: list[RunningMember]
) -> None:
    group_id = new_group()
    producer = SteadyProducer(group_broker, topic, seconds=PRODUCE_S)
    staying = [CommittingMember(group_broker, topic, group_id) for _ in range(2)]
    crew += staying
    assert eventually(lambda: all(m.commits for m in staying), timeout_s=PATIENCE_S)
    commits = [member.commits for member in staying]
    for _ in range(GUESTS):
        guest = NewProtocolMember(group_broker, topic, group_id)
        crew.append(guest)
        assert eventually(
            lambda guest=guest: guest.delivered or any(member.failure for member in staying),
            timeout_s=PATIENCE_S,
        )
        assert [member.failure for member in staying] == [None, None]
        guest.stop()
    assert eventually(
        lambda: all(m.commits > n for m, n in zip(staying, commits, strict=True)),
        timeout_s=PATIENCE_S,
    )
    producer.finish()
    for member in staying:
        member.stop()


@pytest.mark.parametrize("start", [LibrdkafkaMember, CooperativeMember])
def test_a_group_goes_over_to_the_new_protocol_and_back_without_losing_a_record(
    group_broker: BrokerProcess,
    topic: str,
    crew: list[RunningMember],
    start: type[LibrdkafkaMember],
) -> None:
    group_id = new_group()
    producer = SteadyProducer(group_broker, topic, seconds=PRODUCE_S)
    crew.append(start(group_broker, topic, group_id))
    assert eventually(lambda: crew[0].delivered, timeout_s=PATIENCE_S)
    assert group_type(group_broker, group_id) is ConsumerGroupType.CLASSIC
    crew.append(NewProtocolMember(group_broker, topic, group_id))
    assert eventually(lambda: crew[1].delivered, timeout_s=PATIENCE_S)
    assert group_type(group_broker, group_id) is ConsumerGroupType.CONSUMER
    crew[1].stop()
    assert group_type(group_broker, group_id) is ConsumerGroupType.CLASSIC
    producer.finish()
    assert eventually(
        lambda: sum(len(member.delivered) for member in crew) >= RECORDS, timeout_s=PATIENCE_S
    )
    crew[0].stop()
    assert_each_record_was_delivered_once(crew)


def test_the_partitions_of_members_that_crash_or_hang_are_taken_over(
    group_broker: BrokerProcess, topic: str, crew: list[RunningMember]
) -> None:
    group_id = new_group()
    expect_soon_again(group_broker, group_id)
    crash_and_hang(
        "librdkafka, new protocol", group_broker, topic, group_id, NewProtocolMember, crew
    )


def expect_soon_again(broker: BrokerProcess, group_id: str) -> None:
    """Members of this group are out after two seconds of silence."""
    entry = ConfigEntry(
        "consumer.session.timeout.ms", "2000", incremental_operation=AlterConfigOpType.SET
    )
    group = ConfigResource(ConfigResource.Type.GROUP, group_id, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (done,) = admin.incremental_alter_configs([group]).values()
    done.result(60)


def test_members_go_on_after_the_broker_was_killed(
    tmp_path_factory: pytest.TempPathFactory, topic_name: str, crew: list[RunningMember]
) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("killed"), settings=SETTINGS) as broker:
        with WireClient(broker.port) as client:
            create_topic(client, topic_name, PARTITIONS)
        group_id = new_group()
        producer = SteadyProducer(broker, topic_name, seconds=PRODUCE_S)
        crew += [NewProtocolMember(broker, topic_name, group_id) for _ in range(2)]
        assert eventually(lambda: all(member.delivered for member in crew), timeout_s=PATIENCE_S)
        broker.kill()
        broker.start()
        producer.finish()
        assert eventually(
            lambda: {d for member in crew for d in member.delivered} >= EVERYTHING,
            timeout_s=PATIENCE_S,
        )
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        described = admin.describe_consumer_groups([group_id], request_timeout=60)[group_id]
        # The same two members, in the group as it was: nobody had to join again.
        assert described.result().state is ConsumerGroupState.STABLE
        assert len(described.result().members) == 2
        for member in crew:
            member.stop()
