"""Who does not go on is dropped after its time, and who may come in is counted by address."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from strandline.broker.network import logins as logins_module
from strandline.broker.network import server as server_module
from strandline.broker.network.frames import BUSY_BYTES_MAX, INITIAL_BYTES, FrameBuffer
from strandline.broker.network.logins import LOGIN_GRACE_S, LOGIN_S
from strandline.broker.network.pacing import PACED_PREFIX, UNPACED, congestion_control
from strandline.broker.network.responses import (
    Answer,
    AuthenticationGate,
    DeferredAnswer,
    LateParts,
    Parts,
    RequestHandler,
    ThrottledParts,
)
from strandline.broker.network.server import (
    REFUSAL_LOG_S,
    STALLED_S,
    NetworkConfig,
    Server,
)
from strandline.storage.quiet_log import QUIET_S
from tests.support.manual_clock import ManualClock

IDLE_MS = 90_000
# What no socket buffer holds.
LARGE = bytes(32 * 1024 * 1024)


class Echo:
    """Answers each frame with itself, with LARGE, late, or never; as its first byte says."""

    waiting_count = 0

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        match bytes(frame[:1]):
            case b"L":
                return [LARGE]
            case b"M":
                return ThrottledParts([b"muted"], 60_000)
            case b"F":
                never = DeferredAnswer()
                asyncio.get_running_loop().call_soon(never.fail, ValueError("a mistake"))
                return never
            case b"X":
                raise KeyError("another mistake")
            case b"W":
                Echo.waiting_count += 1
                return DeferredAnswer()
            case b"D":
                return _decoded()
            case _:
                return [bytes(frame)]


async def _never() -> Parts | None:
    Echo.waiting_count += 1
    await asyncio.Event().wait()
    return None


async def _decoded() -> LateParts:
    await asyncio.sleep(0)
    return LateParts(_never())


class Gate(AuthenticationGate):
    """Echoes; its client logs in by a frame that begins with `in`."""

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        if bytes(frame[:2]) == b"in":
            self.on_open()
        return [bytes(frame)]


GATE_BYTES = 100_000


def handler_of(listener: str, _host: str) -> RequestHandler | AuthenticationGate:
    return Gate(GATE_BYTES) if listener == "SASL" else Echo()


def limits(per_address: int = 100, **by_address: int) -> NetworkConfig:
    return NetworkConfig(
        request_bytes_max=1000,
        connections_max=50,
        connections_by_listener_max={"SMALL": 2},
        idle_ms_max=IDLE_MS,
        connections_per_address_max=per_address,
        connections_by_address_max=by_address,
    )


def run(
    test: Callable[[Server, ManualClock, int], Awaitable[None]],
    *,
    allowed: NetworkConfig | None = None,
    admit: Callable[[str], int] = lambda _address: 0,
    pace: Callable[[str], int] = lambda _listener: 0,
) -> None:
    async def main() -> None:
        clock = ManualClock()
        server = Server(
            handler_of,
            limits=lambda: allowed or limits(),
            admit=admit,
            pace=pace,
            clock=clock,
            spawn=asyncio.get_running_loop().create_task,
        )
        try:
            await test(server, clock, server.listen("127.0.0.1", 0))
        finally:
            server.close()
            # What was scheduled to be closed is closed.
            await asyncio.sleep(0)

    asyncio.run(main())


async def connect(
    port: int, host: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, port)


def own_addresses() -> list[str]:
    """Those of this machine for itself: ::1 is missing where IPv6 is turned off."""
    found = ["127.0.0.1"]
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        found.append("::1")
    return found


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not check():
            await asyncio.sleep(0.001)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Waits for the end, which is a reset where bytes were left unread."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize(
    ("sent", "after_s"),
    [
        pytest.param(b"\x00\x00", STALLED_S, id="half a length"),
        pytest.param(frame(b"abc")[:5], STALLED_S, id="half a frame"),
        pytest.param(frame(b"L"), STALLED_S, id="an answer that is not read"),
        pytest.param(b"", IDLE_MS / 1000, id="nothing at all"),
        pytest.param(frame(b"abc"), IDLE_MS / 1000, id="nothing more"),
    ],
)
def test_who_does_not_go_on_is_dropped_after_its_time(sent: bytes, after_s: float) -> None:
    async def test(server: Server, clock: ManualClock, port: int) -> None:
        _, writer = await connect(port)
        writer.write(sent)
        await until(lambda: server.statistics().connections == 1)
        await asyncio.sleep(0.05)
        clock.advance_ms(int(after_s * 1000))
        server.sweep()
        assert server.statistics().connections == 1
        clock.advance_ms(1)
        server.sweep()
        assert server.statistics().connections == 0
        found = server.statistics()
        assert (found.closed_idle_total, found.closed_stalled_total) == (
            (1, 0) if after_s > STALLED_S else (0, 1)
        )
        writer.close()

    run(test)


def test_who_sends_more_than_there_is_memory_for_is_cut_off_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Left open, its socket would stay readable: a core for nothing, and a full log."""
    room = FrameBuffer.free_space

    def no_memory(buffer: FrameBuffer) -> memoryview:
        if buffer.pending_bytes:
            raise MemoryError
        return room(buffer)

    async def test(server: Server, _clock: ManualClock, port: int) -> None:
        greedy, greedy_writer = await connect(port)
        greedy_writer.write(struct.pack(">i", 900) + bytes(10))
        reader, writer = await connect(port)
        writer.write(frame(b"abc"))
        assert await reader.readexactly(3) == b"abc"
        greedy_writer.write(bytes(10))
        async with asyncio.timeout(60):
            assert await is_closed(greedy)
        writer.write(frame(b"abc"))
        assert await reader.readexactly(3) == b"abc"
        assert server.statistics().connections == 1
        writer.close()
        greedy_writer.close()

    monkeypatch.setattr(FrameBuffer, "free_space", no_memory)
    run(test)
    assert "client disconnected for an invalid request" in caplog.text


