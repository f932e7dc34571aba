"""A connection over TLS keeps what it promises over a plain socket.

`test_sealed_transport.py` has the same promises over a transport that is harder to serve.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from strandline.broker.network.connection import Connection
from strandline.broker.network.responses import Parts, RequestHandler
from strandline.broker.network.tls_transport import (
    BARREN_BYTES_MAX,
    FEED_BYTES,
    Scratch,
    TlsSession,
    TlsTransport,
)
from strandline.broker.tls.config import TLS_1_2, TlsConfig
from strandline.storage.clock import SystemClock
from tests.unit.broker.network.connected import (
    CONTENT,
    AsParts,
    connection_over,
    in_file,
    in_files,
    range_of,
    waiting_bytes,
)
from tests.unit.broker.network.test_sealed_transport import Echo, Same, frames, until
from tests.unit.broker.network.tls_client import TlsClient, authority, context_of
from tests.unit.broker.network.tls_records import Records, keep_secrets

REQUEST = struct.pack(">i", 1) + b"?"
SEND_BUFFER_BYTES = 20_000
VERSIONS = pytest.mark.parametrize("versions", [("TLSv1.3",), (TLS_1_2,)])


async def shaken(
    ours: socket.socket,
    theirs: socket.socket,
    versions: tuple[str, ...] = (),
    context: ssl.SSLContext | None = None,
) -> tuple[TlsSession, TlsClient]:
    """Both ends of a connection whose handshake is done."""
    config = TlsConfig(enabled_protocols=versions) if versions else TlsConfig()
    session, client = TlsSession.of_server(context_of(config)), TlsClient(theirs, context)
    shaking = asyncio.ensure_future(client.shake())
    loop = asyncio.get_running_loop()
    while True:
        try:
            session.tls.do_handshake()
        except BlockingIOError:
            raise AssertionError from None
        except OSError:
            await loop.sock_sendall(ours, session.outgoing.read())
            session.incoming.write(await loop.sock_recv(ours, 20_000))
        else:
            await loop.sock_sendall(ours, session.outgoing.read())
            break
    await shaking
    return session, client


@asynccontextmanager
async def connected(
    handler: RequestHandler,
    versions: tuple[str, ...] = (),
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[Connection, TlsClient]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    session, client = await shaken(ours, theirs, versions, context)
    transport = TlsTransport(ours, asyncio.get_running_loop(), session, Scratch())
    connection = connection_over(transport, handler, SystemClock())
    try:
        yield connection, client
    finally:
        connection.close("the test is over")
        theirs.close()


def _in_memory(_folder: Path) -> Parts:
    return [CONTENT[:33], b"", memoryview(CONTENT)[33:], b""]


@VERSIONS
@pytest.mark.parametrize("as_parts", [_in_memory, in_file, in_files])
def test_large_answers_come_whole_and_the_connection_goes_on(
    as_parts: AsParts, versions: tuple[str, ...], tmp_path: Path
) -> None:
    """The socket holds a part of a chunk: each is sealed once and sent in pieces."""

    async def main() -> None:
        async with connected(Same(as_parts(tmp_path)), versions) as (_, client):
            await client.send(REQUEST + REQUEST)
            assert await client.receive(2 * len(CONTENT)) == 2 * CONTENT
            await client.send(REQUEST)
            assert await client.receive(len(CONTENT)) == CONTENT

    asyncio.run(main())


def test_an_answer_of_nothing_but_empty_parts_holds_up_nobody() -> None:
    async def main() -> None:
        async with connected(Same([b"", memoryview(b"")])) as (connection, client):
            await client.send(REQUEST)
            await asyncio.sleep(0.02)
            assert not connection.is_sending
            assert not connection.closed

    asyncio.run(main())


@pytest.mark.parametrize("record_bytes", [1, 700, 1 << 14])
def test_requests_that_came_in_one_piece_are_all_answered(record_bytes: int) -> None:
    """More than the buffer of a connection holds, and more than one receive opens."""

    async def main() -> None:
        asked = [b"e" + random.Random(n).randbytes(n % 900) for n in range(150)]
        async with connected(Echo()) as (_, client):
            sending = asyncio.ensure_future(client.send(frames(*asked), record_bytes=record_bytes))
            assert await client.receive(sum(map(len, asked))) == b"".join(asked)
            await sending

    asyncio.run(main())


@pytest.mark.parametrize("first", [b"S", b"T"])
def test_what_came_while_a_connection_was_busy_is_taken_up_behind_it(first: bytes) -> None:
    """Also what was opened when the broker looked for the end of a muted client."""
    expected = b"throttled" if first == b"T" else first

    async def main() -> None:
        async with connected(Echo()) as (_, client):
            for _ in range(3):
                await client.send(frames(first))
                await client.send(frames(b"behind", b"last"))
                size = len(expected) + 10
                assert await client.receive(size) == expected + b"behindlast"

    asyncio.run(main())


def test_a_parked_client_that_goes_on_is_answered_in_order() -> None:
    async def main() -> None:
        echo = Echo()
        async with connected(echo) as (_, client):
            await client.send(frames(b"P"))
            await until(lambda: len(echo.parked) == 1)
            await client.send(frames(b"behind"))
            await asyncio.sleep(0.01)
            echo.parked[0].complete([b"parked"])
            assert await client.receive(12) == b"parkedbehind"
            assert echo.left_count == 0

    asyncio.run(main())


@VERSIONS
@pytest.mark.parametrize("says_so", [True, False])
def test_a_parked_client_that_leaves_is_noticed(says_so: bool, versions: tuple[str, ...]) -> None:
    async def main() -> None:
        echo = Echo()
        async with connected(echo, versions) as (connection, client):
            await client.send(frames(b"P"))
            await until(lambda: len(echo.parked) == 1)
            if says_so:
                await client.leave()
            else:
                client.socket.close()
            await until(lambda: echo.left_count == 1)
            assert connection.closed

    asyncio.run(main())


def test_a_client_that_is_left_is_told_so() -> None:
    """Otherwise it could not tell the end from an attacker's."""

    async def main() -> None:
        async with connected(Echo()) as (connection, client):
            await client.send(frames(b"C"))
            assert await client.receive(100) == b"the end"
            assert connection.closed
            assert client.tls.read(1) == b""  # close_notify; else OpenSSL would want more

    asyncio.run(main())


