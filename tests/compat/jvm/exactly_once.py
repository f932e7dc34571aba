"""Frameworks of the JVM that promise exactly once, while they and the broker are killed.

    source --> Kafka Streams | Java clients 2.8, 3.9 and 4.x | Spring | Flink --> target
      files --> Connect --------------------------------------------------------> target

A framework has a pom.xml here, whose libraries lie in a folder of its name, and a Java
file, which is compiled first. The rest is as in tests/system/transactions/exactly_once.py.

    python -m tests.compat.jvm.exactly_once bench-data/jvm streams clients-2.8 --minutes 1 --seed 7
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.support.broker import BrokerProcess, eventually
from tests.support.jvm import JAVA, compile_java, java
from tests.support.ports import ReservedPort
from tests.support.wire import WireClient
from tests.system.calls import create_topic
from tests.system.transactions.admin_calls import describe
from tests.system.transactions.exactly_once import (
    GROUP,
    SOURCE,
    TARGET,
    WORKERS,
    Served,
    Trial,
    run_alone,
)
from tests.system.transactions.over_brokers import run_alone as run_over_brokers

HERE = Path(__file__).resolve().parent
CLIENT_SECONDS_MAX = 120
CONNECT_SECONDS_MAX = 120
CONNECTORS = 2
REPLICAS = 3
CONNECT_WORKER = {
    "group.id": "connect",
    "exactly.once.source.support": "enabled",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    # As many as there are brokers, or those of the brokers.
    "config.storage.replication.factor": "-1",
    "offset.storage.replication.factor": "-1",
    "status.storage.replication.factor": "-1",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    # A worker that was killed is missed soon, and its tasks go to the other one at once.
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "2000",
    "scheduled.rebalance.max.delay.ms": "0",
}


class Program(Trial):
    """One of the Java files here, in several processes."""

    pause_s_max = 15.0

    def __init__(self, libraries: Path, folder: Path, name: str) -> None:
        self._libraries = libraries
        self._folder = folder
        self._name = name
        compile_java(libraries, folder / "classes", HERE / f"{name}.java")

    def commands(self, broker: Served) -> list[list[str]]:
        return [
            java(
                [self._folder / "classes", self._libraries / "*"],
                self._name,
                *self.arguments(broker, number),
            )
            for number in range(WORKERS)
        ]

    def arguments(self, broker: Served, number: int) -> list[str]:
        """Of one worker."""
        raise NotImplementedError


class Streams(Program):
    """Kafka Streams with exactly_once_v2: a repartition topic and a store with a changelog."""

    def __init__(self, libraries: Path, folder: Path) -> None:
        super().__init__(libraries, folder, "CountingApplication")

    def arguments(self, broker: Served, number: int) -> list[str]:
        return [broker.bootstrap, str(self._folder / f"state-{number}"), SOURCE, TARGET]

    def inputs(self, values: list[bytes]) -> list[bytes]:
        """Each count follows the one before it, too."""
        counts: dict[int, int] = {}
        for value in values:
            count, number = map(int, value.split())
            expected = counts.get(number % 10, 0) + 1
            assert count == expected, f"{value!r} came where count {expected} was due"
            counts[number % 10] = count
        return [value.split()[1] for value in values]


class Spring(Program):
    """Listener containers of Spring for Apache Kafka with its transaction manager."""

    def __init__(self, libraries: Path, folder: Path) -> None:
        super().__init__(libraries, folder, "SpringCopier")

    def arguments(self, broker: Served, number: int) -> list[str]:
        return [broker.bootstrap, f"copier-{number}-", GROUP, SOURCE, TARGET]


class Flink(Program):
    """A job of Apache Flink with two tasks; its sink commits at checkpoints."""

    pause_s_max = 25.0

    def __init__(self, libraries: Path, folder: Path) -> None:
        super().__init__(libraries, folder, "FlinkCopier")

    def commands(self, broker: Served) -> list[list[str]]:
        return super().commands(broker)[:1]

    def arguments(self, broker: Served, number: int) -> list[str]:
        return [broker.bootstrap, str(self._folder / "checkpoints"), SOURCE, TARGET]


class JavaCopier(Trial):
    """Kafka's TransactionalMessageCopier: each copies one partition to where it ends now."""

    pause_s_max = 12.0

    def __init__(self, libraries: Path) -> None:
        self._libraries = libraries.absolute()

    def commands(self, broker: Served) -> list[list[str]]:
        return [self._command(broker, number) for number in range(WORKERS)]

    def _command(self, broker: Served, number: int) -> list[str]:
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


