"""Records are copied in transactions over three brokers, each once and in order, while brokers or
copiers are bounced: kafkatest's transactions_test and group_mode_transactions_test.

    seeds ─► source ─► copiers, members of one group ─► target ─► a reader that reads meanwhile
                                                               └► a reader that reads afterwards
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.support.broker import REPOSITORY, eventually
from tests.system.cluster.bounced import BouncedCluster, bounced_cluster

pytestmark = [pytest.mark.slow, pytest.mark.crash]

COPIER = "tests.system.transactions.copier"
COPIERS = 2
SEEDS = 300
# Of the seeds, between two bounces of copiers.
STEP = SEEDS // 10
PATIENCE_S = 180

# What was read, by partition and in its order.
Read = Mapping[int, list[bytes]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BouncedCluster]:
    with bounced_cluster(tmp_path_factory.mktemp("bounced")) as running:
        yield running


class Copiers:
    """Processes of `copier`, each of which is started again when it has ended."""

    def __init__(self, cluster: BouncedCluster, topics: tuple[str, str], log_path: Path) -> None:
        source, target = topics
        words = (f"group-of-{target}", source, target)
        self._commands = [
            [sys.executable, "-m", COPIER, cluster.bootstrap, f"{target}-{number}", *words]
            for number in range(COPIERS)
        ]
        self._log_path = log_path
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * COPIERS
        self._lock, self._over = threading.Lock(), threading.Event()
        self._keeper = threading.Thread(target=self._keep_running)

    def __enter__(self) -> Copiers:
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._keeper.join()
        for number in range(COPIERS):
            self.end(number, signal.SIGKILL)

    def end(self, number: int, by: signal.Signals) -> None:
        with self._lock:
            process = self._processes[number]
            if process is not None:
                process.send_signal(by)
                process.wait(PATIENCE_S)

    def _keep_running(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / '.namespace'}"}
        while not self._over.wait(0.1):
            with self._lock, open(self._log_path, "ab") as log:
                for number, process in enumerate(self._processes):
                    if process is None or process.poll() is not None:
                        self._processes[number] = subprocess.Popen(
                            self._commands[number],
                            cwd=REPOSITORY,
                            env=environment,
                            stdout=log,
                            stderr=log,
                        )


class Reader:
    """Reads what is committed, by partition, in a thread."""

    def __init__(self, cluster: BouncedCluster, topic: str, group: str) -> None:
        self.read: dict[int, list[bytes]] = defaultdict(list)
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.subscribe([topic])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()

    @property
    def count(self) -> int:
        return sum(map(len, list(self.read.values())))

    def await_count(self, count: int) -> None:
        eventually(lambda: self.count >= count, timeout_s=PATIENCE_S)

    def _run(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(200, timeout=0.2):
                if message.error() is None:
                    self.read[message.partition() or 0].append(message.value() or b"")


@contextmanager
def copying(
    cluster: BouncedCluster, folder: Path, partitions: int
) -> Iterator[tuple[Copiers, Reader, str]]:
    name = f"{folder.name[-40:]}"
    source, target = f"{name}-in", f"{name}-out"
    cluster.create(source, target, partitions=partitions)
    for partition in range(partitions):
        cluster.fill(source, partition, seeds(partition, partitions))
    with (
        Copiers(cluster, (source, target), folder / "copiers.log") as copiers,
        Reader(cluster, target, f"concurrent-{name}") as reader,
    ):
        reader.await_count(1)
        yield copiers, reader, target


def seeds(partition: int, partitions: int) -> list[bytes]:
    return [b"%d" % number for number in range(SEEDS) if number % partitions == partition]


def bounce_brokers(is_clean: bool) -> Callable[[BouncedCluster, Copiers, Reader], None]:
    def bounce(cluster: BouncedCluster, _: Copiers, __: Reader) -> None:
        cluster.roll(is_clean=is_clean)

    return bounce


def lose_brokers(cluster: BouncedCluster, _: Copiers, __: Reader) -> None:
    for broker in cluster.brokers:
        cluster.lose_and_find(broker)


def bounce_copiers(by: signal.Signals) -> Callable[[BouncedCluster, Copiers, Reader], None]:
    def bounce(_: BouncedCluster, copiers: Copiers, reader: Reader) -> None:
        for number in range(COPIERS):
            reader.await_count(min(reader.count + STEP, SEEDS))
            copiers.end(number, by)

    return bounce


def kill_controller(cluster: BouncedCluster, _: Copiers, __: Reader) -> None:
    cluster.bounce(cluster.controller, is_clean=False)


@pytest.mark.parametrize(
    ("bounce", "partitions"),
    [
        pytest.param(bounce_brokers(False), 3, id="brokers-killed"),
        pytest.param(bounce_brokers(True), 3, id="brokers-stopped", marks=pytest.mark.heavy),
        pytest.param(bounce_brokers(False), 1, id="brokers-killed-one", marks=pytest.mark.heavy),
        pytest.param(lose_brokers, 3, id="brokers-fenced", marks=pytest.mark.heavy),
        pytest.param(
            bounce_copiers(signal.SIGKILL), 3, id="copiers-killed", marks=pytest.mark.heavy
        ),
        pytest.param(
            bounce_copiers(signal.SIGTERM), 3, id="copiers-stopped", marks=pytest.mark.heavy
        ),
        pytest.param(kill_controller, 3, id="controller-killed", marks=pytest.mark.heavy),
    ],
)
def test_each_record_is_copied_once_and_in_order(
    cluster: BouncedCluster,
    tmp_path: Path,
    bounce: Callable[[BouncedCluster, Copiers, Reader], None],
    partitions: int,
) -> None:
    expected = {number: seeds(number, partitions) for number in range(partitions)}
    with copying(cluster, tmp_path, partitions) as (copiers, reader, target):
        bounce(cluster, copiers, reader)
        reader.await_count(SEEDS)
        assert dict(reader.read) == expected
    with Reader(cluster, target, f"verifying-{target}") as afterwards:
        afterwards.await_count(SEEDS)
        assert dict(afterwards.read) == expected
