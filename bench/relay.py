"""A bare relay: the least that can stand between a store and a consumer of Kafka's protocol.

    the store ── ranged GETs, GETS at a time ──► the relay ── behind prepared heads ──► the consumer

It says what the machine allows a broker at the most: same store, same consumer, same ranges, and
in between nothing that could be left out. What it does with the bytes is one of two things:

    copies   as a broker must that looks at them: received into memory, sent from memory, in one
             process with one thread for each GET. What of it is Python runs once per GET and once
             per MiB received, and once per fetch.
    splices  moves them from socket to socket inside the kernel. No process sees them, so nobody
             could check, index or keep them: no broker can promise anything about them.

What both leave out of a broker's work: checksums, finding batches (where each fetch's batches lie
is read before the time is taken), read-ahead that is decided, a cache, other clients, other
partitions, errors, quotas, metrics, sessions. A fetch is answered with what was prepared for it, in
order; a consumer that asks for anything else is cut off. GETs begin with the first fetch.

Run as `python -m bench.relay PLAN WAY` it prints a line when it listens, and ends with its standard
input.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import mmap
import os
import queue
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.measure import measuring
from bench.rdkafka import ConsumeLoad, consumer
from strandline.broker.protocol.codec.codec import encode, encode_response
from strandline.broker.protocol.header import decode_request_header, frame_response
from strandline.broker.protocol.messages.api_versions import ApiVersionRange, ApiVersionsResponse
from strandline.broker.protocol.messages.fetch import (
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.storage.clock import SystemClock
from strandline.storage.remote.download.ranged_get import RangedGets
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.object_store.direct_read import DirectRead

WAYS = ("copies", "splices")
RANGE_BYTES = 8 * 1024 * 1024
# What a consumer asks for at a time (`ConsumeLoad.partition_bytes`).
FETCH_BYTES = 1024 * 1024
# As many as the broker has under way.
GETS = 8
# Chunks in memory: as many again, so that GETs go on while chunks are sent.
BLOCKS = 2 * GETS
# Older versions of the requests have places for one topic and partition that are always the same.
VERSIONS = {
    # Never sent; librdkafka wants it before it understands batches.
    ApiKey.PRODUCE: (3, 3),
    ApiKey.FETCH: (4, 4),
    ApiKey.LIST_OFFSETS: (1, 1),
    ApiKey.METADATA: (4, 4),
    ApiKey.API_VERSIONS: (0, 3),
}
_LENGTH = struct.Struct(">i")
_BATCH_HEAD = struct.Struct(">qi")
BATCH_OVERHEAD_BYTES = 12
# What ends a fetch of one partition: the offset, and how much.
_FETCH_TAIL = struct.Struct(">qi")
READY = "relay at "
_SPLICE_MORE = 4  # SPLICE_F_MORE


# --- what is prepared ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One ranged GET, and the answers to the fetches that it is for: (first offset, bytes) each."""

    url: str
    start: int
    size_bytes: int
    answers: Sequence[tuple[int, int]]


def prepared(client: Any, bucket: str, manifest: Manifest) -> list[Chunk]:
    """The GETs of all segments, cut between batches; reads every object."""
    chunks = []
    for entry in manifest.segments:
        key = f"archive/{entry.log_key}"
        body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        url = client.generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=3600
        )
        answers = _answers(body)
        while answers:
            size_bytes = count = 0
            for _, answer_bytes in answers:
                if count and size_bytes + answer_bytes > RANGE_BYTES:
                    break
                size_bytes += answer_bytes
                count += 1
            start = len(body) - sum(answer_bytes for _, answer_bytes in answers)
            taken, answers = answers[:count], answers[count:]
            chunks.append(Chunk(url=url, start=start, size_bytes=size_bytes, answers=taken))
    return chunks


def _answers(segment: bytes) -> list[tuple[int, int]]:
    """Runs of batches that a fetch of FETCH_BYTES gets, at least one batch each."""
    answers: list[tuple[int, int]] = []
    position = 0
    while position < len(segment):
        offset, length = _BATCH_HEAD.unpack_from(segment, position)
        size_bytes = BATCH_OVERHEAD_BYTES + length
        if answers and answers[-1][1] + size_bytes <= FETCH_BYTES:
            first_offset, run_bytes = answers[-1]
            answers[-1] = first_offset, run_bytes + size_bytes
        else:
            answers.append((offset, size_bytes))
        position += size_bytes
    return answers


