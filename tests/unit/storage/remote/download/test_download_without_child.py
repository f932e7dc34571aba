"""Before there is a download process a worker does its work: the same bytes, the same checks."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.storage.clock import ManualClock
from strandline.storage.remote.download import width as download_width
from strandline.storage.remote.download.block_memory import BlockMemory
from strandline.storage.remote.download.messages import NotDone
from strandline.storage.remote.download.process import DownloadProcess
from strandline.storage.remote.download.ranged_get import HEAD_BYTES_MAX
from strandline.storage.remote.download.small_ranges import RangesPastTheSdk
from strandline.storage.remote.object_store.direct_read import DirectRead
from strandline.storage.remote.object_store.memory import MemoryStore
from strandline.storage.remote.segment.batch_index import BatchIndex, index_batches
from strandline.storage.remote.segment.index import ChunkKey
from tests.support.archived_segments import make_log
from tests.unit.storage.remote.cold_reading import archive, make_reader, read_all, run
from tests.unit.storage.remote.scripted_server import Server, sends

# More than comes with the head, so that it is received in several pieces.
LOG = make_log(batch_count=400)
KEY = ChunkKey("a.log", 0, len(LOG))
HEAD = (
    f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(LOG)}\r\n"
    f"Content-Range: bytes 0-{len(LOG) - 1}/{len(LOG)}\r\n\r\n"
).encode()
GOOD = HEAD + LOG
INDEX = index_batches(memoryview(LOG), 0)
assert len(LOG) > 2 * HEAD_BYTES_MAX


class Objects:
    """A store that only says where its one object lies."""

    def __init__(self, source: DirectRead) -> None:
        self.source = source
        self.noted_bytes = 0

    def direct_read(self, key: str) -> DirectRead | None:
        return self.source

    def note_direct_read(self, size_bytes: int) -> None:
        self.noted_bytes += size_bytes


class Reader:
    """A process that has not started its child, and the server that it reads from."""

    def __init__(self, *scripts: Callable[[socket.socket], bool]) -> None:
        self.server = Server(*scripts)
        self.objects = Objects(self.server.source)
        self.clock = ManualClock()
        self.process = DownloadProcess(self.objects, parallel_max=4, clock=self.clock)
        self.block = BlockMemory(len(LOG), shared=True)

    def fetch(self) -> BatchIndex | NotDone | None:
        answer = self.process.fetch(KEY, self.block, base_offset=0)
        assert self.process.pid is None
        return answer

    def close(self) -> None:
        self.process.close()
        self.server.close()


Make = Callable[..., Reader]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Reader] = []

    def new(*scripts: Callable[[socket.socket], bool]) -> Reader:
        made.append(Reader(*scripts))
        return made[-1]

    yield new
    for reader in made:
        reader.close()


def test_the_worker_fills_the_block_and_finds_the_batches(make: Make) -> None:
    reader = make(sends(GOOD), sends(GOOD))
    for _ in range(2):
        reader.block.mapping[: len(LOG)] = bytes(len(LOG))
        assert reader.fetch() == INDEX
        assert reader.block.mapping[: len(LOG)] == LOG
    assert reader.server.connections == 1
    assert reader.objects.noted_bytes == 2 * len(LOG)


@pytest.mark.parametrize("position", [300, len(LOG) // 2, len(LOG) - 1])
def test_a_flipped_bit_is_told_wherever_it_is(make: Make, position: int) -> None:
    wrong = LOG[:position] + bytes([LOG[position] ^ 1]) + LOG[position + 1 :]
    reader = make(sends(HEAD + wrong, keeps=False), sends(GOOD))
    found = reader.fetch()
    assert isinstance(found, NotDone)
    assert found.is_corrupt
    assert reader.fetch() == INDEX, "wrong bytes are no reason to stay away from the store"


def test_batches_of_another_place_are_told(make: Make) -> None:
    reader = make(sends(GOOD, keeps=False))
    found = reader.process.fetch(KEY, reader.block, base_offset=1)
    assert isinstance(found, NotDone)
    assert found.is_corrupt


@pytest.mark.parametrize(
    "script",
    [
        sends(GOOD[: len(GOOD) // 2], keeps=False),
        sends(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"),
    ],
    ids=["cut off in the middle", "an error"],
)
def test_a_store_in_trouble_is_left_to_the_sdk_for_a_while(
    make: Make, script: Callable[[socket.socket], bool]
) -> None:
    reader = make(script, sends(GOOD))
    found = reader.fetch()
    assert isinstance(found, NotDone)
    assert not found.is_corrupt
    assert reader.fetch() is None
    assert len(reader.server.requests) == 1
    reader.clock.advance_ms(1000)
    assert reader.fetch() == INDEX


def test_what_is_no_plain_http_is_left_to_the_child_and_the_sdk(make: Make) -> None:
    reader = make(sends(GOOD))
    plain = reader.objects.source
    for source in (
        DirectRead(path="/nowhere"),
        plain._replace(url=plain.url.replace("http:", "https:")),
    ):
        reader.objects.source = source
        assert reader.fetch() is None
    assert reader.server.connections == 0


def test_nothing_is_fetched_after_the_end(make: Make) -> None:
    reader = make(sends(GOOD))
    reader.process.close()
    assert reader.fetch() is None
    assert reader.server.connections == 0


@pytest.mark.parametrize("is_over", [False, True], ids=["nobody reads", "the broker ends"])
def test_connections_are_closed_when_they_are_not_needed(make: Make, is_over: bool) -> None:
    ended: list[bytes] = []

    def answers_and_waits(connected: socket.socket) -> bool:
        connected.sendall(GOOD)
        connected.settimeout(30)
        ended.append(connected.recv(1))
        server_saw_end.release()
        return False

    server_saw_end = threading.Semaphore(0)
    reader = make(answers_and_waits)
    assert reader.fetch() == INDEX
    if is_over:
        reader.process.close()
    else:
        assert not reader.process.end_if_idle()
    assert server_saw_end.acquire(timeout=30)
    assert ended == [b""]


def test_the_worker_keeps_to_the_rate(make: Make) -> None:
    """At a thousand bytes a second most of it is still missing when the time of the GET is over."""
    reader = make(sends(GOOD), sends(GOOD))
    reader.process = DownloadProcess(reader.objects, parallel_max=4)
    reader.process.bytes_per_s = 1000
    found = reader.fetch()
    assert isinstance(found, NotDone)
    assert "came in time" in found.detail


class Whole:
    """A store that has the object, and counts who asks it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def get(self, key: str, *, start: int, end: int) -> bytes:
        assert key == KEY.log_key
        self.asked.append((start, end))
        return LOG[start:end]


