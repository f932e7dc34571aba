"""What is read ahead for a consumer that stands still is dropped while it has not begun."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.storage.remote.reader import prefetch_queue as guesses
from strandline.storage.remote.reader.cold_reader import ColdReader
from tests.sim.loop import run as run_virtually
from tests.sim.pools import InlinePool
from tests.support.archived_segments import ArchivedSegment
from tests.support.memory_store import MemoryStore
from tests.unit.storage.remote.cold_reading import archive, eventually, make_reader, run


class Pace:
    """Lets nothing begin while it is shut."""

    is_shut = False

    def download_wait_s(self, now_s: float) -> float:
        return 0.001 if self.is_shut else 0.0

    def download_began(self, size_bytes: int, now_s: float) -> None: ...

    def download_ended(self) -> None: ...


class Consumer:
    """Reads on, a batch at a time."""

    def __init__(self, reader: ColdReader, segment: ArchivedSegment, offset: int = 0) -> None:
        self._reader = reader
        self._segment = segment
        self.next_offset = segment.entry.base_offset + offset

    async def read(self) -> None:
        found = await self._reader.read(self._segment.entry, self.next_offset, bytes_max=500)
        self.next_offset = found.next_offset
        await asyncio.sleep(0)  # what is guessed is asked for behind the answer


async def read_and_guess(consumer: Consumer, pace: Pace) -> None:
    """Two reads; what the second one has read ahead waits."""
    await consumer.read()
    pace.is_shut = True
    await consumer.read()


@pytest.fixture
def pace() -> Pace:
    return Pace()


def _waiting(reader: ColdReader) -> int:
    return len(reader._downloads._prefetches)


def _pass_idle_time(reader: ColdReader, *standing_still: Consumer) -> None:
    """For these; all others ask meanwhile."""
    for consumer in standing_still:
        places = [place for place in reader._streams if place[1] == consumer.next_offset]
        for place in places:
            reader._streams[place].reader.asked_s -= guesses.IDLE_S
    reader._downloads._prefetches._drop_deserted()


def test_what_was_guessed_for_a_consumer_that_is_gone_is_not_downloaded(
    store: MemoryStore, pace: Pace
) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, InlinePool(), pace=pace)

    async def read_and_leave() -> None:
        consumer = Consumer(reader, segment)
        await read_and_guess(consumer, pace)
        assert reader.statistics().prefetched_downloads == 2
        await eventually(lambda: _waiting(reader) == 0)
        pace.is_shut = False
        await Consumer(reader, segment, offset=360).read()

    run_virtually(read_and_leave)
    assert store.count_requests("get", r"\.log$") == 2


def test_a_consumer_that_comes_back_has_its_chunks_read_ahead_again(
    store: MemoryStore, executor: ThreadPoolExecutor, pace: Pace
) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor, pace=pace, read_ahead_chunks=2)

    async def come_back() -> None:
        consumer = Consumer(reader, segment)
        await read_and_guess(consumer, pace)
        _pass_idle_time(reader, consumer)
        assert _waiting(reader) == 0
        pace.is_shut = False
        await consumer.read()
        await eventually(lambda: reader.statistics().downloads == 3)

    run(come_back())


def test_who_pauses_for_a_shorter_time_keeps_what_was_guessed(
    store: MemoryStore, executor: ThreadPoolExecutor, pace: Pace
) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor, pace=pace, read_ahead_chunks=2)

    async def pause() -> None:
        consumer = Consumer(reader, segment)
        await read_and_guess(consumer, pace)
        _pass_idle_time(reader)
        assert _waiting(reader) == 2
        pace.is_shut = False
        await eventually(lambda: reader.statistics().downloads == 3)

    run(pause())


def test_the_guesses_of_one_that_stands_still_are_dropped_and_nobody_elses(
    store: MemoryStore, executor: ThreadPoolExecutor, pace: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that both would read; and the other looks no second time for what it has."""
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor, pace=pace, read_ahead_chunks=2)
    looks: list[object] = []
    ahead, soon = reader._ahead, reader._ahead.soon
    monkeypatch.setattr(ahead, "soon", lambda due: (looks.append(due), soon(due)))

    async def read_beside() -> None:
        # In the first chunk and in the second one, so the third is guessed by both of them.
        going, still = Consumer(reader, segment), Consumer(reader, segment, offset=52)
        await going.read()
        await still.read()
        pace.is_shut = True
        await still.read()
        await going.read()
        assert len(looks) == 2
        assert _waiting(reader) == 2
        _pass_idle_time(reader, still)
        assert _waiting(reader) == 1
        await going.read()
        assert (len(looks), _waiting(reader)) == (2, 1)
        await still.read()
        assert (len(looks), _waiting(reader)) == (3, 2)

    run(read_beside())
