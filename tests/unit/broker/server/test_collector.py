"""Full collections look at what is new, and what ends in a cycle is found in the end."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.broker.server.process import GarbageCollector


class Node:
    """Something the collector looks at."""

    def __init__(self) -> None:
        self.other: Node | None = None


@contextmanager
def collector(*, old_max: int, frozen_max: int) -> Iterator[GarbageCollector]:
    made = GarbageCollector(old_max=old_max, frozen_max=frozen_max)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        gc.unfreeze()


def test_what_outlives_a_full_collection_is_passed_over_by_the_next() -> None:
    async def main() -> None:
        with collector(old_max=1000, frozen_max=10**9) as made:
            kept = [Node() for _ in range(20_000)]
            gc.collect()
            assert len(gc.get_objects(generation=2)) < 1000
            kept += [Node() for _ in range(500)]
            gc.collect()
            assert 500 <= len(gc.get_objects(generation=2)) <= 1000, "few are not worth it"
            assert made.complete_scans == 0

    asyncio.run(main())


def test_a_frozen_cycle_is_found_when_as_much_was_frozen_as_lives() -> None:
    async def main() -> None:
        with collector(old_max=1000, frozen_max=5000) as made:
            node, kept = Node(), [Node() for _ in range(2000)]
            node.other = node
            gc.collect()
            gone = weakref.ref(node)
            del node
            gc.collect()
            assert gone() is not None, "it was not frozen, so this shows nothing"
            while not made.complete_scans:
                kept += [Node() for _ in range(2000)]
                gc.collect()
                await asyncio.sleep(0)
                assert len(kept) < 10_000
            assert gone() is None
            # The next one is not before the heap has doubled.
            alive = gc.get_freeze_count()
            for _ in range(alive // 4000):
                kept += [Node() for _ in range(2000)]
                gc.collect()
                await asyncio.sleep(0)
            assert made.complete_scans == 1

    asyncio.run(main())


def test_a_tuple_that_another_thread_fills_stays_whole() -> None:
    """Such as the records of a coordinator's log, which a worker decodes."""
    failures: list[SystemError] = []
    begun, goes_on = threading.Event(), threading.Event()

    def numbers() -> Iterator[int]:
        yield 0
        begun.set()
        goes_on.wait()
        yield from range(100)

    def fill() -> None:
        try:
            tuple(numbers())
        except SystemError as error:
            failures.append(error)

    thread = threading.Thread(target=fill)

    def let_it_run(_frame: object, event: str, function: object) -> None:
        if event == "c_return" and function is gc.get_objects:
            goes_on.set()
            thread.join()

    async def main() -> None:
        with collector(old_max=10**9, frozen_max=10**9):
            thread.start()
            begun.wait()
            sys.setprofile(let_it_run)
            gc.collect()
            sys.setprofile(None)

    asyncio.run(main())
    goes_on.set()
    thread.join()
    assert failures == []
