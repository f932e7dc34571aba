"""Three brokers of strandline beside three of Apache Kafka: `make bench-cluster`.

    python -m bench.clusters.run [--only ROW …] [--peer NAME] [--seconds S]

Each row starts a cluster of its own, one after the other, since two clusters do not fit beside each
other on a small machine. CPU and memory are the sums over all processes of a cluster. The table at
the end has both sides and their ratio.

    start         until 2,000 partitions have acknowledged a record, after a clean stop
    topics        until 1,000 topics are made, by one request
    transactions  one record each, over partitions of all brokers, ten producers of librdkafka
    killed        kill -9 of a broker until its partition acknowledges, of the controller until a
                  topic is made; whoever was killed is started again at once
    two-brokers   strandline alone: two connections to two brokers, and to one
    replicated-*  acks=all and three replicas, batches of 16 KB and of 1 MB
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.clients.rdkafka import ProduceLoad, producers
from bench.clusters.peers import BROKERS, Cluster, Kafka, Strandline
from bench.comparison.transactions import LibrdkafkaTransactions, TransactionLoad
from bench.measure import Measured, await_quiet, cpu_seconds, resident_mib, warm_page_cache

Figures = Mapping[str, float]
WAIT_S = 180.0
MANY_PARTITIONS, MANY_TOPICS = 2000, 1000
PRODUCERS = 10
ROUNDS = 3
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
def running(name: str, folder: Path, *, replicas: int = 1) -> Iterator[Cluster]:
    shutil.rmtree(folder / name, ignore_errors=True)
    cluster = PEERS[name](folder / name, replicas=replicas)
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


def acknowledge(cluster: Cluster, topic: str, partitions: Sequence[int]) -> None:
    """Returns when each of the partitions has acknowledged a record."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 1, **EAGER})

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


# --- the rows --------------------------------------------------------------------------------


def start(name: str, folder: Path, seconds: float) -> Figures:
    partitions = range(MANY_PARTITIONS)
    with running(name, folder) as cluster:
        create(cluster, NewTopic("t", MANY_PARTITIONS, 1))
        acknowledge(cluster, "t", partitions)
        cluster.stop()
        began_s = time.perf_counter()
        cluster.start()
        acknowledge(cluster, "t", partitions)
        start_s = time.perf_counter() - began_s
        for pid in cluster.pids:
            await_quiet(pid)
        return {"start, s": start_s, "at rest, MiB": sum(map(resident_mib, cluster.pids))}


def topics(name: str, folder: Path, seconds: float) -> Figures:
    with running(name, folder) as cluster:
        create(cluster, NewTopic("warm", 3, 1))
        with measuring(cluster) as measured:
            create(cluster, *(NewTopic(f"t{number}", 1, 1) for number in range(MANY_TOPICS)))
        return {"1,000 topics, s": measured.wall_s, "CPU, s": measured.cpu_s}


def transactions(name: str, folder: Path, seconds: float) -> Figures:
    with running(name, folder) as cluster, ExitStack() as stack:
        create(cluster, NewTopic("t", 2 * BROKERS, 1))
        clients = [
            stack.enter_context(closing(LibrdkafkaTransactions(cluster.bootstrap, load)))
            for load in (
                TransactionLoad(
                    topic="t",
                    records=1,
                    record_bytes=RECORD_BYTES,
                    batch_bytes=16_384,
                    partitions=2 * BROKERS,
                    number=number,
                )
                for number in range(PRODUCERS)
            )
        ]
        pool = stack.enter_context(ThreadPoolExecutor(PRODUCERS))

        def run(for_s: float) -> np.ndarray:
            return np.concatenate(list(pool.map(lambda client: client.run(for_s), clients)))

        # Long enough for a JVM to compile what it runs.
        run(2 * seconds)
        with measuring(cluster) as measured:
            commits_ms = run(seconds)
        return {
            "transactions/s": len(commits_ms) / measured.wall_s,
            "CPU ms each": measured.cpu_s * 1000 / len(commits_ms),
            "p99 of commit, ms": float(np.percentile(commits_ms, 99)),
        }


def killed(name: str, folder: Path, seconds: float) -> Figures:
    with running(name, folder) as cluster:
        client = admin(cluster)
        create(cluster, NewTopic("t", 2 * BROKERS, 1))
        places = client.list_topics("t", timeout=WAIT_S).topics["t"].partitions
        led = [number for number, place in places.items() if place.leader == 1]
        acknowledge(cluster, "t", list(places))
        began_s = time.perf_counter()
        cluster.kill_broker(1)
        acknowledge(cluster, "t", led)
        broker_s = time.perf_counter() - began_s
        for pid in cluster.pids:
            await_quiet(pid)
        began_s = time.perf_counter()
        cluster.kill_controller()
        _create_at_last(cluster, "made")
        controller_s = time.perf_counter() - began_s
        return {"broker killed, s": broker_s, "controller killed, s": controller_s}