def test_who_waits_for_an_answer_that_cannot_be_built_is_told_by_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client that is left waiting holds its request for 30 s, and nobody learns why."""

    async def test(server: Server, clock: ManualClock, port: int) -> None:
        reader, writer = await connect(port)
        writer.write(frame(b"abc") + frame(b"F"))
        assert await reader.readexactly(3) == b"abc"
        async with asyncio.timeout(60):
            assert await is_closed(reader)
        assert server.statistics().connections == 0
        writer.close()

    run(test)
    assert "a mistake" in caplog.text


async def is_cut_off_for(port: int, sent: bytes) -> bool:
    reader, writer = await connect(port)
    writer.write(sent)
    try:
        return await is_closed(reader)
    finally:
        writer.close()


def test_a_client_that_meets_our_mistake_again_and_again_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each mistake is told with its traceback once a minute, and how often it was not."""

    async def test(_server: Server, clock: ManualClock, port: int) -> None:
        for sent in (b"X1", b"X2", b"F", b"X3"):
            assert await is_cut_off_for(port, frame(sent))
        clock.advance_ms(int(QUIET_S * 1000))
        assert await is_cut_off_for(port, frame(b"X4"))

    run(test)
    said = [one for one in caplog.records if one.message == "request failed"]
    assert [(one.exc_info[0], one.fields.get("not_logged")) for one in said] == [  # type: ignore[index, attr-defined]
        (KeyError, None),
        (ValueError, None),
        (KeyError, 2),
    ]


def test_clients_that_are_cut_off_by_the_dozen_are_a_line_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(_server: Server, clock: ManualClock, port: int) -> None:
        for wait_s in (0.0, 0.0, 0.0, REFUSAL_LOG_S):
            clock.advance_ms(int(wait_s * 1000))
            assert await is_cut_off_for(port, frame(bytes(1001)))

    run(test)
    said = [one.fields.get("not_logged") for one in caplog.records if "disconnected" in one.message]  # type: ignore[attr-defined]
    assert said == [None, 2]


