"""Consume, transform and produce, while broker and workers are killed at random.

    source --> two workers, each with a transactional id --> target
       both in two tiers, whose records leave the disk after seconds

The workers are `copier.py`, of transaction version 1, and then `wire_copier.py`, of version 2, for
half of the time each. Frameworks of the JVM take their place in tests/compat/jvm.

Each input must be in the target exactly once, for each of the readers in `readers.py`. The same
seed makes the same kills in the same order.

    python -m tests.system.transactions.exactly_once --minutes 5 --seed 7
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import confluent_kafka

from tests.conftest import TEST_ENVIRONMENT, S3Bucket, make_bucket
from tests.support.broker import REPOSITORY, BrokerProcess, eventually
from tests.support.ministack import ministack
from tests.support.spark_session import make_session
from tests.support.wire import WireClient
from tests.system.calls import create_topic
from tests.system.tiers.tiered_broker import TIERED, TieredBroker
from tests.system.transactions.readers import (
    ENGINES,
    consumer_values,
    restored_values,
    scan_values,
    spark_values,
)

SOURCE, TARGET, GROUP = "source", "target", "copiers"
PARTITIONS = 2
WORKERS = 2
NAMES = (GROUP, SOURCE, TARGET)
# Records that are sent between two kills.
INPUTS_PER_ROUND = 200
DRAIN_S = 180.0
SETTINGS = {
    "strandline.remote.groups.upload.ms": "300",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
}
# Records leave the disk when they are archived, and so that workers meet them in either tier, no
# sooner than a second after they came.
COLD = {**TIERED, "local.retention.bytes": "1", "local.retention.ms": "1000"}

# How often each input came, to each of `readers.py`.
Found = Mapping[str, Counter[bytes]]


class Served(Protocol):
    """A broker or several, that clients can connect to."""

    @property
    def bootstrap(self) -> str: ...


class Trial:
    """What brings each input from SOURCE to TARGET, once: here `copier.py`, in two processes."""

    # The longest time between two kills.
    pause_s_max = 4.0
    # Of source and target.
    partitions = PARTITIONS

    def commands(self, broker: Served) -> list[list[str]]:
        """One for each worker; a worker that ends is started again with the same one."""
        module = "tests.system.transactions.copier"
        return [
            [sys.executable, "-m", module, broker.bootstrap, f"copier-{number}", *NAMES]
            for number in range(WORKERS)
        ]

    def send(self, broker: Served, inputs: range) -> None:
        """Sends these inputs, each once."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}
        )
        for number in inputs:
            producer.produce(SOURCE, b"%d" % number, partition=number % self.partitions)
        assert producer.flush(60) == 0

    def inputs(self, values: list[bytes]) -> list[bytes]:
        """The inputs that these values of the target stand for."""
        return values


class SpreadTrial(Trial):
    """The same with more partitions, for several brokers."""

    partitions = 6


class WireTrial(Trial):
    """The same in transaction version 2, by `wire_copier.py`: each copies one partition."""

    def commands(self, broker: Served) -> list[list[str]]:
        module = "tests.system.transactions.wire_copier"
        python = [sys.executable, "-m", module, broker.bootstrap]
        return [[*python, f"copier-{number}", *NAMES, str(number)] for number in range(PARTITIONS)]


class Worker:
    """One process; started again whenever it has ended."""

    def __init__(self, command: list[str], log_path: Path) -> None:
        self._command = command
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / '.namespace'}"},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def run(
    folder: Path,
    bucket: S3Bucket,
    trial: Trial,
    *,
    seed: int,
    rounds: int,
    until_s: float = 0.0,
    with_spark: bool = False,
) -> Found:
    """Kills at least `rounds` times, and goes on until `until_s`; nobody misses an input."""
    chance = random.Random(seed)
    with TieredBroker(folder / "broker", bucket, settings=SETTINGS) as broker:
        with WireClient(broker.port) as client:
            create_topic(client, SOURCE, PARTITIONS, COLD)
            create_topic(client, TARGET, PARTITIONS, COLD)
        workers = [
            Worker(command, folder / f"worker-{number}.log")
            for number, command in enumerate(trial.commands(broker))
        ]
        sent = 0
        try:
            while rounds > 0 or time.monotonic() < until_s:
                rounds -= 1
                keep_running(workers)
                trial.send(broker, range(sent, sent + INPUTS_PER_ROUND))
                sent += INPUTS_PER_ROUND
                run_for(workers, chance.uniform(0.5, trial.pause_s_max))
                kill_something(chance, broker, workers)
            expected = {b"%d" % number for number in range(sent)}
            eventually(lambda: drained(trial, broker, workers, expected), timeout_s=DRAIN_S)
        finally:
            for worker in workers:
                worker.kill()
        read = everybody_reads(folder, broker, with_spark=with_spark)
    found = {name: Counter(trial.inputs(values)) for name, values in read.items()}
    for name, counted in found.items():
        assert set(counted) == expected, (name, sorted(expected - set(counted))[:10])
    return found


