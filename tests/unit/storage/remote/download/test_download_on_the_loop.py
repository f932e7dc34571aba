"""The download process asked by the event loop itself: the same answers, and nobody waits."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline.storage.clock import ManualClock, SystemClock
from strandline.storage.errors import ObjectCorrupt
from strandline.storage.files import OpenFile
from strandline.storage.remote.download import child as download_child
from strandline.storage.remote.download import pacing as paced_steps
from strandline.storage.remote.download import process as download_process
from strandline.storage.remote.download import started_child
from strandline.storage.remote.download.block_memory import BlockMemory
from strandline.storage.remote.download.channel import RECEIVE_BYTES, Channel
from strandline.storage.remote.download.messages import (
    CheckRequest,
    DownloadRequest,
    NotDone,
    Request,
    encode_request,
    receive_request,
)
from strandline.storage.remote.download.process import SOURCE_KNOWN_S, DownloadProcess, Lost
from strandline.storage.remote.download.width import FEW, DownloadWidth
from strandline.storage.remote.object_store.direct_read import DirectRead
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.remote.reader.cold_reader import ColdReader
from strandline.storage.remote.segment.batch_index import BatchIndex, index_batches
from strandline.storage.remote.segment.index import ChunkKey
from tests.support.archived_segments import ArchivedSegment, archive_segment, make_log
from tests.unit.storage.remote.cold_reading import (
    PARTITION,
    WAIT_S_MAX,
    eventually,
    make_reader,
    read_all,
    run,
)
from tests.unit.storage.remote.download.test_process import (
    KEY,
    LOG,
    Files,
    clock,
    fetch_by_child,
    files,
    is_alive,
    is_stopped,
    process,
    shared_block,
)

__all__ = ["clock", "files", "process"]

pytestmark = pytest.mark.slow

Begin = Callable[[DownloadProcess, Callable[[Any], None]], bool]


def into(block: BlockMemory, key: ChunkKey = KEY) -> Begin:
    return lambda process, on_answer: process.begin_fetch(
        key, block, base_offset=0, on_answer=on_answer
    )


async def asked(process: DownloadProcess, begin: Begin) -> BatchIndex | NotDone | Lost | None:
    """What `begin` brings; None if it does not begin."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if not begin(process, answer.set_result):
        return None
    async with asyncio.timeout(WAIT_S_MAX):
        found: BatchIndex | NotDone | Lost = await answer
        return found


def ask(process: DownloadProcess, begin: Begin) -> BatchIndex | NotDone | Lost | None:
    return asyncio.run(asked(process, begin))


def test_what_would_have_to_be_waited_for_is_not_begun(
    process: DownloadProcess, files: Files, clock: ManualClock
) -> None:
    block = shared_block()
    assert ask(process, into(block)) is None, "there is no child"
    fetch_by_child(process, block)
    assert ask(process, into(block, ChunkKey("b.log", 0, 10))) is None, "nobody knows where"
    assert ask(process, into(BlockMemory(len(LOG), shared=False))) is None
    for fresh in (block, shared_block()):
        assert ask(process, into(fresh)) == index_batches(memoryview(LOG), 0)
        assert bytes(fresh.mapping[: len(LOG)]) == LOG
    assert files.noted_bytes == 3 * len(LOG)
    clock.advance_ms(int(SOURCE_KNOWN_S * 1000))
    assert ask(process, into(block)) is None, "it may lie elsewhere by now"


def test_a_request_comes_as_it_was_sent() -> None:
    ours, theirs = socket.socketpair()
    source = DirectRead(url="http://127.0.0.1/b/k", request_s=3.0)
    requests = [
        DownloadRequest(source, 1, 2, 3, 4, 5, False, (6, 7), bytes_per_s=8),
        CheckRequest(start=1, size_bytes=2, base_offset=3, bytes_per_s=4),
    ]
    with ours, theirs:
        for request in requests:
            ours.sendall(encode_request(request))
            assert receive_request(theirs) == (request, -1)