def test_a_few_bytes_come_past_the_sdk_and_are_counted(make: Make) -> None:
    reader = make(sends(GOOD))
    store = Whole()
    ranges = RangesPastTheSdk(store, reader.process)
    assert ranges.get(KEY.log_key, start=0, end=len(LOG)) == LOG
    assert not store.asked
    assert reader.objects.noted_bytes == len(LOG)


def test_a_few_bytes_come_from_the_store_itself_where_its_server_is_in_trouble(make: Make) -> None:
    reader = make(sends(GOOD[: len(GOOD) // 2], keeps=False), sends(GOOD))
    store = Whole()
    ranges = RangesPastTheSdk(store, reader.process)
    for _ in range(2):
        assert ranges.get(KEY.log_key, start=0, end=len(LOG)) == LOG
    assert store.asked == [(0, len(LOG))] * 2
    assert len(reader.server.requests) == 1, "and is not asked twice each time"
    assert not reader.objects.noted_bytes
    reader.clock.advance_ms(1000)
    assert ranges.get(KEY.log_key, start=0, end=len(LOG)) == LOG
    assert len(store.asked) == 2


def test_a_few_bytes_come_from_the_store_where_there_is_no_other_way(make: Make) -> None:
    reader = make(sends(GOOD))
    store = Whole()
    plain = reader.objects.source
    reader.objects.source = plain._replace(url=plain.url.replace("http:", "https:"))
    for process in (reader.process, None):
        assert RangesPastTheSdk(store, process).get(KEY.log_key, start=3, end=5) == LOG[3:5]
    reader.process.close()
    reader.objects.source = plain
    assert RangesPastTheSdk(store, reader.process).get(KEY.log_key, start=3, end=5) == LOG[3:5]
    assert store.asked == [(3, 5)] * 3
    assert not reader.server.requests


class MetaElsewhere(MemoryStore):
    """A store whose SDK is not asked for `.meta`: another server has it."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(self.answer)
        self.noted_bytes = 0

    def answer(self, connected: socket.socket) -> bool:
        wanted = re.search(rb"Range: bytes=(\d+)-(\d+)", self.server.requests[-1])
        assert wanted is not None
        start, last = (int(number) for number in wanted.groups())
        body = super().get(self.meta_key, start=start, end=last + 1)
        head = f"Content-Length: {len(body)}\r\nContent-Range: bytes {start}-{last}/*\r\n\r\n"
        connected.sendall(b"HTTP/1.1 206 Partial Content\r\n" + head.encode() + body)
        return True

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        assert not key.endswith(".meta")
        return super().get(key, start=start, end=end)

    def direct_read(self, key: str) -> DirectRead | None:
        if not key.endswith(".meta"):
            return None
        self.meta_key = key
        return self.server.source

    def note_direct_read(self, size_bytes: int) -> None:
        self.noted_bytes += size_bytes


def test_the_index_of_a_segment_comes_past_the_sdk_with_one_request() -> None:
    store = MetaElsewhere()
    segment = archive(store)
    with ThreadPoolExecutor(2) as executor:
        reader = make_reader(store, executor)
        assert run(read_all(reader, [segment])) == segment.log
        reader.close()
    store.server.close()
    assert len(store.server.requests) == 1
    assert 0 < store.noted_bytes <= segment.entry.meta_size_bytes


def test_what_a_get_took_says_how_many_there_may_be(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_width, "SAMPLE_BYTES_MIN", 1)
    monkeypatch.setattr(download_width, "ENOUGH_BYTES_PER_S", 5.5 * len(LOG))
    made: list[Reader] = []

    def slowly(connected: socket.socket) -> bool:
        made[0].clock.advance_ms(1000)
        return sends(GOOD)(connected)

    reader = make(slowly, slowly)
    made.append(reader)
    reader.process.bytes_per_s = 1_000_000_000
    assert reader.fetch() == INDEX
    reader.process.bytes_per_s = 0
    assert reader.process.width(10) == 10, "one that was held back says nothing"
    assert reader.fetch() == INDEX
    assert reader.process.width(10) == 7
    reader.process.bytes_per_s = 1_000_000_000
    assert reader.process.width(10) == 10
