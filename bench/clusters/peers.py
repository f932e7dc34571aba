"""Clusters of three brokers on this machine, started, killed and asked in the same way.

    Cluster     name, bootstrap, pids, start, stop, close, kill_broker, kill_controller,
     │          pause_broker, resume_broker, restart_broker
     ├ Strandline   `strandline serve --brokers 3`: a supervisor, a controller, three brokers
     └ Kafka        a controller and three brokers, a JVM each, the options of Kafka's start script

Who is killed is started again at once: our supervisor does so by itself, and for Kafka, as a
service manager would, this module does. Internal topics have three replicas where `replicas` says
three, and one otherwise.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from bench.comparison.peers import KAFKA_CLUSTER_ID, KAFKA_HEAP, KAFKA_JVM, kafka_java
from tests.support.ports import ReservedPort
from tests.support.several_brokers import SeveralBrokers

BROKERS = 3
CONTROLLER_ID = 100
START_S, STOP_S = 180.0, 60.0
NOTHING: Mapping[str, str] = MappingProxyType({})
LISTENERS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"


class Cluster(Protocol):
    """Three brokers and what decides for them."""

    name: str

    @property
    def bootstrap(self) -> str: ...

    @property
    def pids(self) -> Sequence[int]:
        """Of all its processes whose CPU and memory count; their children count with them."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def kill_broker(self, broker_id: int) -> None:
        """kill -9, and a new start at once."""

    def kill_controller(self) -> None:
        """The same."""

    def pause_broker(self, broker_id: int) -> None:
        """SIGSTOP."""

    def resume_broker(self, broker_id: int) -> None:
        """SIGCONT."""

    def restart_broker(self, broker_id: int) -> None:
        """SIGTERM, on which it hands over, and a new start at once."""


def internal_topics(replicas: int) -> Mapping[str, str]:
    """What each broker is told of the topics that it makes itself."""
    return {
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(max(replicas - 1, 1)),
    }


class Strandline:
    name = "strandline"

    def __init__(
        self, folder: Path, *, replicas: int = 1, settings: Mapping[str, str] = NOTHING
    ) -> None:
        wanted = {**internal_topics(replicas), **settings}
        texts = [f"{key}={value}" for key, value in wanted.items()]
        # Users have the byte code of what they installed; a shell may be set not to write it.
        environment = {"PYTHONDONTWRITEBYTECODE": ""}
        self._brokers = SeveralBrokers(folder, *texts, brokers=BROKERS, environment=environment)
        self._folder = folder
        self._is_up = False

    @property
    def bootstrap(self) -> str:
        return self._brokers.bootstrap

    @property
    def metrics(self) -> str:
        """The address of the page over all brokers."""
        return f"{self._brokers.metrics}/metrics"

    def folder_of(self, broker_id: int) -> Path:
        return self._brokers.data / f"broker-{broker_id}"

    @property
    def pids(self) -> Sequence[int]:
        return (self._brokers.pid,)

    def start(self) -> None:
        self._brokers.__enter__()
        self._is_up = True

    def stop(self) -> None:
        if self._is_up:
            self._is_up = False
            self._brokers.stop()

    def close(self) -> None:
        if self._is_up:
            self._is_up = False
            self._brokers.stop(signal.SIGKILL)
            self._brokers.await_ends()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill_broker(self, broker_id: int) -> None:
        self._signal(f"broker {broker_id}", signal.SIGKILL)

    def kill_controller(self) -> None:
        self._signal("controller", signal.SIGKILL)

    def pause_broker(self, broker_id: int) -> None:
        self._signal(f"broker {broker_id}", signal.SIGSTOP)

    def resume_broker(self, broker_id: int) -> None:
        self._signal(f"broker {broker_id}", signal.SIGCONT)

    def restart_broker(self, broker_id: int) -> None:
        name = f"broker {broker_id}"
        pid = self._brokers.present_pids()[name]
        os.kill(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_S
        # The supervisor starts it again.
        while self._brokers.present_pids().get(name) in (None, pid):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{name} does not come back")
            time.sleep(0.02)

    def _signal(self, name: str, by: signal.Signals) -> None:
        os.kill(self._brokers.present_pids()[name], by)


class _KafkaNode:
    """One process of Apache Kafka."""

    def __init__(self, folder: Path, settings: Mapping[str, str], *storage: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{key}={text}\n" for key, text in settings.items()))
        subprocess.run(
            [
                *kafka_java("kafka.tools.StorageTool"),
                *("format", *storage, "--cluster-id", KAFKA_CLUSTER_ID),
                *("--config", str(self._properties)),
            ],
            check=True,
            capture_output=True,
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def begin(self) -> None:
        """Starts it, and waits for nothing."""
        with open(self._folder / "kafka.log", "ab") as log_file:
            self._process = subprocess.Popen(
                kafka_java("kafka.Kafka", str(self._properties), options=(*KAFKA_HEAP, *KAFKA_JVM)),
                stdout=log_file,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )

    def signal(self, by: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(by)

    def wait(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)


class Kafka:
    name = "Kafka"

    def __init__(
        self, folder: Path, *, replicas: int = 1, settings: Mapping[str, str] = NOTHING
    ) -> None:
        self._folder = folder
        ports = [ReservedPort() for _ in range(BROKERS + 1)]
        # Held, so that no other process gets them.
        self._ports = ports
        common = {
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{ports[0].number}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": LISTENERS,
        }
        self._controller = _KafkaNode(
            folder / "controller",
            {
                **common,
                "process.roles": "controller",
                "node.id": str(CONTROLLER_ID),
                "listeners": f"CONTROLLER://127.0.0.1:{ports[0].number}",
                "log.dirs": str(folder / "controller" / "data"),
            },
            "--standalone",
        )
        self._brokers = {
            number: _KafkaNode(
                folder / f"broker-{number}",
                {
                    **common,
                    **internal_topics(replicas),
                    **settings,
                    "process.roles": "broker",
                    "node.id": str(number),
                    "listeners": f"PLAINTEXT://127.0.0.1:{ports[number].number}",
                    "log.dirs": str(folder / f"broker-{number}" / "data"),
                },
            )
            for number in range(1, BROKERS + 1)
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port.number}" for port in self._ports[1:])

    @property
    def pids(self) -> Sequence[int]:
        return [node.pid for node in self._nodes]

    @property
    def _nodes(self) -> Sequence[_KafkaNode]:
        return (self._controller, *self._brokers.values())

    def start(self) -> None:
        for node in self._nodes:
            node.begin()

    def stop(self) -> None:
        """Brokers first: they hand over to the others, by the controller."""
        for nodes in (self._brokers.values(), (self._controller,)):
            for node in nodes:
                node.signal(signal.SIGTERM)
            for node in nodes:
                node.wait()

    def close(self) -> None:
        for node in self._nodes:
            node.signal(signal.SIGKILL)
            node.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill_broker(self, broker_id: int) -> None:
        self._restart(self._brokers[broker_id])

    def kill_controller(self) -> None:
        self._restart(self._controller)

    def pause_broker(self, broker_id: int) -> None:
        self._brokers[broker_id].signal(signal.SIGSTOP)

    def resume_broker(self, broker_id: int) -> None:
        self._brokers[broker_id].signal(signal.SIGCONT)

    def restart_broker(self, broker_id: int) -> None:
        self._restart(self._brokers[broker_id], signal.SIGTERM)

    def _restart(self, node: _KafkaNode, by: signal.Signals = signal.SIGKILL) -> None:
        node.signal(by)
        node.wait()
        node.begin()
