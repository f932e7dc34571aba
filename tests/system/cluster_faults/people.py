"""The clients of a run: processes of four libraries, and what they were told.

    ordered         librdkafka, idempotent          read by librdkafka in a group of KIP-848
    transactions    librdkafka, some are aborted    read committed by it in another
    plain           kafka-python, acks=all          read by kafka-python in a classic group
    source          aiokafka, idempotent            copied by transactions of librdkafka into
    copied                                          read committed by aiokafka in a classic group
    many            Java, idempotent, by the million    read by Java in a group of KIP-848: many.py

The clients of a library are one process, and copiers one each. A process that is killed is started
again, under another name of its records.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.support.broker import REPOSITORY
from tests.system.cluster_faults.clients.options import Options, words_for
from tests.system.cluster_faults.history import History, events_in
from tests.system.cluster_faults.many import MANY, Clients

ORDERED, PLAIN, SOURCE, COPIED, TRANSACTIONS = (
    *("ordered", "plain", "source", "copied", "transactions"),
)
COPIERS = "copiers"
# Of each library, the topics of its clients.
TOPICS = {
    "librdkafka": (ORDERED, TRANSACTIONS),
    "kafka_python": (PLAIN,),
    "aiokafka": (SOURCE, COPIED),
    "java": (MANY,),
}
LIBRARIES = tuple(TOPICS)
# `make cluster-faults` puts Java's clients here.
JARS = REPOSITORY / "bench-data" / "jvm" / "clients-4.x"
PYTHON_PATH = f"{REPOSITORY}{os.pathsep}{REPOSITORY / '.namespace'}"
CLIENTS = "tests.system.cluster_faults.clients"
END_S = 150.0
ASK_S = 5.0


@dataclass(frozen=True, slots=True)
class Person:
    """One client: which library, in which role."""

    library: str
    role: str
    options: Options

    def history(self) -> History:
        told = self.options
        return History(
            name=told.name,
            topic=told.topic,
            events=list(events_in(told.history_path)),
            is_idempotent=told.is_idempotent,
            is_read_committed=told.is_read_committed,
            group=told.group,
        )


class People:
    """All of them; they begin with `keep_running`."""

    def __init__(
        self,
        folder: Path,
        bootstraps: Sequence[str],
        *,
        partitions: int,
        records_per_s: int,
        value_bytes: int,
        copiers: int,
        libraries: Sequence[str],
        many_per_s: int,
    ) -> None:
        self._folder = folder
        self._bootstrap = ",".join(bootstraps)
        self._bootstraps = bootstraps
        self._copiers = [f"copier-{number}" for number in range(copiers)]
        folder.mkdir(parents=True, exist_ok=True)

        def person(library: str, role: str, topic: str, rate: int = 0, **more: object) -> Person:
            name = f"{role}-{topic}"
            options = Options(
                name=name,
                bootstrap=self._bootstrap,
                topic=topic,
                partitions=partitions,
                history=str(folder / f"{name}.history"),
                group=f"group-{topic}" if role == "consume" else "",
                records_per_s=rate,
                value_bytes=value_bytes,
                **more,  # type: ignore[arg-type]
            )
            return Person(library, role, options)

        # Copies and transactions are a request for some records.
        slow = min(records_per_s, 40)
        people = [
            person("librdkafka", "produce", ORDERED, records_per_s, is_idempotent=True),
            person("kafka_python", "produce", PLAIN, min(records_per_s, 2000)),
            person("aiokafka", "produce", SOURCE, slow, is_idempotent=True),
            person("librdkafka", "transact", TRANSACTIONS, slow),
            person("librdkafka", "consume", ORDERED),
            person("kafka_python", "consume", PLAIN),
            person("aiokafka", "consume", COPIED, is_read_committed=True),
            person("librdkafka", "consume", TRANSACTIONS, is_read_committed=True),
        ]
        self._libraries = libraries
        self.people = [one for one in people if one.library in libraries]
        self._commands = {
            library: [
                *(sys.executable, "-m", f"{CLIENTS}.{library}"),
                words_for((one.role, one.options) for one in self.people if one.library == library),
            ]
            for library in libraries
            if library != "java"
        }
        self.many = None
        if "java" in libraries:
            self.many = Clients(JARS, folder, self._bootstrap, partitions)
            self._commands["java"] = self.many.command(many_per_s)
        for name in self._copiers:
            module = "tests.system.transactions.copier"
            words = [self._bootstrap, name, COPIERS, SOURCE, COPIED]
            self._commands[name] = [sys.executable, "-m", module, *words]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._admins = [
            AdminClient({"bootstrap.servers": one, "reconnect.backoff.max.ms": 500})
            for one in bootstraps
        ]

    def have_begun(self) -> bool:
        """Whether each of them was told something."""
        return (self.many is None or self.many.have_begun()) and all(
            path.exists() and path.stat().st_size > 0
            for path in (one.options.history_path for one in self.people)
        )

    def keep_running(self) -> None:
        for name, command in self._commands.items():
            process = self._processes.get(name)
            if process is not None and process.poll() is None:
                continue
            with open(self._folder / f"{name}.log", "ab") as log:
                self._processes[name] = subprocess.Popen(
                    command,
                    cwd=REPOSITORY,
                    env={**os.environ, "PYTHONPATH": PYTHON_PATH},
                    stdout=log,
                    stderr=log,
                )

    def kill_one(self, chance: Random) -> str:
        name = chance.choice(sorted(self._processes))
        self._processes[name].kill()
        self._processes[name].wait()
        return name

    def all_in_sync(self) -> bool:
        """Whether every broker says so of every partition."""
        try:
            told = [one.list_topics(timeout=ASK_S).topics.values() for one in self._admins]
        except KafkaException:
            return False
        return all(
            len(partition.isrs) == len(partition.replicas) and partition.leader >= 0
            for topics in told
            for topic in topics
            for partition in topic.partitions.values()
        )

    def end(self) -> None:
        """Each says what became of its last records; copiers go on."""
        self._end(self._libraries)

    def end_copiers(self) -> None:
        """What they had open is aborted."""
        for name in self._copiers:
            # It may be within a call that waits for a minute.
            del self._commands[name]
            self._processes[name].kill()
            self._processes[name].wait()
            producer = Producer({"bootstrap.servers": self._bootstrap, "transactional.id": name})
            producer.init_transactions(END_S)

    def _end(self, names: Sequence[str]) -> None:
        running = [self._processes[name] for name in names if name in self._processes]
        for name in names:
            self._commands.pop(name, None)
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    def kill(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def histories(self, topic: str) -> list[History]:
        return [one.history() for one in self.people if one.options.topic == topic]
