"""A large answer goes out in turns, whole and in order, and small ones pass between them; requests
of a kind that may go on are handled while earlier ones wait, and answered in their order.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from strandline.broker.network.connection import PIPELINED_MAX, TURN_BYTES_MAX
from strandline.broker.network.responses import (
    Answer,
    CloseConnectionError,
    DeferredAnswer,
    Parts,
    ThrottledParts,
)
from strandline.broker.network.transport import SLACK_BYTES
from strandline.storage.clock import SystemClock
from tests.unit.broker.network.connected import (
    CONTENT,
    REQUEST,
    AsParts,
    connection_over,
    connection_with,
    in_file,
    in_files,
    pair,
    range_of,
    receive,
    waiting_bytes,
)


def _one_buffer(_folder: Path) -> Parts:
    return [CONTENT]


def _many_buffers(_folder: Path) -> Parts:
    step = 100_001
    return [memoryview(CONTENT)[at : at + step] for at in range(0, len(CONTENT), step)]


@pytest.mark.parametrize("as_parts", [_one_buffer, _many_buffers, in_file, in_files])
def test_a_turn_of_the_loop_sends_a_bounded_part_of_an_answer(
    as_parts: AsParts, tmp_path: Path
) -> None:
    async def main() -> None:
        with connection_with(as_parts(tmp_path)) as (connection, client):
            client.send(REQUEST)
            received = b""
            while len(received) < len(CONTENT):
                await asyncio.sleep(0)
                waiting = waiting_bytes(client)
                assert waiting <= TURN_BYTES_MAX + SLACK_BYTES
                while waiting > 0:
                    received += client.recv(waiting)
                    waiting = waiting_bytes(client)
            assert received == CONTENT
            await asyncio.sleep(0)
            assert not connection.is_sending

    asyncio.run(main())


@pytest.mark.parametrize("as_parts", [_one_buffer, _many_buffers, in_file, in_files])
def test_answers_in_turns_are_whole_and_the_connection_goes_on(
    as_parts: AsParts, tmp_path: Path
) -> None:
    async def main() -> None:
        with connection_with(as_parts(tmp_path)) as (_, client):
            # Both at once: the second is answered when the first is out.
            client.send(REQUEST + REQUEST)
            assert await receive(client, 2 * len(CONTENT)) == 2 * CONTENT
            client.send(REQUEST)
            assert await receive(client, len(CONTENT)) == CONTENT

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
            assert 0 < waiting_bytes(patient) < len(CONTENT)
            hasty.send(REQUEST)
            assert await receive(hasty, 7) == b"at once"
            assert waiting_bytes(patient) < len(CONTENT)

    asyncio.run(main())


@pytest.mark.parametrize("records_bytes", [TURN_BYTES_MAX - 80, TURN_BYTES_MAX])
def test_an_answer_of_a_partition_goes_in_one_turn(records_bytes: int, tmp_path: Path) -> None:
    """With its head and its tail: no turn is spent on three bytes."""

    async def main() -> None:
        parts = [CONTENT[:75], range_of(tmp_path, 0, records_bytes), b"end"]
        with connection_with(parts) as (connection, client):
            client.send(REQUEST)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert waiting_bytes(client) == records_bytes + 78
            assert not connection.is_sending

    asyncio.run(main())


# --- requests that go on while earlier ones wait -----------------------------------------------

WAITING, OTHER = b"w", b"o"


class Waiting:
    """Answers requests that begin with WAITING when it is told to, and others at once."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.waits: list[DeferredAnswer] = []

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        content = bytes(frame)
        self.handled.append(content)
        if content[:1] == OTHER:
            return self._late(content) if content.endswith(b"later") else [content]
        if content == WAITING + b" at once":
            return [content]
        if content == WAITING + b" is bad":
            raise CloseConnectionError("bad")
        self.waits.append(DeferredAnswer(goes_on_with=WAITING))
        return self.waits[-1]

    async def _late(self, content: bytes) -> Parts:
        await asyncio.sleep(0)
        return [content]


@asynccontextmanager
async def _waiting() -> AsyncIterator[tuple[Waiting, socket.socket]]:
    ours, client = pair()
    ours.setblocking(False)
    client.setblocking(False)
    handler = Waiting()
    connection = connection_over(ours, handler, SystemClock())
    try:
        yield handler, client
    finally:
        connection.close("the test is over")
        client.close()


def _send(client: socket.socket, *contents: bytes) -> None:
    client.send(b"".join(struct.pack(">i", len(one)) + one for one in contents))


