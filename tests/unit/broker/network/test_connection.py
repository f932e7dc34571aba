"""A large answer goes out in turns, whole and in order, and small ones pass between them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.broker.network.connection import TURN_BYTES_MAX
from strandline.broker.network.responses import Parts
from strandline.broker.network.transport import SLACK_BYTES
from tests.unit.broker.network.connected import (
    CONTENT,
    REQUEST,
    AsParts,
    connection_with,
    in_file,
    in_files,
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
