"""How each kind of row is measured: one function per kind, from a row and a broker to figures.

A function gets a `Site` (folders, the brokers, how much to send), makes its own topic, and deletes
it when done. Connecting, creating and waiting for metadata are outside the measured stretch unless
they are what is measured. Consumers check that every record came, in order.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from confluent_kafka.admin import AdminClient, NewTopic

from bench.clients.librdkafka import topic_is_led
from bench.clients.rdkafka import (
    ConsumeLoad,
    Consumer,
    ProduceLoad,
    consumer,
    pacer,
    producers,
)
from bench.comparison import limits
from bench.comparison.peers import Kafka, Peer, Strandline, await_serving, kafka_java, until
from bench.comparison.rows import MANY_RECORDS, Row, TransactionRow
from bench.comparison.tls import Certificates
from bench.comparison.transactions import CLIENTS, TransactionClient, TransactionLoad
from bench.measure import (
    Measured,
    await_quiet,
    cpu_seconds,
    measuring,
    peak_mib,
    resident_mib,
    warm_page_cache,
)
from bench.run import BUCKET, null_s3, s3_client

Figures = Mapping[str, float]
ClientSettings = Mapping[str, str | int]

CREATE_TIMEOUT_S = 120
TIER_TIMEOUT_S = 120
# A tenth of a row of 600 MB: several segments in the second tier, whatever the size of the run.
COLD_SEGMENT_BYTES = 32 << 20
UPLOAD_RECORD_BYTES = 100_000
UPLOAD_MB_PER_S = 50
# At the start of a latency row caches fill and connections settle.
WARM_UP = 0.1
REST_S = 5.0
# A new client's code is compiled, and a broker's too: no other row makes transactions.
TRANSACTIONS_WARM_UP_S = 2.0
# Of a row's bytes: with what is around records, and some for everybody else.
WARM_SHARE = 1.3
# Half a second and more, of which a broker computes a fifth.
CONSUMED_BYTES = 1e9
NO_SETTINGS: ClientSettings = {}
FAST_ANSWERS: ClientSettings = {"socket.nagle.disable": "true"}
# As Java's producer has it. librdkafka's own default is a million: it would send each record as a
# request at once and never form a batch, however far behind the broker is.
FAST_SENDING = {**FAST_ANSWERS, "max.in.flight.requests.per.connection": 5}
COLD_TOPIC = {
    "remote.storage.enable": "true",
    "segment.bytes": str(COLD_SEGMENT_BYTES),
    "retention.ms": "-1",
    "local.retention.ms": "1000",
    "file.delete.delay.ms": "0",
}
_topic_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where and how large."""

    folder: Path
    # 1 in a full run.
    size: float
    # Records per second that the slower of the two brokers passes on, from the row "peak".
    peak_records_per_s: float = 0

    @property
    def certificates(self) -> Certificates:
        """Those of all brokers and clients of TLS, which are made at the first use."""
        return Certificates(self.folder / "certificates").make()

    def value_bytes(self, row: Row) -> int:
        return int(row.megabytes * 1e6 * self.size)

    def count(self, row: Row) -> int:
        return max(self.value_bytes(row) // row.record_bytes, 1)


# --- topics ----------------------------------------------------------------------------------


@contextmanager
def topic_of(peer: Peer, partitions: int = 1, **config: str) -> Iterator[str]:
    """A new topic that is gone afterwards."""
    topic = f"t{next(_topic_numbers)}-{time.time_ns() % 1_000_000}"
    create_topic(peer, topic, partitions, **config)
    try:
        yield topic
    finally:
        admin = _admin(peer)
        gone = admin.delete_topics([topic], operation_timeout=CREATE_TIMEOUT_S)[topic]
        gone.result(CREATE_TIMEOUT_S)
        # Both brokers set deleted folders aside for a minute. Their bytes would be written to the
        # disk meanwhile, in the middle of other rows.
        for path in peer.deleted_segments(topic):
            with suppress(FileNotFoundError):
                os.truncate(path, 0)


def create_topic(peer: Peer, topic: str, partitions: int = 1, **config: str) -> None:
    """Returns when all partitions can be written."""
    admin = _admin(peer)
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([new], operation_timeout=CREATE_TIMEOUT_S)[topic].result(CREATE_TIMEOUT_S)
    await_led(peer, topic, partitions)


def _admin(peer: Peer) -> AdminClient:
    return AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})


