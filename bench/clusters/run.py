"""Three brokers of strandline beside three of Apache Kafka: `make bench-cluster`.

    python -m bench.clusters.run [--only ROW …] [--peer NAME] [--seconds S]

Each row starts a cluster of its own, one after the other, since two clusters do not fit beside each
other on a small machine. CPU and memory are the sums over all processes of a cluster. The table at
the end has both sides and their ratio.

    start         until 2,000 partitions have acknowledged a record, after a clean stop
    topics        until 1,000 topics are made, by one request
    transactions  one record each, over partitions of all brokers, ten producers of librdkafka;
                  transactions-3 with three replicas of all that they write
    killed        kill -9 of a broker until its partition acknowledges, of the controller until a
                  topic is made; whoever was killed is started again at once
    two-brokers   strandline alone: two connections to two brokers, and to one
    replicated-*  acks=all and three replicas, batches of 16 KB and of 1 MB
    latency       acks=all and three replicas, at a tenth and a half of Kafka's full load
    stopped       SIGSTOP of a broker until others lead its partitions and acknowledge
    rolling       each broker restarted in turn: the longest wait of a record
    metadata      strandline alone: an entry on a broker's loop, with 50,000 partitions
    catching-up-* a follower that stood still while 1 or 10 GB were produced; strandline alone: with
                  9/10 of it in the archive and not at its leader any more

Memory is proportional (PSS): what processes share counts once.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic
from rich.console import Console
from rich.table import Table

from bench.clusters.catching_up import catching_up, catching_up_archived
from bench.clusters.latency import latency
from bench.clusters.metadata_entries import metadata_entries
from bench.clusters.peers import BROKERS, Cluster
from bench.clusters.rig import (
    PEERS,
    RECORD_BYTES,
    WAIT_S,
    Figures,
    acknowledge,
    admin,
    bytes_of,
    create,
    measuring,
    median,
    produce,
    running,
)
from bench.clusters.rolling import rolling
from bench.clusters.standing_still import standing_still
from bench.comparison.transactions import LibrdkafkaTransactions, TransactionLoad
from bench.measure import await_quiet, proportional_mib

MANY_PARTITIONS, MANY_TOPICS = 2000, 1000
PRODUCERS = 10
ROUNDS = 3


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
        return {"start, s": start_s, "at rest, MiB": sum(map(proportional_mib, cluster.pids))}


def topics(name: str, folder: Path, seconds: float) -> Figures:
    with running(name, folder) as cluster:
        create(cluster, NewTopic("warm", 3, 1))
        with measuring(cluster) as measured:
            create(cluster, *(NewTopic(f"t{number}", 1, 1) for number in range(MANY_TOPICS)))
        return {"1,000 topics, s": measured.wall_s, "CPU, s": measured.cpu_s}


def transactions(name: str, folder: Path, seconds: float, *, replicas: int) -> Figures:
    with running(name, folder, replicas=replicas) as cluster, ExitStack() as stack:
        create(cluster, NewTopic("t", 2 * BROKERS, replicas))
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
            moved = [produce(cluster, folder, pair, 16_384, acks=1) for _ in range(ROUNDS + 1)]
            figures[f"{title}, MB/s"] = median(one.mb_per_s(bytes_of(pair)) for one in moved[1:])
            figures[f"{title}, CPU s/GB"] = median(
                one.cpu_s_per_gb(bytes_of(pair)) for one in moved[1:]
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
            produce(cluster, folder, ["t"], batch_bytes, acks=-1, partitions=partitions)
            for _ in range(ROUNDS + 1)
        ]
        return {
            "MB/s": median(one.mb_per_s(bytes_of(["t"])) for one in moved[1:]),
            "CPU s/GB": median(one.cpu_s_per_gb(bytes_of(["t"])) for one in moved[1:]),
        }


# ---------------------------------------------------------------------------------------------

ROWS: Mapping[str, Callable[[str, Path, float], Figures]] = {
    "start": start,
    "topics": topics,
    "transactions": partial(transactions, replicas=1),
    "transactions-3": partial(transactions, replicas=3),
    "killed": killed,
    "two-brokers": two_brokers,
    "replicated-16kb": partial(replicated, batch_bytes=16_384, partitions=1),
    "replicated-1mb": partial(replicated, batch_bytes=1_000_000, partitions=1),
    "replicated-100": partial(replicated, batch_bytes=16_384, partitions=100),
    "latency": latency,
    "stopped": standing_still,
    "rolling": rolling,
    "metadata": metadata_entries,
    "catching-up-1gb": partial(catching_up, gigabytes=1),
    "catching-up-10gb": partial(catching_up, gigabytes=10),
    "catching-up-1gb-archived": partial(catching_up_archived, gigabytes=1),
    "catching-up-10gb-archived": partial(catching_up_archived, gigabytes=10),
}
OURS_ALONE = (
    "two-brokers",
    "metadata",
    "catching-up-1gb-archived",
    "catching-up-10gb-archived",
)


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
