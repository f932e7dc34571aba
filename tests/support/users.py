"""Users that log in, the listeners they come by, and how clients say who they are."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.broker import BrokerProcess
from tests.support.metrics import METRICS_ON

ALICE, BOB, CAROL = "alice", "bob", "carol"
PASSWORD = "correct horse"
MECHANISM_OF = {ALICE: "PLAIN", BOB: "SCRAM-SHA-256", CAROL: "SCRAM-SHA-512"}
# Of a login to the listener SHORT.
LIFETIME_MS = 2000
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' username="x" password="y" user_{ALICE}="{PASSWORD}";'
)
# A broker where everybody may come by PLAINTEXT, and by the other two who logs in.
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,SHORT://127.0.0.1:0",
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT"
    ),
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": JAAS,
    "listener.name.short.plain.sasl.jaas.config": JAAS,
    "listener.name.short.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.short.connections.max.reauth.ms": str(LIFETIME_MS),
    "connection.failed.authentication.delay.ms": "10",
    **METRICS_ON,
}
PATIENCE_S = 60


def scram_info(mechanism: str) -> ScramCredentialInfo:
    return ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], 4096)


def make_users(broker: BrokerProcess, users: Iterable[str] = (BOB, CAROL)) -> None:
    """Gives each of them PASSWORD, by SCRAM; ALICE is known from the settings."""
    set_passwords(broker, [(user, MECHANISM_OF[user], PASSWORD) for user in users])


def set_passwords(broker: BrokerProcess, wanted: Iterable[tuple[str, str, str]]) -> None:
    """By SCRAM: user, mechanism and password of each."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    changes = [
        UserScramCredentialUpsertion(user, scram_info(mechanism), password.encode())
        for user, mechanism, password in wanted
    ]
    # One by one: the client's answer has each user once.
    for change in changes:
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(PATIENCE_S)


def listener_ports(broker: BrokerProcess) -> dict[str, int]:
    """Ports of the listeners, by name."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (rows,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
    listeners = rows.result(PATIENCE_S)["listeners"].value.split(",")
    return {one.split(":")[0]: int(one.rsplit(":", 1)[1]) for one in listeners}


def librdkafka_login(port: int, user: str, password: str) -> dict[str, str | int]:
    """Settings of a librdkafka client that comes as `user`."""
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM_OF[user],
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }
