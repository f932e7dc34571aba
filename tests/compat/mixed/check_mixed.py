"""`make mixed`: three controllers and a broker of Apache Kafka, and two strandline brokers.

Every client finds the whole cluster through each broker; all tell the same; and what the strandline
brokers do not decide themselves, the controllers do.
"""

from __future__ import annotations

import kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.compat.mixed.cluster import (
    EACH,
    NODES,
    PARTITIONS,
    RECORDS,
    WAIT_S,
    Mixed,
    ensure_internal_topics,
    group_at,
    java,
    name_of,
    produce,
    read,
)
from tests.compat.mixed.nodes import CLUSTER_ID, KAFKA_ID, SECOND_ID, STRANDLINE_ID
from tests.support.broker import eventually

# --- the cluster -----------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["ours", "second", "apache"])
def test_both_brokers_tell_the_same_cluster(mixed: Mixed, through: str) -> None:
    name = name_of("placed")
    mixed.create(name, EACH, through)
    for bootstrap in mixed.bootstraps:
        listing = mixed.admin(bootstrap).list_topics(timeout=WAIT_S)
        assert listing.cluster_id == CLUSTER_ID
        assert sorted(listing.brokers) == NODES
        described = mixed.admin(bootstrap).describe_cluster().result(WAIT_S)
        assert sorted(node.id for node in described.nodes) == NODES


@pytest.mark.parametrize("through", ["ours", "second", "apache"])
def test_records_of_librdkafka_lie_where_they_were_placed(mixed: Mixed, through: str) -> None:
    name = name_of("records")
    mixed.create(name, EACH)
    bootstrap = mixed.bootstraps[through]
    for partition in PARTITIONS:
        values = [b"%d-%d" % (partition, number) for number in range(RECORDS)]
        produce(bootstrap, name, partition, values, **{"enable.idempotence": True})
        for reader in mixed.bootstraps.values():
            assert read(reader, name, partition, RECORDS) == values
    assert (mixed.ours.data / f"{name}-1").is_dir()
    assert not (mixed.ours.data / f"{name}-0").exists()


@pytest.mark.parametrize("through", ["ours", "apache"])
def test_groups_of_kafka_python_have_a_coordinator_at_either_broker(
    mixed: Mixed, through: str
) -> None:
    ensure_internal_topics(mixed)
    name = name_of("python")
    mixed.create(name, EACH)
    bootstrap = mixed.bootstraps[through]
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    sent = [producer.send(name, b"%d" % number, partition=number % 3) for number in range(RECORDS)]
    assert sorted(one.get(WAIT_S).partition for one in sent) == sorted(
        number % 3 for number in range(RECORDS)
    )
    for node in NODES:
        group = group_at(node, mixed, "__consumer_offsets")
        for expected in (RECORDS, 0):
            consumer = kafka.KafkaConsumer(
                name,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                consumer_timeout_ms=15_000 if expected else 3_000,
            )
            values = []
            for message in consumer:
                values.append(message.value)
                if len(values) == RECORDS:
                    break
            assert len(set(values)) == len(values) == expected
            consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("node", [KAFKA_ID, STRANDLINE_ID])
def test_groups_of_both_kinds_share_the_partitions(mixed: Mixed, node: int, protocol: str) -> None:
    ensure_internal_topics(mixed)
    name = name_of("shared")
    mixed.create(name, EACH)
    for partition in PARTITIONS:
        produce(mixed.ours.bootstrap, name, partition, [b"x"] * RECORDS)
    group = group_at(node, mixed, "__consumer_offsets")
    consumers = [
        Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
            }
        )
        for bootstrap in mixed.bootstraps.values()
    ]
    for consumer in consumers:
        consumer.subscribe([name])
    seen: set[tuple[int, int]] = set()

    def all_seen() -> bool:
        for consumer in consumers:
            for message in consumer.consume(RECORDS, timeout=0.2):
                assert message.error() is None, message.error()
                seen.add((message.partition() or 0, message.offset() or 0))
        return len(seen) == 3 * RECORDS

    eventually(all_seen)
    for consumer in consumers:
        consumer.close()


# --- administration --------------------------------------------------------------------------