def test_who_is_muted_is_not_idle_and_not_read() -> None:
    async def test(server: Server, clock: ManualClock, port: int) -> None:
        reader, writer = await connect(port)
        writer.write(frame(b"M") + frame(b"next"))
        assert await reader.readexactly(5) == b"muted"
        assert server.statistics().muted_connections == 1
        clock.advance_ms(2 * IDLE_MS)
        server.sweep()
        assert server.statistics().connections == 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.read(1)
        writer.close()

    run(test)


def test_who_leaves_makes_room_for_its_address() -> None:
    async def test(server: Server, _clock: ManualClock, port: int) -> None:
        _, first = await connect(port)
        _, second = await connect(port)
        refused, _ = await connect(port)
        assert await refused.read() == b""
        first.close()
        await until(lambda: server.statistics().connections == 1)
        reader, third = await connect(port)
        third.write(frame(b"abc"))
        assert await reader.readexactly(3) == b"abc"
        assert server.statistics().refused_total == 1
        second.close()
        third.close()

    run(test, allowed=limits(per_address=2))


def test_an_override_counts_for_its_address_alone() -> None:
    allowed = limits(100, **{"127.0.0.1": 0})
    assert (allowed.of_address("127.0.0.1"), allowed.of_address("127.0.0.2")) == (0, 100)

    async def test(_server: Server, _clock: ManualClock, port: int) -> None:
        refused, _ = await connect(port)
        assert await refused.read() == b""

    run(test, allowed=allowed)


def test_who_connects_too_often_is_held_for_its_time_and_closed() -> None:
    async def test(server: Server, _clock: ManualClock, port: int) -> None:
        before_s = asyncio.get_running_loop().time()
        reader, writer = await connect(port)
        writer.write(frame(b"abc"))
        assert await is_closed(reader)
        assert asyncio.get_running_loop().time() - before_s >= 0.09
        assert server.statistics().connections == 0

    run(test, admit=lambda _address: 100)


def test_only_so_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    # A login has 1024 descriptors, and this process has others open.
    monkeypatch.setattr(server_module, "HELD_MAX", 20)

    async def test(server: Server, _clock: ManualClock, _port: int) -> None:
        pairs = [socket.socketpair() for _ in range(5)]
        server._held.update(socket.socket() for _ in range(18))
        for ours, _ in pairs:
            server._hold(ours, 60_000)
        assert [theirs.recv(1, socket.MSG_DONTWAIT) for _, theirs in pairs[2:]] == [b""] * 3
        for _, theirs in pairs[:2]:
            with pytest.raises(BlockingIOError):
                theirs.recv(1, socket.MSG_DONTWAIT)
            theirs.close()

    run(test)


def test_who_comes_faster_than_the_rate_waits_for_his_turn_and_is_served() -> None:
    waits = iter([0, 30, 0, 0])
    asked: list[str] = []

    def pace(listener: str) -> int:
        asked.append(listener)
        return next(waits)

    async def test(server: Server, _clock: ManualClock, port: int) -> None:
        # None of them is turned away: two wait, one with us and one with the system.
        connections = [await connect(port) for _ in range(3)]
        for reader, writer in connections:
            writer.write(frame(b"x"))
            assert await reader.readexactly(1) == b"x"
        assert server.statistics().refused_total == 0
        assert asked == ["PLAINTEXT"] * 3

    run(test, pace=pace)


def test_a_client_that_there_is_no_memory_for_after_its_wait_keeps_no_others_out() -> None:
    lacking = iter([True])

    def admit(_address: str) -> int:
        if next(lacking, False):
            raise MemoryError
        return 0

    async def test(server: Server, _clock: ManualClock, port: int) -> None:
        reported = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda *_: reported.set())
        # Kept: a client that nobody holds may be collected, which closes it.
        kept = [await connect(port)]
        await reported.wait()
        kept.append(await connect(port))
        await until(lambda: server.statistics().connections == 1)

    run(test, admit=admit, pace=lambda _listener: 1)


def test_a_stop_lets_go_of_who_waits() -> None:
    async def test(server: Server, _clock: ManualClock, port: int) -> None:
        reader, _ = await connect(port)
        await until(lambda: server.statistics().accepted_total == 1)
        server.close()
        assert await is_closed(reader)

    run(test, pace=lambda _listener: 60_000)