def await_led(peer: Peer, topic: str, partitions: int) -> None:
    until(
        lambda: topic_is_led(peer.bootstrap, topic, partitions),
        timeout_s=CREATE_TIMEOUT_S,
        interval_s=0.02,
    )


def produce_load(
    row: Row, topic: str, count: int, settings: ClientSettings = NO_SETTINGS
) -> ProduceLoad:
    return ProduceLoad(
        topic=topic,
        count=count,
        record_bytes=row.record_bytes,
        batch_bytes=row.batch_bytes,
        partitions=row.partitions,
        connections=row.connections,
        acks=row.acks,
        codec=row.codec,
        idempotent=row.idempotent,
        settings=settings,
    )


# --- moving data -----------------------------------------------------------------------------


def move(
    site: Site,
    row: Row,
    peer: Peer,
    *,
    on_one_core: bool = False,
    settings: ClientSettings = NO_SETTINGS,
) -> Figures:
    """Produces a topic, then reads all of it.

    Before, each partition takes one record, and many partitions the whole load once: what a broker
    does for a partition at its first records would be most of what is measured with 1,000 of them.

    The topic is read as often as it takes to have read CONSUMED_BYTES: 100 MB come in a fifth of a
    second, which says more about what else ran then, and about what a JVM has compiled, than about
    a broker. Each time by a new consumer, which connects before the clock runs on.

    `on_one_core` is about that consumer's threads; `settings` are those of both clients.
    """
    count = site.count(row)
    rounds = 2 if row.partitions > 1 else 1
    with topic_of(peer, row.partitions) as topic:
        await_serving(peer, topic, row.partitions)
        for _ in range(rounds):
            with producers(peer.bootstrap, produce_load(row, topic, count, settings)) as ready:
                warm_page_cache(site.folder, int(WARM_SHARE * site.value_bytes(row)))
                with measuring(peer.pid) as produced:
                    ready.run()
        load = ConsumeLoad(
            topic=topic,
            count=count * rounds,
            partitions=row.partitions,
            on_one_core=on_one_core,
            settings=settings,
        )
        # acks=0 tells nobody when the broker has the last record.
        if row.acks == 0:
            with consumer(peer.bootstrap, load) as ready:
                ready.run(first_offset=1)
        value_bytes = count * row.record_bytes
        pass_bytes = value_bytes * rounds * row.consumers
        passes = math.ceil(CONSUMED_BYTES * site.size / pass_bytes)
        consumed = Measured()
        for _ in range(passes):
            consumed += _consume(peer, load, row.consumers, first_offset=1)
    return {
        **_moved("produce", produced, value_bytes),
        **_moved("consume", consumed, pass_bytes * passes),
    }


def move_small_records(site: Site, row: Row, peer: Peer) -> Figures:
    """As `move`. Of a record of 100 B most is what the client makes of it: see ConsumeLoad."""
    return move(site, row, peer, on_one_core=True)


def _consume(
    peer: Peer, load: ConsumeLoad, consumers: int = 1, *, first_offset: int = 0
) -> Measured:
    with ExitStack() as stack:
        readers = [stack.enter_context(consumer(peer.bootstrap, load)) for _ in range(consumers)]
        pool = stack.enter_context(ThreadPoolExecutor(consumers))
        with measuring(peer.pid) as consumed:
            list(pool.map(lambda reader: reader.run(first_offset=first_offset), readers))
    return consumed


def _moved(action: str, measured: Measured, value_bytes: int) -> dict[str, float]:
    return {
        f"{action}_mb_per_s": measured.mb_per_s(value_bytes),
        f"{action}_cpu": measured.cpu_s_per_gb(value_bytes),
    }


def java(site: Site, row: Row, peer: Peer) -> Figures:
    """ProducerPerformance and ConsumerPerformance; MB/s as they report it, CPU of the broker."""
    count = site.count(row)
    with topic_of(peer) as topic:
        with measuring(peer.pid) as produced:
            text = _run_java(
                "ProducerPerformance",
                *("--topic", topic, "--num-records", str(count), "--throughput", "-1"),
                *("--record-size", str(row.record_bytes), "--producer-props"),
                f"bootstrap.servers={peer.bootstrap}",
                *("acks=1", "enable.idempotence=false", "linger.ms=5"),
                f"batch.size={row.batch_bytes}",
            )
        sent = re.findall(r"(\d+) records sent, ([\d.]+) records/sec", text)[-1]
        with measuring(peer.pid) as consumed:
            text = _run_java(
                "ConsumerPerformance",
                *("--topic", topic, "--messages", str(count), "--timeout", "60000"),
                *("--bootstrap-server", peer.bootstrap),
            )
        names, values = (line.split(", ") for line in text.strip().splitlines()[-2:])
        read = dict(zip(names, values, strict=True))
    assert int(sent[0]) == count == int(read["data.consumed.in.nMsg"]), (sent, read)
    record_mb, total_gb = row.record_bytes / 1e6, count * row.record_bytes / 1e9
    return {
        "produce_mb_per_s": float(sent[1]) * record_mb,
        "produce_cpu": produced.cpu_s / total_gb,
        "consume_mb_per_s": float(read["fetch.nMsg.sec"]) * record_mb,
        "consume_cpu": consumed.cpu_s / total_gb,
    }


