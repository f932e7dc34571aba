"""A large answer goes out in turns, whole and in order, and small ones pass between them."""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import os
import random
import socket
import struct
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.broker.network import connection as connection_module
from strandline.broker.network.answers import Answer, Parts
from strandline.broker.network.connection import TURN_BYTES_MAX, Connection
from strandline.broker.network.sending import JOIN_BYTES_MAX, SLACK_BYTES
from strandline.storage.clock import SystemClock
from strandline.storage.files import FileRange, OpenFile
from strandline.storage.quiet_log import QuietLog

# Room for every answer of these tests: what stops a connection is its turn and not its socket.
BUFFER_BYTES = 4 * 1024 * 1024
CONTENT = random.Random(1).randbytes(3 * TURN_BYTES_MAX)
REQUEST = struct.pack(">i", 1) + b"?"

AsParts = Callable[[Path], Parts]


def _one_buffer(_folder: Path) -> Parts:
    return [CONTENT]


def _many_buffers(_folder: Path) -> Parts:
    step = 100_001
    return [memoryview(CONTENT)[at : at + step] for at in range(0, len(CONTENT), step)]


def _file(folder: Path) -> Parts:
    return [CONTENT[:70], _range(folder, 70, len(CONTENT) - 3), CONTENT[-3:]]


def _files(folder: Path) -> Parts:
    """As of several partitions; with an empty buffer, as nobody should send but everybody may."""
    parts: list[object] = []
    for at in range(0, len(CONTENT), 500_000):
        end = min(at + 500_000, len(CONTENT))
        parts += [CONTENT[at : at + 10], b"", _range(folder, at + 10, end)]
    return parts  # type: ignore[return-value]


def _range(folder: Path, start: int, end: int) -> FileRange:
    path = folder / "segment"
    path.write_bytes(CONTENT)
    return FileRange(OpenFile(path, writable=False), start, end - start)


