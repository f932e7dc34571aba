"""The metrics over HTTPS: with a certificate that is renewed, and for those who show one."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import tls_listeners
from strandline.broker.config.loading import load_config
from strandline.broker.telemetry.http_server import CONNECTIONS_MAX
from strandline.storage.errors import InvalidConfig
from tests.support.broker import BrokerProcess, eventually
from tests.support.certificates import Authority
from tests.support.metrics import metrics_port

pytestmark = pytest.mark.slow

PATIENCE_S = 60
HTTPS = "https://127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Watched:
    broker: BrokerProcess
    authority: Authority
    folder: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{metrics_port(self.broker)}"

    def context(self, own: str | None) -> ssl.SSLContext:
        return self.authority.client_context(None if own is None else self.folder / own)

    def get(self, path: str, own: str | None = "prometheus.pem") -> str:
        context = self.context(own)
        with urllib.request.urlopen(
            f"{self.url}{path}", timeout=PATIENCE_S, context=context
        ) as answer:
            return str(answer.read().decode())

    def serial_of_broker(self) -> int:
        """The serial number of the certificate that a new connection is shown."""
        address = ("127.0.0.1", metrics_port(self.broker))
        with (
            socket.create_connection(address, PATIENCE_S) as connected,
            self.context("prometheus.pem").wrap_socket(
                connected, server_hostname="localhost"
            ) as sealed,
        ):
            shown = sealed.getpeercert()
            assert shown is not None
            return int(str(shown["serialNumber"]), 16)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("metrics-tls")
    authority = Authority()
    authority.write(folder / "ca.pem")
    authority.issue("broker").write(folder / "broker.pem")
    authority.issue("prometheus").write(folder / "prometheus.pem")
    settings = {
        "strandline.metrics.listener": HTTPS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "listener.name.https.ssl.truststore.type": "PEM",
        "listener.name.https.ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.https.ssl.client.auth": "required",
    }
    with BrokerProcess(folder / "broker", settings=settings) as broker:
        yield Watched(broker, authority, folder)
        assert "Traceback" not in broker.log_text()


def test_who_shows_a_certificate_sees_the_metrics(watched: Watched) -> None:
    assert watched.get("/healthz") == watched.get("/readyz") == "ok\n"
    page = watched.get("/metrics")
    assert 'strandline_tls_certificate_days_left{listener="HTTPS",certificate="own"}' in page
    assert 'strandline_tls_handshakes_total{listener="HTTPS"' in page


def test_who_shows_none_sees_nothing_and_is_counted(watched: Watched) -> None:
    with pytest.raises((urllib.error.URLError, OSError)):
        watched.get("/metrics", own=None)
    with socket.create_connection(
        ("127.0.0.1", metrics_port(watched.broker)), PATIENCE_S
    ) as connected:
        connected.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        with suppress(ConnectionError):
            assert b"HTTP" not in connected.recv(1000)
    failures = 'strandline_tls_handshake_failures_total{listener="HTTPS",reason="%s"} 1'
    page = watched.get("/metrics")
    assert failures % "no_certificate" in page
    assert failures % "plaintext" in page


def test_the_command_trusts_the_authority_that_it_is_told(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["status", "--metrics", watched.url]
    assert main(command) != 0
    assert "ssl.ca.location" in capsys.readouterr().err
    own = watched.folder / "prometheus.pem"
    trusting = {
        "ssl.ca.location": watched.folder / "ca.pem",
        "ssl.certificate.location": own,
        "ssl.key.location": own,
    }
    words = [word for name, value in trusting.items() for word in ("-X", f"{name}={value}")]
    assert main([*command, *words]) in (0, 3)
    assert "up for" in capsys.readouterr().out


def test_clients_that_do_not_shake_hands_harm_nobody(watched: Watched) -> None:
    address = ("127.0.0.1", metrics_port(watched.broker))
    silent = [socket.create_connection(address, PATIENCE_S) for _ in range(CONNECTIONS_MAX - 1)]
    assert watched.get("/healthz") == "ok\n"
    for connected in silent:
        connected.close()
    assert eventually(lambda: watched.get("/healthz"))


def test_a_renewed_certificate_is_shown_without_a_restart(watched: Watched) -> None:
    before = watched.serial_of_broker()
    renewed = watched.folder / "renewed.pem"
    watched.authority.issue("broker").write(renewed)
    renewed.replace(watched.folder / "broker.pem")
    assert eventually(lambda: watched.serial_of_broker() != before)
    assert watched.get("/healthz") == "ok\n"


def test_without_a_key_the_broker_does_not_start(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, settings={"strandline.metrics.listener": HTTPS})
    broker.begin()
    assert broker.wait_for_exit(PATIENCE_S) == 2
    assert "listener HTTPS: TLS needs the broker's key" in broker.log_text()


def test_a_listener_of_clients_has_another_name_than_that_of_the_metrics() -> None:
    given = ["listeners=HTTPS://127.0.0.1:0", "listener.security.protocol.map=HTTPS:SSL"]
    assert isinstance(load_config(None, given), BrokerConfig)
    with pytest.raises(InvalidConfig, match="HTTPS is the name of"):
        load_config(None, [*given, f"strandline.metrics.listener={HTTPS}"])
    assert tls_listeners(load_config(None, [f"strandline.metrics.listener={HTTPS}"])) == ["HTTPS"]
