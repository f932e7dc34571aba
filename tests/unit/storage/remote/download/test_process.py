"""The download process: the same bytes and the same checks, whatever happens to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.storage.clock import ManualClock
from strandline.storage.files import OpenFile
from strandline.storage.remote.download import process as download_process
from strandline.storage.remote.download.block_memory import BlockMemory
from strandline.storage.remote.download.messages import NotDone
from strandline.storage.remote.download.process import IDLE_S, DownloadProcess
from strandline.storage.remote.download.ranged_get import HEAD_BYTES_MAX
from strandline.storage.remote.object_store.direct_read import DirectRead
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.remote.object_store.memory import MemoryStore
from strandline.storage.remote.reader.cold_reader import ColdReader
from strandline.storage.remote.segment.batch_index import BatchIndex, index_batches
from strandline.storage.remote.segment.index import ChunkKey
from tests.support.archived_segments import archive_segment, make_log
from tests.support.broker import eventually
from tests.unit.storage.remote.cold_reading import PARTITION, make_reader, read_all
from tests.unit.storage.remote.scripted_server import Server, sends

pytestmark = pytest.mark.slow

LOG = make_log(batch_count=50)
KEY = ChunkKey("a.log", 0, len(LOG))
START_S_MAX = 120.0


class Files:
    """A store of one file, which only says where it lies."""

    def __init__(self, path: Path) -> None:
        self.source: DirectRead | None = DirectRead(path=str(path), request_s=30)
        self.noted_bytes = 0

    def direct_read(self, key: str) -> DirectRead | None:
        return self.source

    def note_direct_read(self, size_bytes: int) -> None:
        self.noted_bytes += size_bytes


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    path = tmp_path / "a.log"
    path.write_bytes(LOG)
    return Files(path)


@pytest.fixture
def process(files: Files, clock: ManualClock) -> Iterator[DownloadProcess]:
    made = DownloadProcess(files, parallel_max=4, clock=clock)
    yield made
    made.close()


def shared_block() -> BlockMemory:
    return BlockMemory(len(LOG), shared=True)


def fetch(process: DownloadProcess, block: BlockMemory) -> BatchIndex | NotDone | None:
    return process.fetch(KEY, block, base_offset=0)


def fetch_by_child(process: DownloadProcess, block: BlockMemory) -> BatchIndex | NotDone:
    """Asks until the child is there."""
    process.prepare()
    found = eventually(lambda: fetch(process, block), timeout_s=START_S_MAX, interval_s=0.02)
    assert found is not None
    return found


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_child_fills_the_block_and_finds_the_batches(
    process: DownloadProcess, files: Files
) -> None:
    first, second = shared_block(), shared_block()
    assert fetch(process, first) is None
    assert process.pid is None, "who has said nothing before waits for no process"
    for block in (first, second, first):
        assert fetch_by_child(process, block) == index_batches(memoryview(LOG), 0)
        assert bytes(block.mapping[: len(LOG)]) == LOG
    assert files.noted_bytes == 3 * len(LOG)
    assert fetch(process, BlockMemory(len(LOG), shared=False)) is None
    files.source = None
    assert fetch(process, first) is None


def test_a_flipped_bit_is_told_and_does_not_stop_the_child(
    process: DownloadProcess, files: Files
) -> None:
    assert files.source is not None
    path = Path(files.source.path)
    block = shared_block()
    fetch_by_child(process, block)
    path.write_bytes(LOG[:3000] + bytes([LOG[3000] ^ 1]) + LOG[3001:])
    found = fetch(process, block)
    assert isinstance(found, NotDone)
    assert found.is_corrupt
    path.write_bytes(LOG)
    assert isinstance(fetch(process, block), BatchIndex)


def test_the_child_checks_while_it_receives(process: DownloadProcess, files: Files) -> None:
    # More than comes with the head.
    log = make_log(batch_count=400)
    key = ChunkKey("b.log", 0, len(log))
    head = (
        f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(log)}\r\n"
        f"Content-Range: bytes 0-{len(log) - 1}/{len(log)}\r\n\r\n"
    ).encode()
    assert len(log) > 2 * HEAD_BYTES_MAX
    wrong = log[:300] + bytes([log[300] ^ 1]) + log[301:]
    server = Server(sends(head + log), sends(head + wrong, keeps=False), sends(head + log))
    fetch_by_child(process, shared_block())
    block = BlockMemory(len(log), shared=True)
    files.source = server.source
    expected = index_batches(memoryview(log), 0)
    assert process.fetch(key, block, base_offset=0) == expected
    assert bytes(block.mapping[: len(log)]) == log
    found = process.fetch(key, block, base_offset=0)
    assert isinstance(found, NotDone)
    assert found.is_corrupt
    assert process.fetch(key, block, base_offset=0) == expected
    server.close()


@pytest.mark.parametrize("is_idle", [False, True], ids=["as usual", "somebody chose otherwise"])
def test_the_child_interrupts_nobody_who_works(process: DownloadProcess, is_idle: bool) -> None:
    """What wakes up in the batch class takes no core from others; the idle class is below it."""

    def start() -> int:
        # Children have the class of the thread that starts them.
        if is_idle:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        chosen = os.sched_getscheduler(0)
        fetch_by_child(process, shared_block())
        return chosen

    with ThreadPoolExecutor(1) as starter:
        chosen = starter.submit(start).result()
    expected = os.SCHED_BATCH if chosen == os.SCHED_OTHER else chosen
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        # One may have ended since.
        with contextlib.suppress(ProcessLookupError):
            assert os.sched_getscheduler(int(thread.name)) == expected


def test_the_child_checks_a_file_where_it_lies(process: DownloadProcess, tmp_path: Path) -> None:
    fetch_by_child(process, shared_block())
    path = tmp_path / "b.log"
    path.write_bytes(b"before" + LOG)
    key = ChunkKey("b.log", 6, 6 + len(LOG))
    file = OpenFile(path, writable=True)
    for _ in range(2):
        assert process.check(key, file, base_offset=0) == index_batches(memoryview(LOG), 0)
    path.rename(tmp_path / "c.log")
    assert isinstance(process.check(key, file, base_offset=0), BatchIndex), "it has the descriptor"
    for refused in (
        process.check(key, file, base_offset=1),
        process.check(ChunkKey("b.log", 0, 6 + len(LOG)), file, base_offset=0),
    ):
        assert isinstance(refused, NotDone)
        assert refused.is_corrupt
    file.truncate(100)
    cut_off = process.check(key, file, base_offset=0)
    assert isinstance(cut_off, NotDone)
    assert "ends at 100" in cut_off.detail
    assert process.fetched_count == 4


def test_after_a_failure_the_child_is_left_alone_for_a_while(
    process: DownloadProcess, files: Files, clock: ManualClock
) -> None:
    assert files.source is not None
    path = Path(files.source.path)
    block = shared_block()
    fetch_by_child(process, block)
    path.unlink()
    assert isinstance(fetch(process, block), NotDone)
    path.write_bytes(LOG)
    assert fetch(process, block) is None
    clock.advance_ms(1000)
    assert isinstance(fetch(process, block), BatchIndex)


def test_a_killed_child_is_replaced(process: DownloadProcess, clock: ManualClock) -> None:
    block = shared_block()
    fetch_by_child(process, block)
    killed = process.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    assert fetch(process, block) is None, "the caller downloads by itself"
    clock.advance_ms(1000)
    assert isinstance(fetch_by_child(process, block), BatchIndex)
    assert process.pid not in (None, killed)


def is_stopped(pid: int) -> bool:
    """SIGSTOP takes effect some time after it was sent."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


