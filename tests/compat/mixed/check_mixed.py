"""`make mixed`: Apache Kafka's controller, one Apache broker and one strandline broker.

Topics lie on each by their replica assignment, with one replica. Every client finds the whole
cluster through either broker; both tell the same; and what the strandline broker does not decide
itself, the controller does.
"""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
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

from bench.comparison.peers import kafka_java
from strandline.broker.coordination.runtime.slots import coordinating_partition
from tests.compat.mixed.nodes import (
    CLUSTER_ID,
    HEAP,
    KAFKA_ID,
    STRANDLINE_ID,
    KafkaNode,
    kafka_broker,
    kafka_controller,
    strandline_broker,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.certificates import Authority

WAIT_S = 60.0
RECORDS = 200
BOTH = [[KAFKA_ID], [STRANDLINE_ID]]


@dataclass(frozen=True, slots=True)
class Mixed:
    """The nodes of the cluster."""

    controller: KafkaNode
    apache: KafkaNode
    ours: BrokerProcess
    # Kept: a client that is collected fails what it still waits for.
    admins: dict[str, AdminClient] = field(default_factory=dict)

    @property
    def bootstraps(self) -> dict[str, str]:
        return {"apache": self.apache.address, "ours": self.ours.bootstrap}

    def admin(self, through: str = "ours") -> AdminClient:
        if through not in self.admins:
            self.admins[through] = AdminClient({"bootstrap.servers": self.bootstraps[through]})
        return self.admins[through]

    def create(self, name: str, assignment: list[list[int]], through: str = "ours") -> None:
        topic = NewTopic(name, num_partitions=len(assignment), replica_assignment=assignment)
        self.admin(through).create_topics([topic])[name].result(WAIT_S)
        for bootstrap in self.bootstraps:
            eventually(lambda bootstrap=bootstrap: self.leaders(name, bootstrap) == assignment)

    def leaders(self, topic: str, through: str) -> list[list[int]]:
        found = self.admin(through).list_topics(timeout=WAIT_S).topics.get(topic)
        if found is None:
            return []
        return [[one.leader] for _, one in sorted(found.partitions.items())]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("mixed")
    controller = kafka_controller(folder / "controller")
    controller.start()
    apache = kafka_broker(folder / "apache", controller)
    ours = strandline_broker(folder / "ours", controller)
    try:
        apache.start()
        ours.start()
        yield Mixed(controller, apache, ours)
        assert ours.running
        assert "Traceback" not in ours.log_text(), ours.log_text()[-4000:]
    finally:
        ours.kill()
        apache.end()
        controller.end()


def name_of(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:6]}"


def produce(bootstrap: str, topic: str, partition: int, values: list[bytes], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **more})
    failures: list[KafkaError] = []
    for value in values:
        producer.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(WAIT_S) == 0
    assert failures == []


def read(bootstrap: str, topic: str, partition: int, count: int, **more: Any) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": name_of("read"), **more},
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes] = []
    until_s = time.monotonic() + WAIT_S
    while len(values) < count and time.monotonic() < until_s:
        for message in consumer.consume(count - len(values), timeout=1):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    consumer.close()
    return values


def group_at(node: int, mixed: Mixed, topic: str) -> str:
    """Returns a name whose coordinator is that broker."""
    found = mixed.admin().list_topics(timeout=WAIT_S).topics[topic].partitions
    while True:
        name = name_of("at")
        if found[coordinating_partition(name, len(found))].leader == node:
            return name


def ensure_internal_topics(mixed: Mixed) -> None:
    """A group and a transaction anywhere create the topics of the coordinators, on both brokers."""
    producer = Producer({"bootstrap.servers": mixed.ours.bootstrap, "transactional.id": "any"})
    producer.init_transactions(WAIT_S)
    consumer = Consumer(
        {"bootstrap.servers": mixed.ours.bootstrap, "group.id": "any", "enable.auto.commit": False}
    )
    name = name_of("any")
    mixed.create(name, BOTH)
    consumer.subscribe([name])
    eventually(lambda: consumer.poll(0.1) is None and consumer.assignment())
    consumer.close()


