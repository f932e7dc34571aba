"""`make fuzz MINUTES=5`: recorded requests of real clients, mutated, against a real broker process.

    python -m tests.system.fuzz.broker_fuzz [--minutes N] [--seed N]

    1 record    librdkafka, kafka-python and aiokafka work through a proxy that keeps their frames:
                producers, consumers in groups, admin clients; frames of every API and version that
                is served, as `frames` makes them, come on top
    2 fire      threads send mutated frames; each waits until the broker has dealt with its own. A
                third of them goes to listeners of TLS and of OAUTHBEARER (`listeners.py`)
    3 watch     an ordinary client produces and reads all the while; memory, log and process are
                looked at each second, and what the mutations created is deleted now and then

The run fails when the broker dies, logs a traceback, grows beyond its bound, or leaves the ordinary
client without an answer. The frames that were sent last are written to a file then. The same seed
mutates the same frames in the same order in each thread.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import struct
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from tests.support.broker import REPOSITORY, BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import append, batch, create_topic, end_offset, read_all
from tests.system.fuzz.frames import recorded_frames
from tests.system.fuzz.listeners import Listeners
from tests.system.fuzz.mutations import fire, mutated

# A broker that has seen everything once may grow by this much: caches fill up to their bounds.
GROWTH_MIB_MAX = 256.0
FIRING_THREADS = 3
# The share of what is sent that goes to them.
OTHER_LISTENERS = 1 / 3
# Frames of one API and version that are kept; clients repeat themselves.
FRAMES_PER_VERSION_MAX = 12
FRAME_BYTES_MAX = 64 * 1024
# The ordinary client must be answered within its time-out, which is in tests/support/wire.py.
LAST_FRAMES_KEPT = 200
KEPT_FOLDER = REPOSITORY / "bench-data" / "fuzz"
CLEAN_UP_SECONDS = 20.0
TOPIC = "fuzzed"
ORDINARY = "ordinary"

SETTINGS = {
    "log.retention.ms": "-1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    # What mutations create is taken away again, from the disk too.
    "log.segment.delete.delay.ms": "1000",
}


class Recorder:
    """A proxy that keeps what clients send, frame by frame."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.target_port = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                return
            for source, sink, is_request in ((client, broker, True), (broker, client, False)):
                threading.Thread(
                    target=self._pump, args=(source, sink, is_request), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        pending = bytearray()
        try:
            while part := source.recv(65536):
                sink.sendall(part)
                if is_request:
                    pending += part
                    while len(pending) >= 4:
                        (length,) = struct.unpack_from(">i", pending)
                        if len(pending) < 4 + length:
                            break
                        self.frames.append(bytes(pending[: 4 + length]))
                        del pending[: 4 + length]
        except OSError:
            pass
        finally:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def close(self) -> None:
        self._listener.close()


# --- 1 record ----------------------------------------------------------------------------------


def work_with_librdkafka(bootstrap: str) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

    for codec in ("none", "lz4"):
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": codec == "none",
            }
        )
        for number in range(20):
            producer.produce(TOPIC, key=b"k", value=b"v%d" % number, headers=[("h", b"x")])
        producer.flush(10)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "recorded",
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    consumer.subscribe([TOPIC])
    consumer.consume(20, 8)
    consumer.commit(asynchronous=False)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.list_topics(timeout=5)
    for future in (
        *admin.create_topics([NewTopic("checked", 2)], validate_only=True).values(),
        *admin.describe_configs([ConfigResource(ResourceType.TOPIC, TOPIC)]).values(),
        *admin.describe_consumer_groups(["recorded"]).values(),
        admin.list_consumer_groups(),
        admin.describe_cluster(),
    ):
        future.result(10)


def work_with_kafka_python(bootstrap: str) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip")
    for number in range(20):
        producer.send(TOPIC, b"v%d" % number)
    producer.close(10)
    consumer = KafkaConsumer(
        TOPIC, bootstrap_servers=bootstrap, group_id="python", auto_offset_reset="earliest"
    )
    for _ in range(10):
        consumer.poll(500)
    consumer.close()
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.describe_cluster()
    admin.list_groups()
    admin.describe_log_dirs()
    admin.close()


def work_with_aiokafka(bootstrap: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def work() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        await producer.send_and_wait(TOPIC, b"value")
        await producer.stop()
        consumer = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=bootstrap, group_id="aio", auto_offset_reset="earliest"
        )
        await consumer.start()
        await consumer.getmany(timeout_ms=2000)
        await consumer.commit()
        await consumer.stop()

    asyncio.run(work())


def chosen(frames: Sequence[bytes]) -> list[bytes]:
    """Few of each API and version; a kind that comes often must not crowd out the rest."""
    kept: dict[bytes, list[bytes]] = {}
    for frame in frames:
        of_kind = kept.setdefault(frame[4:8], [])
        if len(frame) <= FRAME_BYTES_MAX and len(of_kind) < FRAMES_PER_VERSION_MAX:
            of_kind.append(frame)
    return [frame for of_kind in kept.values() for frame in of_kind]


# --- 2 fire, 3 watch ---------------------------------------------------------------------------


class Failed(Exception):
    """The broker did not stand it."""


