"""Who may begin a connection over TLS, who is refused and why, and what refusals cost."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from tempfile import NamedTemporaryFile

import pytest

from strandline.broker.network import handshake as handshake_module
from strandline.broker.network import handshake_steps as steps_module
from strandline.broker.network import logins as logins_module
from strandline.broker.network.config import NetworkConfig
from strandline.broker.network.handshake import HANDSHAKE_BYTES_MAX, PLAINTEXT_ALERT, Handshakes
from strandline.broker.network.logins import LOGIN_GRACE_S, LOGIN_S
from strandline.broker.network.responses import CloseConnectionError, RequestHandler
from strandline.broker.network.server import Server
from strandline.broker.tls.config import NONE, REQUESTED, REQUIRED, TlsConfig
from strandline.storage.concurrency.resizable_pool import ResizablePool
from strandline.storage.errors import OutOfResources
from tests.support.certificates import Authority, Issued
from tests.support.manual_clock import ManualClock
from tests.unit.broker.network.test_sealed_transport import Echo, frames, until
from tests.unit.broker.network.tls_client import TlsClient, authority, context_of

FAILED_DELAY_S = 0.01


class World:
    """A server whose listener TLS has handshakes, and PLAINTEXT has none."""

    def __init__(self, config: TlsConfig, limits: NetworkConfig) -> None:
        self.clock = ManualClock()
        self.certificates: list[bytes | None] = []
        self.refuses: Exception | None = None
        self.workers = ResizablePool(2, "handshakes")
        context = context_of(config)
        self.handshakes = Handshakes(
            {"TLS": lambda: context}, self.workers, self.clock, failed_delay_s=FAILED_DELAY_S
        )
        self.server = Server(
            self._handler_of,
            limits=lambda: limits,
            clock=self.clock,
            spawn=asyncio.get_running_loop().create_task,
            handshakes=self.handshakes,
        )
        self.port = self.server.listen("127.0.0.1", 0, "TLS")
        self.clients: list[socket.socket] = []

    def _handler_of(
        self, listener: str, _host: str, certificate: bytes | None = None, /
    ) -> RequestHandler:
        if listener == "TLS":
            self.certificates.append(certificate)
        if self.refuses is not None:
            raise self.refuses
        return Echo()

    def raw(self) -> socket.socket:
        connected = socket.socket()
        connected.setblocking(False)
        connected.connect_ex(("127.0.0.1", self.port))
        self.clients.append(connected)
        return connected

    def client(self, context: ssl.SSLContext | None = None) -> TlsClient:
        return TlsClient(self.raw(), context)

    async def answered(self, context: ssl.SSLContext | None = None) -> TlsClient:
        client = self.client(context)
        await client.shake()
        await client.send(frames(b"hello"))
        assert await client.receive(5) == b"hello"
        return client

    async def refused(self, client: TlsClient) -> str:
        """Tries; returns the one reason of a failure that is counted."""
        with suppress(OSError):
            await client.shake()
        await client.is_cut_off()
        await until(lambda: self.handshakes.failed.total() == 1)
        await until(lambda: not self.server.statistics().connections)
        ((listener, reason),) = self.handshakes.failed
        assert listener == "TLS"
        return reason

    def close(self) -> None:
        self.server.close()
        self.workers.shutdown()
        for client in self.clients:
            client.close()


def reset(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connected.close()


def can_send(connected: socket.socket) -> bool:
    """Whether it is connected."""
    poll = select.poll()
    poll.register(connected, select.POLLOUT)
    return bool(poll.poll(0))


def run(
    test: Callable[[World], Awaitable[None]],
    config: TlsConfig | None = None,
    limits: NetworkConfig | None = None,
) -> None:
    async def main() -> None:
        world = World(config or TlsConfig(), limits or NetworkConfig())
        try:
            await test(world)
        finally:
            world.close()

    asyncio.run(main())


def shown(issued: Issued) -> ssl.SSLContext:
    """Of a client that shows this certificate."""
    context = authority().client_context()
    with NamedTemporaryFile("w") as file:
        file.write(issued.key_pem() + issued.chain_pem)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def test_a_client_is_served_and_counted_by_protocol_and_cipher() -> None:
    async def test(world: World) -> None:
        await world.answered()
        assert world.certificates == [None]
        assert world.handshakes.done == {("TLS", "TLSv1.3", "TLS_AES_256_GCM_SHA384"): 1}
        assert world.server.statistics().logins == 0

    run(test)


@pytest.mark.parametrize("client_auth", [REQUESTED, REQUIRED])
def test_the_certificate_of_a_client_is_handed_to_whoever_names_its_user(client_auth: str) -> None:
    async def test(world: World) -> None:
        issued = authority().issue("writer")
        await world.answered(shown(issued))
        assert world.certificates == [issued.der]

    run(test, TlsConfig(client_auth=client_auth))


def test_a_client_without_a_certificate_may_come_where_one_is_only_requested() -> None:
    async def test(world: World) -> None:
        await world.answered()
        assert world.certificates == [None]

    run(test, TlsConfig(client_auth=REQUESTED))


@pytest.mark.parametrize(
    ("issued", "reason"),
    [
        (None, "no_certificate"),
        (lambda: Authority("Another").issue("writer"), "untrusted"),
        (lambda: Authority().issue("writer"), "untrusted"),  # of the same name, by another key
        (lambda: authority().issue("writer", valid_days=(-9, -1)), "expired"),
        (lambda: authority().issue("writer", valid_days=(1, 9)), "not_yet_valid"),
    ],
)
def test_who_cannot_prove_itself_is_refused(
    issued: Callable[[], Issued] | None, reason: str
) -> None:
    async def test(world: World) -> None:
        client = world.client(None if issued is None else shown(issued()))
        assert await world.refused(client) == reason
        assert world.certificates == []

    run(test, TlsConfig(client_auth=REQUIRED))


@pytest.mark.parametrize(
    ("issued", "reason"),
    [
        (lambda: Authority("Another").issue("writer"), "untrusted"),
        (lambda: authority().issue("writer", valid_days=(-9, -1)), "expired"),
    ],
)
def test_a_bad_certificate_is_refused_where_one_is_only_requested(
    issued: Callable[[], Issued], reason: str
) -> None:
    """Its client would else be nobody, and not be told."""

    async def test(world: World) -> None:
        assert await world.refused(world.client(shown(issued()))) == reason
        assert world.certificates == []

    run(test, TlsConfig(client_auth=REQUESTED))


def test_clients_come_in_while_certificates_are_renewed_without_an_end() -> None:
    """Each is served by one certificate from its hello on; those that are in stay."""

    async def test(world: World) -> None:
        first = await world.answered()
        renewed = [context_of(own=authority().issue("broker")) for _ in range(5)]
        served = iter(renewed * 100)
        world.handshakes._contexts = {"TLS": lambda: next(served)}
        clients = [world.client() for _ in range(20)]
        await asyncio.gather(*(client.shake() for client in clients))
        shown_to = {client.tls.getpeercert(binary_form=True) for client in clients}
        assert len(shown_to) == len(renewed)
        await until(lambda: world.handshakes.done.total() == 21)
        await first.send(frames(b"hello"))
        assert await first.receive(5) == b"hello"
        assert not world.handshakes.failed

    run(test)


@pytest.mark.parametrize("error", [CloseConnectionError("no name for it"), ValueError("a bug")])
def test_a_client_whose_certificate_is_nobodys_is_refused(error: Exception) -> None:
    async def test(world: World) -> None:
        world.refuses = error
        client = world.client()
        await client.shake()
        assert await client.is_cut_off()
        assert world.server.statistics().connections == 0
        assert world.server.statistics().logins == 0

    run(test)


def test_an_older_protocol_is_refused_and_none_can_be_talked_down_to_it() -> None:
    async def test(world: World) -> None:
        context = authority().client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await world.refused(world.client(context)) == "protocol"

    run(test, TlsConfig(enabled_protocols=("TLSv1.3",)))


def test_a_client_without_a_common_suite_is_refused() -> None:
    async def test(world: World) -> None:
        context = authority().client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        assert await world.refused(world.client(context)) == "cipher"

    run(test, TlsConfig(cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",)))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
def test_no_client_gets_a_ticket(version: ssl.TLSVersion) -> None:
    """With one it could come again, and its certificate would not be looked at."""

    async def test(world: World) -> None:
        context = authority().client_context()
        context.minimum_version = context.maximum_version = version
        client = await world.answered(context)
        assert client.tls.session is None or not client.tls.session.has_ticket

    run(test)


@pytest.mark.parametrize(
    "said",
    [
        b"\0\0\0\x10" + bytes(16),  # a request of Kafka
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        bytes(64),
    ],
)
def test_who_speaks_another_protocol_is_told_so_by_an_alert_and_an_end(said: bytes) -> None:
    async def test(world: World) -> None:
        client = world.client()
        await asyncio.get_running_loop().sock_sendall(client.socket, said)
        assert await client.is_cut_off()
        alert = client.incoming.read()
        assert alert.endswith(PLAINTEXT_ALERT)
        # What a client of Kafka takes for the size of an answer: the page names it.
        assert int.from_bytes(alert[:4], "big") == 352518912
        await until(lambda: world.handshakes.failed == {("TLS", "plaintext"): 1})
        await until(lambda: not world.server.statistics().connections)

    run(test)


def test_who_only_looks_whether_the_port_is_open_is_no_failure() -> None:
    async def test(world: World) -> None:
        for _ in range(3):
            world.raw().close()
        await world.answered()
        await until(lambda: world.server.statistics().connections == 1)
        assert not world.handshakes.failed

    run(test)


def test_who_leaves_in_the_middle_of_a_handshake_leaves_nothing_behind() -> None:
    async def test(world: World) -> None:
        client = world.client()
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        await client.flush()
        client.socket.close()
        await until(lambda: world.handshakes.failed == {("TLS", "disconnected"): 1})
        await until(lambda: not world.server.statistics().connections)

    run(test)


def test_a_handshake_without_an_end_has_its_bound() -> None:
    """One announces a message of 32 KiB, and sends more and more."""

    async def test(world: World) -> None:
        client = world.client()
        record = b"\x16\x03\x01" + (0x4000).to_bytes(2, "big")
        hello = record + b"\x01\x00\x7f\xff" + bytes(0x4000 - 4)
        sent = 0
        with suppress(OSError):
            while sent < 2 * HANDSHAKE_BYTES_MAX:
                await asyncio.get_running_loop().sock_sendall(client.socket, hello)
                sent += len(hello)
                await asyncio.sleep(0.001)
        assert await client.is_cut_off()
        await until(lambda: world.handshakes.failed.total() == 1)

    run(test)


def test_openssl_gets_nothing_before_the_first_record_is_whole() -> None:
    """It takes 40 KiB for a connection, and 128 for a long message as soon as it is announced."""

    async def test(world: World) -> None:
        made = 0

        def context() -> ssl.SSLContext:
            nonlocal made
            made += 1
            return made_before

        made_before = context_of()
        world.handshakes._contexts = {"TLS": context}
        client = world.client()
        with suppress(ssl.SSLWantReadError):
            client.tls.do_handshake()
        hello = client.outgoing.read()
        for at in range(len(hello) - 1):
            await asyncio.get_running_loop().sock_sendall(client.socket, hello[at : at + 1])
            if at % 50 == 0:
                await asyncio.sleep(0.001)
        await until(lambda: world.server.statistics().logins == 1)
        assert made == 0
        await asyncio.get_running_loop().sock_sendall(client.socket, hello[-1:])
        await client.receive_some()
        assert made == 1
        await client.shake()

    run(test)


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x00\x10\x01\x01\xff\x00" + bytes(12),  # announces 130,816 bytes
        b"\x16\x03\x01\x00\x02\x01\x00",  # the length of its message comes later
        b"\x80\x2e\x01\x03\x01" + bytes(43),  # SSL 2
    ],
)
def test_a_first_message_that_no_client_sends_is_refused_at_once(said: bytes) -> None:
    async def test(world: World) -> None:
        client = world.client()
        await asyncio.get_running_loop().sock_sendall(client.socket, said)
        assert await client.is_cut_off()
        await until(lambda: world.handshakes.failed == {("TLS", "other"): 1})

    run(test)


def until_1_2() -> ssl.SSLContext:
    context = authority().client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


class Steps:
    """Counts the steps in the loop and in threads."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.in_loop = self.in_threads = 0
        self._loop = threading.get_ident()
        self._take = handshake_module.next_step
        patch.setattr(handshake_module, "next_step", self._next)
        patch.setattr(steps_module, "next_step", self._next)

    def _next(self, tls: ssl.SSLObject) -> Exception | bool:
        if threading.get_ident() == self._loop:
            self.in_loop += 1
        else:
            self.in_threads += 1
        return self._take(tls)