@pytest.mark.parametrize("says_so", [True, False])
def test_who_leaves_with_a_word_gets_one_back_and_others_get_none(says_so: bool) -> None:
    async def main() -> None:
        async with connected(Echo()) as (connection, client):
            if says_so:
                await client.leave()
            else:
                client.socket.shutdown(socket.SHUT_WR)
            await until(lambda: connection.closed)
            assert await client.receive_some() is says_so

    asyncio.run(main())


def test_bytes_that_were_altered_on_their_way_end_the_connection() -> None:
    async def main() -> None:
        async with connected(Echo()) as (connection, client):
            client.tls.write(frames(b"hello"))
            record = bytearray(client.outgoing.read())
            record[-1] ^= 1
            await asyncio.get_running_loop().sock_sendall(client.socket, bytes(record))
            await until(lambda: connection.closed)

    asyncio.run(main())


def test_a_segment_that_is_cut_while_it_is_sent_ends_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        cut = range_of(tmp_path, 0, len(CONTENT))
        async with connected(Same([cut, b"next"])) as (connection, client):
            await client.send(REQUEST)
            await until(lambda: waiting_bytes(client.socket) > 0)
            (tmp_path / "segment").write_bytes(CONTENT[: 1024 * 1024])
            received = await client.receive(len(CONTENT) + 4)
            assert received == CONTENT[: len(received)]
            assert len(received) <= 1024 * 1024
            assert connection.closed

    asyncio.run(main())


