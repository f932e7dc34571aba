"""`make bench-walks`: how far six requests walk through the code.

A broker runs under Python's profile hook, with an archive in a folder, and each request is sent
alone, REPEATS times after one that is not counted. A walk is what is called in the product's own
files from the request to its answer: the median of the windows, for each function. What tasks do
that ran before the request came, and the archive's threads, is not on its walk.

    produce         one batch of one record
    segment         from `LocalLog.roll`, in which a segment is closed, until the manifest that
                    names it is durable: what all tasks and threads do in that time, less what an
                    idle time of the same length has, and less the walk of `produce`
    cold fetch      a fetch whose segment is in the archive alone, nothing of it cached
    offset commit   one offset of a group without members
    EndTxn          PREPARE, marker and COMPLETE of a transaction over one partition
    CreateTopics    one topic with one partition, which is archived

A resumed coroutine or generator counts as a call, as the hook has it. The standard library,
generated code and child processes do not count. A file is on a walk if one of its functions is.

To walk through another checkout, run this file there: `cd CHECKOUT && PYTHONPATH=.namespace:.
python .../bench/walks.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from strandline.broker.protocol.messages.end_txn import EndTxnRequest
from strandline.broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from strandline.broker.protocol.messages.init_producer_id import InitProducerIdRequest
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.storage.records.batch.record import Record, encode_batch
from tests.support.wire import WireClient

WALKS = ("produce", "segment", "cold fetch", "offset commit", "EndTxn", "CreateTopics")
REPEATS = 5
SETTLE_S = 10.0
PAUSE_S = 0.3
WAIT_S = 120.0
# The first call in which a segment is closed, and the first behind a commit that is durable.
ROLLED, NAMED = "LocalLog.roll", "RemoteLog.adopt"
THREADS_OF_THE_ARCHIVE = ("manifests", "copier", "changes", "expiration", "probes")
PRODUCT = ("broker/", "storage/", "retention/")
SEGMENT_BYTES = 1024 * 1024
# Two of them do not fit into a segment, so that each batch closes the one before.
BATCH_BYTES = 700_000
COLD_SEGMENTS = 2 * (REPEATS + 2)

Function = tuple[str, str, int]
Window = tuple[float, float]


# --- in the broker's process -----------------------------------------------------------------


def serve_traced(trace: Path, arguments: Sequence[str]) -> int:
    """`strandline serve` with a hook that notes each call; writes `trace` at the end."""
    from strandline.broker.cli import main

    root = f"{Path.cwd()}/"
    number_of: dict[CodeType, int] = {}
    functions: list[Function] = []
    times, called, runs = array("d"), array("l"), list[str]()
    task_numbers = WeakKeyDictionary[asyncio.Task[Any], int]()
    lock = threading.Lock()

    def running() -> str:
        """Returns the name of the thread, and the number of the task if there is one."""
        task = None
        with suppress(RuntimeError):  # no loop runs in this thread
            task = asyncio.current_task()
        if task is None:
            return threading.current_thread().name
        return f"task {task_numbers.setdefault(task, len(runs))}"

    def number(code: CodeType) -> int:
        # The namespace package may be a link.
        path = os.path.realpath(code.co_filename)
        inside = path.removeprefix(root)
        if not inside.startswith(PRODUCT):
            return number_of.setdefault(code, -1)
        functions.append((inside, code.co_qualname, code.co_firstlineno))
        return number_of.setdefault(code, len(functions) - 1)

    def hook(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        found = number_of.get(code)
        with lock:
            if found is None:
                found = number(code)
            if found >= 0:
                times.append(time.monotonic())
                called.append(found)
                runs.append(running())

    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        return main(["serve", *arguments])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        with lock:
            document = {
                "functions": functions,
                "times": list(times),
                "called": list(called),
                "runs": runs,
            }
        trace.write_text(json.dumps(document))


# --- beside it -------------------------------------------------------------------------------


class TracedBroker:
    """A broker on one folder, whose calls are noted in `trace` if there is one."""

    def __init__(
        self, folder: Path, trace: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]
        given = {
            "log.dirs": str(folder / "logs"),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "remote.log.storage.system.enable": "true",
            "strandline.remote.url": f"file://{folder}/archive",
            "remote.log.manager.task.interval.ms": "1000",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            **(settings or {}),
        }
        arguments = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        command = ["-m", "strandline", "serve"]
        if trace is not None:
            command = [str(Path(__file__).resolve()), "--traced", str(trace)]
        self._process = subprocess.Popen(
            [sys.executable, *command, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{Path.cwd()}/.namespace:{Path.cwd()}"},
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("strandline ready"):
                return
        raise AssertionError("the broker did not start")

    def __enter__(self) -> TracedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def await_archived(self, topic: str, count: int) -> None:
        """Waits until the archive has `count` segments, and the disk only the open one."""
        end_s = time.monotonic() + WAIT_S
        while len(list((self._folder / "logs" / f"{topic}-0").glob("*.log"))) > 1:
            assert time.monotonic() < end_s, "the segments stay on the disk"
            time.sleep(0.2)
        archived = list((self._folder / "archive").rglob("*.log"))
        assert len(archived) >= count, archived


class Client:
    """Sends single requests, and notes the windows in which the broker worked at them."""

    def __init__(self, port: int) -> None:
        self._wire = WireClient(port)
        self.windows: dict[str, list[Window]] = {}

    def ask(self, request: Request, version: int, walk: str = "", *, settle_s: float = 0.0) -> Any:
        """Returns the answer; the window of a walk ends `settle_s` behind it."""
        if walk:
            # Nothing else is under way then.
            time.sleep(PAUSE_S)
        begun_s = time.monotonic()
        answer = self._wire.ask(request, _response_class(request), version)
        time.sleep(settle_s)
        if walk:
            self.windows.setdefault(walk, []).append((begun_s, time.monotonic()))
        return answer

    def create_topic(self, name: str, walk: str = "", **configs: str) -> None:
        given = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES)}
        given |= {key.replace("_", "."): value for key, value in configs.items()}
        topic = CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in given.items()],
        )
        answer = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5, walk)
        _check(answer.topics[0].error_code)

    def produce(
        self,
        topic: str,
        value_bytes: int,
        walk: str = "",
        *,
        settle_s: float = 0.0,
        transactional_id: str | None = None,
        **fields: Any,
    ) -> None:
        record = Record(
            offset=0,
            timestamp_ms=int(time.time() * 1000),
            key=b"key",
            value=os.urandom(value_bytes),
        )
        records = memoryview(encode_batch([record], **fields))
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=60_000,
            topics=[
                ProduceTopic(name=topic, partitions=[ProducePartition(index=0, records=records)])
            ],
        )
        answer = self.ask(request, 9, walk, settle_s=settle_s)
        _check(answer.topics[0].partitions[0].error_code)

    def fetch(self, topic: str, offset: int, walk: str) -> None:
        partition = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=SEGMENT_BYTES
        )
        request = FetchRequest(
            max_wait_ms=30_000,
            min_bytes=1,
            topics=[FetchTopic(name=topic, partitions=[partition])],
        )
        answer = self.ask(request, 11, walk)
        _check(answer.topics[0].partitions[0].error_code)

    def commit(self, topic: str, offset: int, walk: str) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        named = OffsetCommitRequestTopic(name=topic, partitions=[partition])
        request = OffsetCommitRequest(group_id="group", topics=[named])
        answer = self.ask(request, 8, walk)
        _check(answer.topics[0].partitions[0].error_code)

    def transact(self, topic: str, walk: str) -> None:
        begun = self.ask(
            InitProducerIdRequest(transactional_id="copier", transaction_timeout_ms=60_000), 3
        )
        _check(begun.error_code)
        producer = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        named = [AddPartitionsToTxnTopic(name=topic, partitions=[0])]
        added = self.ask(
            AddPartitionsToTxnRequest(transactional_id="copier", topics=named, **producer), 3
        )
        _check(added.results_by_topic[0].results_by_partition[0].partition_error_code)
        self.produce(
            topic, 100, transactional_id="copier", transactional=True, base_sequence=0, **producer
        )
        ending = EndTxnRequest(transactional_id="copier", committed=True, **producer)
        _check(self.ask(ending, 3, walk).error_code)


def _response_class(request: Request) -> type[Response]:
    kind = type(request)
    name = kind.__name__.replace("Request", "Response")
    found: type[Response] = getattr(sys.modules[kind.__module__], name)
    return found


def _check(error_code: int) -> None:
    assert error_code == 0, f"refused with {error_code}"


def walk_all(folder: Path) -> tuple[Path, Mapping[str, Sequence[Window]]]:
    """Sends all requests; returns the trace, and the windows by walk."""
    trace = folder / "trace"
    soon = {"log.retention.check.interval.ms": "1000", "log.initial.task.delay.ms": "1000"}
    with TracedBroker(folder, settings=soon) as broker:
        client = Client(broker.port)
        client.create_topic("cold", local_retention_ms="1")
        for _ in range(COLD_SEGMENTS + 1):
            client.produce("cold", BATCH_BYTES)
        broker.await_archived("cold", COLD_SEGMENTS)

    with TracedBroker(folder, trace) as broker:
        client = Client(broker.port)
        client.create_topic("rolled")
        client.produce("rolled", BATCH_BYTES)
        client.create_topic("plain")
        # What a process does once is in the first window of each walk, which is not counted.
        for number in range(1 + REPEATS):
            client.produce("plain", 100, "produce")
            # From the end, so that nothing was read ahead.
            client.fetch("cold", COLD_SEGMENTS - 2 * number - 1, "cold fetch")
            client.commit("plain", number, "offset commit")
            client.transact("plain", "EndTxn")
            client.create_topic(f"created-{number}", "CreateTopics")
        for _ in range(1 + REPEATS):
            client.produce("rolled", BATCH_BYTES, "segment", settle_s=SETTLE_S)
    return trace, {walk: windows[1:] for walk, windows in client.windows.items()}


class Trace:
    """What the broker called, by time."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_text())
        self._functions: list[Function] = [(*function,) for function in document["functions"]]
        rows = zip(document["times"], document["called"], document["runs"], strict=True)
        self._calls: list[tuple[float, int, str]] = sorted(rows)
        self._since: dict[str, float] = {}
        for called_s, _, run in self._calls:
            self._since.setdefault(run, called_s)

    def walk(self, windows: Sequence[Window]) -> Counter[Function]:
        """Returns what the requests of these windows call, until they are answered."""
        counts = []
        for begun_s, ended_s in windows:
            rows = self._between(begun_s, ended_s)
            counts.append(self._count(row for row in rows if self._is_own(row[2], begun_s)))
        return _median(counts)

    def _is_own(self, run: str, begun_s: float) -> bool:
        if run.startswith("task "):
            return self._since[run] >= begun_s
        return not run.startswith(THREADS_OF_THE_ARCHIVE)

    def way_out(self, windows: Sequence[Window]) -> Counter[Function]:
        """Returns what is called from the end of a segment until the manifest has it."""
        ways, idle = [], []
        for begun_s, ended_s in windows:
            rolled_s = self._first(ROLLED, begun_s)
            named_s = self._first(NAMED, rolled_s)
            quiet_s = ended_s - (named_s - rolled_s)
            assert named_s < quiet_s, "the window is too short"
            ways.append(self._count(self._between(rolled_s, named_s)))
            idle.append(self._count(self._between(quiet_s, ended_s)))
        return _median(ways) - _median(idle)

    def _count(self, calls: Iterable[tuple[float, int, str]]) -> Counter[Function]:
        return Counter(self._functions[number] for _, number, _ in calls)

    def _between(self, begin_s: float, end_s: float) -> Sequence[tuple[float, int, str]]:
        return self._calls[self._at(begin_s) : self._at(end_s)]

    def _at(self, time_s: float) -> int:
        return bisect_left(self._calls, time_s, key=itemgetter(0))

    def _first(self, name: str, after_s: float) -> float:
        later = self._calls[self._at(after_s) :]
        return next(called_s for called_s, n, _ in later if self._functions[n][1] == name)


