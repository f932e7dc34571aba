"""A connection over a transport that encrypts keeps what it promises over a plain socket.

The transport is a double (`tests/support/sealed_transport.py`), and harder to serve than TLS.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from strandline.broker.network import server as server_module
from strandline.broker.network.config import NetworkConfig
from strandline.broker.network.responses import (
    Answer,
    ClosingParts,
    ColdParts,
    DeferredAnswer,
    Parts,
    RequestHandler,
    ThrottledParts,
)
from strandline.broker.network.server import STALLED_S, Server
from strandline.storage.clock import SystemClock
from tests.support.manual_clock import ManualClock
from tests.support.sealed_transport import Kind, SealedStream, SealedTransport
from tests.unit.broker.network.connected import (
    CONTENT,
    AsParts,
    connection_over,
    in_file,
    in_files,
    range_of,
    waiting_bytes,
)
from tests.unit.broker.network.test_cold_scheduling import Bench

REQUEST = struct.pack(">i", 1) + b"?"
SEND_BUFFER_BYTES = 20_000


class SealedClient:
    """The other end; asks the broker's transport questions while it sends, if it is `curious`."""

    def __init__(self, connected: socket.socket, *, is_curious: bool = True) -> None:
        connected.setblocking(False)
        self.socket = connected
        self._stream = SealedStream(seed=2)
        self._is_curious = is_curious
        self._received = bytearray()
        self._asked_count = 0
        self.answered_count = 0
        self._unsent = self._stream.record(Kind.GREETING)
        self._asked_count += 1

    def seal(self, content: bytes) -> None:
        """Queues bytes, in records of all sizes, with a question between."""
        half = len(content) // 2
        self._unsent += self._stream.seal(content[:half])
        if self._is_curious:
            self.ask()
        self._unsent += self._stream.seal(content[half:])

    def ask(self) -> None:
        self._unsent += self._stream.record(Kind.QUESTION)
        self._asked_count += 1

    def end(self) -> None:
        self._unsent += self._stream.record(Kind.END)

    async def send(self, content: bytes = b"") -> None:
        if content:
            self.seal(content)
        unsent, self._unsent = self._unsent, b""
        await asyncio.get_running_loop().sock_sendall(self.socket, unsent)

    async def receive(self, size: int) -> bytes:
        async with asyncio.timeout(60):
            while len(self._received) < size:
                if not await self._receive_some():
                    break
        found = bytes(self._received[:size])
        del self._received[:size]
        return found

    async def answers(self) -> None:
        """Waits until all questions are answered."""
        async with asyncio.timeout(60):
            while self.answered_count < self._asked_count:
                assert await self._receive_some()

    async def is_cut_off(self) -> bool:
        with suppress(ConnectionError):
            while await self._receive_some():
                pass
        return True

    async def _receive_some(self) -> bool:
        found = await asyncio.get_running_loop().sock_recv(self.socket, 30_000)
        self._stream.received(found)
        while self._stream.has_record:
            kind, content = self._stream.next_record()
            if kind is Kind.DATA:
                self._received += content
            else:
                assert kind is Kind.ANSWER
                self.answered_count += 1
        return bool(found)


class Echo:
    """Answers each frame with itself; others by their first byte: see `_by_kind`."""

    def __init__(self) -> None:
        self.parked: list[DeferredAnswer] = []
        self.left_count = 0

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        match bytes(frame[:1]):
            case b"P":
                parked = DeferredAnswer()
                parked.cancel_hook = self._left
                self.parked.append(parked)
                return parked
            case b"T":
                return ThrottledParts([b"throttled"], 30)
            case b"C":
                return self._later(ClosingParts([b"the end"], "told to"))
            case b"S":
                return self._later([bytes(frame)])
            case b"L":
                return [CONTENT] * 4
            case _:
                return [bytes(frame)]

    async def _later(self, parts: Parts) -> Parts:
        await asyncio.sleep(0.01)
        return parts

    def _left(self) -> None:
        self.left_count += 1


class Same:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        return self._parts


def frames(*contents: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(one)) + one for one in contents)