def test_a_client_that_sends_before_its_handshake_is_known_to_be_done_is_answered() -> None:
    """Its first request came with the end of the handshake: the socket stays silent about it."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        session, client = await shaken(ours, theirs)
        client.tls.write(frames(b"early"))
        session.incoming.write(client.outgoing.read())
        transport = TlsTransport(ours, asyncio.get_running_loop(), session, Scratch())
        connection = connection_over(transport, Echo(), SystemClock())
        assert await client.receive(5) == b"early"
        connection.close("the test is over")
        theirs.close()

    asyncio.run(main())


def test_memory_of_openssl_stays_small_whatever_comes_at_once() -> None:
    """It keeps that of the largest piece that it ever had."""

    class Noting:
        def __init__(self, kept: Callable[[bytes], int]) -> None:
            self._kept = kept
            self.sizes: list[int] = []

        def write(self, content: bytes) -> int:
            self.sizes.append(len(content))
            return self._kept(content)

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        session, client = await shaken(ours, theirs)
        transport = TlsTransport(ours, asyncio.get_running_loop(), session, Scratch())
        noting = Noting(session.incoming.write)
        transport._incoming = noting  # type: ignore[assignment]
        content = random.Random(1).randbytes(200_000)
        sending = asyncio.ensure_future(client.send(content))
        received = bytearray()
        space = memoryview(bytearray(1 << 20))
        while len(received) < len(content):
            try:
                received += space[: transport.receive_into(space)]
            except BlockingIOError:
                await asyncio.sleep(0.001)
        await sending
        assert received == content
        assert max(noting.sizes) <= FEED_BYTES
        transport.close()
        theirs.close()

    asyncio.run(main())


def test_records_without_data_do_not_come_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as requests for new keys, of which each costs the broker a derivation."""

    async def main() -> None:
        async with connected(Echo()) as (connection, client):
            transport = connection._transport
            assert isinstance(transport, TlsTransport)
            transport._barren_bytes = BARREN_BYTES_MAX
            client.tls.write(b"x")
            # The first half of a record has no data either.
            half = client.outgoing.read()[:5]
            await asyncio.get_running_loop().sock_sendall(client.socket, half)
            await until(lambda: connection.closed)

    asyncio.run(main())


def test_new_keys_are_taken_now_and_then_and_never_by_the_thousand(tmp_path: Path) -> None:
    """Each costs the loop 20 us, and what one receive takes has ten thousand."""

    async def main() -> None:
        context = authority().client_context()
        keep_secrets(context, tmp_path / "secrets")
        async with connected(Echo(), ("TLSv1.3",), context) as (connection, client):
            loop = asyncio.get_running_loop()
            records = Records(client.tls, tmp_path / "secrets")
            for _ in range(300):
                asked = records.key_update() + records.record(frames(b"hello"))
                await loop.sock_sendall(client.socket, asked)
                assert await client.receive(5) == b"hello"
            # Also with data between them.
            for _ in range(20):
                many = [records.key_update() for _ in range(500)]
                asked = b"".join([*many, records.record(frames(b"hello"))])
                with suppress(OSError):
                    await loop.sock_sendall(client.socket, asked)
                await asyncio.sleep(0.001)
            await until(lambda: connection.closed)

    asyncio.run(main())


class Asking:
    """OpenSSL at a peer that asks for new keys at each turn: it has an answer, and no data."""

    def __init__(self, outgoing: ssl.MemoryBIO) -> None:
        self._outgoing = outgoing
        self.asked_count = 0

    def read(self, size: int, space: memoryview) -> int:
        self.asked_count += 1
        self._outgoing.write(b"answer %8d" % self.asked_count)
        raise ssl.SSLWantReadError

    def unwrap(self) -> None:
        raise ssl.SSLError


def test_a_peer_that_asks_and_takes_no_answer_is_not_read_until_it_does() -> None:
    """Its answers would pile up in the broker's memory otherwise."""

    async def main() -> None:
        async with connected(Echo()) as (connection, client):
            transport = connection._transport
            assert isinstance(transport, TlsTransport)
            asking = Asking(transport._outgoing)
            transport._tls = asking  # type: ignore[assignment]
            loop = asyncio.get_running_loop()
            read_counts = [-1, 0]
            while read_counts[-1] != read_counts[-2]:
                await asyncio.sleep(0.005)
                with suppress(BlockingIOError):
                    client.socket.send(b"?" * 100)
                await asyncio.sleep(0.005)
                read_counts.append(asking.asked_count)
            assert transport._is_held
            assert transport._outgoing.pending <= 20
            # It takes them, each whole and in order, and is read again.
            received = b""
            while f"{asking.asked_count:8d}".encode() not in received:
                received += await loop.sock_recv(client.socket, 1 << 16)
            assert received == b"".join(
                b"answer %8d" % number for number in range(1, len(received) // 15 + 1)
            )
            await until(lambda: not transport._is_held)
            assert not connection.closed

    asyncio.run(main())
