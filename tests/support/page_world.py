"""The world in which the commands of the documents run: a broker, a bucket, two topics, a group.

The pages call these things by names that a reader replaces; so do we, in the text of a command.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from confluent_kafka import Consumer, Producer, TopicPartition

from strandline.broker.cli import main
from strandline.broker.tools.commands.command_parser import BOOTSTRAP_VARIABLE
from strandline.spark_lake import count
from strandline.storage.errors import StrandlineError
from tests.conftest import S3Bucket
from tests.support.broker import REPOSITORY, BrokerProcess, eventually
from tests.support.forked import STRANDLINE, ForkedProcess, run_process, start_process
from tests.support.own_process import Printed, run_here
from tests.support.page_blocks import Block
from tests.support.ports import ReservedPort

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

ARCHIVE = "s3://my-bucket/archive"
FOLDER = "/var/lib/strandline"
METRICS = "http://127.0.0.1:9404"
TABLES = "/srv/archive-tables"

# On a loaded machine a command takes many times its second.
COMMAND_S_MAX = 300.0
READY_S_MAX = 120.0
REPEATED_S_MAX = 60.0
# Of these a shell makes a word, or nothing.
_QUOTED = re.compile(r"'[^'\n]*'|\s#.*")
# One of ours from which a shell makes nothing but words.
_PLAIN_WORDS = r"[^|<>;&$`()*?~\n]+"
_PLAIN_COMMAND = re.compile(rf"strandline (?!serve|restore){_PLAIN_WORDS}")
_PLAIN_SERVE = re.compile(rf"strandline serve{_PLAIN_WORDS}")
_PLAIN_RESTORE = re.compile(rf"strandline restore{_PLAIN_WORDS}")

FAST = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
    "strandline.remote.active.segment.upload.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "strandline.remote.s3.region": "us-east-1",
}
CARRIERS = (b"AA", b"UA", b"DL")
FIRST_OF_FEBRUARY_MS = 1_706_745_600_000
RECORD_COUNT = 30
TOPICS = ("orders", "flights")


def wanted_environment(endpoint_url: str, bootstrap: str, home: Path) -> dict[str, str]:
    """What a reader has set: a region and credentials, and for us a store that is not Amazon's."""
    namespace = str(REPOSITORY / ".namespace")
    return {
        **({"AWS_ENDPOINT_URL": endpoint_url} if endpoint_url else {}),
        "AWS_DEFAULT_REGION": "us-east-1",
        BOOTSTRAP_VARIABLE: bootstrap,
        "HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [namespace, os.environ.get("PYTHONPATH")])),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


def masked(line: str) -> str:
    """A line of output without what differs from run to run: numbers, times, rules and ids."""
    without_ids = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", "ID", line)
    without_paths = re.sub(r"file://\S+", "URL", without_ids)
    plain = re.sub(r"\s+", " ", re.sub(r"─+", "─", without_paths)).strip()
    return re.sub(r"\d[\d.,:-]*|\b[KMGT]i(?=B\b)", "N", plain)


def lacks(printed: str, wanted: str) -> list[str]:
    """Lines of `wanted` that were not printed; `...` stands for any."""
    got = {masked(line) for line in printed.splitlines()}
    lines = [masked(line) for line in wanted.splitlines()]
    return [line for line in lines if line not in {"", "..."} and line not in got]


class Shell:
    """Runs blocks in a folder; brokers that they start run until `stop_brokers`."""

    def __init__(self, folder: Path, values: Mapping[str, str], environment: Mapping[str, str]):
        self.folder = folder
        self.values = dict(values)
        self.environment = {**os.environ, **environment}
        self._brokers: list[subprocess.Popen[str] | ForkedProcess] = []
        self._known: dict[str, Printed] = {}

    def replaced(self, text: str) -> str:
        for name, value in self.values.items():
            text = text.replace(name, value)
        return text

    def follow(self, blocks: Sequence[Block]) -> list[str]:
        """What is wrong with a page that a reader follows from its first command to its last."""
        wrong = []
        for block in blocks:
            if block.stops_brokers and any(self.stop_brokers()):
                wrong.append(f"{block.place}: a broker did not stop cleanly")
            wrong += [f"{block.place}: {one}" for one in self.run(block)]
        return wrong + [f"did not stop cleanly: {code}" for code in self.stop_brokers() if code]

    def run(self, block: Block, *, once: bool = False) -> list[str]:
        """What is wrong with the block, if anything. With `once` an equal command is not repeated.

        A command whose output is shown is repeated until it prints that: so does the reader.
        """
        given_up_s = time.monotonic() + REPEATED_S_MAX
        while True:
            wrong, printed = self._run(self._script(block), once=once)
            missing = lacks(printed, block.output)
            if not block.output or not (wrong or missing):
                return wrong
            if time.monotonic() > given_up_s:
                return [*wrong, f"not printed: {missing}\n{printed}"]
            once = False
            time.sleep(0.5)

    def _script(self, block: Block) -> str:
        return f"python3 - <<'END'\n{block.text}END\n" if block.language == "python" else block.text

    def _run(self, text: str, *, once: bool) -> tuple[list[str], str]:
        printed = ""
        wrong = []
        for command in commands(self.replaced(text)):
            if "strandline serve" in command:
                result = self._serve(self._at_own_port(command))
            elif once and command in self._known:
                result = self._known[command]
            else:
                result = self._known[command] = self._command(command)
            printed += result.text
            if result.code:
                wrong.append(f"{command}\nended with {result.code}:\n{result.text}")
        return wrong, printed

    def _at_own_port(self, command: str) -> str:
        listener = f"--set listeners=PLAINTEXT://{self.environment[BOOTSTRAP_VARIABLE]}"
        return re.sub(r"(strandline serve)\b", rf"\1 {listener}", command)

    def _command(self, command: str) -> Printed:
        if _PLAIN_COMMAND.fullmatch(_QUOTED.sub("", command)):
            words = shlex.split(command, comments=True)[1:]
            return run_here(words, environment=self.environment, folder=self.folder)
        if _PLAIN_RESTORE.fullmatch(command):
            words = [*STRANDLINE, *shlex.split(command, comments=True)[1:]]
            done = run_process(
                words,
                folder=self.folder,
                timeout_s=COMMAND_S_MAX,
                environment=self.environment,
            )
            return Printed(code=done.returncode, text=done.stdout + done.stderr)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        return Printed(code=done.returncode, text=done.stdout)

    def _serve(self, command: str) -> Printed:
        log = self.folder / "broker.log"
        words = ["bash", "-c", f"exec {command}"]
        if _PLAIN_SERVE.fullmatch(command):
            words = [*STRANDLINE, *shlex.split(command, comments=True)[1:]]
        with open(log, "ab") as stderr:
            broker = start_process(
                words,
                folder=self.folder,
                environment=self.environment,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._brokers.append(broker)
        assert broker.stdout is not None
        # It ends with the process, if the broker does not start.
        for line in broker.stdout:
            if line.startswith("strandline ready: "):
                return Printed(code=0, text=line)
        return Printed(code=broker.wait(READY_S_MAX) or 1, text=log.read_text()[-2000:])

    def stop_brokers(self) -> list[int]:
        """As Ctrl-C does; the exit codes."""
        for broker in self._brokers:
            broker.terminate()
        codes = [broker.wait(READY_S_MAX) for broker in self._brokers]
        for broker in self._brokers:
            assert broker.stdout is not None
            broker.stdout.close()
        self._brokers.clear()
        return codes


@contextlib.contextmanager
def traveller(folder: Path, endpoint_url: str = "") -> Iterator[Shell]:
    """The shell of a reader who begins with an empty folder, and with ports of their own."""
    port, metrics = ReservedPort(), ReservedPort()
    environment = wanted_environment(endpoint_url, f"127.0.0.1:{port.number}", folder)
    shell = Shell(folder, {METRICS: f"http://127.0.0.1:{metrics.number}"}, environment)
    try:
        yield shell
    finally:
        shell.stop_brokers()


def commands(text: str) -> list[str]:
    """The commands of a block, a line each; what goes on behind a backslash is one.

    A block that writes a file (`<<`) is one command.
    """
    if "<<" in text:
        return [text]
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def _client(endpoint_url: str) -> S3Client:
    return boto3.session.Session().client("s3", endpoint_url=endpoint_url, region_name="us-east-1")


def copy_archive(source: S3Bucket, target: S3Bucket) -> None:
    """The same objects, as their owner left them, who is gone."""
    client = _client(source.endpoint_url)
    for listed in client.get_paginator("list_objects_v2").paginate(Bucket=source.name):
        for item in listed.get("Contents", ()):
            place = f"{source.name}/{item['Key']}"
            client.copy_object(Bucket=target.name, Key=item["Key"], CopySource=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWorld:
    """A running broker, and a shell beside it."""

    broker: BrokerProcess
    shell: Shell


@contextlib.contextmanager
def page_world(folder: Path, bucket: S3Bucket | None = None) -> Iterator[PageWorld]:
    """All that the pages name: it runs, it has archived records, and `status` finds nothing.

    Without a bucket the archive is a folder: Spark's JVM does not see an environment that changes.
    """
    url = bucket.url if bucket else f"file://{folder}/archive"
    endpoint = {"strandline.remote.s3.endpoint.url": bucket.endpoint_url} if bucket else {}
    port = ReservedPort()
    metrics = f"http://127.0.0.1:{port.number}"
    settings = {
        **FAST,
        **endpoint,
        "strandline.remote.url": url,
        "strandline.metrics.listener": metrics,
    }
    with BrokerProcess(folder / "broker", settings=settings) as broker:
        place = folder / "shell"
        place.mkdir()
        shell = Shell(
            place,
            {
                ARCHIVE: url,
                "s3://my-bucket/my-prefix": url,
                FOLDER: str(broker.data),
                METRICS: metrics,
                TABLES: str(folder / "tables"),
            },
            wanted_environment(bucket.endpoint_url if bucket else "", broker.bootstrap, place),
        )
        _fill(broker)
        options = {"s3.endpoint.url": bucket.endpoint_url} if bucket else {}
        eventually(lambda: _archived(url, options) == RECORD_COUNT * len(TOPICS))
        _wait_for_metrics(metrics)
        yield PageWorld(broker=broker, shell=shell)
        shell.stop_brokers()


def _fill(broker: BrokerProcess) -> None:
    for topic in TOPICS:
        configs = ("remote.storage.enable=true", "retention.ms=-1", "segment.ms=1000")
        words = [word for config in configs for word in ("--config", config)]
        main(["topic", "create", topic, *words, "--bootstrap-server", broker.bootstrap])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORD_COUNT):
        value = json.dumps({"id": number, "city": "Oslo"}).encode()
        time_ms = FIRST_OF_FEBRUARY_MS + number
        for topic in TOPICS:
            key = CARRIERS[number % len(CARRIERS)]
            producer.produce(topic, value, key, partition=0, timestamp=time_ms)
    assert producer.flush(60) == 0
    commit(broker.bootstrap)


def _archived(url: str, options: Mapping[str, str]) -> int:
    """Records in closed segments; 0 before there is an archive of both topics."""
    try:
        return count(url, list(TOPICS), options={**options, "includeOpenSegment": "false"})
    except StrandlineError:
        return 0


def commit(bootstrap: str) -> None:
    """Gives the broker the group that the pages name."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 10)], asynchronous=False)
    consumer.close()


def _wait_for_metrics(url: str) -> None:
    def ready() -> bool:
        with urllib.request.urlopen(f"{url}/readyz", timeout=30) as answer:
            return bool(answer.status == 200)

    eventually(ready)