def test_a_listener_may_have_a_limit_of_its_own() -> None:
    async def test(server: Server, _clock: ManualClock, port: int) -> None:
        small = server.listen("127.0.0.1", 0, "SMALL")
        kept = [await connect(small) for _ in range(2)]
        await until(lambda: server.statistics().connections == 2)
        kept.append(await connect(small))
        assert await is_closed(kept[-1][0])
        kept.append(await connect(port))
        await until(lambda: server.statistics().connections == 3)
        assert server.statistics().refused_total == 1

    run(test)


def test_a_client_on_this_machine_is_not_paced() -> None:
    async def test(server: Server, clock: ManualClock, port: int) -> None:
        with socket.socket() as fresh:
            of_the_system = congestion_control(fresh)
        _, writer = await connect(port)
        await until(lambda: len(server._connections) == 1)
        (connection,) = server._connections
        expected = UNPACED if of_the_system.startswith(PACED_PREFIX) else of_the_system
        assert congestion_control(connection._transport._socket) == expected
        writer.close()

    run(test)


class Slow:
    """Takes 3 ms for each frame, and notes whose they were."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.handled: list[bytes] = []

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        self._clock.advance_ms(3)
        self.handled.append(bytes(frame))
        return [bytes(frame)]


def test_what_one_client_pipelines_does_not_hold_up_the_others() -> None:
    async def main() -> list[bytes]:
        clock = ManualClock()
        slow = Slow(clock)
        server = Server(
            lambda _listener, _host: slow,
            limits=limits,
            clock=clock,
            spawn=asyncio.get_running_loop().create_task,
        )
        port = server.listen("127.0.0.1", 0)
        greedy, modest = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
        # All of it is there before the broker looks.
        greedy.sendall((struct.pack(">i", 1) + b"g") * 200)
        modest.sendall(struct.pack(">i", 1) + b"m")
        while len(slow.handled) < 201:
            await asyncio.sleep(0)
        greedy.close()
        modest.close()
        server.close()
        await asyncio.sleep(0)
        return slow.handled

    handled = asyncio.run(asyncio.wait_for(main(), 60))
    assert handled.count(b"g") == 200
    assert handled.index(b"m") < 10


def test_answers_to_pipelined_requests_keep_their_order_over_many_turns() -> None:
    async def main() -> bytes:
        clock = ManualClock()
        server = Server(
            lambda _listener, _host: Slow(clock),
            limits=limits,
            clock=clock,
            spawn=asyncio.get_running_loop().create_task,
        )
        port = server.listen("127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        connected = socket.create_connection(("127.0.0.1", port))
        connected.setblocking(False)
        sent = [struct.pack(">i", number) for number in range(2000)]
        await loop.sock_sendall(connected, b"".join(struct.pack(">i", 4) + one for one in sent))
        received = b""
        while len(received) < 4 * len(sent):
            received += await loop.sock_recv(connected, 65536)
        connected.close()
        server.close()
        await asyncio.sleep(0)
        assert received == b"".join(sent)
        return received

    asyncio.run(main())


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_every_interface_is_one_for_clients_of_both_families(host: str) -> None:
    async def test(server: Server, _clock: ManualClock, _port: int) -> None:
        port = server.listen(host, 0)
        for own in own_addresses():
            reader, writer = await connect(port, own)
            writer.write(frame(b"abc"))
            assert await reader.readexactly(3) == b"abc", own
            writer.close()

    run(test)


async def connected(server: Server, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that the server has taken in."""
    before = server.statistics().accepted_total
    streams = await connect(port)
    await until(lambda: server.statistics().accepted_total > before)
    return streams


async def exchange(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes
) -> bytes:
    reader, writer = streams
    writer.write(frame(data))
    return await reader.readexactly(len(data))


