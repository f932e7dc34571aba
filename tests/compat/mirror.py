"""The part of `make interop` with MirrorMaker 2: a topic and its ACLs, from one broker of ours to
another, over SASL_SSL.

    python -m tests.compat.mirror MIRROR_LIBRARIES

MirrorMaker copies rules of literal names. A right to write stays behind, a right to everything
becomes one to read, and the topic has the source's name before its own: as Kafka's
MirrorSourceConnector has it. In the end a user reads by a rule that nobody but MirrorMaker made.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.compat.secured import AUTHORITY, plain_users, tls_settings
from tests.support.broker import BrokerProcess, eventually

USERS = {"admin": "admin-secret", "alice": "alice-secret"}
GROUP = "readers"
RECORD_COUNT = 200
WAIT_S = 60.0
# A JVM, three connectors and their topics.
MIRROR_S = 240.0
# Operation and name of each rule of User:alice at the source, and what has to be at the target.
RULES = (
    ("READ", "orders", "LITERAL"),
    ("WRITE", "orders", "LITERAL"),
    ("DESCRIBE", "ord", "PREFIXED"),
    ("ALL", "bills", "LITERAL"),
)
COPIED = {("READ", "source.orders", "LITERAL"), ("READ", "source.bills", "LITERAL")}
FACTORS = ("replication", "offset-syncs.topic.replication", "checkpoints.topic.replication")
FACTORS += ("heartbeats.topic.replication", "offset.storage.replication")
FACTORS += ("config.storage.replication", "status.storage.replication")


class Cluster:
    """A broker whose authorizer lets in nobody but `admin`, reached over SASL_SSL."""

    def __init__(self, folder: Path) -> None:
        self.broker = BrokerProcess(folder)
        self.address = self.broker.add_listener("CLIENTS", "SASL_SSL")
        self.authority = folder / "tls" / AUTHORITY
        self.broker.settings |= {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": plain_users(USERS),
            "group.initial.rebalance.delay.ms": "0",
            **tls_settings(folder / "tls"),
        }

    def client(self, user: str) -> dict[str, str | int | bool]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": USERS[user],
        }

    def properties(self, alias: str) -> dict[str, str]:
        """For MirrorMaker."""
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        found = {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{module} username="admin" password="{USERS["admin"]}";',
        }
        return {f"{alias}.{key}": text for key, text in found.items()}

    def rules(self) -> set[tuple[str, str, str]]:
        """Those of alice on topics: operation, name, kind of the name."""
        wanted = AclBindingFilter(
            ResourceType.TOPIC,
            None,
            ResourcePatternType.ANY,
            "User:alice",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        admin = AdminClient(self.client("admin"))
        found = admin.describe_acls(wanted).result(WAIT_S)
        return {(one.operation.name, one.name, one.resource_pattern_type.name) for one in found}


def fill(source: Cluster) -> None:
    """Topics, records, and the rules of alice."""
    admin = AdminClient(source.client("admin"))
    for made in admin.create_topics([NewTopic("orders", 2, 1), NewTopic("bills", 1, 1)]).values():
        made.result(WAIT_S)
    rules = [
        AclBinding(
            ResourceType.TOPIC,
            name,
            ResourcePatternType[kind],
            "User:alice",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for operation, name, kind in RULES
    ]
    for created in admin.create_acls(rules).values():
        created.result(WAIT_S)
    producer = Producer(source.client("admin"))
    for number in range(RECORD_COUNT):
        producer.produce("orders", b"%d" % number, partition=number % 2)
    assert producer.flush(WAIT_S) == 0


def let_commit(target: Cluster) -> None:
    """The client of `read` wants a group, and MirrorMaker copies no rules of groups."""
    rule = AclBinding(
        ResourceType.GROUP,
        GROUP,
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient(target.client("admin"))
    for created in admin.create_acls([rule]).values():
        created.result(WAIT_S)


def read(target: Cluster) -> list[int]:
    """What alice may read there, in the order of the numbers."""
    consumer = Consumer(
        {
            **target.client("alice"),
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition("source.orders", number, 0) for number in range(2)])
    found = []
    for message in consumer.consume(RECORD_COUNT, timeout=WAIT_S):
        assert message.error() is None, message.error()
        found.append(int(message.value()))
    consumer.close()
    return sorted(found)


@contextmanager
def mirror(libraries: Path, folder: Path, properties: Mapping[str, str]) -> Iterator[Path]:
    """MirrorMaker from `source` to `target`, running; the file with what it says."""
    wanted = {"clusters": "source,target", "source->target.enabled": "true", **properties}
    path, said = folder / "mirror.properties", folder / "mirror.log"
    path.write_text("".join(f"{key}={text}\n" for key, text in wanted.items()))
    command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += [
        "-cp",
        f"{libraries.absolute()}/*",
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(path),
    ]
    with open(said, "wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield said
        assert process.poll() is None, said.read_text()[-4000:]
    finally:
        process.kill()
        process.wait()


def main(arguments: list[str]) -> int:
    libraries = Path(arguments[0])
    with tempfile.TemporaryDirectory(prefix="strandline-mirror-") as name:
        folder = Path(name)
        source, target = Cluster(folder / "source"), Cluster(folder / "target")
        with source.broker, target.broker:
            fill(source)
            let_commit(target)
            properties = {
                "source->target.topics": "orders,bills",
                "sync.topic.acls.enabled": "true",
                "sync.topic.acls.interval.seconds": "2",
                "refresh.topics.interval.seconds": "2",
                **{f"{name}.factor": "1" for name in FACTORS},
                **source.properties("source"),
                **target.properties("target"),
            }
            with mirror(libraries, folder, properties) as said:
                try:
                    eventually(lambda: target.rules() >= COPIED, timeout_s=MIRROR_S, interval_s=2.0)
                except AssertionError:
                    print(said.read_text()[-4000:])
                    raise
                assert read(target) == list(range(RECORD_COUNT))
                assert target.rules() == COPIED, target.rules()
            for cluster in (source, target):
                assert cluster.broker.running
                assert "Traceback" not in cluster.broker.log_text(), cluster.broker.log_text()
    print(f"MirrorMaker 2 copied {RECORD_COUNT} records and {len(COPIED)} of {len(RULES)} rules")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