def _run_java(tool: str, *arguments: str) -> str:
    command = kafka_java(f"org.apache.kafka.tools.{tool}", *arguments, options=("-Xmx512M",))
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        raise RuntimeError(f"{tool} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


# --- transactions ----------------------------------------------------------------------------


def transactions(site: Site, row: Row, peer: Peer) -> Figures:
    """Each producer makes one transaction after the other; a consumer finds all their records."""
    assert isinstance(row, TransactionRow), row
    with topic_of(peer, row.partitions) as topic:
        await_serving(peer, topic, row.partitions)
        with transaction_clients(row, peer, topic) as run:
            warm_count = len(run(TRANSACTIONS_WARM_UP_S))
            with measuring(peer.pid) as measured:
                commits_ms = run(row.seconds * max(site.size, 0.25))
        count = len(commits_ms)
        # Markers have offsets too; librdkafka reads what is committed unless it is told otherwise.
        read = ConsumeLoad(
            topic=topic,
            count=row.partitions + (warm_count + count) * row.records,
            partitions=row.partitions,
            contiguous=False,
        )
        with consumer(peer.bootstrap, read) as ready:
            ready.run()
    p50, p99 = np.percentile(commits_ms, (50, 99))
    figures = {
        "transactions_per_s": count / measured.wall_s,
        "commit_p50_ms": float(p50),
        "commit_p99_ms": float(p99),
        "transaction_cpu_ms": measured.cpu_s * 1000 / count,
    }
    if row.records >= MANY_RECORDS:
        value_bytes = count * row.records * row.record_bytes
        figures["transactions_mb_per_s"] = measured.mb_per_s(value_bytes)
    return figures


@contextmanager
def transaction_clients(
    row: TransactionRow, peer: Peer, topic: str
) -> Iterator[Callable[[float], np.ndarray]]:
    """The row's producers; call it with seconds, and it says how long each commit took, in ms."""
    with ExitStack() as stack:
        clients: list[TransactionClient] = []
        for number in range(row.connections):
            load = TransactionLoad(
                topic=topic,
                records=row.records,
                record_bytes=row.record_bytes,
                batch_bytes=row.batch_bytes,
                partitions=row.partitions,
                number=number,
            )
            client = CLIENTS[row.client](peer.bootstrap, load)
            clients.append(stack.enter_context(closing(client)))
        pool = stack.enter_context(ThreadPoolExecutor(len(clients)))
        yield lambda seconds: np.concatenate(
            list(pool.map(lambda client: client.run(seconds), clients))
        )


# --- latency ---------------------------------------------------------------------------------


def peak(site: Site, row: Row, peer: Peer) -> Figures:
    """Records passed from producer to consumer without waiting: what latency's loads refer to."""
    count = site.count(row)
    with topic_of(peer) as topic, _endpoints(peer, topic, row, count) as (sender, receiver):
        started_s = time.perf_counter()
        _while_sending(sender.run, 1e9, lambda: receiver.latencies_us(count))
        return {"records_per_s": count / (time.perf_counter() - started_s)}


def latency(site: Site, row: Row, peer: Peer) -> Figures:
    """Ages of records at their consumer, sent one by one at a fixed rate."""
    rate = site.peak_records_per_s * row.load
    assert rate > 0, "the row `peak` comes first"
    count = max(int(rate * row.seconds * max(site.size, 0.25)), 100)
    with topic_of(peer) as topic, _endpoints(peer, topic, row, count) as (sender, receiver):
        ages_us = _while_sending(sender.run, rate, lambda: receiver.latencies_us(count))
    settled = np.sort(ages_us[int(count * WARM_UP) :]) / 1000
    p50, p99, p999 = np.percentile(settled, (50, 99, 99.9))
    return {"p50_ms": float(p50), "p99_ms": float(p99), "p999_ms": float(p999)}


@contextmanager
def _endpoints(peer: Peer, topic: str, row: Row, count: int) -> Iterator[tuple[object, Consumer]]:
    send = ProduceLoad(
        topic=topic, count=count, record_bytes=row.record_bytes, linger_ms=0, settings=FAST_SENDING
    )
    receive = ConsumeLoad(topic=topic, count=count, wait_ms=500, idle_s=30, settings=FAST_ANSWERS)
    with pacer(peer.bootstrap, send) as sender, consumer(peer.bootstrap, receive) as receiver:
        receiver.start()
        # The first fetch waits for data at the broker before the first record is sent.
        time.sleep(0.3)
        yield sender, receiver


def _while_sending(
    send: Callable[..., None], rate: float, receive: Callable[[], np.ndarray]
) -> np.ndarray:
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, records_per_s=rate)
        ages_us = receive()
        sending.result(120)
    return ages_us


