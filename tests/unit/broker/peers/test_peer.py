"""Connections to another node, which is a real broker here: logins, certificates, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from strandline.broker.peers.address import Address
from strandline.broker.peers.connection import PeerConnection
from strandline.broker.peers.errors import PeerRefused, PeerTooOld, PeerUnreachable
from strandline.broker.peers.peer import Peer, connect_by
from strandline.broker.peers.security import PasswordLogin, PeerSecurity
from strandline.broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.tls.config import PEM, TlsConfig
from strandline.storage.clock import SystemClock
from tests.support.certificates import Authority
from tests.support.cluster import LocalBroker, LocalBrokers
from tests.support.ports import ReservedPort

pytestmark = pytest.mark.slow

T = TypeVar("T")
CLOCK = SystemClock()
TIMEOUT_S = 30.0
USER, PASSWORD = "broker", "between us"
PLAINTEXT = PeerSecurity(listener="PLAINTEXT")
PLAIN_USERS = (
    f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def files(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    authority.write(folder / "authority.pem")
    authority.issue("node", hosts=("127.0.0.1",)).write(folder / "node.pem")
    authority.issue("elsewhere", hosts=("elsewhere",)).write(folder / "elsewhere.pem")
    Authority("another").issue("stranger").write(folder / "stranger.pem")
    return folder


@pytest.fixture(scope="module")
def node(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a listener of each kind, that asks for certificates at one of them."""
    ports = {name: ReservedPort() for name in ("PLAINTEXT", "LOGINS", "TLS", "MUTUAL", "WRONG")}
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port.number}" for name, port in ports.items()),
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,LOGINS:SASL_PLAINTEXT,TLS:SSL,MUTUAL:SSL,WRONG:SSL"
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.logins.plain.sasl.jaas.config": PLAIN_USERS,
        "ssl.keystore.type": PEM,
        "ssl.keystore.location": str(files / "node.pem"),
        "ssl.truststore.type": PEM,
        "ssl.truststore.location": str(files / "authority.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.wrong.ssl.keystore.location": str(files / "elsewhere.pem"),
    }
    with LocalBrokers(tmp_path_factory.mktemp("node"), count=1) as brokers:
        brokers[0].stop()
        brokers[0].settings.update(settings)
        brokers[0].start()
        NODE_PORTS.update({name: port.number for name, port in ports.items()})
        yield brokers[0]


NODE_PORTS: dict[str, int] = {}


def address(listener: str) -> Address:
    return Address("127.0.0.1", NODE_PORTS[listener])


async def cluster_id(at: Address, security: PeerSecurity) -> str:
    connection = await PeerConnection.open(
        at, security, client_id="test", clock=CLOCK, timeout_s=TIMEOUT_S
    )
    try:
        answer = await connection.call(
            DescribeClusterRequest(), DescribeClusterResponse, timeout_s=TIMEOUT_S
        )
    finally:
        connection.close()
    return answer.cluster_id


def tls(files: Path, *, own: str = "", trusted: str = "authority.pem") -> TlsConfig:
    config = TlsConfig(
        truststore_type=PEM, truststore_location=str(files / trusted), keystore_type=PEM
    )
    return replace(config, keystore_location=str(files / own)) if own else config


def login(password: str = PASSWORD, mechanism: str = "PLAIN") -> PeerSecurity:
    who = PasswordLogin(mechanism=mechanism, user=USER, password=password)
    return PeerSecurity(listener="LOGINS", login=who)


def test_a_request_is_answered_in_a_version_that_both_know(node: LocalBroker) -> None:
    assert len(asyncio.run(cluster_id(address("PLAINTEXT"), PLAINTEXT))) == 22


def test_a_login_lets_in_and_a_wrong_one_says_whose_it_was(node: LocalBroker) -> None:
    assert asyncio.run(cluster_id(address("LOGINS"), login()))
    with pytest.raises(PeerRefused, match=f"refuses the login of '{USER}'"):
        asyncio.run(cluster_id(address("LOGINS"), login("wrong")))
    with pytest.raises(PeerRefused, match="does not let in by SCRAM-SHA-256; it takes PLAIN"):
        asyncio.run(cluster_id(address("LOGINS"), login(mechanism="SCRAM-SHA-256")))


def test_a_password_is_in_no_text_of_a_login() -> None:
    assert PASSWORD not in repr(login())


def test_a_certificate_has_to_be_of_a_known_authority_and_of_that_host(
    node: LocalBroker, files: Path
) -> None:
    trusting = PeerSecurity(listener="TLS", tls=tls(files))
    assert asyncio.run(cluster_id(address("TLS"), trusting))
    stranger = PeerSecurity(listener="TLS", tls=tls(files, trusted="stranger.pem"))
    with pytest.raises(PeerRefused, match=r"certificate of 127\.0\.0\.1:.* is not taken"):
        asyncio.run(cluster_id(address("TLS"), stranger))
    with pytest.raises(PeerRefused, match="not taken: IP address mismatch"):
        asyncio.run(cluster_id(address("WRONG"), trusting))
    assert asyncio.run(cluster_id(address("WRONG"), replace(trusting, checks_name=False)))


