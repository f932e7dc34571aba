"""`make mixed`: what keeps a strandline broker out of a cluster of Apache Kafka's controllers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.mixed.cluster import WAIT_S, Mixed, java, name_of
from tests.compat.mixed.nodes import STRANDLINE_ID, KafkaNode, kafka_controller, strandline_broker
from tests.support.broker import BrokerProcess
from tests.support.certificates import Authority

SOON = {"initial.broker.registration.timeout.ms": "5000"}


# --- refusals --------------------------------------------------------------------------------


def refused(
    folder: Path, *controllers: KafkaNode, settings: Mapping[str, str] | None = None
) -> str:
    """What a broker says that does not start."""
    broker = strandline_broker(folder, *controllers, settings=settings)
    broker.begin()
    assert broker.wait_for_exit(2 * WAIT_S) != 0
    return broker.log_text()


def test_a_second_broker_of_the_same_id_is_refused_while_the_first_lives(
    mixed: Mixed, tmp_path: Path
) -> None:
    said = refused(tmp_path, *mixed.controllers, settings=SOON)
    assert "DUPLICATE_BROKER_REGISTRATION" in said
    assert "another process has this node.id" in said
    assert mixed.ours.running


def test_the_folders_of_another_cluster_are_refused(mixed: Mixed, tmp_path: Path) -> None:
    lone = BrokerProcess(tmp_path, settings={"node.id": "12"})
    lone.start()
    lone.stop()
    said = refused(tmp_path, *mixed.controllers, settings={"node.id": "12"})
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
        said = refused(tmp_path / "wrong", controller, settings={**as_user("broker", "x"), **SOON})
        assert "refuses the login of 'broker'" in said
        said = refused(tmp_path / "nobody", controller, settings={**as_user("nobody", "n"), **SOON})
        assert "CLUSTER_AUTHORIZATION_FAILED" in said
        settings = as_user("broker", "b")
        with strandline_broker(tmp_path / "ours", controller, settings=settings) as ours:
            admin = AdminClient({"bootstrap.servers": ours.bootstrap})
            name = name_of("secured")
            # The client's own name has no right to that, and this broker has no authorizer.
            with pytest.raises(Exception, match=r"[Aa]uthorization failed"):
                admin.create_topics([NewTopic(name, 1)])[name].result(WAIT_S)
            assert ours.stop() == 0
    finally:
        controller.end()
