"""What goes into a socket at once, and what becomes of a segment that is cut meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.broker.network import connection as connection_module
from strandline.broker.network.connection import TURN_BYTES_MAX
from strandline.broker.network.transport import JOIN_BYTES_MAX
from strandline.storage.files import FileRange, OpenFile
from strandline.storage.quiet_log import QuietLog
from tests.unit.broker.network.connected import (
    CONTENT,
    REQUEST,
    AsParts,
    connection_with,
    in_file,
    in_files,
    pair,
    range_of,
    receive,
    waiting_bytes,
)


def _tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, client


# data_segs_out of struct tcp_info.
DATA_SEGMENTS_POSITION = 156


def _segments_sent(ours: socket.socket) -> int:
    info = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, DATA_SEGMENTS_POSITION + 4)
    return int(struct.unpack_from("=I", info, DATA_SEGMENTS_POSITION)[0])


@pytest.mark.parametrize("records_bytes", [1000, JOIN_BYTES_MAX + 1])
def test_head_records_and_tail_go_in_one_packet(records_bytes: int, tmp_path: Path) -> None:
    """The client is not woken for three bytes, whether the records are read or sent of the file."""

    async def main() -> None:
        parts = [CONTENT[:75], range_of(tmp_path, 75, 75 + records_bytes), b"end"]
        ours, client = _tcp()
        with connection_with(parts, (ours, client)):
            for number in (1, 2, 3):
                client.send(REQUEST)
                answer = await receive(client, records_bytes + 78)
                assert answer == CONTENT[: 75 + records_bytes] + b"end"
                assert _segments_sent(ours) == number

    asyncio.run(main())


@pytest.mark.parametrize("as_parts", [in_file, in_files])
def test_nothing_is_held_back_when_a_turn_is_over(as_parts: AsParts, tmp_path: Path) -> None:
    """Neither between the turns, nor when the socket is full, nor at the end."""

    async def main() -> None:
        ours, client = pair()
        # Less than an answer: the socket is full now and then.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * TURN_BYTES_MAX)
        with connection_with(as_parts(tmp_path), (ours, client)):
            client.send(REQUEST)
            received = b""
            while len(received) < len(CONTENT):
                await asyncio.sleep(0)
                assert not ours.is_corked
                received += client.recv(300_000) if waiting_bytes(client) else b""
            assert received == CONTENT

    asyncio.run(main())


def test_a_small_range_of_a_segment_that_was_cut_ends_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        small = range_of(tmp_path, 0, 1000)
        (tmp_path / "segment").write_bytes(CONTENT[:999])
        with connection_with([b"head", small, b"next"]) as (connection, client):
            client.send(REQUEST)
            loop = asyncio.get_running_loop()
            assert await asyncio.wait_for(loop.sock_recv(client, 1), 60) == b""
            assert connection.closed

    asyncio.run(main())


def test_a_segment_that_is_deleted_while_it_is_sent_arrives_whole(tmp_path: Path) -> None:
    async def main() -> None:
        with connection_with([range_of(tmp_path, 0, len(CONTENT))]) as (_, client):
            client.send(REQUEST)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert 0 < waiting_bytes(client) < len(CONTENT)
            (tmp_path / "segment").unlink()
            assert await receive(client, len(CONTENT)) == CONTENT

    asyncio.run(main())


def test_a_segment_that_is_cut_while_it_is_sent_ends_the_connection(tmp_path: Path) -> None:
    """A client must never take what follows for the rest of an answer."""

    async def main() -> None:
        cut = range_of(tmp_path, 0, len(CONTENT))
        with connection_with([cut, b"next"]) as (connection, client):
            client.send(REQUEST)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            (tmp_path / "segment").write_bytes(CONTENT[: 2 * TURN_BYTES_MAX])
            assert await receive(client, 2 * TURN_BYTES_MAX) == CONTENT[: 2 * TURN_BYTES_MAX]
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
    return range_of(folder, 0, len(CONTENT))


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
    (line,) = [record for record in caplog.records if record.message == "response aborted"]
    assert f"cannot read {broken.file.path}: Input/output error" in str(line.__dict__["fields"])
