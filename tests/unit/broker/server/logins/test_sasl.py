"""The handler of a connection."""

from __future__ import annotations

import json
from concurrent.futures import Executor
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.audit.record import AuditRecord
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.config.loading import load_config
from strandline.broker.handlers.auth.failed_logins import FailedLogins
from strandline.broker.handlers.dispatch.dispatch import Dispatcher
from strandline.broker.network.responses import CloseConnectionError
from strandline.broker.security.identity import ClientIdentity
from strandline.broker.server.logins.sasl import ConnectionHandlers
from tests.support.manual_clock import ManualClock

CLIENTS = (
    "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
)
USERS = (
    "listener.name.clients.plain.sasl.jaas.config="
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b";'
)


@pytest.mark.parametrize("listener", ["PLAINTEXT", "CLIENTS"])
def test_each_connection_has_its_listener_and_its_address_in_javas_text(listener: str) -> None:
    callers: list[ClientIdentity] = []

    def handle(
        _frame: memoryview, _peer: str, _received_s: float, caller: ClientIdentity
    ) -> list[bytes]:
        callers.append(caller)
        return []

    handler_of = ConnectionHandlers(
        load_config(None, (*CLIENTS, "sasl.enabled.mechanisms=PLAIN", USERS)),
        cast(Dispatcher, SimpleNamespace(handle=handle)),
        cast(MetadataView, None),
        ManualClock(),
        FailedLogins(ManualClock()),
        worker=cast(Executor, None),
    )
    versions = memoryview(bytes([0, 18, 0, 3]))
    handler_of(listener, "2001:db8::1").handle(versions, "2001:db8::1:4711", 0.0)
    assert callers == [ClientIdentity(address="2001:db8:0:0:0:0:0:1", listener=listener)]


def test_a_login_by_a_certificate_is_recorded_and_so_is_one_that_is_nobodys() -> None:
    texts: list[str] = []

    def user_of(_listener: str, certificate: bytes) -> str:
        if not certificate:
            raise CloseConnectionError("no rule matches")
        return "CN=a"

    handler_of = ConnectionHandlers(
        load_config(None, ["listeners=PLAINTEXT://127.0.0.1:0"]),
        cast(Dispatcher, SimpleNamespace(handle=lambda: None)),
        cast(MetadataView, None),
        ManualClock(),
        FailedLogins(ManualClock()),
        worker=cast(Executor, None),
        record=AuditRecord(texts.append, ManualClock()),
        user_of=user_of,
    )
    handler_of("PLAINTEXT", "10.0.0.1", b"certificate")
    with pytest.raises(CloseConnectionError):
        handler_of("PLAINTEXT", "10.0.0.1", b"")
    # One without a certificate logs in as nobody.
    handler_of("PLAINTEXT", "10.0.0.1", None)
    accepted, refused = map(json.loads, texts)
    assert (accepted["result"], accepted["principal"], accepted["mechanism"]) == (
        "accepted",
        "User:CN=a",
        "SSL",
    )
    assert (refused["result"], refused["reason"]) == ("refused", "no rule matches")