def test_a_child_that_hangs_is_killed_before_its_block_is_used_again(
    process: DownloadProcess, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = shared_block()
    fetch_by_child(process, block)
    hanging = process.pid
    assert hanging is not None
    assert files.source is not None
    files.source = DirectRead(path=files.source.path, request_s=0.05)
    monkeypatch.setattr(download_process, "OVERDUE_S", 0.05)
    os.kill(hanging, signal.SIGSTOP)
    eventually(lambda: is_stopped(hanging))
    assert fetch(process, block) is None
    assert not is_alive(hanging)


def test_an_idle_child_ends_and_comes_back(process: DownloadProcess, clock: ManualClock) -> None:
    block = shared_block()
    fetch_by_child(process, block)
    pid = process.pid
    assert pid is not None
    assert process.end_if_idle()
    clock.advance_ms(int(IDLE_S * 1000))
    assert not process.end_if_idle()
    assert not is_alive(pid)
    assert isinstance(fetch_by_child(process, block), BatchIndex)


def test_a_block_that_is_gone_is_unmapped_by_the_child(process: DownloadProcess) -> None:
    kept = shared_block()
    fetch_by_child(process, kept)
    gone = BlockMemory(64 * 1024 * 1024, shared=True, on_gone=process.forget)
    assert isinstance(fetch(process, gone), BatchIndex)

    def mapped_blocks() -> int:
        return Path(f"/proc/{process.pid}/maps").read_text().count("strandline-chunk")

    assert mapped_blocks() == 2
    del gone
    fetch(process, kept)
    assert mapped_blocks() == 1


def test_the_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(LOG)
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.unit.storage.remote.download.test_process import *\n"
        "process = DownloadProcess(Files(Path(sys.argv[1])), parallel_max=4)\n"
        "fetch_by_child(process, shared_block())\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        parent.wait()
    assert eventually(lambda: not is_alive(pid), timeout_s=60, interval_s=0.02)


def test_a_consumer_reads_on_while_the_process_is_killed_again_and_again(tmp_path: Path) -> None:
    store = LocalDirectoryStore(tmp_path, clock=ManualClock())
    log = make_log(batch_count=4000)
    segment = archive_segment(store, PARTITION, log, piece_bytes=20_000)

    async def consume(executor: ThreadPoolExecutor) -> None:
        reader = make_reader(
            store, executor, chunk_bytes=40_000, memory_bytes_max=400_000, read_ahead_chunks=3
        )
        process = reader.download_process
        assert process is not None
        kills = 0
        async with asyncio.timeout(60):
            while kills < 2:
                assert await read_all(reader, [segment], bytes_max=30_000) == log
                if process.fetched_count and (pid := process.pid) is not None:
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        assert reader.statistics().failed_downloads == 0
        reader.close()

    with ThreadPoolExecutor(4) as executor:
        asyncio.run(consume(executor))


def test_a_store_that_nobody_else_can_read_from_has_no_process() -> None:
    with ThreadPoolExecutor(1) as executor:
        assert ColdReader(MemoryStore(), executor).download_process is None