async def _until_handled(handler: Waiting, count: int) -> None:
    async with asyncio.timeout(60):
        while len(handler.handled) < count:
            await asyncio.sleep(0)
    # Whatever is handled too early would be by now.
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(handler.handled) == count


def test_requests_that_may_go_on_are_handled_while_earlier_ones_wait() -> None:
    async def main() -> None:
        async with _waiting() as (handler, client):
            _send(client, b"w1", b"w2")
            await _until_handled(handler, 2)
            _send(client, b"w3")
            await _until_handled(handler, 3)
            for number in (1, 0, 2):
                handler.waits[number].complete([b"answer %d" % number])
            assert await receive(client, 24) == b"answer 0answer 1answer 2"

    asyncio.run(main())


def test_answers_that_come_in_one_turn_are_sent_together() -> None:
    async def main() -> None:
        async with _waiting() as (handler, client):
            _send(client, b"w1", b"w2", b"w3")
            await _until_handled(handler, 3)
            handler.waits[0].complete([b"1"])
            assert not waiting_bytes(client)
            handler.waits[1].complete([b"2"])
            assert not waiting_bytes(client)
            # The last one was not among them: it is not waited for.
            assert await receive(client, 2) == b"12"

    asyncio.run(main())


@pytest.mark.parametrize("other", [b"o at once", b"o later"])
def test_a_request_of_another_kind_waits_for_all_before_it(other: bytes) -> None:
    async def main() -> None:
        async with _waiting() as (handler, client):
            _send(client, b"w1", b"w2", other, b"w3")
            await _until_handled(handler, 2)
            handler.waits[0].complete([b"1"])
            assert await receive(client, 1) == b"1"
            await _until_handled(handler, 2)
            handler.waits[1].complete([b"2"])
            assert await receive(client, 1 + len(other)) == b"2" + other
            await _until_handled(handler, 4)
            assert handler.handled[2:] == [other, b"w3"]

    asyncio.run(main())


def test_an_answer_that_is_there_at_once_waits_for_those_before_it() -> None:
    async def main() -> None:
        async with _waiting() as (handler, client):
            at_once = WAITING + b" at once"
            _send(client, b"w1", at_once, b"w2")
            await _until_handled(handler, 2)
            assert not waiting_bytes(client)
            handler.waits[0].complete([b"1"])
            assert await receive(client, 1 + len(at_once)) == b"1" + at_once
            await _until_handled(handler, 3)

    asyncio.run(main())


def test_a_client_that_is_muted_after_an_answer_is_not_read_meanwhile() -> None:
    async def main() -> None:
        async with _waiting() as (handler, client):
            _send(client, b"w1")
            await _until_handled(handler, 1)
            handler.waits[0].complete(ThrottledParts([b"1"], 60_000))
            assert await receive(client, 1) == b"1"
            _send(client, b"w2")
            await _until_handled(handler, 1)

    asyncio.run(main())


def test_requests_before_one_that_ends_the_connection_are_answered() -> None:
    """Their records are stored: a producer without an answer would send them again."""

    async def main() -> None:
        async with _waiting() as (handler, client):
            _send(client, b"w1", b"w2", b"w is bad", b"w3")
            await _until_handled(handler, 3)
            for number in (0, 1):
                handler.waits[number].complete([b"answer %d" % number])
            assert await receive(client, 16) == b"answer 0answer 1"
            await _until_handled(handler, 3)
            assert client.recv(1) == b""

    asyncio.run(main())


def test_so_many_requests_wait_and_no_more() -> None:
    async def main() -> None:
        async with _waiting() as (handler, client):
            _send(client, *[b"w"] * (PIPELINED_MAX + 2))
            await _until_handled(handler, PIPELINED_MAX)
            handler.waits[0].complete([b"1"])
            assert await receive(client, 1) == b"1"
            await _until_handled(handler, PIPELINED_MAX + 1)

    asyncio.run(main())


def test_a_client_that_goes_while_requests_wait_leaves_nothing() -> None:
    async def main() -> None:
        async with _waiting() as (handler, client):
            _send(client, b"w1", b"w2")
            await _until_handled(handler, 2)
            gone: list[int] = []
            for number, wait in enumerate(handler.waits):
                wait.cancel_hook = lambda number=number: gone.append(number)
            client.shutdown(socket.SHUT_RDWR)
            async with asyncio.timeout(60):
                while gone != [0, 1]:
                    await asyncio.sleep(0)

    asyncio.run(main())