def _median(counts: Sequence[Counter[Function]]) -> Counter[Function]:
    """Returns how often each function is called: the median of the counts."""
    called = {function for count in counts for function in count}
    medians = {one: round(statistics.median(count[one] for count in counts)) for one in called}
    return +Counter(medians)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", action="store_true", help="name the files of each walk")
    parser.add_argument("--functions", metavar="WALK", help="name the functions of one walk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandline-walks-") as name:
        path, windows = walk_all(Path(name))
        trace = Trace(path)
        found = {walk: trace.walk(windows[walk]) for walk in WALKS if walk != "segment"}
        found["segment"] = trace.way_out(windows["segment"]) - found["produce"]
    print(f"{'walk':16}{'files':>7}{'rooms':>7}{'calls':>7}")
    for walk in WALKS:
        calls = found[walk]
        files = Counter[str]()
        for (file, _, _), count in calls.items():
            files[file] += count
        rooms = {Path(file).parent for file in files}
        print(f"{walk:16}{len(files):7}{len(rooms):7}{calls.total():7}")
        if options.files:
            for file, count in sorted(files.items()):
                print(f"{'':16}{count:7}  {file}")
        if options.functions == walk:
            for (file, function, line), count in sorted(calls.items()):
                print(f"{'':16}{count:7}  {file}:{line} {function}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--traced"]:
        sys.exit(serve_traced(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main())