class Fire:
    """Threads that send mutated frames until they are told to stop."""

    def __init__(
        self, broker: BrokerProcess, listeners: Listeners, frames: Sequence[bytes], seed: int
    ) -> None:
        self._broker = broker
        self._listeners = listeners
        self._frames = frames
        self._stop = threading.Event()
        self.sent_count = 0
        self.last: deque[bytes] = deque(maxlen=LAST_FRAMES_KEPT)
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed + number),), daemon=True)
            for number in range(FIRING_THREADS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    def _run(self, generator: random.Random) -> None:
        while not self._stop.is_set():
            try:
                if generator.random() < OTHER_LISTENERS:
                    self.last.append(self._listeners.fire(generator, self._frames))
                else:
                    frame = mutated(generator, self._frames)
                    self.last.append(frame)
                    fire(self._broker.port, frame)
            except OSError:
                time.sleep(0.05)  # Refused; `watch` finds out why.
            self.sent_count += 1


class Ordinary:
    """A client as any other, between the fire."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.slowest_s = 0.0
        self.written_count = 0

    def work(self) -> None:
        """Writes and reads; raises Failed when it is not served as it must be."""
        began_s = time.monotonic()
        try:
            with WireClient(self._broker.port) as client:
                append(client, ORDINARY, batch(3))
                self.written_count += 3
                end = end_offset(client, ORDINARY)
        except (OSError, AssertionError) as error:
            raise Failed(f"the ordinary client was not served: {error!r}") from error
        if end != self.written_count:
            raise Failed(f"{self.written_count} records written, the log ends at {end}")
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)


def take_away(broker: BrokerProcess) -> None:
    """Deletes topics that mutations created."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    ours = {TOPIC, ORDINARY}
    strange = [
        name
        for name in admin.list_topics(timeout=15).topics
        if name not in ours and not name.startswith("__")
    ]
    for start in range(0, len(strange), 100):
        for future in admin.delete_topics(strange[start : start + 100]).values():
            try:
                future.result(15)
            except KafkaException:
                continue  # A mutation was faster.


def check(broker: BrokerProcess, before_mib: float) -> None:
    """Raises Failed."""
    if not broker.running:
        raise Failed(f"the broker died:\n{broker.log_text()[-3000:]}")
    text = broker.log_text()
    if "Traceback" in text:
        position = text.index("Traceback")
        raise Failed(f"the broker fell over a request:\n{text[position - 500 : position + 3000]}")
    grown_mib = broker.resident_mib() - before_mib
    if grown_mib > GROWTH_MIB_MAX:
        raise Failed(f"the broker grew by {grown_mib:.0f} MiB")


def record(recorder: Recorder, console: Console) -> list[bytes]:
    """What three client libraries send when they work."""
    bootstrap = f"127.0.0.1:{recorder.port}"
    clients: Sequence[Callable[[str], None]] = (
        work_with_librdkafka,
        work_with_kafka_python,
        work_with_aiokafka,
    )
    for client in clients:
        before = len(recorder.frames)
        client(bootstrap)
        console.print(f"{client.__name__}: {len(recorder.frames) - before} frames")
    return chosen(recorder.frames)


def run(seconds: float, seed: int, console: Console) -> None:
    """Raises Failed."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="strandline-fuzz-") as name:
        listeners = Listeners(Path(name) / "listeners")
        settings = {
            **SETTINGS,
            **listeners.settings,
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{recorder.port}",
        }
        with BrokerProcess(Path(name), settings=settings) as broker:
            recorder.target_port = broker.port
            with WireClient(broker.port) as client:
                create_topic(client, TOPIC, 2)
                create_topic(client, ORDINARY, 1)
            frames = [*record(recorder, console), *recorded_frames()]
            kinds = Counter(struct.unpack_from(">h", frame, 4)[0] for frame in frames)
            console.print(f"{len(frames)} frames of {len(kinds)} APIs; seed {seed}")
            listeners.log_in()
            for frame in frames:
                fire(broker.port, frame)
            before_mib = broker.resident_mib()
            ordinary = Ordinary(broker)
            firing = Fire(broker, listeners, frames, seed)
            firing.start()
            try:
                watch(broker, ordinary, firing, before_mib, seconds, console)
            except Failed:
                KEPT_FOLDER.mkdir(parents=True, exist_ok=True)
                kept = KEPT_FOLDER / f"{seed}-{uuid.uuid4().hex[:8]}.txt"
                kept.write_text("\n".join(frame.hex() for frame in firing.last))
                console.print(f"[red]the last {len(firing.last)} frames are in {kept}")
                raise
            finally:
                firing.stop()
            check(broker, before_mib)
            listeners.log_in()
            with WireClient(broker.port) as client:
                assert len(read_all(client, ORDINARY)) == ordinary.written_count
            console.print(
                f"{firing.sent_count:,} mutated frames, memory"
                f" {before_mib:.0f} -> {broker.resident_mib():.0f} MiB, the ordinary client wrote"
                f" {ordinary.written_count:,} records, its slowest turn {ordinary.slowest_s:.2f} s"
            )
    recorder.close()


def watch(
    broker: BrokerProcess,
    ordinary: Ordinary,
    firing: Fire,
    before_mib: float,
    seconds: float,
    console: Console,
) -> None:
    """Until the time is over. Raises Failed."""
    deadline_s = time.monotonic() + seconds
    clean_up_s = time.monotonic() + CLEAN_UP_SECONDS
    said_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        ordinary.work()
        check(broker, before_mib)
        if time.monotonic() > clean_up_s:
            take_away(broker)
            clean_up_s = time.monotonic() + CLEAN_UP_SECONDS
        if time.monotonic() > said_s:
            said_s += 30
            console.print(f"{firing.sent_count:,} frames, {broker.resident_mib():.0f} MiB")
        time.sleep(0.2)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    try:
        run(options.minutes * 60, options.seed, console)
    except Failed as failure:
        console.print(f"[red]seed {options.seed}: {failure}", markup=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
