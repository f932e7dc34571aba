"""A range comes whole and as it was asked for, or not at all."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from strandline.storage.clock import ManualClock, SystemClock
from strandline.storage.errors import CorruptRecords
from strandline.storage.remote.download import pacing as paced_steps
from strandline.storage.remote.download import ranged_get
from strandline.storage.remote.download.ranged_get import RangedGets, Refused
from strandline.storage.remote.object_store.direct_read import DirectRead
from tests.unit.storage.remote.scripted_server import Server, sends

CONTENT = bytes(range(256)) * 40
START, SIZE = 100, 5000
WANTED = CONTENT[START : START + SIZE]
HEAD = (
    f"HTTP/1.1 206 Partial Content\r\nContent-Length: {SIZE}\r\n"
    f"Content-Range: bytes {START}-{START + SIZE - 1}/{len(CONTENT)}\r\n"
).encode()
GOOD = HEAD + b"\r\n" + WANTED


def hangs(*blocks: bytes) -> Callable[[socket.socket], bool]:
    def script(connected: socket.socket) -> bool:
        sends(*blocks)(connected)
        connected.recv(1)  # until the other side gives up
        return False

    return script


@pytest.fixture
def gets() -> Iterator[RangedGets]:
    made = RangedGets(SystemClock())
    yield made
    made.close()


def get(gets: RangedGets, source: DirectRead) -> bytes:
    target = bytearray(SIZE)
    gets.get_into(source, memoryview(target), start=START)
    return bytes(target)


def test_ranges_come_over_one_connection(gets: RangedGets) -> None:
    server = Server(sends(GOOD), sends(HEAD + b"\r\n", WANTED[:7], WANTED[7:]), sends(GOOD))
    assert [get(gets, server.source) for _ in range(3)] == [WANTED] * 3
    assert server.connections == 1
    request = server.requests[0].decode().split("\r\n")
    assert request[0] == "GET /b/k%20y.log?X-Amz-Signature=1 HTTP/1.1"
    assert f"Range: bytes={START}-{START + SIZE - 1}" in request
    server.close()


@pytest.mark.parametrize("blocks", [(GOOD,), (HEAD + b"\r\n", WANTED[:7], WANTED[7:])])
def test_who_checks_along_is_told_of_all_that_came(
    gets: RangedGets, blocks: tuple[bytes, ...]
) -> None:
    server = Server(sends(*blocks))
    target, seen = bytearray(SIZE), bytearray()

    def received(size_bytes: int) -> None:
        assert size_bytes > len(seen)
        seen.extend(target[len(seen) : size_bytes])

    gets.get_into(server.source, memoryview(target), start=START, on_received=received)
    assert bytes(seen) == WANTED
    server.close()


def assert_kept_to_a_rate(source: DirectRead, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download at a bounded rate comes in small blocks; the next one without a rate at once."""
    clock, block_bytes, bytes_per_s = ManualClock(), 100, 10_000
    monkeypatch.setattr(paced_steps, "STEP_BYTES", block_bytes)
    gets = RangedGets(clock, wait_s=lambda wait_s: clock.advance_ms(round(wait_s * 1000)))
    target = bytearray(SIZE)
    # How much was there, and when.
    seen: list[tuple[int, float]] = [(0, 0.0)]
    gets.get_into(
        source,
        memoryview(target),
        start=START,
        on_received=lambda count: seen.append((count, clock.monotonic_s())),
        bytes_per_s=bytes_per_s,
    )
    assert bytes(target) == WANTED
    for (before, _), (count, now_s) in pairwise(seen):
        assert count - before <= block_bytes
        # Before each block it was waited until those before it were due.
        assert before <= now_s * bytes_per_s + 1
    # It is for one download only.
    ended_s = clock.monotonic_s()
    assert ended_s >= (SIZE - block_bytes) / bytes_per_s
    assert get(gets, source) == WANTED
    assert clock.monotonic_s() == ended_s
    gets.close()


def test_a_bounded_rate_is_kept_by_small_blocks_with_sleeps_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # None of the body comes with the head.
    monkeypatch.setattr(ranged_get, "HEAD_BYTES_MAX", len(HEAD) + 2)
    server = Server(sends(GOOD), sends(GOOD))
    assert_kept_to_a_rate(server.source, monkeypatch)
    server.close()


def test_who_finds_something_wrong_half_way_leaves_no_rest_for_the_next(gets: RangedGets) -> None:
    server = Server(sends(HEAD + b"\r\n", WANTED[:1000], WANTED[1000:]), sends(GOOD))

    def received(_: int) -> None:
        raise CorruptRecords("wrong")

    with pytest.raises(CorruptRecords):
        gets.get_into(server.source, memoryview(bytearray(SIZE)), start=START, on_received=received)
    assert get(gets, server.source) == WANTED
    assert server.connections == 2
    server.close()


def test_a_connection_that_the_server_closed_meanwhile_is_made_anew(gets: RangedGets) -> None:
    server = Server(
        sends(GOOD, keeps=False), sends(HEAD + b"Connection: close\r\n\r\n" + WANTED), sends(GOOD)
    )
    assert [get(gets, server.source) for _ in range(3)] == [WANTED] * 3
    assert server.connections == 3
    server.close()


@pytest.mark.parametrize(
    "script",
    [
        sends(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE + WANTED),
        sends(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 2\r\n\r\nxx"),
        sends(GOOD.replace(b"bytes 100-", b"bytes 101-")),
        sends(GOOD.replace(b"Length: 5000", b"Length: 4999")),
        sends(GOOD.replace(b"Content-Length: 5000", b"Transfer-Encoding: chunked")),
        sends(HEAD + b"Content-Encoding: gzip\r\n\r\n" + WANTED),
        sends(GOOD + b"more"),
        sends(GOOD[:-1], keeps=False),
        sends(HEAD, keeps=False),
        sends(b"", keeps=False),
        sends(b"x" * 100_000),
        hangs(),
        hangs(GOOD[:-1]),
    ],
)
def test_any_other_answer_is_refused_and_the_next_one_is_good(
    gets: RangedGets, script: Callable[[socket.socket], bool]
) -> None:
    server = Server(script, sends(GOOD))
    with pytest.raises(Refused):
        get(gets, server.source)
    assert get(gets, server.source) == WANTED
    server.close()


def test_nobody_listening_is_refused(gets: RangedGets) -> None:
    server = Server()
    source = server.source
    server.close()
    with pytest.raises(Refused):
        get(gets, source)


def test_a_file_is_read_at_a_bounded_rate_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "object"
    path.write_bytes(bytes(START) + WANTED)
    assert_kept_to_a_rate(DirectRead(path=str(path)), monkeypatch)


def test_a_file_that_is_too_short_is_refused(gets: RangedGets, tmp_path: object) -> None:
    path = f"{tmp_path}/k.log"
    with open(path, "wb") as file:
        file.write(CONTENT[: START + SIZE])
    assert get(gets, DirectRead(path=path)) == WANTED
    with open(path, "wb") as file:
        file.write(CONTENT[: START + SIZE - 1])
    with pytest.raises(Refused):
        get(gets, DirectRead(path=path))
    with pytest.raises(Refused):
        get(gets, DirectRead(path=path + "x"))
