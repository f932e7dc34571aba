"""The broker reports its states to the service manager, on a real socket as systemd's."""

from __future__ import annotations

import os
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.server.process import notify_manager
from tests.support.broker import BrokerProcess, eventually

WAIT_S = 60.0


@pytest.fixture(params=["a file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """A datagram socket, and its address in $NOTIFY_SOCKET's notation as `request.param` wants."""
    name = str(tmp_path / "notify") if request.param == "a file" else f"\0strandline-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        listening.settimeout(WAIT_S)
        yield listening


def address_of(manager: socket.socket) -> str:
    name = manager.getsockname()
    return "@" + name[1:].decode() if isinstance(name, bytes) else str(name)


@pytest.mark.slow
def test_a_broker_is_ready_when_clients_may_connect_and_says_when_it_stops(
    manager: socket.socket, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path, environment={"NOTIFY_SOCKET": address_of(manager)})
    broker.begin()
    try:
        assert manager.recv(100) == b"READY=1"
        with socket.create_connection(("127.0.0.1", broker.port), WAIT_S):
            pass
        os.kill(broker.pid, signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
        assert broker.wait_for_exit(WAIT_S) == 0
    finally:
        broker.kill()


@pytest.mark.slow
def test_a_broker_without_its_managers_socket_serves_and_logs_it(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, environment={"NOTIFY_SOCKET": str(tmp_path / "gone")}).start()
    try:
        eventually(lambda: "service manager not notified" in broker.log_text())
    finally:
        assert broker.stop() == 0


def test_a_manager_that_does_not_read_holds_nothing_up(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address_of(manager))
    # The kernel queues a bounded number of datagrams.
    while not caplog.records:
        notify_manager("READY=1")
    assert caplog.records[0].getMessage() == "service manager not notified"


def test_nothing_is_sent_without_a_manager(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_manager("READY=1")
    assert not caplog.records
