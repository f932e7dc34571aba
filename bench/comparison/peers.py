"""The brokers under comparison, started, killed and asked in the same way.

    Peer      name, settings_text, start, end, pid, bootstrap, tls_port, held_mib, segments
     ├ Strandline   `strandline serve`, as users start it
     └ Kafka        kafka.Kafka in KRaft mode, broker and controller in one process, heap of 1 GB,
                    the JVM options of Kafka's own start script

Both get the same settings where both have them, and their defaults otherwise. Each listens on the
loopback interface and keeps its data in a folder of its own on the same file system.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from bench.clients.readiness import await_acknowledged
from bench.comparison.tls import SUITE, Certificates
from bench.measure import resident_mib
from tests.support.broker import BrokerProcess

REPOSITORY = Path(__file__).resolve().parents[2]
KAFKA_LIBRARIES = REPOSITORY / "bench-data" / "kafka" / "lib"
KAFKA_CLUSTER_ID = "c3RyYW5kbGluZS1iZW5jaA"
# bin/kafka-server-start.sh and bin/kafka-run-class.sh of Kafka 4.
KAFKA_HEAP = ("-Xmx1G", "-Xms1G")
KAFKA_JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0

# What both brokers are told when they have a second tier: to look after it twice a second.
TIERED = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
}


class Peer(Protocol):
    """A broker process that can be started again on the data it left."""

    name: str

    @property
    def pid(self) -> int: ...

    @property
    def bootstrap(self) -> str: ...

    @property
    def tls_port(self) -> int:
        """Of the listener with TLS, if it has one."""

    @property
    def settings_text(self) -> str: ...

    def held_mib(self) -> float:
        """Returns the memory that it cannot do without now."""

    def start(self) -> None: ...

    def end(self, *, by: signal.Signals = signal.SIGTERM) -> None: ...

    def local_segments(self, topic: str) -> list[Path]: ...

    def deleted_segments(self, topic: str) -> list[Path]: ...


class Strandline:
    """`strandline serve`; the tier is a local folder unless the settings name another."""

    name = "strandline"

    def __init__(
        self,
        folder: Path,
        *,
        tiered: bool = False,
        tls: Certificates | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        tier = {**TIERED, "strandline.remote.url": f"file://{folder / 'tier'}"} if tiered else {}
        # Users have the byte code of what they installed; a shell may be set not to write it.
        environment = {"PYTHONDONTWRITEBYTECODE": ""}
        self._process = BrokerProcess(folder, environment=environment)
        self.tls_port = _free_port()
        sealed: dict[str, str] = {}
        if tls is not None:
            listeners = f"PLAINTEXT://{self.bootstrap},SSL://127.0.0.1:{self.tls_port}"
            sealed = {"listeners": listeners, **tls.of_broker()}
        self._settings = {**tier, **sealed, **(settings or {})}
        self._process.settings.update(self._settings)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def bootstrap(self) -> str:
        return self._process.bootstrap

    @property
    def settings_text(self) -> str:
        return _anonymous(_properties(self._settings), self._process.folder)

    def held_mib(self) -> float:
        return resident_mib(self.pid)

    def start(self) -> None:
        self._process.start()

    def end(self, *, by: signal.Signals = signal.SIGTERM) -> None:
        if self._process.running:
            if by == signal.SIGKILL:
                self._process.kill()
            else:
                self._process.stop()

    def local_segments(self, topic: str) -> list[Path]:
        return _segments(self._process.data, topic)

    def deleted_segments(self, topic: str) -> list[Path]:
        return _deleted_segments(self._process.data, topic)


class Kafka:
    """Apache Kafka; the tier is LocalTieredStorage, a folder too."""

    name = "Kafka"

    def __init__(
        self,
        folder: Path,
        *,
        tiered: bool = False,
        tls: Certificates | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._classes = folder / "classes" if tiered else None
        self._process: subprocess.Popen[bytes] | None = None
        self._port, self.tls_port, controller_port = _free_port(), _free_port(), _free_port()
        own, sealed = f"PLAINTEXT://127.0.0.1:{self._port}", {}
        if tls is not None:
            own += f",SSL://127.0.0.1:{self.tls_port}"
            sealed = {**tls.of_broker(), "ssl.cipher.suites": SUITE}
        tier = {
            "remote.log.storage.manager.class.name": (
                "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
            ),
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rsm.config.dir": str(folder / "tier"),
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        }
        self._settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "listeners": f"{own},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": own,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            **({**TIERED, **tier} if tiered else {}),
            **sealed,
            **(settings or {}),
        }

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def settings_text(self) -> str:
        jvm = " ".join((*KAFKA_HEAP, *KAFKA_JVM))
        text = f"# java {jvm} kafka.Kafka server.properties\n{_properties(self._settings)}"
        return _anonymous(text, self._folder)

    def held_mib(self) -> float:
        """Of the heap, after a collection: a JVM keeps the memory that it once took."""
        asked = [str(Path(_java()).with_name("jcmd")), str(self.pid)]
        subprocess.run([*asked, "GC.run"], check=True, capture_output=True)
        told = subprocess.run(
            [*asked, "GC.heap_info"], check=True, capture_output=True, text=True
        ).stdout
        match = re.search(r"used (\d+)K", told)
        assert match is not None, told
        return int(match[1]) / 1024

    def start(self) -> None:
        properties = self._folder / "server.properties"
        if not properties.exists():
            (self._folder / "tier").mkdir(parents=True)
            properties.write_text(_properties(self._settings))
            if self._classes is not None:
                compile_log_context(self._classes)
            subprocess.run(
                [
                    *kafka_java("kafka.tools.StorageTool"),
                    "format",
                    "--standalone",
                    *("--cluster-id", KAFKA_CLUSTER_ID),
                    *("--config", str(properties)),
                ],
                check=True,
                capture_output=True,
            )
        with open(self._folder / "kafka.log", "ab") as log_file:
            self._process = subprocess.Popen(
                kafka_java(
                    "kafka.Kafka",
                    str(properties),
                    options=(*KAFKA_HEAP, *KAFKA_JVM),
                    more_classes=self._classes,
                ),
                stdout=log_file,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
        until(lambda: _accepts(self._port) or self._died(), timeout_s=START_TIMEOUT_S)

    def _died(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            tail = (self._folder / "kafka.log").read_text(errors="replace")[-3000:]
            raise RuntimeError(f"Kafka ended with {self._process.returncode}:\n{tail}")
        return False

    def end(self, *, by: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(by)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def local_segments(self, topic: str) -> list[Path]:
        return _segments(self._data, topic)

    def deleted_segments(self, topic: str) -> list[Path]:
        return _deleted_segments(self._data, topic)


def _segments(data: Path, topic: str) -> list[Path]:
    """The segment files of a topic that is there: <topic>-<partition>/<offset>.log."""
    return sorted(path for path in data.glob(f"{topic}-*/*.log") if "." not in path.parent.name)


def _deleted_segments(data: Path, topic: str) -> list[Path]:
    """Those of a deleted one, before they are unlinked: <topic>-<partition>.<id>-delete/…"""
    return list(data.glob(f"{topic}-*.*-delete/*.log"))


def kafka_version() -> str:
    """Of the Kafka that strandline is measured against: the one that `make kafka-jars` takes."""
    pom = (REPOSITORY / "bench" / "comparison" / "pom.xml").read_text()
    return pom.partition("<kafka.version>")[2].partition("</kafka.version>")[0]


def kafka_java(
    main: str,
    *arguments: str,
    options: tuple[str, ...] = (),
    more_classes: Path | None = None,
    libraries: Path | None = None,
) -> list[str]:
    """The command that runs a class of Kafka's libraries, by default of those of the benchmarks.

    Raises RuntimeError without them.
    """
    if libraries is None and not _clients_jar().exists():
        raise RuntimeError(f"no Kafka under {KAFKA_LIBRARIES}: run `make kafka-jars`")
    logging = f"-Dlog4j2.configurationFile={REPOSITORY / 'bench' / 'comparison' / 'log4j2.yaml'}"
    classes = f"{libraries or KAFKA_LIBRARIES}/*" + (
        "" if more_classes is None else f":{more_classes}"
    )
    return [_java(), *options, logging, "-cp", classes, main, *arguments]


def compile_log_context(folder: Path) -> None:
    """Compiles what LocalTieredStorage needs beside Kafka's libraries."""
    source = str(REPOSITORY / "bench" / "comparison" / "LogContext.java")
    compiler = [_java(), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    subprocess.run([*compiler, "-cp", str(_clients_jar()), "-d", str(folder), source], check=True)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else shutil.which("java") or "java"


def _clients_jar() -> Path:
    return KAFKA_LIBRARIES / f"kafka-clients-{kafka_version()}.jar"


def await_serving(peer: Peer, topic: str, partitions: int) -> None:
    """Returns when every partition of the topic has a leader and has acknowledged a record."""
    port = int(peer.bootstrap.rpartition(":")[2])
    await_acknowledged(port, topic, partitions, timeout_s=START_TIMEOUT_S)


def until(check: Callable[[], object], *, timeout_s: float, interval_s: float = 0.005) -> None:
    """Calls `check` until it returns something true. Raises TimeoutError."""
    deadline_s = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {timeout_s} s")
        time.sleep(interval_s)


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _anonymous(text: str, folder: Path) -> str:
    """The same text for every run: without the folder and the ports of this one."""
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text.replace(str(folder), "FOLDER"))


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
