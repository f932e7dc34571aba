"""Brokers and controller log in to each other: by tokens, and by certificates with rules for names.

Nobody else may do what they may: without their names, no broker would join and no record would be
replicated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.broker.authorization.config import STANDARD_AUTHORIZER
from tests.support.broker import BrokerProcess
from tests.support.certificates import Authority
from tests.support.controller import ControllerProcess
from tests.support.ports import ReservedPort
from tests.support.token_endpoint import (
    CLIENT_ID,
    CLIENT_SECRET,
    SUBJECT,
    running_token_endpoint,
)
from tests.system.cluster.bounced import SETTINGS, WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.clients]


@pytest.fixture
def by_tokens() -> Iterator[dict[str, str]]:
    with running_token_endpoint() as provider:
        yield provider.broker_settings() | {
            "listener.security.protocol.map": (
                "CONTROLLER:SASL_PLAINTEXT,BROKERS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT"
            ),
            "listener.name.controller.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.brokers.sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.controller.protocol": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": provider.tokens,
            "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
            "super.users": f"User:{SUBJECT};User:ANONYMOUS",
        }


@pytest.fixture
def by_certificates(tmp_path: Path) -> dict[str, str]:
    authority = Authority()
    authority.write(tmp_path / "authority.pem")
    return {
        "listener.security.protocol.map": "CONTROLLER:SSL,BROKERS:SSL,PLAINTEXT:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("node-7").write(tmp_path / "own.pem")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "authority.pem"),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=node-[0-9]+,.*$/Node/L,DEFAULT",
        "super.users": "User:node;User:ANONYMOUS",
    }


@pytest.mark.parametrize("way", ["by_tokens", "by_certificates"])
def test_nodes_that_log_in_to_each_other_replicate(
    way: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    common = request.getfixturevalue(way) | {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "allow.everyone.if.no.acl.found": "false",
    }
    with ExitStack() as stack:
        controller = ControllerProcess(tmp_path / "controller")
        controller.settings |= common
        stack.callback(controller.kill)
        controller.start()
        brokers = [broker_of(controller, number, common, tmp_path) for number in (1, 2)]
        for broker in brokers:
            stack.callback(broker.kill)
            broker.start()
        where = {"bootstrap.servers": brokers[0].bootstrap}
        admin = AdminClient(where)
        admin.create_topics([NewTopic("t", 2, 2)])["t"].result(WAIT_S)
        refused: list[object] = []
        producer = Producer({**where, "acks": "all", "message.timeout.ms": WAIT_S * 1000})
        for partition in (0, 1):
            producer.produce(
                "t",
                b"x",
                partition=partition,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
        assert producer.flush(WAIT_S) == 0
        assert refused == []
        logs = "".join(one.log_text() for one in (controller, *brokers))
    assert "eyJ" not in logs


def broker_of(
    controller: ControllerProcess, number: int, common: dict[str, str], folder: Path
) -> BrokerProcess:
    broker = BrokerProcess(
        folder / f"broker-{number}",
        settings={
            **SETTINGS,
            **common,
            "node.id": str(number),
            "controller.quorum.bootstrap.servers": controller.bootstrap,
            "inter.broker.listener.name": "BROKERS",
            "min.insync.replicas": "2",
        },
    )
    between = ReservedPort()
    broker.settings["listeners"] = (
        f"PLAINTEXT://127.0.0.1:{broker.port},BROKERS://127.0.0.1:{between.number}"
    )
    return broker
