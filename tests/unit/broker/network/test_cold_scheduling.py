"""Beside live traffic, cold answers go in small turns, one at a time, and come whole."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from strandline.broker.network.cold_scheduling import ColdSchedule
from strandline.broker.network.connection import Connection
from strandline.broker.network.responses import Answer, ColdParts, DeferredAnswer, Parts
from strandline.broker.network.transport import SLACK_BYTES
from strandline.broker.quotas.cold_pace import (
    TURN_BYTES,
    ColdPace,
    PaceConfig,
)
from strandline.storage.clock import SystemClock
from strandline.storage.files import FileRange, OpenFile
from tests.support.manual_clock import ManualClock
from tests.unit.broker.network.connected import REQUEST, connection_over, receive

FLOOR = 64 * 1024 * 1024
SETTINGS = PaceConfig(lateness_s_max=0.001, floor_bytes_per_s=FLOOR)
CONTENT = random.Random(1).randbytes(1_000_003)
TURN_BYTES_AT_MOST = TURN_BYTES + SLACK_BYTES


def _in_memory(_folder: Path) -> Parts:
    return [
        CONTENT[:50],
        *(memoryview(CONTENT)[at : at + 99_991] for at in range(50, len(CONTENT), 99_991)),
    ]


def _in_a_file(folder: Path) -> Parts:
    path = folder / "object"
    path.write_bytes(CONTENT)
    return [CONTENT[:50], FileRange(OpenFile(path, writable=False), 50, len(CONTENT) - 50)]


class Scripted:
    """Answers requests with what was laid ready, in order."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        return self._answers.pop(0)


class Noting:
    """As a connection beside others: notes which bytes went when."""

    def __init__(self, connection: Connection, went: list[tuple[Connection, int]]) -> None:
        self._connection = connection
        self._went = went

    def take_turn(self, bytes_max: int) -> int:
        sent = self._connection.take_turn(bytes_max)
        self._went.append((self._connection, sent))
        return sent

    def go_on(self) -> None:
        self._connection.go_on()


class NotingTurns(ColdSchedule):
    """The real turns, with a list of who had one."""

    def __init__(self, pace: ColdPace, now_s: Callable[[], float]) -> None:
        super().__init__(pace, now_s)
        self.went: list[tuple[Connection, int]] = []

    def enter(self, sender: object) -> None:
        assert isinstance(sender, Connection)
        super().enter(Noting(sender, self.went))


