"""Questions to other brokers: asked once for each attempt, answered once, never waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from strandline.broker.coordination.transactions.elsewhere.asked import (
    ANSWER_S_MAX,
    AskedElsewhere,
)
from strandline.broker.peers.errors import PeerUnreachable
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.manual_clock import ManualClock


class Others:
    """Other brokers, which answer when a test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, tuple[str, ...]]] = []
        self.answers: dict[str, ErrorCode] = {}
        self.is_away = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, node_id: int, keys: Sequence[str]) -> Mapping[str, ErrorCode]:
        self.asked.append((node_id, tuple(keys)))
        await self.may_answer.wait()
        if self.is_away:
            raise PeerUnreachable("away")
        return {key: self.answers[key] for key in keys if key in self.answers}


def asking(work: Callable[[Others, AskedElsewhere[str], ManualClock], object]) -> None:
    async def run() -> None:
        others, clock = Others(), ManualClock()
        await work(others, AskedElsewhere(others.ask, clock), clock)  # type: ignore[misc]

    asyncio.run(run())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_what_one_turn_asks_for_goes_together_and_each_answer_counts_once() -> None:
    async def work(others: Others, asked: AskedElsewhere[str], _: ManualClock) -> None:
        others.answers = {"a": ErrorCode.NONE, "b": ErrorCode.INVALID_PRODUCER_EPOCH}
        assert [asked.take(1, key) for key in ("a", "b", "a")] == [None] * 3
        await turns()
        assert others.asked == [(1, ("a", "b"))]
        assert asked.take(1, "a") is ErrorCode.NONE
        assert asked.take(1, "b") is ErrorCode.INVALID_PRODUCER_EPOCH
        assert asked.take(1, "a") is None
        await turns()
        assert others.asked[-1] == (1, ("a",))

    asking(work)


def test_a_broker_that_does_not_answer_holds_up_no_other() -> None:
    async def work(others: Others, asked: AskedElsewhere[str], _: ManualClock) -> None:
        others.may_answer.clear()
        asked.take(1, "a")
        await turns()
        asked.take(2, "b")
        await turns()
        assert [node for node, _ in others.asked] == [1, 2]
        asked.close()

    asking(work)


def test_what_got_no_answer_is_asked_again_by_the_next_attempt() -> None:
    async def work(others: Others, asked: AskedElsewhere[str], _: ManualClock) -> None:
        others.is_away = True
        asked.take(1, "a")
        await turns()
        assert len(asked) == 0
        others.is_away, others.answers = False, {"a": ErrorCode.NONE}
        assert asked.take(2, "a") is None
        await turns()
        assert asked.take(2, "a") is ErrorCode.NONE
        assert others.asked == [(1, ("a",)), (2, ("a",))]

    asking(work)


def test_an_answer_that_was_overtaken_does_not_count() -> None:
    async def work(others: Others, asked: AskedElsewhere[str], _: ManualClock) -> None:
        others.answers = {"a": ErrorCode.NONE, "b": ErrorCode.NONE}
        asked.take(1, "a")
        asked.take(1, "b")
        await turns()
        asked.forget(lambda key: key == "a")
        assert asked.take(1, "a") is None
        assert asked.take(1, "b") is ErrorCode.NONE

    asking(work)


def test_an_old_answer_does_not_count() -> None:
    async def work(others: Others, asked: AskedElsewhere[str], clock: ManualClock) -> None:
        others.answers = {"a": ErrorCode.NONE}
        asked.take(1, "a")
        await turns()
        clock.advance_ms(1000 * int(ANSWER_S_MAX) + 1)
        assert asked.take(1, "a") is None

    asking(work)
