"""Consume, transform and produce, while broker and workers are killed at random.

    source --> two workers, each with a transactional id --> target

The workers are `copier.py`, of transaction version 1, or Kafka's TransactionalMessageCopier, of
version 2, with `--java` and the folder of Kafka's libraries.

Each input must be in the target exactly once for a reader of committed records. The same seed
makes the same kills in the same order.

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
from pathlib import Path

import confluent_kafka

from tests.support.broker import REPOSITORY, BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import create_topic
from tests.system.transactions.committed import committed_values

SOURCE, TARGET, GROUP = "source", "target", "copiers"
PARTITIONS = 2
WORKERS = 2
# Records that are sent between two kills.
INPUTS_PER_ROUND = 200
DRAIN_S = 180.0


class Worker:
    """One copier; started again whenever it has ended."""

    def __init__(self, broker: BrokerProcess, number: int, java: Path | None) -> None:
        self._command = (
            _copier(broker, number) if java is None else _java_copier(java, broker, number)
        )
        self._process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / '.namespace'}"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _copier(broker: BrokerProcess, number: int) -> list[str]:
    """Copies what its group assigns to it, until it fails."""
    name, module = f"copier-{number}", "tests.system.transactions.copier"
    return [sys.executable, "-m", module, broker.bootstrap, name, GROUP, SOURCE, TARGET]


def _java_copier(libraries: Path, broker: BrokerProcess, number: int) -> list[str]:
    """Copies one partition to where it ends now."""
    arguments = {
        "transactional-id": f"copier-{number}",
        "consumer-group": f"{GROUP}-{number}",
        "input-topic": SOURCE,
        "input-partition": str(number),
        "output-topic": TARGET,
        "transaction-size": "20",
        "broker-list": broker.bootstrap,
    }
    options = [word for name, value in arguments.items() for word in (f"--{name}", value)]
    java = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    tool = "org.apache.kafka.tools.TransactionalMessageCopier"
    return [*java, "-cp", f"{libraries}/*", tool, *options, "--use-group-metadata"]


def run(
    folder: Path, *, seed: int, rounds: int, until_s: float = 0.0, java: Path | None = None
) -> Counter[bytes]:
    """Kills at least `rounds` times, and goes on until `until_s`; how often each input came."""
    chance = random.Random(seed)
    with BrokerProcess(folder) as broker:
        with WireClient(broker.port) as client:
            create_topic(client, SOURCE, PARTITIONS)
            create_topic(client, TARGET, PARTITIONS)
        workers = [Worker(broker, number, java) for number in range(WORKERS)]
        sent = 0
        try:
            while rounds > 0 or time.monotonic() < until_s:
                rounds -= 1
                sent = send(broker, sent)
                run_for(workers, chance.uniform(0.5, 4.0 if java is None else 12.0))
                kill_something(chance, broker, workers)
            expected = {b"%d" % number for number in range(sent)}
            eventually(lambda: drained(broker, workers, expected), timeout_s=DRAIN_S)
        finally:
            for worker in workers:
                worker.kill()
        found = Counter(seen(broker))
    assert set(found) == expected, sorted(expected - set(found))[:10]
    return found


def run_for(workers: list[Worker], seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for worker in workers:
            worker.keep_running()
        time.sleep(0.1)


def kill_something(chance: random.Random, broker: BrokerProcess, workers: list[Worker]) -> None:
    victim = chance.choice(["broker", "worker", "both"])
    if victim != "broker":
        chance.choice(workers).kill()
    if victim != "worker":
        broker.kill()
        broker.start()


def send(broker: BrokerProcess, first: int) -> int:
    """Sends the next inputs, each once; how many there are now."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}
    )
    for number in range(first, first + INPUTS_PER_ROUND):
        producer.produce(SOURCE, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return first + INPUTS_PER_ROUND


def seen(broker: BrokerProcess) -> list[bytes]:
    with WireClient(broker.port) as client:
        return [
            value
            for partition in range(PARTITIONS)
            for value in committed_values(client, TARGET, partition=partition)
        ]


def drained(broker: BrokerProcess, workers: list[Worker], expected: set[bytes]) -> bool:
    for worker in workers:
        worker.keep_running()
    return expected <= set(seen(broker))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--java", type=Path, help="the folder of Kafka's libraries")
    options = parser.parse_args()
    java = None if options.java is None else options.java.absolute()
    print(f"seed {options.seed}", flush=True)
    until_s = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), seed=options.seed, rounds=1, until_s=until_s, java=java)
    twice = [value for value, count in found.items() if count != 1]
    print(f"{len(found)} inputs, {len(twice)} of them more than once")
    return 1 if twice else 0


if __name__ == "__main__":
    sys.exit(main())