# --- the cluster -----------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["ours", "apache"])
def test_both_brokers_tell_the_same_cluster(mixed: Mixed, through: str) -> None:
    name = name_of("placed")
    mixed.create(name, BOTH, through)
    for bootstrap in mixed.bootstraps:
        listing = mixed.admin(bootstrap).list_topics(timeout=WAIT_S)
        assert listing.cluster_id == CLUSTER_ID
        assert sorted(listing.brokers) == [KAFKA_ID, STRANDLINE_ID]
        described = mixed.admin(bootstrap).describe_cluster().result(WAIT_S)
        assert sorted(node.id for node in described.nodes) == [KAFKA_ID, STRANDLINE_ID]


@pytest.mark.parametrize("through", ["ours", "apache"])
def test_records_of_librdkafka_lie_where_they_were_placed(mixed: Mixed, through: str) -> None:
    name = name_of("records")
    mixed.create(name, BOTH)
    bootstrap = mixed.bootstraps[through]
    for partition in (0, 1):
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
    mixed.create(name, BOTH)
    bootstrap = mixed.bootstraps[through]
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    sent = [producer.send(name, b"%d" % number, partition=number % 2) for number in range(RECORDS)]
    assert sorted(one.get(WAIT_S).partition for one in sent) == sorted([0, 1] * (RECORDS // 2))
    for node in (KAFKA_ID, STRANDLINE_ID):
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
    mixed.create(name, BOTH)
    for partition in (0, 1):
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
        return len(seen) == 2 * RECORDS

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


def java(main: str, *arguments: str, given: str | None = None) -> str:
    done = subprocess.run(
        kafka_java(f"org.apache.kafka.tools.{main}", *arguments, options=HEAP),
        input=given,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


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


@pytest.mark.parametrize("through", ["ours", "apache"])
@pytest.mark.parametrize("node", [STRANDLINE_ID, KAFKA_ID])
def test_a_transaction_ends_on_both_brokers(mixed: Mixed, node: int, through: str) -> None:
    """Its coordinator is one of them: markers and confirmations go between the two."""
    ensure_internal_topics(mixed)
    name = name_of("transactions")
    mixed.create(name, BOTH)
    transactional_id = group_at(node, mixed, "__transaction_state")
    producer = Producer(
        {"bootstrap.servers": mixed.bootstraps[through], "transactional.id": transactional_id}
    )
    producer.init_transactions(WAIT_S)
    outcomes = ("commit", "abort", "commit")
    for outcome in outcomes:
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(name, outcome.encode(), partition=partition)
        assert producer.flush(WAIT_S) == 0
        getattr(producer, f"{outcome}_transaction")(WAIT_S)
    for bootstrap in mixed.bootstraps.values():
        for partition in (0, 1):
            values = read(bootstrap, name, partition, 2, **{"isolation.level": "read_committed"})
            assert values == [b"commit", b"commit"]


@pytest.mark.parametrize("node", [STRANDLINE_ID, KAFKA_ID])
def test_offsets_of_a_group_elsewhere_are_part_of_a_transaction(mixed: Mixed, node: int) -> None:
    ensure_internal_topics(mixed)
    name = name_of("offsets")
    mixed.create(name, BOTH)
    other = KAFKA_ID if node == STRANDLINE_ID else STRANDLINE_ID
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
    assert sorted(mixed.admin("apache").list_topics(timeout=WAIT_S).brokers) == [KAFKA_ID]
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


def test_without_a_controller_leaders_go_on_and_changes_wait(mixed: Mixed) -> None:
    name = name_of("alone")
    mixed.create(name, [[STRANDLINE_ID]])
    values = [b"%d" % number for number in range(RECORDS)]
    mixed.controller.pause()
    try:
        produce(mixed.ours.bootstrap, name, 0, values)
        assert read(mixed.ours.bootstrap, name, 0, RECORDS) == values
    finally:
        mixed.controller.resume()
    again = name_of("again")
    mixed.create(again, [[STRANDLINE_ID]])
    produce(mixed.ours.bootstrap, again, 0, values)


# --- refusals --------------------------------------------------------------------------------


def refused(folder: Path, controller: KafkaNode, settings: Mapping[str, str] | None = None) -> str:
    """What a broker says that does not start."""
    broker = strandline_broker(folder, controller, settings)
    broker.begin()
    assert broker.wait_for_exit(2 * WAIT_S) != 0
    return broker.log_text()


def test_a_second_broker_of_the_same_id_is_refused_while_the_first_lives(
    mixed: Mixed, tmp_path: Path
) -> None:
    said = refused(tmp_path, mixed.controller, {"initial.broker.registration.timeout.ms": "5000"})
    assert "DUPLICATE_BROKER_REGISTRATION" in said
    assert "another process has this node.id" in said
    assert mixed.ours.running


def test_the_folders_of_another_cluster_are_refused(mixed: Mixed, tmp_path: Path) -> None:
    lone = BrokerProcess(tmp_path, settings={"node.id": "12"})
    lone.start()
    lone.stop()
    said = refused(tmp_path, mixed.controller, {"node.id": "12"})
    assert "one of another cluster" in said


def test_features_of_other_groups_are_refused_by_name_until_they_are_lowered(
    mixed: Mixed, tmp_path: Path
) -> None:
    new = kafka_controller(tmp_path / "controller", features=())
    new.start()
    try:
        said = refused(tmp_path / "ours", new)
        for feature in ("share.version", "streams.version"):
            assert f"downgrade --feature {feature}=0" in said
        java(
            "FeatureCommand",
            *("--bootstrap-controller", new.address),
            *("downgrade", "--feature", "share.version=0", "--feature", "streams.version=0"),
        )
        with strandline_broker(tmp_path / "ours", new) as ours:
            listing = AdminClient({"bootstrap.servers": ours.bootstrap}).list_topics(timeout=WAIT_S)
            assert list(listing.brokers) == [STRANDLINE_ID]
            assert ours.stop() == 0
    finally:
        new.end()


# --- security --------------------------------------------------------------------------------


def test_a_controller_that_wants_a_login_and_a_certificate_lets_ours_in(tmp_path: Path) -> None:
    """It asks for ClusterAction too, which only super users have here."""
    authority = Authority()
    authority.write(tmp_path / "authority.pem")
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    users = 'user_controller="c" user_broker="b" user_nobody="n"'
    security = {
        "listener.security.protocol.map": "CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.ssl.truststore.type": "PEM",
        "listener.name.controller.ssl.truststore.location": str(tmp_path / "authority.pem"),
        "listener.name.controller.ssl.keystore.type": "PEM",
    }

    def as_user(name: str, password: str, *, knows: str = "") -> dict[str, str]:
        own = authority.issue(name, hosts=("127.0.0.1",)).write(tmp_path / f"{name}.pem")
        jaas = f'{module} username="{name}" password="{password}" {knows};'
        return {
            **security,
            "listener.name.controller.ssl.keystore.location": str(own),
            "listener.name.controller.plain.sasl.jaas.config": jaas,
        }

    controller = kafka_controller(
        tmp_path / "controller",
        {
            **as_user("controller", "c", knows=users),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.ssl.client.auth": "required",
            "authorizer.class.name": ("org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
            "super.users": "User:controller;User:broker",
        },
    )
    controller.start()
    try:
        wrong = {"initial.broker.registration.timeout.ms": "4000"}
        said = refused(tmp_path / "wrong", controller, {**as_user("broker", "x"), **wrong})
        assert "refuses the login of 'broker'" in said
        said = refused(tmp_path / "nobody", controller, {**as_user("nobody", "n"), **wrong})
        assert "CLUSTER_AUTHORIZATION_FAILED" in said
        settings = as_user("broker", "b")
        with strandline_broker(tmp_path / "ours", controller, settings) as ours:
            admin = AdminClient({"bootstrap.servers": ours.bootstrap})
            name = name_of("secured")
            # The client's own name has no right to that, and this broker has no authorizer.
            with pytest.raises(Exception, match=r"[Aa]uthorization failed"):
                admin.create_topics([NewTopic(name, 1)])[name].result(WAIT_S)
            assert ours.stop() == 0
    finally:
        controller.end()