def test_who_does_not_log_in_in_time_is_dropped_whatever_is_sent_meanwhile() -> None:
    async def test(server: Server, clock: ManualClock, _port: int) -> None:
        port = server.listen("127.0.0.1", 0, "SASL")
        slow, silent, whole, logged_in = [await connected(server, port) for _ in range(4)]
        assert await exchange(logged_in, b"in") == b"in"
        assert server.statistics().logins == 3
        slow[1].write(struct.pack(">i", 1000))
        for byte in range(int(LOGIN_S)):
            # A byte a second, and a whole request.
            slow[1].write(b"x")
            assert await exchange(whole, b"%d" % byte)
            clock.advance_ms(1000)
            server.sweep()
        assert server.statistics().connections == 4
        clock.advance_ms(1)
        server.sweep()
        assert server.statistics().connections == 1
        assert server.statistics().closed_login_total == 3
        for reader, _ in (slow, silent, whole):
            assert await is_closed(reader)
        assert await exchange(logged_in, b"more") == b"more"

    run(test)


def test_who_has_not_logged_in_has_no_buffer_above_the_largest_login() -> None:
    async def test(server: Server, _clock: ManualClock, _port: int) -> None:
        port = server.listen("127.0.0.1", 0, "SASL")
        _, writer = await connected(server, port)
        writer.write(struct.pack(">i", GATE_BYTES) + bytes(GATE_BYTES - 1))
        await until(lambda: server.statistics().receive_buffer_bytes > GATE_BYTES // 2)
        while server.statistics().receive_buffer_bytes < GATE_BYTES:
            await asyncio.sleep(0.001)
        assert server.statistics().receive_buffer_bytes <= GATE_BYTES + 4

    run(test, allowed=NetworkConfig())


def test_all_who_have_not_logged_in_have_one_pool_and_keep_nobody_else_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool_bytes = 3 * GATE_BYTES
    monkeypatch.setattr(logins_module, "LOGIN_BYTES_MAX", pool_bytes)

    async def test(server: Server, _clock: ManualClock, plain_port: int) -> None:
        port = server.listen("127.0.0.1", 0, "SASL")
        greedy = [await connected(server, port) for _ in range(20)]
        for _, writer in greedy:
            writer.write(struct.pack(">i", GATE_BYTES) + bytes(GATE_BYTES - 1))
        ordinary = await connected(server, port)
        plain = await connected(server, plain_port)
        for number in range(50):
            assert await exchange(ordinary, b"%d" % number)
            assert await exchange(plain, bytes(10_000 + 1000 * number))
            small_bytes = 22 * INITIAL_BYTES + 2 * BUSY_BYTES_MAX
            largest = pool_bytes + GATE_BYTES + small_bytes
            assert server.statistics().receive_buffer_bytes <= largest
        # One after the other they end, and each gets its memory in turn.
        for reader, writer in greedy:
            writer.write(b"!")
            assert len(await reader.readexactly(GATE_BYTES)) == GATE_BYTES
            writer.close()
        assert await exchange(ordinary, b"in") == b"in"

    run(test, allowed=NetworkConfig())


def test_only_so_many_log_in_at_a_time_and_the_slowest_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logins_module, "LOGINS_MAX", 2)

    async def test(server: Server, clock: ManualClock, plain_port: int) -> None:
        port = server.listen("127.0.0.1", 0, "SASL")
        first, second = [await connected(server, port) for _ in range(2)]
        refused = await connect(port)
        assert await is_closed(refused[0])
        assert await exchange(await connected(server, plain_port), b"a") == b"a"
        clock.advance_ms(int(LOGIN_GRACE_S * 1000) + 1)
        third = await connected(server, port)
        assert await is_closed(first[0])
        for streams in (second, third):
            assert await exchange(streams, b"in") == b"in"
        fourth = await connected(server, port)
        assert await exchange(fourth, b"in") == b"in"
        assert server.statistics().closed_login_total == 1

    run(test)


