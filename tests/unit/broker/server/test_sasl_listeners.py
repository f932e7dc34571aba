"""SASL listeners that nobody could come in by, or anybody, are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.loading import load_config
from strandline.broker.handlers.auth.failed_logins import FailedLogins
from strandline.broker.handlers.dispatch.dispatch import Dispatcher
from strandline.broker.security.identity import ClientIdentity
from strandline.broker.server.sasl import (
    ConnectionHandlers,
    check_sasl,
    enabled_mechanisms,
    sasl_listeners,
)
from strandline.storage.errors import InvalidConfig
from tests.support.manual_clock import ManualClock

CLIENTS = (
    "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
)
USERS = (
    "listener.name.clients.plain.sasl.jaas.config="
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b";'
)


def load(*overrides: str) -> BrokerConfig:
    return load_config(None, (*CLIENTS, *overrides))


def test_a_listener_is_sasl_by_its_protocol_and_has_its_own_mechanisms() -> None:
    config = load(
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
        "listener.name.clients.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
        USERS,
    )
    check_sasl(config)
    assert sasl_listeners(config) == ["CLIENTS"]
    assert enabled_mechanisms(config, "CLIENTS") == ("PLAIN", "SCRAM-SHA-512")
    assert enabled_mechanisms(config, "OTHER") == ("SCRAM-SHA-256",)


def test_a_listener_may_have_the_name_of_its_protocol() -> None:
    config = load_config(None, ("listeners=SASL_PLAINTEXT://127.0.0.1:0",))
    assert sasl_listeners(config) == ["SASL_PLAINTEXT"]


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ((), "expected some of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (("sasl.enabled.mechanisms=GSSAPI",), "expected some of PLAIN"),
        (("sasl.enabled.mechanisms=PLAIN",), "expected its users in listener.name.clients.plain"),
    ],
)
def test_a_listener_without_a_way_in_is_refused(overrides: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        check_sasl(load(*overrides))


@pytest.mark.parametrize("listener", ["PLAINTEXT", "CLIENTS"])
def test_each_connection_has_its_listener_and_its_address_in_javas_text(listener: str) -> None:
    callers: list[ClientIdentity] = []

    def handle(
        _frame: memoryview, _peer: str, _received_s: float, caller: ClientIdentity
    ) -> list[bytes]:
        callers.append(caller)
        return []

    handler_of = ConnectionHandlers(
        load("sasl.enabled.mechanisms=PLAIN", USERS),
        cast(Dispatcher, SimpleNamespace(handle=handle)),
        cast(MetadataView, None),
        ManualClock(),
        FailedLogins(ManualClock()),
    )
    versions = memoryview(bytes([0, 18, 0, 3]))
    handler_of(listener, "2001:db8::1").handle(versions, "2001:db8::1:4711", 0.0)
    assert callers == [ClientIdentity(address="2001:db8:0:0:0:0:0:1", listener=listener)]


def test_encryption_is_refused_as_before() -> None:
    with pytest.raises(InvalidConfig, match="SASL_SSL is not served yet"):
        load_config(
            None,
            (CLIENTS[0], "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL"),
        )