@contextmanager
def bare_relay(
    client: Any, bucket: str, manifest: Manifest, *, topic: str, way: str
) -> Iterator[tuple[str, int]]:
    """A relay of the partition's archive in a process of its own: its bootstrap, and its pid."""
    plan = {
        "topic": topic,
        "end_offset": manifest.end_offset,
        "chunks": [asdict(chunk) for chunk in prepared(client, bucket, manifest)],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.relay", file.name, way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline().strip()
            if not line.startswith(READY):
                raise RuntimeError("the relay did not start")
            yield line.removeprefix(READY), process.pid
        finally:
            process.kill()
            process.wait()


def relay_rate(
    client: Any, bucket: str, manifest: Manifest, *, topic: str, way: str
) -> tuple[float, float]:
    """MB/s of a consumer behind a relay that was started for it, and the relay's CPU s/GB."""
    load = ConsumeLoad(topic=topic, count=manifest.end_offset)
    with (
        bare_relay(client, bucket, manifest, topic=topic, way=way) as (bootstrap, pid),
        consumer(bootstrap, load) as ready,
        measuring(pid) as measured,
    ):
        ready.run()
    size_bytes = manifest.size_bytes
    return measured.mb_per_s(size_bytes), measured.cpu_s_per_gb(size_bytes)


# --- ways of the bytes -----------------------------------------------------------------------


class Copies:
    """Each GET is received by a thread into a block; whoever asks for its bytes sends them."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        self._next = itertools.count()
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._filled: list[queue.SimpleQueue[memoryview]] = [queue.SimpleQueue() for _ in chunks]
        block_bytes = max(chunk.size_bytes for chunk in chunks)
        for _ in range(BLOCKS):
            # Touched now: a broker that has been read from has its memory, too.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
            self._free.put(memoryview(mmap.mmap(-1, block_bytes, flags=flags)))
        self._has_begun = False
        self._block = memoryview(b"")
        self._position = 0

    def begin(self) -> None:
        for _ in range(GETS):
            threading.Thread(target=self._get, daemon=True).start()

    def _get(self) -> None:
        gets = RangedGets(SystemClock())
        while True:
            # In this order: whoever has a block takes the first chunk that nobody has.
            block = self._free.get()
            number = next(self._next)
            if number >= len(self._chunks):
                return
            chunk = self._chunks[number]
            target = block[: chunk.size_bytes]
            gets.get_into(DirectRead(url=chunk.url), target, start=chunk.start)
            self._filled[number].put(block)

    def send(self, to: socket.socket, head: bytes, number: int, size_bytes: int) -> None:
        """Sends `head` and the next `size_bytes` of chunk `number`."""
        if not self._position:
            self._block = self._filled[number].get()
        end = self._position + size_bytes
        body = self._block[self._position : end]
        sent = to.sendmsg((head, body))
        if sent < len(head) + size_bytes:
            to.sendall(body[sent - len(head) :])
        self._position = end
        if end == self._chunks[number].size_bytes:
            self._position = 0
            self._free.put(self._block)


class Splices:
    """GETs lie in the receive buffers of their sockets until they are moved on."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        self._sockets: list[socket.socket] = []
        self._pipe = os.pipe()
        fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, 1024 * 1024)
        self._has_head = False
        self._left = 0

    def begin(self) -> None:
        for number in range(min(GETS, len(self._chunks))):
            url = urlsplit(self._chunks[number].url)
            connected = socket.socket()
            # As much as the system gives: what is here is read ahead.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RANGE_BYTES)
            connected.connect((url.hostname, url.port or 80))
            self._sockets.append(connected)
            self._request(number)

    def _request(self, number: int) -> None:
        chunk = self._chunks[number]
        url = urlsplit(chunk.url)
        self._sockets[number % GETS].sendall(
            f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Range: bytes={chunk.start}-{chunk.start + chunk.size_bytes - 1}\r\n\r\n".encode()
        )

    @staticmethod
    def _skip_head(source: socket.socket) -> None:
        while True:
            seen = source.recv(4096, socket.MSG_PEEK)
            end = seen.find(b"\r\n\r\n")
            if end >= 0:
                break
            if not seen:
                raise ConnectionError("the store closed the connection")
            time.sleep(0.0001)
        if b" 206 " not in source.recv(end + 4)[:20]:
            raise ConnectionError(f"the store answered {seen[:100]!r}")

    def send(self, to: socket.socket, head: bytes, number: int, size_bytes: int) -> None:
        """As `Copies.send`."""
        source = self._sockets[number % GETS]
        if not self._left:
            self._skip_head(source)
            self._left = self._chunks[number].size_bytes
        to.send(head, socket.MSG_MORE)
        self._left -= size_bytes
        while size_bytes:
            moved = os.splice(source.fileno(), self._pipe[1], size_bytes)
            if not moved:
                raise ConnectionError("the store closed the connection")
            size_bytes -= moved
            while moved:
                flags = _SPLICE_MORE if size_bytes else 0
                moved -= os.splice(self._pipe[0], to.fileno(), moved, flags=flags)
        if not self._left and number + GETS < len(self._chunks):
            self._request(number + GETS)