def test_a_node_that_asks_for_a_certificate_gets_ours(node: LocalBroker, files: Path) -> None:
    own = PeerSecurity(listener="MUTUAL", tls=tls(files, own="node.pem"))
    assert asyncio.run(cluster_id(address("MUTUAL"), own))
    without = PeerSecurity(listener="MUTUAL", tls=tls(files))
    with pytest.raises((PeerRefused, PeerUnreachable)):
        asyncio.run(cluster_id(address("MUTUAL"), without))


def test_a_renewed_file_is_used_by_the_next_connection(node: LocalBroker, files: Path) -> None:
    own = files / "renewed.pem"
    own.write_bytes((files / "stranger.pem").read_bytes())
    security = PeerSecurity(listener="MUTUAL", tls=tls(files, own="renewed.pem"))
    with pytest.raises((PeerRefused, PeerUnreachable)):
        asyncio.run(cluster_id(address("MUTUAL"), security))
    own.write_bytes((files / "node.pem").read_bytes())
    assert asyncio.run(cluster_id(address("MUTUAL"), security))


def test_a_request_that_the_other_node_does_not_know_is_not_sent(node: LocalBroker) -> None:
    async def ask() -> None:
        connection = await PeerConnection.open(
            address("PLAINTEXT"), PLAINTEXT, client_id="test", clock=CLOCK, timeout_s=TIMEOUT_S
        )
        request = BrokerHeartbeatRequest(
            broker_id=1, current_metadata_offset=0, want_fence=False, want_shut_down=False
        )
        with pytest.raises(PeerTooOld, match="BrokerHeartbeat"):
            await connection.call(request, BrokerHeartbeatResponse, timeout_s=TIMEOUT_S)
        assert connection.is_open
        connection.close()

    asyncio.run(ask())


# --- against a node that misbehaves -----------------------------------------------------------

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_server(behave: Behaviour, work: Callable[[Address], Awaitable[T]]) -> T:
    async def run() -> T:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await behave(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            return await work(Address("127.0.0.1", server.sockets[0].getsockname()[1]))
        finally:
            server.close()

    return asyncio.run(run())


async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(4)


async def talk_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(4)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()


async def answer_another(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(4)
    writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x63")
    await writer.drain()
    await reader.read()


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (hang_up, "it closed the connection|reset"),
        (talk_http, "a frame of 1213486160 bytes is none of Kafka's protocol"),
        (answer_another, "an answer to no request: 99"),
    ],
)
def test_what_is_no_node_of_a_cluster_is_unreachable(behave: Behaviour, reason: str) -> None:
    async def ask(at: Address) -> None:
        with pytest.raises(PeerUnreachable, match=reason):
            await cluster_id(at, PLAINTEXT)

    with_server(behave, ask)


def test_a_node_that_says_nothing_is_not_waited_for_longer_than_asked() -> None:
    async def ask(at: Address) -> None:
        with pytest.raises(PeerUnreachable, match=r"did not answer in 0\.05 s"):
            await PeerConnection.open(at, PLAINTEXT, client_id="test", clock=CLOCK, timeout_s=0.05)

    with_server(silent, ask)


def test_nobody_listening_is_told_and_tried_again_later() -> None:
    async def ask() -> None:
        nowhere = Address("127.0.0.1", ReservedPort().number)
        peer = Peer(nowhere, connect_by(PLAINTEXT, client_id="test", clock=CLOCK), CLOCK)
        for _ in range(3):
            with pytest.raises(PeerUnreachable, match="cannot connect"):
                await peer.connection()
        assert "failures=3" in repr(peer)

    asyncio.run(ask())


def test_a_peer_keeps_its_connection_and_begins_another_after_its_end(node: LocalBroker) -> None:
    async def ask() -> None:
        peer = Peer(
            address("PLAINTEXT"), connect_by(PLAINTEXT, client_id="test", clock=CLOCK), CLOCK
        )
        first = await peer.connection()
        assert await peer.connection() is first
        first.close()
        await asyncio.sleep(0)
        second = await peer.connection()
        assert second is not first
        answers = [
            peer.call(DescribeClusterRequest(), DescribeClusterResponse, timeout_s=TIMEOUT_S)
            for _ in range(20)
        ]
        assert len({one.cluster_id for one in await asyncio.gather(*answers)}) == 1
        assert await peer.connection() is second
        peer.close()

    asyncio.run(ask())
