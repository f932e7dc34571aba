"""Long work lets others run whenever its turn is over, and costs no turn before that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from strandline.storage.concurrency.turns import TURN_S_MAX, Turn, in_turns


class Loop(asyncio.SelectorEventLoop):
    """Its time is what a test says; counts its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.turns = 0
        self.call_soon(self._count)

    def time(self) -> float:
        return self.now_s

    def _count(self) -> None:
        self.turns += 1
        self.call_soon(self._count)


def run(test: Callable[[Loop], Coroutine[object, object, None]]) -> None:
    with asyncio.Runner(loop_factory=Loop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Loop)
        runner.run(test(loop))


@pytest.mark.parametrize(("item_s", "turns"), [(TURN_S_MAX / 1000, 1), (TURN_S_MAX / 10, 10)])
def test_a_walk_takes_as_many_turns_as_its_time_needs(item_s: float, turns: int) -> None:
    async def test(loop: Loop) -> None:
        before = loop.turns
        seen = []
        async for number in in_turns(range(100)):
            seen.append(number)
            loop.now_s += item_s * 1.001
        assert seen == list(range(100))
        assert loop.turns - before == turns - (turns == 1)

    run(test)


def test_walks_that_share_a_turn_do_not_begin_it_anew() -> None:
    async def test(loop: Loop) -> None:
        before = loop.turns
        turn = Turn()
        async for _ in in_turns(range(6), turn):
            async for _ in in_turns(range(5), turn):
                loop.now_s += TURN_S_MAX / 10 * 1.001
        assert loop.turns - before == 3

    run(test)


def test_a_walk_may_be_left_early_and_nothing_of_it_stays() -> None:
    async def test(loop: Loop) -> None:
        async for number in in_turns(range(100)):
            if number == 3:
                break
        await asyncio.sleep(0)
        assert asyncio.all_tasks(loop) == {asyncio.current_task()}

    run(test)


def test_a_walk_over_nothing_is_over() -> None:
    async def test(loop: Loop) -> None:
        assert [one async for one in in_turns(())] == []

    run(test)