def _create_at_last(cluster: Cluster, topic: str) -> None:
    """Asks until the topic is there; a request that meets no controller may time out."""
    client = admin(cluster)
    deadline_s = time.monotonic() + WAIT_S
    while True:
        made = client.create_topics([NewTopic(topic, 3, 1)], request_timeout=5.0)
        try:
            made[topic].result(WAIT_S)
        except KafkaException as error:
            # Made by a request whose answer did not come.
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if time.monotonic() > deadline_s:
                raise
        else:
            return


def two_brokers(name: str, folder: Path, seconds: float) -> Figures:
    """Two connections, each with a topic: of one broker, and of a broker each."""
    with running(name, folder) as cluster:
        client = admin(cluster)
        create(cluster, *(NewTopic(f"t{number}", 1, 1) for number in range(2 * BROKERS)))
        leaders: dict[int, list[str]] = {}
        for topic, found in client.list_topics(timeout=WAIT_S).topics.items():
            if topic.startswith("t"):
                leaders.setdefault(found.partitions[0].leader, []).append(topic)
        one, other = sorted(leaders.values(), key=len)[-2:]
        figures = {}
        for title, pair in (("one broker", other[:2]), ("two brokers", [one[0], other[0]])):
            moved = [_produce(cluster, folder, pair, 16_384, acks=1) for _ in range(ROUNDS + 1)]
            figures[f"{title}, MB/s"] = _median(one.mb_per_s(_bytes(pair)) for one in moved[1:])
            figures[f"{title}, CPU s/GB"] = _median(
                one.cpu_s_per_gb(_bytes(pair)) for one in moved[1:]
            )
        return figures


def replicated(
    name: str, folder: Path, seconds: float, *, batch_bytes: int, partitions: int
) -> Figures:
    with running(name, folder, replicas=3) as cluster:
        config = {"min.insync.replicas": "2"}
        create(cluster, NewTopic("t", partitions, 3, config=config))
        acknowledge(cluster, "t", range(partitions))
        moved = [
            _produce(cluster, folder, ["t"], batch_bytes, acks=-1, partitions=partitions)
            for _ in range(ROUNDS + 1)
        ]
        return {
            "MB/s": _median(one.mb_per_s(_bytes(["t"])) for one in moved[1:]),
            "CPU s/GB": _median(one.cpu_s_per_gb(_bytes(["t"])) for one in moved[1:]),
        }


def _bytes(topics: Sequence[str]) -> int:
    return len(topics) * MEGABYTES * 1_000_000


def _produce(
    cluster: Cluster,
    folder: Path,
    topics: Sequence[str],
    batch_bytes: int,
    *,
    acks: int,
    partitions: int = 1,
) -> Measured:
    """A connection to each topic; the first call warms what it runs."""
    warm_page_cache(folder, BROKERS * _bytes(topics))
    with ExitStack() as stack:
        ready = [
            stack.enter_context(
                producers(
                    cluster.bootstrap,
                    ProduceLoad(
                        topic=topic,
                        count=_bytes([topic]) // RECORD_BYTES,
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


def _median(figures: Iterator[float]) -> float:
    return float(np.median(list(figures)))


# ---------------------------------------------------------------------------------------------

ROWS: Mapping[str, Callable[[str, Path, float], Figures]] = {
    "start": start,
    "topics": topics,
    "transactions": transactions,
    "killed": killed,
    "two-brokers": two_brokers,
    "replicated-16kb": partial(replicated, batch_bytes=16_384, partitions=1),
    "replicated-1mb": partial(replicated, batch_bytes=1_000_000, partitions=1),
    "replicated-100": partial(replicated, batch_bytes=16_384, partitions=100),
}
OURS_ALONE = ("two-brokers",)


def table(found: Mapping[str, Mapping[str, Figures]]) -> Table:
    """Rows of figures, by row and peer."""
    made = Table("row", "figure", *PEERS, "ratio")
    for row, peers in found.items():
        for figure in dict.fromkeys(itertools.chain(*peers.values())):
            both = [peers.get(name, {}).get(figure) for name in PEERS]
            cells = ["" if value is None else f"{value:,.2f}" for value in both]
            ours, theirs = both
            ratio = "" if ours is None or not theirs else f"{ours / theirs:.2f}"
            made.add_row(row, figure, *cells, ratio)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS))
    parser.add_argument("--peer", choices=PEERS, help="measure only this one")
    parser.add_argument("--seconds", type=float, default=10.0, help="of timed rows (10)")
    arguments = parser.parse_args()
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    found: dict[str, dict[str, Figures]] = {}
    try:
        for row in arguments.only:
            for peer in PEERS:
                if arguments.peer not in (None, peer) or (row in OURS_ALONE and peer == "Kafka"):
                    continue
                try:
                    figures = ROWS[row](peer, folder, arguments.seconds)
                except Exception:
                    # One row that fails must not cost the others.
                    console.print(f"[red]{row}, {peer} failed")
                    console.print_exception()
                    continue
                found.setdefault(row, {})[peer] = figures
                told = ", ".join(f"{title} {value:,.2f}" for title, value in figures.items())
                console.print(f"{row}, {peer}: {told}", highlight=False)
        console.print(table(found))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