@asynccontextmanager
async def sealed(handler: RequestHandler) -> AsyncIterator[tuple[object, SealedClient]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    transport = SealedTransport(ours, asyncio.get_running_loop())
    connection = connection_over(transport, handler, SystemClock())
    try:
        yield connection, SealedClient(theirs)
    finally:
        connection.close("the test is over")
        theirs.close()


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not check():
            await asyncio.sleep(0.001)


def _in_memory(_folder: Path) -> Parts:
    return [CONTENT[:33], b"", memoryview(CONTENT)[33:]]


@pytest.mark.parametrize("as_parts", [_in_memory, in_file, in_files])
def test_large_answers_come_whole_and_the_connection_goes_on(
    as_parts: AsParts, tmp_path: Path
) -> None:
    """The socket holds a part of a chunk: each is sealed once and sent in pieces."""

    async def main() -> None:
        async with sealed(Same(as_parts(tmp_path))) as (_, client):
            await client.send(REQUEST + REQUEST)
            assert await client.receive(2 * len(CONTENT)) == 2 * CONTENT
            await client.send(REQUEST)
            assert await client.receive(len(CONTENT)) == CONTENT
            await client.answers()

    asyncio.run(main())


def test_requests_that_came_in_one_piece_are_all_answered() -> None:
    """More than the buffer of a connection holds: the socket is silent about the rest."""

    async def main() -> None:
        asked = [b"e" + random.Random(n).randbytes(n % 900) for n in range(400)]
        async with sealed(Echo()) as (_, client):
            await client.send(frames(*asked))
            assert await client.receive(sum(map(len, asked))) == b"".join(asked)

    asyncio.run(main())


@pytest.mark.parametrize("first", [b"S", b"T"])
def test_what_came_while_a_connection_was_busy_is_taken_up_behind_it(first: bytes) -> None:
    """Also what the transport took of the socket when it looked for the end of a muted client."""
    expected = b"throttled" if first == b"T" else first

    async def main() -> None:
        async with sealed(Echo()) as (_, client):
            for _ in range(3):
                await client.send(frames(first))
                await client.send(frames(b"behind", b"last"))
                size = len(expected) + 10
                assert await client.receive(size) == expected + b"behindlast"

    asyncio.run(main())


def test_a_parked_client_that_goes_on_is_answered_in_order() -> None:
    async def main() -> None:
        echo = Echo()
        async with sealed(echo) as (_, client):
            await client.send(frames(b"P"))
            await until(lambda: len(echo.parked) == 1)
            await client.send(frames(b"behind"))
            echo.parked[0].complete([b"parked"])
            assert await client.receive(12) == b"parkedbehind"
            assert echo.left_count == 0

    asyncio.run(main())


@pytest.mark.parametrize("says_so", [True, False])
def test_a_parked_client_that_leaves_is_noticed(says_so: bool) -> None:
    async def main() -> None:
        echo = Echo()
        async with sealed(echo) as (connection, client):
            await client.send(frames(b"P"))
            await until(lambda: len(echo.parked) == 1)
            if says_so:
                client.end()
                await client.send()
            else:
                client.socket.close()
            await until(lambda: echo.left_count == 1)
            assert connection.closed  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_question_is_answered_although_nothing_is_asked_of_the_broker() -> None:
    async def main() -> None:
        async with sealed(Echo()) as (connection, client):
            await client.send()
            await client.answers()
            for _ in range(3):
                client.ask()
                await client.send()
                await client.answers()
            assert not connection.closed  # type: ignore[attr-defined]

    asyncio.run(main())


def test_reading_that_waits_for_its_own_answer_goes_on_when_that_is_out() -> None:
    """The client asks and does not read, until the socket takes no more answers."""

    async def main() -> None:
        async with sealed(Echo()) as (_, client):
            for _ in range(20_000):
                client.ask()
            client.seal(frames(b"after all"))
            sending = asyncio.ensure_future(client.send())
            await asyncio.sleep(0.05)
            assert await client.receive(9) == b"after all"
            await sending
            await client.answers()

    asyncio.run(main())


def test_a_last_answer_is_out_before_the_connection_closes() -> None:
    """As far as the socket takes it at once, which is so over a plain socket too."""

    async def main() -> None:
        async with sealed(Echo()) as (connection, client):
            await client.send(frames(b"C", b"not answered"))
            assert await client.receive(20) == b"the end"
            assert connection.closed  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_segment_that_is_cut_while_it_is_sent_ends_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        cut = range_of(tmp_path, 0, len(CONTENT))
        async with sealed(Same([cut, b"next"])) as (connection, client):
            await client.send(REQUEST)
            await until(lambda: waiting_bytes(client.socket) > 0)
            (tmp_path / "segment").write_bytes(CONTENT[: 1024 * 1024])
            received = await client.receive(len(CONTENT) + 4)
            assert received == CONTENT[: len(received)]
            assert len(received) <= 1024 * 1024
            assert connection.closed  # type: ignore[attr-defined]

    asyncio.run(main())


def test_cold_answers_have_their_turns() -> None:
    async def main() -> None:
        held = Bench()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        transport = SealedTransport(ours, asyncio.get_running_loop())
        handler = Same(ColdParts([CONTENT]))
        connection = connection_over(transport, handler, held.clock, held.turns)
        held.connections.append(connection)
        client = SealedClient(theirs)
        held.be_live()
        await client.send(REQUEST)
        received = b""
        while len(received) < len(CONTENT):
            held.be_live()
            received += await client.receive(min(50_000, len(CONTENT) - len(received)))
        assert received == CONTENT
        assert sum(sent for _, sent in held.turns.went) == len(CONTENT)
        assert len(held.turns.went) > 3
        connection.close("the test is over")
        theirs.close()
        held.turns.close()

    asyncio.run(main())


# --- behind a server ---------------------------------------------------------------------------


def served(
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[[Server, ManualClock, SealedClient], Awaitable[None]],
) -> None:
    monkeypatch.setattr(server_module.SystemNetwork, "transport", staticmethod(SealedTransport))

    async def main() -> None:
        clock = ManualClock()
        limits = NetworkConfig(request_bytes_max=1_000_000, connections_max=50, idle_ms_max=600_000)
        server = Server(
            lambda _listener, _host: Echo(),
            limits=lambda: limits,
            clock=clock,
            spawn=asyncio.get_running_loop().create_task,
        )
        port = server.listen("127.0.0.1", 0)
        client = SealedClient(socket.create_connection(("127.0.0.1", port)))
        try:
            await test(server, clock, client)
        finally:
            client.socket.close()
            server.close()

    asyncio.run(main())


def test_a_client_that_does_not_read_its_answer_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(server: Server, clock: ManualClock, client: SealedClient) -> None:
        await client.send(frames(b"L"))
        await until(lambda: any(one.is_sending for one in server._connections))
        clock.advance_ms(int(STALLED_S * 1000) + 1)
        server.sweep()
        assert server.statistics().closed_stalled_total == 1
        assert await client.is_cut_off()

    served(monkeypatch, test)


def test_a_client_that_does_not_end_its_frame_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server, clock: ManualClock, client: SealedClient) -> None:
        await client.send(frames(b"whole") + frames(b"half")[:6])
        assert await client.receive(5) == b"whole"
        await until(lambda: any(one.is_mid_frame for one in server._connections))
        clock.advance_ms(int(STALLED_S * 1000) + 1)
        server.sweep()
        assert server.statistics().closed_stalled_total == 1

    served(monkeypatch, test)


def test_a_muted_client_is_served_again_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server, clock: ManualClock, client: SealedClient) -> None:
        await client.send(frames(b"T", b"next"))
        assert await client.receive(13) == b"throttlednext"
        assert server.statistics().muted_connections == 0

    served(monkeypatch, test)


def test_a_large_request_comes_in_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"e" + random.Random(3).randbytes(900_000)

    async def test(server: Server, clock: ManualClock, client: SealedClient) -> None:
        sending = asyncio.ensure_future(client.send(frames(content, b"behind")))
        assert await client.receive(len(content) + 6) == content + b"behind"
        await sending

    served(monkeypatch, test)
