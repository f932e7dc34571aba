"""The nodes of a mixed cluster: Apache Kafka's controllers and broker, and strandline's brokers.

    KafkaNode        kafka.Kafka with process.roles=controller, or broker
    strandline       `strandline serve` with process.roles=broker

All have the same cluster id, and find the controllers by their addresses. A node of an older
release has the libraries of that: see `kafka.xml` here.
"""

from __future__ import annotations

import base64
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.comparison.peers import kafka_java, kafka_version, until
from tests.support.broker import REPOSITORY, BrokerProcess
from tests.support.ports import ReservedPort

CLUSTER_ID = "bWl4ZWQtY2x1c3Rlci1pZA"
CONTROLLER_ID, KAFKA_ID, STRANDLINE_ID, SECOND_ID = 100, 1, 9, 8
START_S, STOP_S = 300.0, 60.0
HEAP = ("-Xmx256m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
NEWEST = kafka_version()
# The default metadata.version of each, from the oldest release with whose controllers we take part.
RELEASES = {"4.0.0": 25, "4.1.0": 27, "4.2.0": 29, "4.3.1": 30, NEWEST: 33}
OLDEST = next(iter(RELEASES))
# What this broker does not support, and Kafka 4.2 and newer finalize in each new cluster.
WITHOUT_GROUPS_OF_OTHER_KINDS = ("share.version=0", "streams.version=0")
PLAIN = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
# Brokers that end without a word are fenced sooner than after 9 s.
SHORT_SESSIONS = {"broker.session.timeout.ms": "6000"}


class KafkaNode:
    """One process of Apache Kafka, on a port of its own."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        port: int,
        format_words: Sequence[str] = (),
        release: str = NEWEST,
    ) -> None:
        """`format_words` are more arguments of kafka-storage.sh format."""
        self._folder = folder
        self._settings = dict(settings)
        self._format_words = format_words
        self._libraries = (
            None if release == NEWEST else REPOSITORY / "bench-data" / f"kafka-{release}"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    @property
    def node_id(self) -> int:
        return int(self._settings["node.id"])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        return self._folder / "kafka.log"

    @property
    def metadata_folder(self) -> Path:
        """Where a controller has the metadata log."""
        return self._folder / "data" / "__cluster_metadata-0"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when it accepts connections."""
        self.begin()
        self.await_start()

    def begin(self) -> None:
        """Starts it, and waits for nothing but the format of a new folder."""
        properties = self._folder / "server.properties"
        if not properties.exists():
            self._folder.mkdir(parents=True)
            properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings.items()))
            done = subprocess.run(
                [
                    *self._java("kafka.tools.StorageTool"),
                    *("format", *self._format_words),
                    *("--cluster-id", CLUSTER_ID, "--config", str(properties)),
                ],
                check=False,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        with open(self.log_path, "ab") as log_file:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(properties)),
                stdout=log_file,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )

    def await_start(self) -> None:
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

    def _java(self, main: str, *arguments: str) -> list[str]:
        return kafka_java(main, *arguments, options=HEAP, libraries=self._libraries)

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
    release: str = NEWEST,
    metadata_version: str | None = None,
) -> KafkaNode:
    """A controller that is a quorum alone.

    With a `metadata_version`, like 3.9-IV0, its voters are those of its configuration, as before
    KIP-853.
    """
    port = ReservedPort().number
    wanted = {**_controller(folder, CONTROLLER_ID, [port], 0), **(settings or {})}
    words = [word for one in features for word in ("--feature", one)]
    if metadata_version is None:
        words.append("--standalone")
    else:
        words += ["--release-version", metadata_version]
        del wanted["controller.quorum.bootstrap.servers"]
        wanted["controller.quorum.voters"] = f"{CONTROLLER_ID}@127.0.0.1:{port}"
    return KafkaNode(folder, wanted, port=port, format_words=words, release=release)


def kafka_quorum(
    folder: Path,
    count: int = 3,
    *,
    features: Sequence[str] = WITHOUT_GROUPS_OF_OTHER_KINDS,
    settings: Mapping[str, str] | None = None,
    release: str = NEWEST,
) -> list[KafkaNode]:
    """Controllers of one quorum, with ids upwards from CONTROLLER_ID."""
    reserved = [ReservedPort() for _ in range(count)]
    ports = [one.number for one in reserved]
    voters = ",".join(
        f"{CONTROLLER_ID + number}@127.0.0.1:{port}:{_directory_id(number)}"
        for number, port in enumerate(ports)
    )
    words = ["--initial-controllers", voters]
    words += [word for one in features for word in ("--feature", one)]
    return [
        KafkaNode(
            folder / f"controller-{number}",
            {
                **_controller(
                    folder / f"controller-{number}", CONTROLLER_ID + number, ports, number
                ),
                **(settings or {}),
            },
            port=port,
            format_words=words,
            release=release,
        )
        for number, port in enumerate(ports)
    ]


def _directory_id(number: int) -> str:
    return base64.urlsafe_b64encode(b"mixed-director-%d" % number).decode().rstrip("=")


def _controller(folder: Path, node_id: int, ports: Sequence[int], number: int) -> dict[str, str]:
    return {
        "process.roles": "controller",
        "node.id": str(node_id),
        "controller.quorum.bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports),
        "listeners": f"CONTROLLER://127.0.0.1:{ports[number]}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": PLAIN,
        "log.dirs": str(folder / "data"),
        **SHORT_SESSIONS,
    }


def without_other_groups(release: str) -> Sequence[str]:
    """What a format has to say so that this broker may take part: 4.0 does not know the names."""
    return () if release == OLDEST else WITHOUT_GROUPS_OF_OTHER_KINDS


def addresses(controllers: Sequence[KafkaNode]) -> str:
    """As controller.quorum.bootstrap.servers has them."""
    return ",".join(one.address for one in controllers)


def kafka_broker(
    folder: Path,
    *controllers: KafkaNode,
    settings: Mapping[str, str] | None = None,
    release: str = NEWEST,
) -> KafkaNode:
    port = ReservedPort().number
    wanted = {
        "process.roles": "broker",
        "node.id": str(KAFKA_ID),
        "controller.quorum.bootstrap.servers": addresses(controllers),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": PLAIN,
        "log.dirs": str(folder / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        **(settings or {}),
    }
    return KafkaNode(folder, wanted, port=port, release=release)


def strandline_broker(
    folder: Path,
    *controllers: KafkaNode,
    node_id: int = STRANDLINE_ID,
    settings: Mapping[str, str] | None = None,
) -> BrokerProcess:
    return BrokerProcess(
        folder,
        settings={
            "process.roles": "broker",
            "node.id": str(node_id),
            "controller.quorum.bootstrap.servers": addresses(controllers),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": PLAIN,
            **(settings or {}),
        },
    )
