"""Consume, transform and produce, while broker and workers are killed at random.

    source --> two workers, each with a transactional id --> target

The workers are `copier.py`, of transaction version 1, or Kafka's TransactionalMessageCopier, of
version 2, with `--java` and the folder of Kafka's libraries. Frameworks of the JVM take their
place in tests/compat/jvm.

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
NAMES = (GROUP, SOURCE, TARGET)
# A small JVM that starts quickly.
JAVA = ("java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Records that are sent between two kills.
INPUTS_PER_ROUND = 200
DRAIN_S = 180.0


class Trial:
    """What brings each input from SOURCE to TARGET, once: here `copier.py`, in two processes."""

    # The longest time between two kills.
    pause_s_max = 4.0

    def commands(self, broker: BrokerProcess) -> list[list[str]]:
        """One for each worker; a worker that ends is started again with the same one."""
        module = "tests.system.transactions.copier"
        return [
            [sys.executable, "-m", module, broker.bootstrap, f"copier-{number}", *NAMES]
            for number in range(WORKERS)
        ]

    def send(self, broker: BrokerProcess, inputs: range) -> None:
        """Sends these inputs, each once."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}
        )
        for number in inputs:
            producer.produce(SOURCE, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(60) == 0

    def inputs(self, values: list[bytes]) -> list[bytes]:
        """The inputs that these values of the target stand for."""
        return values


class JavaCopier(Trial):
    """Kafka's TransactionalMessageCopier: each copies one partition to where it ends now."""

    pause_s_max = 12.0

    def __init__(self, libraries: Path) -> None:
        self._libraries = libraries.absolute()

    def commands(self, broker: BrokerProcess) -> list[list[str]]:
        return [self._command(broker, number) for number in range(WORKERS)]

    def _command(self, broker: BrokerProcess, number: int) -> list[str]:
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
        tool = "org.apache.kafka.tools.TransactionalMessageCopier"
        return [*JAVA, "-cp", f"{self._libraries}/*", tool, *options, "--use-group-metadata"]


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
    folder: Path, trial: Trial, *, seed: int, rounds: int, until_s: float = 0.0
) -> Counter[bytes]:
    """Kills at least `rounds` times, and goes on until `until_s`; how often each input came."""
    chance = random.Random(seed)
    with BrokerProcess(folder) as broker:
        with WireClient(broker.port) as client:
            create_topic(client, SOURCE, PARTITIONS)
            create_topic(client, TARGET, PARTITIONS)
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
        found = Counter(trial.inputs(seen(broker)))
    assert set(found) == expected, sorted(expected - set(found))[:10]
    return found


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
    with WireClient(broker.port) as client:
        return [
            value
            for partition in range(PARTITIONS)
            for value in committed_values(client, TARGET, partition=partition)
        ]


def drained(
    trial: Trial, broker: BrokerProcess, workers: list[Worker], expected: set[bytes]
) -> bool:
    keep_running(workers)
    return expected <= set(trial.inputs(seen(broker)))


def judged(found: Counter[bytes]) -> int:
    """Prints how many inputs came more than once; the exit code."""
    twice = [value for value, count in found.items() if count != 1]
    print(f"{len(found)} inputs, {len(twice)} of them more than once", flush=True)
    return 1 if twice else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--java", type=Path, help="the folder of Kafka's libraries")
    options = parser.parse_args()
    trial = Trial() if options.java is None else JavaCopier(options.java)
    print(f"seed {options.seed}", flush=True)
    until_s = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        return judged(run(Path(folder), trial, seed=options.seed, rounds=1, until_s=until_s))


if __name__ == "__main__":
    sys.exit(main())
