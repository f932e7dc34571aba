"""The broker of a soak, its store behind a proxy, and everything that can be done to them.

    clients ──► broker process ──► fault proxy ──► MiniStack process
                 killed, stopped,    rules of        real S3
                 made to die,        the step           ▲
                 loses its disk                         │
    readers ──► replica process ──► the same proxy ─────┘

What is asked of the broker is asked until it is answered: a request whose answer was lost is sent
again, and being told that it was done already is an answer. The model is told before the request
what may change (`ceiling`), and after the answer what has (`floor`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
)
from strandline.storage.crash_points import ENVIRONMENT_VARIABLE, EXIT_STATUS_KILLED
from tests.conftest import TEST_ENVIRONMENT, S3Bucket, make_bucket
from tests.support.fault_proxy import FaultProxy, Rule
from tests.support.forked import run_process
from tests.support.ministack import ServerProcess
from tests.support.ministack import ministack as ministack_server
from tests.support.wire import WireClient
from tests.system.calls import ask_to_create, delete_records, end_offset, new_topic
from tests.system.soak.brokers import Replica, TwoFolderBroker, ask_to_move
from tests.system.soak.model import PartitionModel, Violations
from tests.system.soak.plan import describe
from tests.system.soak.table import DELETE_RETENTION_MS, TableModel
from tests.system.soak.transacted.model import TransactionModel
from tests.system.tiers.tiered_broker import Archive

COPY_TIMEOUT_MS = 8_000
SETTINGS = {
    # A reader of a deleted topic would create it again, without the properties of the story.
    "auto.create.topics.enable": "false",
    "strandline.remote.merge.target.bytes": str(2 * 1024 * 1024),
    "strandline.remote.groups.upload.ms": "300",
    "strandline.remote.delete.grace.ms": "500",
    "strandline.remote.copy.timeout.ms": str(COPY_TIMEOUT_MS),
    "strandline.remote.orphan.grace.ms": "1000",
    "strandline.remote.orphan.check.interval.ms": "1000",
    "strandline.remote.cache.disk.bytes": str(32 * 1024 * 1024),
    "remote.log.manager.task.retry.backoff.max.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
# Until nothing uncommitted can be committed any more, an orphan is kept: see the manager.
ORPHAN_GRACE_MS = 2 * COPY_TIMEOUT_MS + 500

# Seconds that a request may be repeated for, and that a restore may take.
ASK_S_MAX = 60.0
RESTORE_S_MAX = 120.0
# How long a broker is waited for that shall die at a step which it may never cross.
DEATH_S_MAX = 4.0

TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "local.retention.ms": "-2",
    "retention.bytes": "-1",
    "segment.ms": "1000",
    "remote.log.copy.disable": "false",
    "strandline.remote.active.segment.upload.ms": "500",
}
MAIN, SWITCHED, CHURN, TABLE, PROBE = "main", "switched", "churn", "table", "probe"
TRANSACTED = "transacted"
TOPICS = {MAIN: 3, SWITCHED: 1, CHURN: 1, TABLE: 2, PROBE: 1, TRANSACTED: 2}
COMPACTED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "min.cleanable.dirty.ratio": "0.3",
}
TOPIC_ALREADY_EXISTS, UNKNOWN_TOPIC = 36, 3
ANY_OFFSET = 2**62

T = TypeVar("T")


class Abort(Exception):
    """The run cannot go on; why is among the violations."""


class World:
    """A context manager: a running broker, its store and its topics."""

    def __init__(self, folder: Path, violations: Violations) -> None:
        self.violations = violations
        self.counts: Counter[str] = Counter()
        self.fault_hits: Counter[str] = Counter()
        self.lost_records = 0
        self.is_disk_lost = False
        self.models: dict[tuple[str, int], PartitionModel] = {
            (topic, number): (TableModel if topic == TABLE else PartitionModel)(
                topic=topic, number=number, violations=violations
            )
            for topic, count in TOPICS.items()
            if topic not in (PROBE, TRANSACTED)
            for number in range(count)
        }
        # Its offsets have gaps, where markers and what was aborted lie: see its own rules.
        self.transactions = TransactionModel(TRANSACTED, TOPICS[TRANSACTED], violations)
        self.configs = {topic: dict(TIERED) for topic in TOPICS}
        self.configs[TABLE] |= COMPACTED
        self._folder = folder
        self._closing = contextlib.ExitStack()
        self._rules: list[Rule] = []
        self.server: ServerProcess
        self.proxy: FaultProxy
        self.bucket: S3Bucket
        self.broker: TwoFolderBroker
        self.replica: Replica

    def __enter__(self) -> World:
        with contextlib.ExitStack() as stack:
            for name, value in TEST_ENVIRONMENT.items():
                os.environ[name] = value
            self._folder.mkdir(parents=True, exist_ok=True)
            self.server = stack.enter_context(ministack_server(self._folder / "s3.log"))
            self.proxy = stack.enter_context(FaultProxy(self.server.port))
            self.bucket = make_bucket(self.server.endpoint_url)
            self.broker = TwoFolderBroker(
                self._folder / "broker",
                self.bucket,
                endpoint_url=self.proxy.endpoint_url,
                settings=SETTINGS,
            )
            self.replica = Replica(
                self._folder / "replica", self.bucket, endpoint_url=self.proxy.endpoint_url
            )
            for process in (self.broker, self.replica):
                stack.callback(lambda p=process: p.running and p.kill())
            self.start()
            # It follows the broker's archive, which is there now.
            self.replica.start_at_last()
            for topic in TOPICS:
                self.create(topic)
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def archive(self) -> Archive:
        """The bucket, past the proxy."""
        return Archive.open(self.bucket)

    def in_bucket(self, model: PartitionModel) -> tuple[int, int]:
        """What a restore and a replica must find: log start and end."""
        manifest = self.archive.manifest(model.topic, model.number)
        if manifest is None:
            return 0, 0
        start = manifest.log_start_offset
        return start, max(manifest.tail_end_offset, manifest.end_offset, start)

    def of(self, topic: str) -> list[PartitionModel]:
        return [model for (name, _), model in self.models.items() if name == topic]

    # --- the store ---------------------------------------------------------------------------

    def set_rules(self, rules: tuple[Rule, ...] | list[Rule]) -> None:
        """These faults from now on, and no others."""
        self.proxy.clear()
        for rule in self._rules:
            if rule.hit_count:
                self.fault_hits[describe(rule)] += rule.hit_count
        self._rules = [self.proxy.add(rule) for rule in rules]

    # --- the process -------------------------------------------------------------------------

    def start(self, point: str = "") -> bool:
        """Starts the broker; with `point`, one that dies there. False if it is dead already."""
        if point:
            self.broker.environment[ENVIRONMENT_VARIABLE] = point
        try:
            self.broker.start()
        except AssertionError as error:
            if point and self.broker.wait_for_exit(10) == EXIT_STATUS_KILLED:
                return False
            self.violations.add(f"the broker did not start: {error}")
            raise Abort from error
        finally:
            self.broker.environment.pop(ENVIRONMENT_VARIABLE, None)
        return True

    def ensure_running(self) -> None:
        if not self.broker.running:
            code = self.broker.wait_for_exit(1)
            self.violations.add(f"the broker died by itself with exit code {code}")
            self.start()
        if not self.replica.running:
            code = self.replica.wait_for_exit(1)
            self.violations.add(f"the replica died by itself with exit code {code}")
            self.replica.start_at_last()

    def kill(self) -> None:
        if not self.broker.running:
            self.ensure_running()
        self.broker.kill()

    def stop(self) -> None:
        """SIGTERM."""
        try:
            code = self.broker.stop()
        except subprocess.TimeoutExpired:
            self.violations.add("SIGTERM: the broker did not stop")
            return
        if code:
            self.violations.add(f"SIGTERM: exit code {code}")

    def wait_for_death(self) -> bool:
        """Whether the broker came to the step at which it shall die; if not, it is killed."""
        give_up_s = time.monotonic() + DEATH_S_MAX
        while self.broker.running and time.monotonic() < give_up_s:
            time.sleep(0.05)
        if self.broker.running:
            self.broker.kill()
            return False
        code = self.broker.wait_for_exit(1)
        if code != EXIT_STATUS_KILLED:
            self.violations.add(f"the broker died by itself with exit code {code}")
        return True

    def restart_replica(self, *, killed: bool) -> None:
        """kill -9 or SIGTERM, and a start. Raises Abort."""
        wrong = self.replica.end(killed=killed)
        if wrong:
            self.violations.add(wrong)
        try:
            self.replica.start_at_last()
        except AssertionError as error:
            self.violations.add(f"the replica did not start: {error}")
            raise Abort from error

    def restore(self, point: str = "") -> None:
        """`strandline restore` with the broker's own settings; first one that dies at `point`."""
        for environment in ({ENVIRONMENT_VARIABLE: point}, {}) if point else ({},):
            ended = self.run_command("restore", self._options(), environment)
            wanted = EXIT_STATUS_KILLED if environment else 0
            # A point that lies in what this archive has not is not crossed.
            if ended.returncode not in (wanted, 0):
                self.violations.add(
                    f"restore: exit code {ended.returncode} where {wanted} was expected:"
                    f" {ended.stderr[-1000:]}"
                )
                raise Abort
            if ended.returncode == 0:
                return

    def _options(self) -> list[str]:
        settings = {"node.id": "1", "log.dirs": str(self.broker.data), **self.broker.settings}
        return [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]

    def run_command(
        self, command: str, options: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command of `strandline`."""
        return run_process(
            [*self.broker.program, *command.split(), *options],
            folder=self.broker.folder,
            timeout_s=RESTORE_S_MAX,
            environment=environment,
        )

    # --- requests ----------------------------------------------------------------------------

    def ask(self, what: str, work: Callable[[WireClient], T]) -> T:
        """Asks until there is an answer. Raises Abort."""
        give_up_s = time.monotonic() + ASK_S_MAX
        while True:
            self.ensure_running()
            try:
                with WireClient(self.broker.port) as client:
                    return work(client)
            except OSError as error:
                if time.monotonic() > give_up_s:
                    self.violations.add(f"{what}: no answer: {error!r}")
                    raise Abort from error
                time.sleep(0.1)

    def create(self, topic: str) -> None:
        """Creates the topic as the configuration wants it; fine if it is there already."""
        wanted = new_topic(topic, TOPICS[topic], self.configs[topic])
        (answer,) = self.ask(f"create {topic}", lambda client: ask_to_create(client, wanted))
        if answer.error_code not in (0, TOPIC_ALREADY_EXISTS):
            self.violations.add(f"create {topic}: error {answer.error_code}")

    def try_delete(self, client: WireClient, topic: str) -> int:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=5_000)
        return client.ask(request, DeleteTopicsResponse, 6).responses[0].error_code

    def delete(self, topic: str) -> None:
        """Deletes the topic; fine if it is gone already."""
        code = self.ask(f"delete {topic}", lambda client: self.try_delete(client, topic))
        if code not in (0, UNKNOWN_TOPIC):
            self.violations.add(f"delete {topic}: error {code}")

    def alter(self, topic: str, changes: Mapping[str, str]) -> None:
        """Sets properties of a topic."""
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=2,
                    resource_name=topic,
                    configs=[
                        IncrementalConfig(name=name, config_operation=0, value=value)
                        for name, value in changes.items()
                    ],
                )
            ]
        )
        (answer,) = self.ask(
            f"alter {topic}",
            lambda client: client.ask(request, IncrementalAlterConfigsResponse, 1).responses,
        )
        if answer.error_code:
            self.violations.add(
                f"alter {topic} {dict(changes)}: error {answer.error_code} {answer.error_message}"
            )

    def settle_configs(self) -> None:
        """Every topic is there, and configured as it should be."""
        for topic, wanted in self.configs.items():
            self.create(topic)
            self.alter(topic, wanted)

    def delete_records(self, model: PartitionModel, before: int) -> None:
        """DeleteRecords; the model allows it before the request, and demands it afterwards."""
        model.ceiling = max(model.ceiling, before)
        answer = self.ask(
            f"delete records of {model.name}",
            lambda client: delete_records(client, model.topic, before, partition=model.number),
        )
        if answer.error_code:
            self.violations.add(f"delete records of {model.name}: error {answer.error_code}")
            return
        model.floor = max(model.floor, before)
        model.check_start(answer.low_watermark, before)

    def move(self, model: PartitionModel) -> None:
        """Asks for a move to the folder where the partition is not; it goes on by itself."""
        folder = self.broker.other_folder(model.topic, model.number)
        code = self.ask(
            f"move {model.name}",
            lambda client: ask_to_move(client, model.topic, model.number, folder),
        )
        if code:
            self.violations.add(f"move {model.name} to {folder.name}: error {code}")

    def let_go(self, models: list[PartitionModel]) -> None:
        """From now on the broker may delete what it wants of these."""
        for model in models:
            model.ceiling = ANY_OFFSET

    def keep(self, models: list[PartitionModel]) -> None:
        """From now on nothing more may go: what was written until now may have gone."""
        for model in models:
            model.ceiling = self.ask(
                f"end of {model.name}",
                lambda client, m=model: end_offset(client, m.topic, partition=m.number),
            )
