"""Cold reads keep to their memory, their disk and the pace that live traffic leaves them."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline.storage.errors import (
    ObjectNotFound,
    TierUnavailable,
)
from strandline.storage.remote.reader.cold_reader import ColdRead, ColdReader
from tests.support.memory_store import MemoryStore
from tests.unit.storage.remote.cold_reading import (
    ALL_BYTES,
    WAIT_S_MAX,
    archive,
    eventually,
    make_reader,
    read_all,
    run,
)

# --- bounded memory --------------------------------------------------------------------------


def test_memory_stays_bounded_while_slow_consumers_hold_their_answers(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store, batch_count=200)
    reader = make_reader(store, executor, memory_bytes_max=30_000)

    async def hold_too_much() -> None:
        fit_min = 3
        held: list[ColdRead] = []
        with contextlib.suppress(TimeoutError):
            for offset in range(0, 700, 40):
                reading = reader.read(segment.entry, offset, bytes_max=500)
                # There is room for the first, however long a busy machine takes.
                patience_s = WAIT_S_MAX if len(held) < fit_min else 0.2
                held.append(await asyncio.wait_for(reading, patience_s))
                assert reader.statistics().live_bytes_now <= 30_000
        assert fit_min <= len(held) <= 8, "the memory was full before the loop was"
        waiting = asyncio.ensure_future(reader.read(segment.entry, 799, bytes_max=500))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        held.clear()
        assert (await waiting).size_bytes > 0

    run(hold_too_much())
    assert reader.statistics().live_bytes_now <= 30_000


@pytest.mark.parametrize("memory_bytes_max", [13_000, 19_000, 60_000])
def test_reading_ahead_in_a_small_memory_downloads_nothing_twice(
    store: MemoryStore, executor: ThreadPoolExecutor, memory_bytes_max: int
) -> None:
    segments = [archive(store, base_offset=400 * n, batch_count=100) for n in range(3)]
    reader = make_reader(store, executor, memory_bytes_max=memory_bytes_max)
    received = run(read_all(reader, segments, bytes_max=1100))
    assert received == b"".join(segment.log for segment in segments)
    assert reader.statistics().downloaded_bytes == len(received)


# --- disk cache ------------------------------------------------------------------------------


def test_after_a_restart_chunks_come_from_disk(
    store: MemoryStore, executor: ThreadPoolExecutor, tmp_path: Path
) -> None:
    segment = archive(store)
    disk: dict[str, Any] = {"disk_directory": tmp_path, "disk_bytes_max": 10**6}

    async def read_and_keep() -> None:
        reader = make_reader(store, executor, read_ahead_chunks=0, **disk)
        assert await read_all(reader, [segment]) == segment.log
        await eventually(
            lambda: len(list(tmp_path.glob("*.chunk"))) == reader.statistics().downloads
        )

    run(read_and_keep())
    store.requests.clear()
    reader = make_reader(store, executor, **disk)
    assert run(read_all(reader, [segment])) == segment.log
    assert reader.statistics().disk_hits > 1
    assert store.count_requests("get", r"\.log$") == 0


def test_a_chunk_damaged_on_disk_is_downloaded_again(
    store: MemoryStore, executor: ThreadPoolExecutor, tmp_path: Path
) -> None:
    segment = archive(store, batch_count=8)
    disk: dict[str, Any] = {"disk_directory": tmp_path, "disk_bytes_max": 10**6}

    async def read(reader: ColdReader) -> bytes:
        received = await read_all(reader, [segment])
        await eventually(lambda: len(list(tmp_path.glob("*.chunk"))) == 1)
        return received

    run(read(make_reader(store, executor, **disk)))
    (path,) = tmp_path.glob("*.chunk")
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    reader = make_reader(store, executor, **disk)
    assert run(read(reader)) == segment.log
    statistics = reader.statistics()
    assert (statistics.corrupt_chunks, statistics.disk_hits, statistics.downloads) == (1, 0, 1)
    assert path.read_bytes() == segment.log


# --- held back -------------------------------------------------------------------------------


class ScriptedPace:
    """Lets downloads begin while `is_open`; counts those under way."""

    def __init__(self) -> None:
        self.is_open = False
        self.asked = 0
        self.begun_bytes: list[int] = []
        self.under_way = 0

    def download_wait_s(self, now_s: float) -> float:
        self.asked += 1
        return 0.0 if self.is_open else 0.001

    def download_began(self, size_bytes: int, now_s: float) -> None:
        self.begun_bytes.append(size_bytes)
        self.under_way += 1

    def download_ended(self) -> None:
        self.under_way -= 1


def test_downloads_are_held_back_as_long_as_the_pace_says_and_then_come_whole(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    pace = ScriptedPace()
    reader = make_reader(store, executor, pace=pace)

    async def main() -> bytes:
        reading = asyncio.ensure_future(read_all(reader, [segment], bytes_max=6000))
        # It asks again and again, and nothing begins meanwhile: neither wanted nor guessed.
        await eventually(lambda: pace.asked >= 5)
        assert not pace.begun_bytes
        assert reader.statistics().waiting_reads_now == 1
        pace.is_open = True
        return await reading

    assert run(main()) == segment.log
    assert sum(pace.begun_bytes) == reader.statistics().downloaded_bytes > 0
    assert pace.under_way == 0


def test_a_failed_download_is_no_longer_under_way(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    pace = ScriptedPace()
    pace.is_open = True
    reader = make_reader(store, executor, pace=pace)
    store.delete([segment.entry.log_key])

    async def main() -> None:
        with pytest.raises(ObjectNotFound):
            await reader.read(segment.entry, 0, bytes_max=ALL_BYTES)

    run(main())
    assert pace.begun_bytes
    assert pace.under_way == 0


def test_closing_ends_the_wait_of_downloads_that_are_held_back(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    pace = ScriptedPace()
    reader = make_reader(store, executor, pace=pace)

    async def main() -> None:
        reading = asyncio.ensure_future(reader.read(segment.entry, 0, bytes_max=ALL_BYTES))
        await eventually(lambda: pace.asked >= 2)
        reader.close()
        with pytest.raises(TierUnavailable):
            await reading
        asked = pace.asked
        await asyncio.sleep(0.01)
        assert pace.asked == asked

    run(main())