def latency_rewind(site: Site, row: Row, peer: Peer) -> Figures:
    """Latency, while somebody reads an archived topic from its beginning again and again."""
    with archived_topic(site, row, peer) as archived:
        stop = threading.Event()

        def rewind() -> None:
            load = ConsumeLoad(topic=archived.topic, count=archived.cold_count)
            while not stop.is_set():
                with consumer(peer.bootstrap, load) as ready:
                    ready.run()

        with ThreadPoolExecutor(1) as pool:
            rewinding = pool.submit(rewind)
            try:
                return latency(site, row, peer)
            finally:
                stop.set()
                rewinding.result(120)


def latency_upload(site: Site, row: Row, peer: Peer) -> Figures:
    """Latency, while another topic is written and its segments go to the second tier."""
    seconds = row.seconds * max(site.size, 0.25) + 2
    rate = UPLOAD_MB_PER_S * 1e6 / UPLOAD_RECORD_BYTES
    with topic_of(peer, **{**COLD_TOPIC, "segment.bytes": str(8 << 20)}) as topic:
        load = ProduceLoad(
            topic=topic, count=int(rate * seconds), record_bytes=UPLOAD_RECORD_BYTES, linger_ms=0
        )
        with pacer(peer.bootstrap, load) as bulk, ThreadPoolExecutor(1) as pool:
            uploading = pool.submit(bulk.run, records_per_s=rate)
            time.sleep(1)
            figures = latency(site, row, peer)
            uploading.result(120)
    return figures


# --- the second tier -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """A topic of which all but the open segment lies in the second tier only."""

    topic: str
    # Records before the first local one.
    cold_count: int


def _is_archived(peer: Peer, topic: str) -> bool:
    return len(peer.local_segments(topic)) == 1