# --- the relay -------------------------------------------------------------------------------


class Relay:
    """Answers the requests with which a consumer begins, then prepared fetches in their order."""

    def __init__(self, plan: dict[str, Any], way: str, port: int) -> None:
        self._topic: str = plan["topic"]
        self._end_offset: int = plan["end_offset"]
        self._port = port
        chunks = [Chunk(**chunk) for chunk in plan["chunks"]]
        self._bytes: Copies | Splices = Copies(chunks) if way == "copies" else Splices(chunks)
        self._answers = iter(
            [
                (number, offset, size_bytes, self._fetch_head(size_bytes))
                for number, chunk in enumerate(chunks)
                for offset, size_bytes in chunk.answers
            ]
        )
        self._first_offset = chunks[0].answers[0][0]
        self._has_begun = False

    def _fetch_head(self, size_bytes: int) -> bytes:
        """All of an answer before its records, but for length and correlation id."""
        records = bytes(1)
        partition = FetchResponsePartition(
            index=0,
            high_watermark=self._end_offset,
            last_stable_offset=self._end_offset,
            aborted_transactions=None,
            records=(records,),
            records_bytes=size_bytes,
        )
        topic = FetchResponseTopic(name=self._topic, partitions=[partition])
        parts = encode(FetchResponse(topics=[topic]), VERSIONS[ApiKey.FETCH][0])
        assert parts[-1] is records, parts
        return b"".join(parts[:-1])  # type: ignore[arg-type]

    def serve(self, connected: socket.socket) -> None:
        """One connection, until it ends."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        others: dict[int, Callable[[int], Any]] = {
            ApiKey.API_VERSIONS: lambda _: ApiVersionsResponse(
                api_keys=[
                    ApiVersionRange(api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in VERSIONS.items()
                ]
            ),
            ApiKey.METADATA: lambda _: self._metadata(),
            ApiKey.LIST_OFFSETS: lambda _: self._offsets(),
        }
        with contextlib.suppress(ConnectionError), connected:
            while True:
                head = connected.recv(_LENGTH.size, socket.MSG_WAITALL)
                if len(head) < _LENGTH.size:
                    return
                frame = connected.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL)
                header = decode_request_header(memoryview(frame))
                if header.api_key == ApiKey.FETCH:
                    self._fetch(connected, frame, header.correlation_id)
                    continue
                version = header.api_version
                parts = encode_response(others[header.api_key](version), version)
                answer = frame_response(header.api_key, version, header.correlation_id, parts)
                connected.sendall(b"".join(answer))  # type: ignore[arg-type]

    def _fetch(self, to: socket.socket, frame: bytes, correlation_id: int) -> None:
        offset, _ = _FETCH_TAIL.unpack_from(frame, len(frame) - _FETCH_TAIL.size)
        if not self._has_begun:
            self._has_begun = True
            self._bytes.begin()
        found = next(self._answers, None)
        if found is None:
            # The consumer has everything, and asks for more before it stops.
            head = self._fetch_head(0)
            time.sleep(0.1)
            to.sendall(struct.pack(">ii", 4 + len(head), correlation_id) + head)
            return
        number, first_offset, size_bytes, head = found
        if offset != first_offset:
            raise ConnectionError(f"offset {offset} was asked for, {first_offset} is prepared")
        prefix = struct.pack(">ii", 4 + len(head) + size_bytes, correlation_id)
        self._bytes.send(to, prefix + head, number, size_bytes)

    def _metadata(self) -> MetadataResponse:
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1]
        )
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self._port)],
            cluster_id="relay",
            controller_id=1,
            topics=[MetadataResponseTopic(name=self._topic, partitions=[partition])],
        )

    def _offsets(self) -> ListOffsetsResponse:
        partition = ListOffsetsResponsePartition(partition_index=0, offset=self._first_offset)
        topic = ListOffsetsResponseTopic(name=self._topic, partitions=[partition])
        return ListOffsetsResponse(topics=[topic])


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    relay = Relay(plan, sys.argv[2], port)
    print(f"{READY}127.0.0.1:{port}", flush=True)

    def accept() -> None:
        while True:
            connected, _ = listening.accept()
            threading.Thread(target=relay.serve, args=(connected,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