class Client(JavaCopier):
    """A Java client: Kafka's copier with it, once TransactionalClient has done as it must."""

    def __init__(self, libraries: Path, folder: Path) -> None:
        super().__init__(libraries)
        self._class_path = [folder / "classes", libraries / "*"]
        compile_java(libraries, folder / "classes", HERE / "TransactionalClient.java")

    def send(self, broker: Served, inputs: range) -> None:
        if inputs.start == 0 and isinstance(broker, BrokerProcess):
            self._check(broker)
        super().send(broker, inputs)

    def _check(self, broker: BrokerProcess) -> None:
        with WireClient(broker.port) as client:
            create_topic(client, "client", 1)
        process = subprocess.Popen(
            java(self._class_path, "TransactionalClient", broker.bootstrap, "client"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        watch = threading.Timer(CLIENT_SECONDS_MAX, process.kill)
        watch.start()
        said = pausing_at_its_wish(broker, process)
        watch.cancel()
        assert process.wait() == 0, said
        with WireClient(broker.port) as client:
            # The first epoch is 0. A transaction with a batch that expired raised it.
            assert describe(client, "expiring").producer_epoch > 0, said


def pausing_at_its_wish(broker: BrokerProcess, process: subprocess.Popen[bytes]) -> str:
    """All that the process prints; the broker pauses and resumes when it prints that."""
    assert process.stdin is not None
    assert process.stdout is not None
    signals = {b"pause": signal.SIGSTOP, b"resume": signal.SIGCONT}
    said = b""
    try:
        for line in process.stdout:
            said += line
            if line.strip() in signals:
                os.kill(broker.pid, signals[line.strip()])
                process.stdin.write(b"\n")
                process.stdin.flush()
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    return said.decode()


class Connect(Trial):
    """Two workers of Kafka Connect, each input a line of a file that a connector of its own reads.

    The worker that leads fences the tasks of another that was killed, over REST between the two.
    """

    pause_s_max = 25.0

    def __init__(self, libraries: Path, folder: Path) -> None:
        self._libraries = libraries
        self._folder = folder
        compile_java(libraries, folder / "classes", HERE / "LinesConnector.java")
        self._ports = [ReservedPort() for _ in range(WORKERS)]

    def commands(self, broker: Served) -> list[list[str]]:
        return [self._command(broker, number) for number in range(WORKERS)]

    def _command(self, broker: Served, number: int) -> list[str]:
        path = self._folder / f"worker-{number}.properties"
        properties = {
            **CONNECT_WORKER,
            "bootstrap.servers": broker.bootstrap,
            "listeners": f"http://127.0.0.1:{self._ports[number].number}",
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        main_class = "org.apache.kafka.connect.cli.ConnectDistributed"
        return java([self._folder / "classes", self._libraries / "*"], main_class, str(path))

    def send(self, broker: Served, inputs: range) -> None:
        for number in range(CONNECTORS):
            mine = [value for value in inputs if value % CONNECTORS == number]
            with open(self._file(number), "a") as file:
                file.writelines(f"{value}\n" for value in mine)
            if inputs.start == 0:
                eventually(partial(self._create, number), timeout_s=CONNECT_SECONDS_MAX)

    def _file(self, number: int) -> Path:
        return self._folder / f"lines-{number}"

    def _create(self, number: int) -> bool:
        """Whether a worker has taken the connector; it may still be starting."""
        connector = {
            "connector.class": "LinesConnector",
            "exactly.once.support": "required",
            "file": str(self._file(number)),
            "topic": TARGET,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._ports[0].number}/connectors/lines-{number}/config",
            json.dumps(connector).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=CONNECT_SECONDS_MAX):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False


FRAMEWORKS: Mapping[str, Callable[[Path, Path], Trial]] = {
    "streams": Streams,
    "clients-2.8": Client,
    "clients-3.9": Client,
    "clients-4.x": Client,
    "connect": Connect,
    "spring-kafka": Spring,
    "flink": Flink,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", type=Path, help="holds a folder for each framework")
    parser.add_argument("frameworks", nargs="*", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    parser.add_argument("--minutes", type=float, default=1.0, help="of each framework")
    parser.add_argument(
        "--brokers", type=int, default=1, help="three replicas, without an archive, if several"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    failed = False
    for name in options.frameworks:
        print(f"{name}: ", end="", flush=True)
        with tempfile.TemporaryDirectory(prefix="strandline-jvm-") as folder:
            trial = FRAMEWORKS[name](options.libraries.absolute() / name, Path(folder))
            if options.brokers > 1:
                failed |= bool(
                    run_over_brokers(
                        trial,
                        brokers=options.brokers,
                        seed=options.seed,
                        minutes=options.minutes,
                        replicas=REPLICAS,
                    )
                )
            else:
                failed |= bool(run_alone(trial, seed=options.seed, minutes=options.minutes))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