def test_a_frame_that_comes_byte_by_byte_is_dropped_like_an_idle_connection() -> None:
    async def test(server: Server, clock: ManualClock, port: int) -> None:
        slow = await connected(server, port)
        steady = await connected(server, port)
        slow[1].write(struct.pack(">i", 1000))
        assert await exchange(steady, b"a") == b"a"
        server.sweep()
        for number in range(IDLE_MS // 10_000):
            slow[1].write(b"x")
            steady[1].write(frame(b"whole") + frame(b"half")[:5])
            await steady[0].readexactly(5)
            clock.advance_ms(10_000)
            server.sweep()
            assert server.statistics().connections == 2, number
            steady[1].write(b"alf")
            await steady[0].readexactly(4)
        slow[1].write(b"x")
        clock.advance_ms(1)
        server.sweep()
        assert server.statistics().connections == 1
        assert server.statistics().closed_stalled_total == 1
        assert await is_closed(slow[0])

    run(test)


def test_large_requests_wait_for_each_other_when_their_memory_is_bounded() -> None:
    size_bytes, pool_bytes = 1_000_000, 2_000_000

    async def test(server: Server, clock: ManualClock, port: int) -> None:
        many = [await connected(server, port) for _ in range(12)]
        for _, writer in many:
            writer.write(struct.pack(">i", size_bytes) + bytes(size_bytes - 1))
        small = await connected(server, port)
        for _ in range(50):
            assert await exchange(small, b"a") == b"a"
        await until(lambda: server.statistics().receive_buffer_bytes > pool_bytes // 2)
        clock.advance_ms(1000)
        # Those that wait for memory are not idle, and the others get their buffers.
        for reader, writer in many:
            writer.write(b"!")
            assert len(await reader.readexactly(size_bytes)) == size_bytes
            largest = pool_bytes + size_bytes + 13 * INITIAL_BYTES
            assert server.statistics().receive_buffer_bytes <= largest
        assert server.statistics().connections == 13

    run(test, allowed=NetworkConfig(request_bytes_max=2_000_000, queued_bytes_max=pool_bytes))


def test_who_leaves_while_it_waits_for_memory_is_forgotten() -> None:
    async def test(server: Server, _clock: ManualClock, port: int) -> None:
        first, second, third = [await connected(server, port) for _ in range(3)]
        large = struct.pack(">i", 1_000_000) + bytes(900_000)
        for _, writer in (first, second):
            writer.write(large)
            await asyncio.sleep(0.05)
        second[1].transport.abort()
        assert await exchange(third, b"a") == b"a"
        first[1].transport.abort()
        await until(lambda: server.statistics().connections == 1)
        assert await exchange(third, bytes(900_000)) == bytes(900_000)

    run(test, allowed=NetworkConfig(request_bytes_max=1_000_000, queued_bytes_max=1_000_000))


@pytest.mark.parametrize("first_byte", [b"W", b"D"])
def test_who_waits_for_a_late_answer_holds_no_memory_that_others_wait_for(
    first_byte: bytes,
) -> None:
    """As a member of a group does, for the minutes of a rebalance."""

    async def test(server: Server, _clock: ManualClock, port: int) -> None:
        *waiting, other = [await connected(server, port) for _ in range(3)]
        before_count = Echo.waiting_count
        for _, writer in waiting:
            writer.write(frame(first_byte + bytes(999_999)))
        await asyncio.wait_for(until(lambda: Echo.waiting_count == before_count + 2), 9)
        assert await asyncio.wait_for(exchange(other, bytes(900_000)), 9) == bytes(900_000)

    run(test, allowed=NetworkConfig(request_bytes_max=1_000_000, queued_bytes_max=1_000_000))


def test_connections_above_a_lowered_limit_are_closed_the_quietest_first() -> None:
    allowed = [limits()]

    async def main() -> None:
        clock = ManualClock()
        server = Server(
            handler_of,
            limits=lambda: allowed[0],
            clock=clock,
            spawn=asyncio.get_running_loop().create_task,
        )
        port = server.listen("127.0.0.1", 0)
        many = [await connected(server, port) for _ in range(6)]
        clock.advance_ms(1000)
        for streams in many[:2] + many[4:]:
            assert await exchange(streams, b"a") == b"a"
        server.sweep()
        assert server.statistics().connections == 6
        allowed[0] = replace(limits(), connections_max=4)
        server.sweep()
        assert server.statistics().connections == 4
        assert server.statistics().closed_excess_total == 2
        for streams in many[:2] + many[4:]:
            assert await exchange(streams, b"b") == b"b"
        for reader, _ in many[2:4]:
            assert await is_closed(reader)
        server.close()

    asyncio.run(main())