@pytest.mark.parametrize(
    ("client", "client_auth", "in_threads", "in_loop"),
    [
        (lambda: authority().client_context(), NONE, 1, 1),
        (lambda: shown(authority().issue("writer")), REQUIRED, 2, 0),
        (until_1_2, NONE, 2, 0),
    ],
)
def test_only_the_end_of_a_handshake_without_a_certificate_is_done_in_the_loop(
    client: Callable[[], ssl.SSLContext],
    client_auth: str,
    in_threads: int,
    in_loop: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        steps = Steps(monkeypatch)
        await world.answered(client())
        assert (steps.in_threads, steps.in_loop) == (in_threads, in_loop)

    run(test, TlsConfig(client_auth=client_auth))


def test_a_second_hello_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients offer a key of X25519, and are asked for one of P-256."""

    async def test(world: World) -> None:
        steps = Steps(monkeypatch)
        world.handshakes.context("TLS").set_ecdh_curve("prime256v1")
        await world.answered()
        assert (steps.in_threads, steps.in_loop) == (2, 1)

    run(test)


def test_a_step_that_fails_by_a_bug_ends_its_handshake_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def do_handshake(self) -> None:
            raise ValueError("a bug")

    async def test(world: World) -> None:
        take = handshake_module.next_step
        with monkeypatch.context() as patch:
            patch.setattr(steps_module, "next_step", lambda _: take(Broken()))  # type: ignore[arg-type]
            assert await world.refused(world.client()) == "other"
        await world.answered()

    run(test)


def test_handshakes_go_on_with_fewer_threads_and_end_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        submit = world.workers.submit

        def none_left(*_: object) -> None:
            raise OutOfResources("no thread")

        monkeypatch.setattr(world.workers, "submit", none_left)
        assert await world.refused(world.client()) == "other"
        monkeypatch.setattr(world.workers, "submit", submit)
        await world.answered()
        monkeypatch.setattr(world.workers, "submit", none_left)
        await world.answered()

    run(test)


def test_others_have_their_turn_between_many_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake_module, "TURN_HANDSHAKES_MAX", 1)

    async def test(world: World) -> None:
        first = await world.answered()
        newcomers = [world.client() for _ in range(20)]
        await until(lambda: world.server.statistics().logins == 20)
        taken = []
        monkeypatch.setattr(world.handshakes.steps, "take", lambda *step: taken.append(step))
        for newcomer in newcomers:
            with suppress(ssl.SSLWantReadError):
                newcomer.tls.do_handshake()
            newcomer.socket.send(newcomer.outgoing.read())
        await first.send(frames(b"hello"))
        assert await first.receive(5) == b"hello"
        assert len(taken) < 10
        await until(lambda: len(taken) == 20)

    run(test)


def test_a_client_that_sent_its_hello_and_left_costs_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        steps = Steps(monkeypatch)
        client = world.client()
        with suppress(ssl.SSLWantReadError):
            client.tls.do_handshake()
        await until(lambda: world.server.statistics().logins == 1)
        client.socket.send(client.outgoing.read())
        reset(client.socket)
        await until(lambda: world.handshakes.failed == {("TLS", "disconnected"): 1})
        await until(lambda: not world.server.statistics().connections)
        assert (steps.in_threads, steps.in_loop) == (0, 0)

    run(test)


def test_half_open_handshakes_have_their_time_and_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logins_module, "LOGINS_MAX", 3)

    async def test(world: World) -> None:
        silent = [world.client() for _ in range(3)]
        await until(lambda: world.server.statistics().logins == 3)
        refused = world.client()
        assert await refused.is_cut_off()
        world.clock.advance_ms(int(LOGIN_GRACE_S * 1000) + 1)
        await world.answered()
        assert await silent[0].is_cut_off()
        assert world.handshakes.failed == {("TLS", "timeout"): 1}
        world.clock.advance_ms(int(LOGIN_S * 1000))
        world.server.sweep()
        assert await silent[1].is_cut_off()
        assert await silent[2].is_cut_off()
        assert world.handshakes.failed == {("TLS", "timeout"): 3}
        assert world.server.statistics().logins == 0
        assert world.server.statistics().connections == 1

    run(test)


def test_handshakes_count_as_connections() -> None:
    async def test(world: World) -> None:
        world.client()
        await until(lambda: world.server.statistics().connections == 1)
        assert await world.client().is_cut_off()
        assert world.server.statistics().refused_total == 1

    run(test, limits=NetworkConfig(connections_max=1))
    run(test, limits=NetworkConfig(connections_per_address_max=1))


def test_a_thousand_slow_handshakes_keep_nobody_out() -> None:
    """Each has sent a part of its hello; those that are through are answered meanwhile."""

    async def test(world: World) -> None:
        for _ in range(1000):
            client = world.client()
            with suppress(ssl.SSLWantReadError):
                client.tls.do_handshake()
            hello = client.outgoing.read()
            await until(partial(can_send, client.socket))
            await asyncio.get_running_loop().sock_sendall(client.socket, hello[:50])
        await world.answered()

    run(test, limits=NetworkConfig(connections_per_address_max=5000))


def test_a_server_that_ends_ends_its_handshakes() -> None:
    async def test(world: World) -> None:
        client = world.client()
        await until(lambda: world.server.statistics().connections == 1)
        world.server.close()
        assert await client.is_cut_off()
        assert world.server.statistics().connections == 0

    run(test)


def test_tls_is_refused_by_a_listener_without_it() -> None:
    """Its length is above every limit; the log says so."""

    async def test(world: World) -> None:
        port = world.server.listen("127.0.0.1", 0, "PLAINTEXT")
        connected = socket.create_connection(("127.0.0.1", port))
        client = TlsClient(connected)
        with pytest.raises(OSError):
            await client.shake()
        await until(lambda: not world.server.statistics().connections)
        connected.close()

    run(test)