def test_an_index_comes_whole_however_long_it_is(process: DownloadProcess, files: Files) -> None:
    log = make_log(batch_count=15_000, records_per_batch=1, value_bytes=1)
    expected = index_batches(memoryview(log), 0)
    assert 24 * len(expected.base_offsets) > RECEIVE_BYTES
    assert files.source is not None
    Path(files.source.path).write_bytes(log)
    key = ChunkKey(KEY.log_key, 0, len(log))
    block = BlockMemory(len(log), shared=True)
    Path(files.source.path).write_bytes(LOG)
    fetch_by_child(process, shared_block())
    Path(files.source.path).write_bytes(log)
    assert ask(process, into(block, key)) == expected
    assert process.fetch(key, block, base_offset=0) == expected


def test_a_flipped_bit_is_told_and_the_next_request_is_served(
    process: DownloadProcess, files: Files
) -> None:
    assert files.source is not None
    path = Path(files.source.path)
    block = shared_block()
    fetch_by_child(process, block)
    path.write_bytes(LOG[:3000] + bytes([LOG[3000] ^ 1]) + LOG[3001:])
    found = ask(process, into(block))
    assert isinstance(found, NotDone)
    assert found.is_corrupt
    path.write_bytes(LOG)
    assert isinstance(ask(process, into(block)), BatchIndex)


def test_a_file_is_checked_where_it_lies(process: DownloadProcess, tmp_path: Path) -> None:
    fetch_by_child(process, shared_block())
    path = tmp_path / "b.log"
    path.write_bytes(b"before" + LOG)
    key, file = ChunkKey("b.log", 6, 6 + len(LOG)), OpenFile(path, writable=True)

    def check(base_offset: int) -> BatchIndex | NotDone | Lost | None:
        return ask(
            process,
            lambda process, on_answer: process.begin_check(
                key, file, base_offset=base_offset, on_answer=on_answer
            ),
        )

    assert check(0) == index_batches(memoryview(LOG), 0)
    wrong = check(1)
    assert isinstance(wrong, NotDone)
    assert wrong.is_corrupt


