"""What the rows of `bench/clusters` share: a running cluster, its topics, and load for it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from bench.clients.rdkafka import ProduceLoad, producers
from bench.clusters.peers import BROKERS, NOTHING, Cluster, Kafka, Strandline
from bench.measure import Measured, cpu_seconds, warm_page_cache

Figures = Mapping[str, float]
WAIT_S = 180.0
MEGABYTES = 200
RECORD_BYTES = 1000
PEERS: Mapping[str, Callable[..., Cluster]] = {"strandline": Strandline, "Kafka": Kafka}
# Clients ask again at once, so that what is measured is the cluster.
EAGER = {
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 20,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 10,
}


@contextmanager
def running(
    name: str, folder: Path, *, replicas: int = 1, settings: Mapping[str, str] = NOTHING
) -> Iterator[Cluster]:
    shutil.rmtree(folder / name, ignore_errors=True)
    cluster = PEERS[name](folder / name, replicas=replicas, settings=settings)
    try:
        cluster.start()
        await_brokers(cluster)
        yield cluster
    finally:
        cluster.close()


def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, **EAGER})


def await_brokers(cluster: Cluster) -> None:
    """Returns when clients see all of them."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            if len(admin(cluster).list_topics(timeout=5).brokers) == BROKERS:
                return
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.1)


def create(cluster: Cluster, *topics: NewTopic) -> None:
    """Returns when each partition of them has a leader."""
    client = admin(cluster)
    made = client.create_topics(list(topics), operation_timeout=WAIT_S, request_timeout=WAIT_S)
    for future in made.values():
        future.result(WAIT_S)
    wanted = {topic.topic: topic.num_partitions for topic in topics}
    while wanted:
        known = client.list_topics(timeout=WAIT_S).topics
        led = {
            name: sum(one.leader >= 0 for one in found.partitions.values())
            for name, found in known.items()
        }
        wanted = {name: count for name, count in wanted.items() if led.get(name) != count}
        time.sleep(0.01 if wanted else 0)


def places(bootstrap: str, topic: str) -> Mapping[int, PartitionMetadata]:
    """The partitions of a topic, as a broker tells them that was never asked before."""
    client = AdminClient({"bootstrap.servers": bootstrap, **EAGER})
    return client.list_topics(topic, timeout=WAIT_S).topics[topic].partitions


def await_places(bootstrap: str, topic: str, is_so: Callable[[PartitionMetadata], bool]) -> None:
    """Returns when all partitions are as wanted."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            if all(map(is_so, places(bootstrap, topic).values())):
                return
        except KafkaException:
            pass
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{topic} does not become what is waited for")
        time.sleep(0.02)


def is_in_sync(partition: PartitionMetadata) -> bool:
    return len(partition.isrs) == len(partition.replicas)


def acknowledge(
    cluster: Cluster, topic: str, partitions: Sequence[int], *, bootstrap: str = "", acks: int = 1
) -> None:
    """Returns when each of the partitions has acknowledged a record."""
    failed: list[object] = []
    at = bootstrap or cluster.bootstrap
    producer = Producer({"bootstrap.servers": at, "acks": acks, **EAGER})

    def note(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number in partitions:
        producer.produce(topic, b"r" * 100, partition=number, on_delivery=note)
    if producer.flush(WAIT_S) or failed:
        raise TimeoutError(f"{topic} does not take records: {failed[:2]}")


@contextmanager
def measuring(cluster: Cluster) -> Iterator[Measured]:
    measured = Measured()
    pids = cluster.pids
    before_s, began_s = sum(map(cpu_seconds, pids)), time.perf_counter()
    yield measured
    measured.wall_s = time.perf_counter() - began_s
    measured.cpu_s = sum(map(cpu_seconds, pids)) - before_s


def bytes_of(topics: Sequence[str]) -> int:
    return len(topics) * MEGABYTES * 1_000_000


def produce(
    cluster: Cluster,
    folder: Path,
    topics: Sequence[str],
    batch_bytes: int,
    *,
    acks: int,
    partitions: int = 1,
) -> Measured:
    """A connection to each topic; the first call warms what it runs."""
    warm_page_cache(folder, BROKERS * bytes_of(topics))
    with ExitStack() as stack:
        ready = [
            stack.enter_context(
                producers(
                    cluster.bootstrap,
                    ProduceLoad(
                        topic=topic,
                        count=bytes_of([topic]) // RECORD_BYTES,
                        record_bytes=RECORD_BYTES,
                        batch_bytes=batch_bytes,
                        partitions=partitions,
                        acks=acks,
                        settings={"max.in.flight.requests.per.connection": 5},
                    ),
                )
            )
            for topic in topics
        ]
        pool = stack.enter_context(ThreadPoolExecutor(len(ready)))
        with measuring(cluster) as measured:
            list(pool.map(lambda one: one.run(), ready))
    return measured


def median(figures: Iterator[float]) -> float:
    return float(np.median(list(figures)))
