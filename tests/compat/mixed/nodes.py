"""The nodes of a mixed cluster: Apache Kafka's controller and broker, and strandline's broker.

    KafkaNode        kafka.Kafka with process.roles=controller, or broker
    strandline       `strandline serve` with process.roles=broker

All have the same cluster id, and find the controller by its address.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.comparison.peers import kafka_java, until
from tests.support.broker import BrokerProcess
from tests.support.ports import ReservedPort

CLUSTER_ID = "bWl4ZWQtY2x1c3Rlci1pZA"
CONTROLLER_ID, KAFKA_ID, STRANDLINE_ID = 100, 1, 9
START_S, STOP_S = 120.0, 60.0
HEAP = ("-Xmx256m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# What this broker does not support, and Kafka 4.2 and newer finalize in each new cluster.
WITHOUT_GROUPS_OF_OTHER_KINDS = ("share.version=0", "streams.version=0")
PLAIN = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"


class KafkaNode:
    """One process of Apache Kafka, on a port of its own."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        port: int,
        features: Sequence[str] = WITHOUT_GROUPS_OF_OTHER_KINDS,
        is_controller: bool = False,
    ) -> None:
        self._folder = folder
        self._settings = dict(settings)
        self._features = features
        self._is_controller = is_controller
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        return self._folder / "kafka.log"

    def start(self) -> None:
        """Returns when it accepts connections."""
        properties = self._folder / "server.properties"
        if not properties.exists():
            self._folder.mkdir(parents=True)
            properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings.items()))
            features = [word for one in self._features for word in ("--feature", one)]
            subprocess.run(
                [
                    *kafka_java("kafka.tools.StorageTool", options=HEAP),
                    "format",
                    *(["--standalone", *features] if self._is_controller else []),
                    *("--cluster-id", CLUSTER_ID, "--config", str(properties)),
                ],
                check=True,
                capture_output=True,
            )
        with open(self.log_path, "ab") as log_file:
            self._process = subprocess.Popen(
                kafka_java("kafka.Kafka", str(properties), options=HEAP),
                stdout=log_file,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
        until(self._accepts, timeout_s=START_S, interval_s=0.05)

    def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(by)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _accepts(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"Kafka ended:\n{self.log_path.read_text()[-3000:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False


def kafka_controller(
    folder: Path,
    settings: Mapping[str, str] | None = None,
    *,
    features: Sequence[str] = WITHOUT_GROUPS_OF_OTHER_KINDS,
) -> KafkaNode:
    port = ReservedPort().number
    wanted = {
        "process.roles": "controller",
        "node.id": str(CONTROLLER_ID),
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{port}",
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": PLAIN,
        "log.dirs": str(folder / "data"),
        **(settings or {}),
    }
    return KafkaNode(folder, wanted, port=port, features=features, is_controller=True)


def kafka_broker(folder: Path, controller: KafkaNode) -> KafkaNode:
    port = ReservedPort().number
    settings = {
        "process.roles": "broker",
        "node.id": str(KAFKA_ID),
        "controller.quorum.bootstrap.servers": controller.address,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": PLAIN,
        "log.dirs": str(folder / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    return KafkaNode(folder, settings, port=port)


def strandline_broker(
    folder: Path, controller: KafkaNode, settings: Mapping[str, str] | None = None
) -> BrokerProcess:
    return BrokerProcess(
        folder,
        settings={
            "process.roles": "broker",
            "node.id": str(STRANDLINE_ID),
            "controller.quorum.bootstrap.servers": controller.address,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": PLAIN,
            **(settings or {}),
        },
    )