def test_a_check_beside_live_traffic_goes_at_the_rate_of_downloads(
    process: DownloadProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_by_child(process, shared_block())
    path = tmp_path / "b.log"
    path.write_bytes(LOG)
    key, file = ChunkKey("b.log", 0, len(LOG)), OpenFile(path, writable=True)
    sent: list[int] = []
    send = Channel.send

    def noting(channel: Channel, request: Request, descriptor: int | None) -> None:
        sent.append(request.bytes_per_s)
        send(channel, request, descriptor)

    monkeypatch.setattr(Channel, "send", noting)
    for bytes_per_s in (100_000_000, 0):
        process.bytes_per_s = bytes_per_s
        assert isinstance(process.check(key, file, base_offset=0), BatchIndex)
        found = ask(
            process,
            lambda process, on_answer: process.begin_check(
                key, file, base_offset=0, on_answer=on_answer
            ),
        )
        assert isinstance(found, BatchIndex)
    assert sent == [100_000_000, 100_000_000, 0, 0]


def test_downloads_that_we_hold_back_say_nothing_of_the_store_and_are_as_many_as_ever(
    process: DownloadProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = shared_block()
    fetch_by_child(process, block)
    noted: list[int] = []
    monkeypatch.setattr(
        DownloadWidth, "note", lambda _self, size_bytes, _s: noted.append(size_bytes)
    )
    monkeypatch.setattr(DownloadWidth, "of", lambda _self, _most: FEW)
    for bytes_per_s, width in ((100_000_000, 10), (0, FEW)):
        process.bytes_per_s = bytes_per_s
        assert isinstance(ask(process, into(block)), BatchIndex)
        assert process.width(10) == width
    assert noted == [len(LOG)], "only the second"


def test_the_child_checks_at_the_rate_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its side of the channel, in a thread here."""
    rests: list[int] = []
    monkeypatch.setattr(paced_steps, "STEP_BYTES", 1000)
    rest = paced_steps.PacedSteps.rest

    def noting(steps: paced_steps.PacedSteps, done_bytes: int) -> None:
        if steps.step_bytes(len(LOG)) < len(LOG):
            rests.append(done_bytes)
        rest(steps, done_bytes)

    monkeypatch.setattr(paced_steps.PacedSteps, "rest", noting)
    path = tmp_path / "b.log"
    path.write_bytes(LOG)
    ours, theirs = socket.socketpair()
    child = threading.Thread(
        target=download_child._serve,
        args=(theirs, download_child._Blocks(), SystemClock()),
        daemon=True,
    )
    child.start()
    channel = Channel(ours)
    with open(path, "rb") as file:
        for bytes_per_s, is_paced in ((1_000_000_000, True), (0, False)):
            rests.clear()
            request = CheckRequest(0, len(LOG), 0, bytes_per_s=bytes_per_s)
            channel.send(request, file.fileno())
            assert channel.receive(wait_s=WAIT_S_MAX) == index_batches(memoryview(LOG), 0)
            assert (len(rests) > 1) == is_paced
    channel.close()
    child.join(WAIT_S_MAX)
    assert not child.is_alive()


def test_a_killed_child_is_lost_and_not_asked_again_at_once(process: DownloadProcess) -> None:
    block = shared_block()
    fetch_by_child(process, block)
    killed = process.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    found = ask(process, into(block))
    assert isinstance(found, Lost)
    found.bury()
    assert process.pid is None
    assert ask(process, into(block)) is None


def test_a_child_that_hangs_writes_no_more_once_it_is_buried(
    process: DownloadProcess, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = shared_block()
    assert files.source is not None
    files.source = DirectRead(path=files.source.path, request_s=0.05)
    fetch_by_child(process, block)
    hanging = process.pid
    assert hanging is not None
    monkeypatch.setattr(download_process, "OVERDUE_S", 0.05)
    os.kill(hanging, signal.SIGSTOP)
    while not is_stopped(hanging):
        pass
    found = ask(process, into(block))
    assert isinstance(found, Lost)
    assert is_alive(hanging)
    found.bury()
    assert not is_alive(hanging)


# --- reading through it ----------------------------------------------------------------------


class FarFolder(LocalDirectoryStore):
    """A store whose objects are downloaded to memory."""

    @property
    def opens_files(self) -> bool:
        return False


class CountingPool(ThreadPoolExecutor):
    """Counts its jobs."""

    count = 0

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        self.count += 1
        return super().submit(*arguments, **named)


@pytest.fixture
def pool() -> Iterator[CountingPool]:
    with CountingPool(4) as made:
        yield made


async def read_until_the_process_fetches(
    reader: ColdReader, segment: ArchivedSegment
) -> DownloadProcess:
    process = reader.download_process
    assert process is not None
    async with asyncio.timeout(WAIT_S_MAX):
        while not process.fetched_count:
            assert await read_all(reader, [segment], bytes_max=30_000) == segment.log
    return process


Store = type[LocalDirectoryStore]
STORES = [LocalDirectoryStore, FarFolder]


@pytest.mark.parametrize("kind", STORES)
def test_reading_on_needs_no_thread_for_a_chunk(
    kind: Store, tmp_path: Path, pool: CountingPool
) -> None:
    store = kind(tmp_path, clock=ManualClock())
    log = make_log(batch_count=4000)
    segment = archive_segment(store, PARTITION, log, piece_bytes=20_000)

    async def consume() -> None:
        reader = make_reader(
            store, pool, chunk_bytes=40_000, memory_bytes_max=400_000, read_ahead_chunks=3
        )
        await read_until_the_process_fetches(reader, segment)
        jobs, downloads = pool.count, reader.statistics().downloads
        assert await read_all(reader, [segment], bytes_max=30_000) == log
        assert reader.statistics().downloads > downloads + 10
        assert pool.count <= jobs + 2
        reader.close()

    run(consume())


def test_the_process_starts_while_the_first_index_is_on_its_way(
    tmp_path: Path, pool: CountingPool
) -> None:
    index_may_come = threading.Event()

    class SlowIndexes(FarFolder):
        def get(self, key: str, **range_: Any) -> bytes:
            assert index_may_come.wait(WAIT_S_MAX)
            return super().get(key, **range_)

    store = SlowIndexes(tmp_path, clock=ManualClock())
    segment = archive_segment(store, PARTITION, make_log(batch_count=10))

    async def consume() -> None:
        reader = ColdReader(store, pool)
        process = reader.download_process
        assert process is not None
        reading = asyncio.create_task(reader.read(segment.entry, 0, bytes_max=1))
        async with asyncio.timeout(WAIT_S_MAX):
            while process.pid is None:
                await asyncio.sleep(0.001)
            assert not reading.done()
            index_may_come.set()
            assert (await reading).size_bytes
        reader.close()

    run(consume())


@pytest.mark.parametrize("kind", STORES)
def test_what_was_damaged_meanwhile_is_not_given_out(
    kind: Store, tmp_path: Path, pool: CountingPool
) -> None:
    store = kind(tmp_path, clock=ManualClock())
    log = make_log(batch_count=4000)
    segment = archive_segment(store, PARTITION, log, piece_bytes=20_000)
    path = tmp_path / segment.entry.log_key

    async def consume() -> None:
        # Room for one chunk: what was read is downloaded again.
        reader = make_reader(
            store, pool, chunk_bytes=40_000, memory_bytes_max=45_000, read_ahead_chunks=0
        )
        await read_until_the_process_fetches(reader, segment)
        with open(path, "r+b") as file:
            file.seek(3000)
            file.write(bytes([log[3000] ^ 1]))
        with pytest.raises(ObjectCorrupt):
            await read_all(reader, [segment], bytes_max=30_000)
        path.write_bytes(log)
        assert await read_all(reader, [segment], bytes_max=30_000) == log
        reader.close()

    run(consume())


@pytest.fixture
def no_collector() -> Iterator[None]:
    """As in a quiet process: what is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("dies", ["before it is ready", "when it has nothing to do"])
@pytest.mark.parametrize("kind", STORES)
def test_a_child_that_dies_takes_no_memory_along(
    kind: Store,
    dies: str,
    tmp_path: Path,
    pool: CountingPool,
    monkeypatch: pytest.MonkeyPatch,
    no_collector: None,
) -> None:
    """All that there is for one chunk: whoever reads on would wait for it for ever."""
    store = kind(tmp_path, clock=ManualClock())
    log = make_log(batch_count=400)
    segment = archive_segment(store, PARTITION, log, piece_bytes=20_000)
    if dies == "before it is ready":
        monkeypatch.setattr(started_child, "CHILD_PROGRAM", "raise SystemExit(3)")

    async def consume() -> None:
        reader = make_reader(
            store, pool, chunk_bytes=40_000, memory_bytes_max=45_000, read_ahead_chunks=0
        )
        process = reader.download_process
        assert process is not None
        assert (await reader.read(segment.entry, 0, bytes_max=1)).size_bytes
        if dies == "before it is ready":
            await eventually(lambda: process.pid is not None)
        else:
            await read_until_the_process_fetches(reader, segment)
        dead = process.pid
        assert dead is not None
        if dies != "before it is ready":
            os.kill(dead, signal.SIGKILL)
        # Nobody is told of it.
        await asyncio.to_thread(os.waitid, os.P_PID, dead, os.WEXITED | os.WNOWAIT)
        assert await read_all(reader, [segment], bytes_max=30_000) == log
        assert process.pid != dead
        reader.close()

    run(consume())


@pytest.mark.parametrize("kind", STORES)
def test_a_reader_that_is_closed_leaves_no_process(
    kind: Store, tmp_path: Path, pool: CountingPool
) -> None:
    store = kind(tmp_path, clock=ManualClock())
    log = make_log(batch_count=4000)
    segment = archive_segment(store, PARTITION, log, piece_bytes=20_000)

    async def close_while_reading() -> int:
        reader = make_reader(
            store, pool, chunk_bytes=40_000, memory_bytes_max=400_000, read_ahead_chunks=3
        )
        process = await read_until_the_process_fetches(reader, segment)
        pid = process.pid
        assert pid is not None
        offset = 0
        while not reader.statistics().running_downloads_now:
            found = await reader.read(segment.entry, offset, bytes_max=30_000)
            offset = found.next_offset if found.next_offset < segment.entry.end_offset else 0
        reader.close()
        async with asyncio.timeout(WAIT_S_MAX):
            while reader.statistics().running_downloads_now or is_alive(pid):
                await asyncio.sleep(0.002)
        return pid

    assert not is_alive(run(close_while_reading()))