class Bench:
    """Connections that share their turns; `pace` decides whether there are any."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.pace = ColdPace(lambda: SETTINGS)
        self.turns = NotingTurns(self.pace, self.clock.monotonic_s)
        self.connections: list[Connection] = []
        self.clients: list[socket.socket] = []

    def be_live(self) -> None:
        self.pace.saw_live(self.clock.monotonic_s())

    def connect(self, *answers: Answer, turns: ColdSchedule | None = None) -> socket.socket:
        ours, client = socket.socketpair()
        ours.setblocking(False)
        client.setblocking(False)
        self.connections.append(
            connection_over(ours, Scripted(*answers), self.clock, turns or self.turns)
        )
        self.clients.append(client)
        return client


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    found = Bench()
    try:
        yield found
    finally:
        for connection in found.connections:
            connection.close("the test is over")
        for client in found.clients:
            client.close()
        found.turns.close()


@pytest.mark.parametrize("as_parts", [_in_memory, _in_a_file])
def test_a_cold_answer_comes_whole_in_small_turns(
    as_parts: Callable[[Path], Parts], tmp_path: Path
) -> None:
    async def main() -> None:
        async with bench() as held:
            client = held.connect(ColdParts(as_parts(tmp_path)))
            held.be_live()
            client.send(REQUEST)
            received = b""
            while len(received) < len(CONTENT):
                held.be_live()
                received += await receive(client, min(50_000, len(CONTENT) - len(received)))
            assert received == CONTENT
            sizes = [sent for _, sent in held.turns.went]
            assert sum(sizes) == len(CONTENT)
            assert max(sizes) <= TURN_BYTES_AT_MOST

    asyncio.run(main())


def test_cold_answers_have_turns_in_turn() -> None:
    async def main() -> None:
        async with bench() as held:
            clients = [held.connect(ColdParts([CONTENT])) for _ in range(3)]
            held.be_live()
            for client in clients:
                client.send(REQUEST)

            async def read(client: socket.socket) -> bytes:
                return await receive(client, len(CONTENT))

            async def live() -> None:
                while True:
                    held.be_live()
                    await asyncio.sleep(0.01)

            is_live = asyncio.ensure_future(live())
            contents = await asyncio.gather(*(read(client) for client in clients))
            is_live.cancel()
            assert contents == [CONTENT] * 3
            shares = [
                sum(sent for whose, sent in held.turns.went[:12] if whose is connection)
                for connection in held.connections
            ]
            assert min(shares) > 0

    asyncio.run(main())


def test_a_live_answer_goes_between_two_turns_of_a_cold_one() -> None:
    async def main() -> None:
        async with bench() as held:
            reader = held.connect(ColdParts([CONTENT]))
            producer = held.connect(*([b"acknowledged"] for _ in range(20)))
            held.be_live()
            reader.send(REQUEST)
            reading = asyncio.ensure_future(receive(reader, len(CONTENT)))
            between = []
            for _ in range(20):
                before = len(held.turns.went)
                held.be_live()
                producer.send(REQUEST)
                # What a socket holds is handled in the turn of the loop that finds it.
                while not _has_bytes(producer):
                    await asyncio.sleep(0)
                assert producer.recv(100) == b"acknowledged"
                between.append(len(held.turns.went) - before)
            assert max(between) <= 3
            held.be_live()
            assert await reading == CONTENT

    asyncio.run(main())


def _has_bytes(client: socket.socket) -> bool:
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_answers_before_a_cold_one_do_not_wait_for_its_turn() -> None:
    class Never(ColdSchedule):
        def enter(self, sender: object) -> None:
            pass

        def leave(self, sender: object) -> None:
            pass

    async def main() -> None:
        async with bench() as held:
            never = Never(held.pace, held.clock.monotonic_s)
            client = held.connect([b"live"], ColdParts([CONTENT]), [b"behind"], turns=never)
            held.be_live()
            client.send(3 * REQUEST)
            assert await receive(client, 4) == b"live"
            await asyncio.sleep(0)
            assert not _has_bytes(client)
            never.close()

    asyncio.run(main())


def test_answers_behind_a_cold_one_come_in_their_order() -> None:
    async def main() -> None:
        async with bench() as held:
            later = DeferredAnswer()
            last = ColdParts([CONTENT[:9]])
            client = held.connect(ColdParts([CONTENT]), [b"second"], later, last)
            held.be_live()
            client.send(4 * REQUEST)
            assert await receive(client, len(CONTENT) + 6) == CONTENT + b"second"
            held.be_live()
            later.complete(ColdParts([b"third"]))
            assert await receive(client, 14) == b"third" + CONTENT[:9]

    asyncio.run(main())


def test_when_nothing_is_live_any_more_what_waits_goes_on() -> None:
    async def main() -> None:
        clock = ManualClock()
        pace = ColdPace(lambda: SETTINGS)
        turns = NotingTurns(pace, clock.monotonic_s)
        async with bench() as held:
            client = held.connect(ColdParts([CONTENT]), turns=turns)
            pace.saw_live(clock.monotonic_s())
            client.send(REQUEST)
            # The clock stands still, so there is one turn's allowance at most.
            while not pace.waiting_count:
                await asyncio.sleep(0)
            clock.advance_ms(60_000)
            assert await receive(client, len(CONTENT)) == CONTENT
            assert pace.waiting_count == 0
            turns.close()

    asyncio.run(main())


def test_a_client_that_does_not_read_has_no_turns_and_holds_nobody_up() -> None:
    async def main() -> None:
        async with bench() as held:
            stalled = held.connect(ColdParts([CONTENT]))
            other = held.connect(ColdParts([CONTENT]))
            held.be_live()
            stalled.send(REQUEST)
            other.send(REQUEST)
            received = b""
            while len(received) < len(CONTENT):
                held.be_live()
                received += await receive(other, min(50_000, len(CONTENT) - len(received)))
            assert received == CONTENT
            # It waits for its socket, which is the client's fault, and not for a turn.
            assert held.connections[0].is_sending
            assert held.pace.waiting_count == 0

    asyncio.run(main())


def test_who_waits_for_a_turn_is_neither_stalled_nor_idle() -> None:
    async def main() -> None:
        clock = ManualClock()
        pace = ColdPace(lambda: SETTINGS)
        turns = ColdSchedule(pace, clock.monotonic_s)
        async with bench() as held:
            client = held.connect(ColdParts([CONTENT]), turns=turns)
            clock.advance_ms(1000)
            pace.saw_live(clock.monotonic_s())
            client.send(REQUEST)
            while not pace.waiting_count:
                await asyncio.sleep(0)
            for _ in range(20):
                await asyncio.sleep(0)
            assert pace.waiting_count == 1
            (connection,) = held.connections
            assert not connection.is_sending
            assert connection.is_busy
            connection.close("gone")
            assert pace.waiting_count == 0
            turns.close()

    asyncio.run(main())


def test_without_a_timer_of_the_kernel_cold_answers_go_as_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_self: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("strandline.storage.system.timer.Ticks.__init__", refuse)

    async def main() -> None:
        async with bench() as held:
            client = held.connect(ColdParts([CONTENT]))
            held.be_live()
            client.send(REQUEST)
            assert await receive(client, len(CONTENT)) == CONTENT
            assert not held.turns.went

    asyncio.run(main())