def test_what_the_controller_decides_can_be_asked_at_ours(mixed: Mixed) -> None:
    admin = mixed.admin("ours")
    name = name_of("admin")
    mixed.create(name, [[STRANDLINE_ID]])
    with pytest.raises(Exception, match="already exists"):
        admin.create_topics([NewTopic(name, 1)])[name].result(WAIT_S)
    admin.create_partitions([NewPartitions(name, 2, replica_assignment=[[KAFKA_ID]])])[name].result(
        WAIT_S
    )
    eventually(lambda: mixed.leaders(name, "ours") == [[STRANDLINE_ID], [KAFKA_ID]])
    entry = ConfigEntry("retention.ms", "4711", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    for through in mixed.bootstraps:

        def retention(through: str = through) -> str | None:
            asked = ConfigResource(ResourceType.TOPIC, name)
            found = mixed.admin(through).describe_configs([asked])[asked].result(WAIT_S)
            return found["retention.ms"].value

        eventually(lambda retention=retention: retention() == "4711")
    user = UserScramCredentialUpsertion(
        name_of("user"), ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret"
    )
    for future in admin.alter_user_scram_credentials([user]).values():
        future.result(WAIT_S)
    for through in mixed.bootstraps:
        asker = mixed.admin(through)
        eventually(
            lambda asker=asker: user.user in asker.describe_user_scram_credentials().result(WAIT_S)
        )
    admin.delete_topics([name])[name].result(WAIT_S)
    for through in mixed.bootstraps:
        eventually(lambda through=through: mixed.leaders(name, through) == [])
    eventually(lambda: not list(mixed.ours.data.glob(f"{name}-0")))


def test_javas_tools_work_at_ours(mixed: Mixed) -> None:
    at_ours = ("--bootstrap-server", mixed.ours.bootstrap)
    name = name_of("java")
    java(
        "TopicCommand",
        *at_ours,
        *("--create", "--topic", name),
        *("--replica-assignment", f"{STRANDLINE_ID},{KAFKA_ID}"),
    )
    described = java("TopicCommand", *at_ours, "--describe", "--topic", name)
    assert f"Leader: {STRANDLINE_ID}\tReplicas: {STRANDLINE_ID}\tIsr: {STRANDLINE_ID}" in described
    lines = "".join(f"{number}\n" for number in range(RECORDS))
    java("ConsoleProducer", *at_ours, "--topic", name, given=lines)
    found = java(
        "consumer.ConsoleConsumer",
        *at_ours,
        *("--topic", name, "--from-beginning", "--max-messages", str(RECORDS)),
        *("--group", name_of("group"), "--timeout-ms", "30000"),
    )
    assert sorted(found.split()) == sorted(lines.split())
    quorum = java("MetadataQuorumCommand", *at_ours, "describe", "--replication")
    assert any(line.split()[0] == str(STRANDLINE_ID) for line in quorum.splitlines()[1:]), quorum
    features = java("FeatureCommand", *at_ours, "describe")
    assert "metadata.version" in features


# --- transactions ----------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["second", "apache"])
@pytest.mark.parametrize("node", [STRANDLINE_ID, KAFKA_ID])
def test_a_transaction_ends_on_each_broker(mixed: Mixed, node: int, through: str) -> None:
    """Its coordinator is one of them: markers and confirmations go between all."""
    ensure_internal_topics(mixed)
    name = name_of("transactions")
    mixed.create(name, EACH)
    transactional_id = group_at(node, mixed, "__transaction_state")
    producer = Producer(
        {"bootstrap.servers": mixed.bootstraps[through], "transactional.id": transactional_id}
    )
    producer.init_transactions(WAIT_S)
    outcomes = ("commit", "abort", "commit")
    for outcome in outcomes:
        producer.begin_transaction()
        for partition in PARTITIONS:
            producer.produce(name, outcome.encode(), partition=partition)
        assert producer.flush(WAIT_S) == 0
        getattr(producer, f"{outcome}_transaction")(WAIT_S)
    for bootstrap in mixed.bootstraps.values():
        for partition in PARTITIONS:
            values = read(bootstrap, name, partition, 2, **{"isolation.level": "read_committed"})
            assert values == [b"commit", b"commit"]


@pytest.mark.parametrize("node", NODES)
def test_offsets_of_a_group_elsewhere_are_part_of_a_transaction(mixed: Mixed, node: int) -> None:
    ensure_internal_topics(mixed)
    name = name_of("offsets")
    mixed.create(name, EACH)
    other = {KAFKA_ID: STRANDLINE_ID, STRANDLINE_ID: SECOND_ID, SECOND_ID: KAFKA_ID}[node]
    group = group_at(other, mixed, "__consumer_offsets")
    producer = Producer(
        {
            "bootstrap.servers": mixed.ours.bootstrap,
            "transactional.id": group_at(node, mixed, "__transaction_state"),
        }
    )
    consumer = Consumer({"bootstrap.servers": mixed.ours.bootstrap, "group.id": group})
    consumer.subscribe([name])
    consumer.poll(10)
    producer.init_transactions(WAIT_S)
    for offset, outcome in ((5, "commit"), (7, "abort")):
        producer.begin_transaction()
        producer.produce(name, b"x", partition=0)
        producer.send_offsets_to_transaction(
            [TopicPartition(name, 1, offset)], consumer.consumer_group_metadata(), WAIT_S
        )
        getattr(producer, f"{outcome}_transaction")(WAIT_S)
    (found,) = consumer.committed([TopicPartition(name, 1)], timeout=WAIT_S)
    assert found.offset == 5
    consumer.close()


# --- ends ------------------------------------------------------------------------------------


def test_a_clean_stop_hands_over_at_once_and_the_next_start_leads_again(mixed: Mixed) -> None:
    name = name_of("stopped")
    mixed.create(name, [[STRANDLINE_ID]])
    values = [b"%d" % number for number in range(RECORDS)]
    produce(mixed.apache.address, name, 0, values)
    assert mixed.ours.stop() == 0
    # The controller knew before the process was gone: no session has to end.
    assert mixed.leaders(name, "apache") == [[-1]]
    assert sorted(mixed.admin("apache").list_topics(timeout=WAIT_S).brokers) == [
        KAFKA_ID,
        SECOND_ID,
    ]
    mixed.ours.start()
    eventually(lambda: mixed.leaders(name, "apache") == [[STRANDLINE_ID]])
    assert read(mixed.apache.address, name, 0, RECORDS) == values


def test_after_kill_9_nothing_acknowledged_is_lost(mixed: Mixed) -> None:
    name = name_of("killed")
    mixed.create(name, [[STRANDLINE_ID]])
    values = [b"%d" % number for number in range(RECORDS)]
    produce(mixed.ours.bootstrap, name, 0, values, acks="all")
    mixed.ours.kill()
    mixed.ours.start()
    assert read(mixed.apache.address, name, 0, RECORDS) == values
    produce(mixed.apache.address, name, 0, values)
    assert read(mixed.ours.bootstrap, name, 0, 2 * RECORDS) == values * 2