class Answers:
    """Answers every request with the same."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        return list(self._parts)


def _waiting_bytes(client: socket.socket) -> int:
    """What has arrived and is not read yet."""
    found = array.array("i", [0])
    fcntl.ioctl(client, termios.FIONREAD, found)
    return found[0]


class PairEnd(socket.socket):
    """One end of a pair, which has the options of TCP by name."""

    is_corked = False

    def setsockopt(self, level: int, option: int, value: object, *more: object) -> None:  # type: ignore[override]
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_CORK):
            self.is_corked = bool(value)
        else:
            super().setsockopt(level, option, value, *more)  # type: ignore[call-overload]


def _pair() -> tuple[PairEnd, socket.socket]:
    ours, client = socket.socketpair()
    end = PairEnd(fileno=ours.detach())
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return end, client


def _tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, client


@contextmanager
def connection_with(
    parts: Parts, ends: Sequence[socket.socket] = ()
) -> Iterator[tuple[Connection, socket.socket]]:
    ours, client = ends or _pair()
    ours.setblocking(False)
    client.setblocking(False)
    connection = Connection(
        ours,
        peer="test:1",
        listener="TEST",
        handler=Answers(parts),
        loop=asyncio.get_running_loop(),
        spawn=asyncio.get_running_loop().create_task,
        clock=SystemClock(),
        frame_bytes_max=1000,
        on_close=lambda _connection: None,
        on_refused=lambda _peer, _reason: None,
        on_failed=lambda _peer, _error: None,
    )
    try:
        yield connection, client
    finally:
        connection.close("the test is over")
        client.close()


async def _receive(client: socket.socket, size: int) -> bytes:
    received = b""
    loop = asyncio.get_running_loop()
    while len(received) < size:
        received += await asyncio.wait_for(loop.sock_recv(client, size - len(received)), 60)
    return received


@pytest.mark.parametrize("as_parts", [_one_buffer, _many_buffers, _file, _files])
def test_a_turn_of_the_loop_sends_a_bounded_part_of_an_answer(
    as_parts: AsParts, tmp_path: Path
) -> None:
    async def main() -> None:
        with connection_with(as_parts(tmp_path)) as (connection, client):
            client.send(REQUEST)
            received = b""
            while len(received) < len(CONTENT):
                await asyncio.sleep(0)
                waiting = _waiting_bytes(client)
                assert waiting <= TURN_BYTES_MAX + SLACK_BYTES
                while waiting > 0:
                    received += client.recv(waiting)
                    waiting = _waiting_bytes(client)
            assert received == CONTENT
            await asyncio.sleep(0)
            assert not connection.is_sending

    asyncio.run(main())


@pytest.mark.parametrize("as_parts", [_one_buffer, _many_buffers, _file, _files])
def test_answers_in_turns_are_whole_and_the_connection_goes_on(
    as_parts: AsParts, tmp_path: Path
) -> None:
    async def main() -> None:
        with connection_with(as_parts(tmp_path)) as (connection, client):
            # Both at once: the second is answered when the first is out.
            client.send(REQUEST + REQUEST)
            assert await _receive(client, 2 * len(CONTENT)) == 2 * CONTENT
            client.send(REQUEST)
            assert await _receive(client, len(CONTENT)) == CONTENT
            assert connection.requests_total == 3

    asyncio.run(main())


def test_a_small_answer_passes_a_large_one() -> None:
    async def main() -> None:
        with (
            connection_with([CONTENT]) as (_, patient),
            connection_with([b"at once"]) as (_, hasty),
        ):
            patient.send(REQUEST)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert 0 < _waiting_bytes(patient) < len(CONTENT)
            hasty.send(REQUEST)
            assert await _receive(hasty, 7) == b"at once"
            assert _waiting_bytes(patient) < len(CONTENT)

    asyncio.run(main())


@pytest.mark.parametrize("records_bytes", [TURN_BYTES_MAX - 80, TURN_BYTES_MAX])
def test_an_answer_of_a_partition_goes_in_one_turn(records_bytes: int, tmp_path: Path) -> None:
    """With its head and its tail: no turn is spent on three bytes."""

    async def main() -> None:
        parts = [CONTENT[:75], _range(tmp_path, 0, records_bytes), b"end"]
        with connection_with(parts) as (connection, client):
            client.send(REQUEST)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert _waiting_bytes(client) == records_bytes + 78
            assert not connection.is_sending

    asyncio.run(main())


# data_segs_out of struct tcp_info.
DATA_SEGMENTS_POSITION = 156


def _segments_sent(ours: socket.socket) -> int:
    info = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, DATA_SEGMENTS_POSITION + 4)
    return int(struct.unpack_from("=I", info, DATA_SEGMENTS_POSITION)[0])


@pytest.mark.parametrize("records_bytes", [1000, JOIN_BYTES_MAX + 1])
def test_head_records_and_tail_go_in_one_packet(records_bytes: int, tmp_path: Path) -> None:
    """The client is not woken for three bytes, whether the records are read or sent of the file."""

    async def main() -> None:
        parts = [CONTENT[:75], _range(tmp_path, 75, 75 + records_bytes), b"end"]
        ours, client = _tcp()
        with connection_with(parts, (ours, client)):
            for number in (1, 2, 3):
                client.send(REQUEST)
                answer = await _receive(client, records_bytes + 78)
                assert answer == CONTENT[: 75 + records_bytes] + b"end"
                assert _segments_sent(ours) == number

    asyncio.run(main())


@pytest.mark.parametrize("as_parts", [_file, _files])
def test_nothing_is_held_back_when_a_turn_is_over(as_parts: AsParts, tmp_path: Path) -> None:
    """Neither between the turns, nor when the socket is full, nor at the end."""

    async def main() -> None:
        ours, client = _pair()
        # Less than an answer: the socket is full now and then.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * TURN_BYTES_MAX)
        with connection_with(as_parts(tmp_path), (ours, client)):
            client.send(REQUEST)
            received = b""
            while len(received) < len(CONTENT):
                await asyncio.sleep(0)
                assert not ours.is_corked
                received += client.recv(300_000) if _waiting_bytes(client) else b""
            assert received == CONTENT

    asyncio.run(main())


def test_a_small_range_of_a_segment_that_was_cut_ends_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        small = _range(tmp_path, 0, 1000)
        (tmp_path / "segment").write_bytes(CONTENT[:999])
        with connection_with([b"head", small, b"next"]) as (connection, client):
            client.send(REQUEST)
            loop = asyncio.get_running_loop()
            assert await asyncio.wait_for(loop.sock_recv(client, 1), 60) == b""
            assert connection.closed

    asyncio.run(main())


def test_a_segment_that_is_deleted_while_it_is_sent_arrives_whole(tmp_path: Path) -> None:
    async def main() -> None:
        with connection_with([_range(tmp_path, 0, len(CONTENT))]) as (_, client):
            client.send(REQUEST)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert 0 < _waiting_bytes(client) < len(CONTENT)
            (tmp_path / "segment").unlink()
            assert await _receive(client, len(CONTENT)) == CONTENT

    asyncio.run(main())


def test_a_segment_that_is_cut_while_it_is_sent_ends_the_connection(tmp_path: Path) -> None:
    """A client must never take what follows for the rest of an answer."""

    async def main() -> None:
        cut = _range(tmp_path, 0, len(CONTENT))
        with connection_with([cut, b"next"]) as (connection, client):
            client.send(REQUEST)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            (tmp_path / "segment").write_bytes(CONTENT[: 2 * TURN_BYTES_MAX])
            assert await _receive(client, 2 * TURN_BYTES_MAX) == CONTENT[: 2 * TURN_BYTES_MAX]
            loop = asyncio.get_running_loop()
            assert await asyncio.wait_for(loop.sock_recv(client, 1), 60) == b""
            assert connection.closed

    asyncio.run(main())


def _unreadable(_folder: Path, _patch: pytest.MonkeyPatch) -> FileRange:
    """The kernel's own EIO, of a page that nothing is mapped to."""
    return FileRange(OpenFile("/proc/self/mem", writable=False), 0, 1000)


def _unreadable_by_sendfile(folder: Path, patch: pytest.MonkeyPatch) -> FileRange:
    def fail(*_: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    patch.setattr(os, "sendfile", fail)
    return _range(folder, 0, len(CONTENT))


@pytest.mark.parametrize("make", [_unreadable, _unreadable_by_sendfile])
def test_a_segment_that_the_disk_cannot_read_is_told_when_its_answer_breaks_off(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path, pytest.MonkeyPatch], FileRange],
) -> None:
    """A consumer sees a connection that ends, over and over: only the broker knows why."""
    broken = make(tmp_path, monkeypatch)
    monkeypatch.setattr(connection_module, "_quiet_log", QuietLog(connection_module.log))

    async def main() -> None:
        for _ in range(3):
            with connection_with([b"head", broken, b"next"]) as (connection, client):
                client.send(REQUEST)
                loop = asyncio.get_running_loop()
                while await asyncio.wait_for(loop.sock_recv(client, 1), 60):
                    pass
                assert connection.closed

    asyncio.run(main())
    (line,) = [record for record in caplog.records if record.message == "answer broken off"]
    assert f"cannot read {broken.file.path}: Input/output error" in str(line.__dict__["fields"])