def everybody_reads(
    folder: Path, broker: TieredBroker, *, with_spark: bool
) -> dict[str, list[bytes]]:
    """The values of the target, which is cold in the end; the broker is killed meanwhile."""
    read = {"consumer": seen(broker)}
    for partition in range(PARTITIONS):
        with broker.client(TARGET, partition) as log:
            broker.wait_until_all_cold(log)
    read["cold consumer"] = seen(broker)
    broker.kill()
    read["restored"] = restored_values(folder / "restored", broker, TARGET, PARTITIONS)
    read["scan"] = scan_values(broker.bucket, TARGET)
    if with_spark:
        session = make_session(folder / "warehouse")
        for engine in ENGINES:
            read[engine] = spark_values(session, broker.bucket, TARGET, engine)
        session.stop()
    return read


def keep_running(workers: list[Worker]) -> None:
    for worker in workers:
        worker.keep_running()


def run_for(workers: list[Worker], seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        keep_running(workers)
        time.sleep(0.1)


def kill_something(chance: random.Random, broker: BrokerProcess, workers: list[Worker]) -> None:
    victim = chance.choice(["broker", "worker", "both"])
    if victim != "broker":
        chance.choice(workers).kill()
    if victim != "worker":
        broker.kill()
        broker.start()


def seen(broker: BrokerProcess) -> list[bytes]:
    return consumer_values(broker, TARGET, PARTITIONS)


def drained(
    trial: Trial, broker: BrokerProcess, workers: list[Worker], expected: set[bytes]
) -> bool:
    keep_running(workers)
    return expected <= set(trial.inputs(seen(broker)))


def judged(found: Found) -> int:
    """Prints for each reader how many inputs came more than once; the exit code."""
    code = 0
    for name, counted in found.items():
        twice = [value for value, count in counted.items() if count != 1]
        print(f"{name}: {len(counted)} inputs, {len(twice)} of them more than once", flush=True)
        code |= bool(twice)
    return code


def run_alone(trial: Trial, *, seed: int, minutes: float) -> int:
    """A run with an S3 server of its own and with Spark; the exit code."""
    os.environ.update(TEST_ENVIRONMENT)
    until_s = time.monotonic() + minutes * 60
    with (
        tempfile.TemporaryDirectory(prefix="strandline-") as name,
        ministack(Path(name) / "s3.log") as server,
    ):
        bucket = make_bucket(server.endpoint_url)
        found = run(
            Path(name), bucket, trial, seed=seed, rounds=1, until_s=until_s, with_spark=True
        )
        return judged(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--brokers", type=int, default=1, help="without an archive, if several")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    code = 0
    if options.brokers > 1:
        from tests.system.transactions.over_brokers import run_alone as run_over_brokers

        # Partitions with one replica wait for its broker; of those with three another one leads.
        for replicas in (1, min(options.brokers, 3)):
            code |= run_over_brokers(
                SpreadTrial(),
                brokers=options.brokers,
                seed=options.seed,
                minutes=options.minutes / 2,
                replicas=replicas,
            )
        return code
    for trial in (Trial(), WireTrial()):
        print(f"{type(trial).__name__}:", flush=True)
        code |= run_alone(trial, seed=options.seed, minutes=options.minutes / 2)
    return code


if __name__ == "__main__":
    sys.exit(main())
