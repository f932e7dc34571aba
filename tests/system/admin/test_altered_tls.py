"""Files of TLS, altered while a broker serves with others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from strandline.broker.protocol.messages.incremental_alter_configs import ConfigOperation
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.support.broker import BrokerProcess, eventually, faultless_broker
from tests.support.certificates import Authority
from tests.support.ports import ReservedPort
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING
from tests.system.config_calls import alter

pytestmark = pytest.mark.slow

KEYSTORE = "listener.name.tls.ssl.keystore.location"
INVALID_REQUEST = 42
SECURE = ReservedPort()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def broker(folder: Path, authority: Authority) -> Iterator[BrokerProcess]:
    plain = ReservedPort()
    settings = {
        **KEEP_EVERYTHING,
        "listeners": f"PLAINTEXT://127.0.0.1:{plain.number},TLS://127.0.0.1:{SECURE.number}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker").write(folder / "first.pem")),
    }
    with faultless_broker(folder / "broker", settings=settings) as started:
        yield started


def served(authority: Authority) -> int:
    """The number of the certificate that a new client is shown."""
    with (
        socket.create_connection(("127.0.0.1", SECURE.number)) as connected,
        authority.client_context().wrap_socket(connected, server_hostname="localhost") as sealed,
    ):
        shown = sealed.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("another", "ssl.allow.dn.changes=true would allow it"),
        ("expired", "has expired"),
        ("mixed", "the key is not that of the first certificate"),
        ("pipe", "a pipe"),
        ("nothing", "No such file"),
        ("a\0b", "cannot be read"),
    ],
)
def test_what_a_listener_could_not_take_up_is_refused_with_the_reason(
    broker: BrokerProcess, folder: Path, authority: Authority, name: str, reason: str
) -> None:
    authority.issue("another").write(folder / "another.pem")
    authority.issue("broker", valid_days=(-9, -1)).write(folder / "expired.pem")
    key, chain = authority.issue("broker").key_pem(), authority.issue("broker").chain_pem
    (folder / "mixed.pem").write_text(key + chain)
    if not (folder / "pipe.pem").exists():
        os.mkfifo(folder / "pipe.pem")
    with WireClient(broker.port) as client:
        before = served(authority)
        path = str(folder / f"{name}.pem")
        refused = alter(client, "1", (KEYSTORE, ConfigOperation.SET, path))
        assert refused.error_code == INVALID_REQUEST
        assert reason in (refused.error_message or "")
        assert served(authority) == before


def test_an_altered_keystore_serves_the_next_clients_and_after_a_restart(
    broker: BrokerProcess, folder: Path, authority: Authority
) -> None:
    renewed = authority.issue("broker")
    renewed.write(folder / "renewed.pem")
    wanted = renewed.certificate.serial_number
    operation = (KEYSTORE, ConfigOperation.SET, str(folder / "renewed.pem"))
    with WireClient(broker.port) as client:
        assert alter(client, "1", operation, validate_only=True).error_code == 0
        assert alter(client, "1", operation).error_code == 0
    eventually(lambda: served(authority) == wanted)
    broker.kill()
    broker.start()
    eventually(lambda: served(authority) == wanted)


def test_what_alter_configs_takes_back_is_checked_too(
    broker: BrokerProcess, folder: Path, authority: Authority
) -> None:
    """It takes back what it does not name."""
    authority.issue("broker").write(folder / "second.pem")
    operation = (KEYSTORE, ConfigOperation.SET, str(folder / "second.pem"))
    broker_1 = AlterConfigsResource(
        resource_type=ConfigResourceType.BROKER, resource_name="1", configs=[]
    )
    request = AlterConfigsRequest(resources=[broker_1])
    with WireClient(broker.port) as client:
        assert alter(client, "1", operation).error_code == 0
        (folder / "first.pem").rename(folder / "away.pem")
        (answered,) = client.ask(request, AlterConfigsResponse, 2).responses
        assert answered.error_code == INVALID_REQUEST
        assert "No such file" in (answered.error_message or "")
        (folder / "away.pem").rename(folder / "first.pem")
        (answered,) = client.ask(request, AlterConfigsResponse, 2).responses
        assert answered.error_code == 0