@contextmanager
def archived_topic(site: Site, row: Row, peer: Peer) -> Iterator[Archived]:
    count = max(site.count(row), 4 * COLD_SEGMENT_BYTES // row.record_bytes)
    with topic_of(peer, **COLD_TOPIC) as topic:
        with producers(peer.bootstrap, produce_load(row, topic, count)) as ready:
            ready.run()
        is_archived = partial(_is_archived, peer, topic)
        until(is_archived, timeout_s=TIER_TIMEOUT_S, interval_s=0.2)
        # What was archived may be put in order still: merged, or its index written.
        await_quiet(peer.pid)
        # A segment that was closed meanwhile goes too.
        until(is_archived, timeout_s=TIER_TIMEOUT_S, interval_s=0.2)
        (last,) = peer.local_segments(topic)
        yield Archived(topic=topic, cold_count=int(last.stem))


def cold(site: Site, row: Row, peer: Peer) -> Figures:
    """Reads an archived topic once; what a broker kept in memory is dropped before."""
    with archived_topic(site, row, peer) as archived:
        if peer.name == Strandline.name:
            # It keeps chunks it fetched or wrote. Kafka keeps none, and its JVM stays warm.
            peer.end()
            peer.start()
            await_led(peer, archived.topic, 1)
            await_quiet(peer.pid)
        consumed = _consume(peer, ConsumeLoad(topic=archived.topic, count=archived.cold_count), 1)
    return _moved("consume", consumed, archived.cold_count * row.record_bytes)


def cold_s3(site: Site, row: Row, peer: Peer, server: Sequence[str] = ()) -> Figures:
    """The same against S3; `peer` only says which broker is meant."""
    with null_s3(server) as endpoint:
        s3_client(endpoint).create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
        settings = {
            "strandline.remote.url": f"s3://{BUCKET}/archive",
            "strandline.remote.s3.endpoint.url": endpoint,
        }
        broker = Strandline(site.folder / "s3", tiered=True, settings=settings)
        broker.start()
        try:
            return cold(site, row, broker)
        finally:
            broker.end(by=signal.SIGKILL)
            shutil.rmtree(site.folder / "s3", ignore_errors=True)


def cold_s3_far(site: Site, row: Row, peer: Peer) -> Figures:
    return cold_s3(site, row, peer, ("--first-byte-ms", "30", "--connection-mb-per-s", "90"))


# --- brokers of their own --------------------------------------------------------------------


@contextmanager
def own_broker(
    site: Site,
    row: Row,
    like: Peer,
    *,
    tls: Certificates | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Peer]:
    """A fresh broker of the same kind, running."""
    folder = site.folder / f"{row.name}-{like.name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make = Strandline if like.name == Strandline.name else Kafka
    broker: Peer = make(folder, tls=tls, settings=settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.end(by=signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def start(site: Site, row: Row, peer: Peer) -> Figures:
    """From the start of the process, after a clean stop, until each partition has acknowledged a
    record; and how long that took from the request that created the topic.
    """
    with own_broker(site, row, peer) as broker:
        started_s = time.perf_counter()
        create_topic(broker, "t", row.partitions)
        await_serving(broker, "t", row.partitions)
        create_s = time.perf_counter() - started_s
        broker.end()
        started_s = time.perf_counter()
        broker.start()
        await_serving(broker, "t", row.partitions)
        start_s = time.perf_counter() - started_s
    return {"start_s": start_s} | ({"create_s": create_s} if row.partitions > 1 else {})


def recovery(site: Site, row: Row, peer: Peer) -> Figures:
    """The same after kill -9 with the row's bytes in one segment, never synced."""
    count = site.count(row)
    with own_broker(site, row, peer) as broker:
        create_topic(broker, "t")
        with producers(broker.bootstrap, produce_load(row, "t", count)) as ready:
            ready.run()
        broker.end(by=signal.SIGKILL)
        started_s = time.perf_counter()
        broker.start()
        await_serving(broker, "t", 1)
        start_s = time.perf_counter() - started_s
        # Nothing that was acknowledged is gone: the page cache outlives the process.
        _consume(broker, ConsumeLoad(topic="t", count=count))
    return {"start_s": start_s}


def memory(site: Site, row: Row, peer: Peer) -> Figures:
    """Resident memory and CPU of a broker at rest, and its memory at most after work."""
    with own_broker(site, row, peer) as broker:
        create_topic(broker, "t")
        time.sleep(REST_S)
        cpu_before_s = cpu_seconds(broker.pid)
        time.sleep(REST_S)
        idle_cpu = (cpu_seconds(broker.pid) - cpu_before_s) * 1000 / REST_S
        rest_mib = resident_mib(broker.pid)
        for connections in (1, 50):
            load = ProduceLoad(topic="t", count=site.count(row) // 2, connections=connections)
            with producers(broker.bootstrap, load) as ready:
                ready.run()
        _consume(broker, ConsumeLoad(topic="t", count=site.count(row) // 2 * 2), 1)
        return {
            "rest_mib": rest_mib,
            "idle_cpu": idle_cpu,
            "peak_mib": peak_mib(broker.pid),
        }


# --- no broker -------------------------------------------------------------------------------


def limit_socket(site: Site, row: Row, peer: Peer) -> Figures:
    total_bytes, path = site.value_bytes(row), site.folder / "source"
    try:
        produced = limits.measure_sink(total_bytes, None)
        consumed = limits.measure_source(total_bytes, path)
    finally:
        path.unlink(missing_ok=True)
    return {**_moved("produce", produced, total_bytes), **_moved("consume", consumed, total_bytes)}


def limit_append(site: Site, row: Row, peer: Peer) -> Figures:
    path = site.folder / "sink"
    produced = limits.measure_sink(site.value_bytes(row), path)
    path.unlink()
    return _moved("produce", produced, site.value_bytes(row))


def limit_file(site: Site, row: Row, peer: Peer) -> Figures:
    path = site.folder / "file"
    produced = limits.measure_append(site.value_bytes(row), path)
    path.unlink()
    return _moved("produce", produced, site.value_bytes(row))
