"""`make soak BROKERS=3`: several brokers with replicated and archived topics, while processes die.

    clients ──► supervisor, controller, brokers 1..N ──► fault proxy ──► MiniStack
                 killed, standing still, all at once      away, refusing

    replicated   three replicas, two in sync at least       single   one replica

What is checked is what `model.py` says of records: everybody reads every acknowledged record once
and in order, while it lives and at the end; then the archive is verified, and the lake reads it.
The same seed makes the same steps in the same order.

    python -m tests.system.soak.run --brokers 3 --minutes 5 --seed 7
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from strandline.spark_lake import scan
from tests.conftest import TEST_ENVIRONMENT, S3Bucket, make_bucket
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.ministack import ministack
from tests.support.own_process import run_here
from tests.support.several_brokers import SeveralBrokers
from tests.system.soak.clients import KeenProducer, Member, Reader
from tests.system.soak.libraries import LIBRARIES, Row
from tests.system.soak.model import GroupProgress, PartitionModel, Violations
from tests.system.soak.witness import Witness
from tests.system.tiers.tiered_broker import BROKER_SETTINGS, REGION, Archive

TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "segment.ms": "1000",
    "strandline.remote.active.segment.upload.ms": "500",
}
SETTINGS = {
    **BROKER_SETTINGS,
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "5000",
    "strandline.remote.groups.upload.ms": "300",
    "strandline.remote.delete.grace.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
}
REPLICATED, SINGLE = "replicated", "single"
PARTITIONS = 3
RECORDS_PER_S = 20.0
# Of a producer in a partition. While as many requests are in flight and more records wait, each of
# librdkafka's threads spins (its issue 3692): an outage of one broker would take all cores.
UNANSWERED_MAX = 5
GROUPS = {"classic-group": "classic", "new-group": "consumer"}
# What a producer's journal says then.
BUMP = "epoch bump for"
WAIT_S = 60
READ_S_MAX = 240.0


class Fleet:
    """The cluster, its store and what may happen to them. A context manager."""

    def __init__(self, folder: Path, brokers: int, violations: Violations) -> None:
        self.violations = violations
        self.counts: Counter[str] = Counter()
        self.folder = folder
        self._size = brokers
        self._closing = ExitStack()
        self.models = [
            PartitionModel(topic=topic, number=number, violations=violations)
            for topic in (REPLICATED, SINGLE)
            for number in range(PARTITIONS)
        ]
        self.bucket: S3Bucket
        self.cluster: SeveralBrokers
        self.witness: Witness
        self._proxy: FaultProxy
        # How often each comes among so many steps.
        self.steps: dict[str, tuple[int, Callable[[random.Random], None]]] = {
            "a broker is killed": (4, self._kill_broker),
            "a broker stands still": (2, self._pause_broker),
            "the controller is killed": (1, lambda _: self.cluster.kill_present("controller")),
            "all are killed": (1, lambda _: self._kill_all()),
            "the store is away": (1, self._lose_store),
            "the store refuses": (1, self._refuse),
        }

    def __enter__(self) -> Fleet:
        os.environ.update(TEST_ENVIRONMENT)
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            server = stack.enter_context(ministack(self.folder / "s3.log"))
            self._proxy = stack.enter_context(FaultProxy(server.port))
            self.bucket = make_bucket(server.endpoint_url)
            settings = {
                **SETTINGS,
                "strandline.remote.url": self.bucket.url,
                "strandline.remote.s3.endpoint.url": self._proxy.endpoint_url,
                "strandline.remote.s3.region": REGION,
            }
            self.cluster = SeveralBrokers(
                self.folder / "brokers",
                *(f"{name}={text}" for name, text in settings.items()),
                brokers=self._size,
                environment={"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
            )
            self.witness = Witness(self.cluster.data, self.folder / "refused")
            stack.enter_context(self.cluster)
            self._create()
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def of(self, topic: str) -> list[PartitionModel]:
        return [model for model in self.models if model.topic == topic]

    def _create(self) -> None:
        replicas = min(self._size, 3)
        config = {**TIERED, "min.insync.replicas": str(min(replicas, 2))}
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        topics = [
            NewTopic(REPLICATED, PARTITIONS, replicas, config=config),
            NewTopic(SINGLE, PARTITIONS, 1, config=TIERED),
        ]
        for made in admin.create_topics(topics).values():
            made.result(WAIT_S)

    # --- steps -------------------------------------------------------------------------------

    def take_step(self, chance: random.Random) -> None:
        names = list(self.steps)
        (name,) = chance.choices(names, [self.steps[one][0] for one in names])
        self.counts[name] += 1
        self.steps[name][1](chance)
        time.sleep(chance.uniform(0.5, 4.0))

    def _broker(self, chance: random.Random) -> str:
        return f"broker {chance.randint(1, self._size)}"

    def _kill_broker(self, chance: random.Random) -> None:
        name = self._broker(chance)
        if name in self.cluster.present_pids():
            self.cluster.kill_present(name)

    def _pause_broker(self, chance: random.Random) -> None:
        pid, pause_s = self.cluster.present_pids().get(self._broker(chance)), chance.uniform(1, 6)
        if pid is not None:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(pause_s)
            os.kill(pid, signal.SIGCONT)

    def _kill_all(self) -> None:
        self.cluster.stop(signal.SIGKILL)
        self.cluster.await_ends()
        self.cluster.__enter__()

    def _lose_store(self, chance: random.Random) -> None:
        self._proxy.go_away()
        time.sleep(chance.uniform(0.5, 3.5))
        self._proxy.come_back()

    def _refuse(self, chance: random.Random) -> None:
        self._proxy.add(Rule(action=Action.STATUS, times=-1))
        time.sleep(chance.uniform(0.5, 3.5))
        self._proxy.clear()


@contextmanager
def living(fleet: Fleet, seed: int) -> Iterator[dict[str, GroupProgress]]:
    """Producers, readers and groups; in the end all but the groups have stopped."""
    bootstrap, found = fleet.cluster.bootstrap, fleet.violations
    writers = [
        KeenProducer(
            number,
            bootstrap,
            fleet.of(topic),
            found,
            records_per_s=RECORDS_PER_S,
            witness=fleet.witness,
            unanswered_max=UNANSWERED_MAX,
            journal=fleet.folder / f"producer-{number}.log",
        )
        for number, topic in enumerate((REPLICATED, SINGLE, REPLICATED), 1)
    ]
    readers = [
        Reader(library, bootstrap, fleet.models, found, seed=seed + number)
        for number, library in enumerate(LIBRARIES)
    ]
    progress = {group: GroupProgress() for group in GROUPS}
    models = {(model.topic, model.number): model for model in fleet.models}
    members = [
        Member(bootstrap, models, progress[group], found, group=group, protocol=GROUPS[group])
        for group in GROUPS
    ]
    everybody = (*writers, *readers, *members)
    for one in everybody:
        one.start()
    try:
        yield progress
        for writer in writers:
            writer.stop()
        for reader in readers:
            reader.stop()
        await_groups(fleet, progress)
    finally:
        for one in everybody:
            one.ask_to_stop()
        for member in members:
            member.stop()


def await_groups(fleet: Fleet, progress: dict[str, GroupProgress]) -> None:
    """Each group comes to what was acknowledged last."""
    until_s = time.monotonic() + READ_S_MAX
    for group, reached in progress.items():
        for model in fleet.models:
            while reached.end(model) < model.acknowledged_end:
                if time.monotonic() > until_s:
                    fleet.violations.add(
                        f"{group}: {model.name}: came to {reached.end(model)},"
                        f" {model.acknowledged_end - 1} was acknowledged"
                    )
                    break
                time.sleep(0.2)


def check(fleet: Fleet) -> None:
    """Everybody reads everything once more, also from the archive alone."""
    for library in LIBRARIES:
        reader = Reader(
            library, fleet.cluster.bootstrap, fleet.models, fleet.violations, seed=0, once=True
        )
        reader.start()
        until_s = time.monotonic() + READ_S_MAX
        while len(reader.done) < len(fleet.models) and time.monotonic() < until_s:
            time.sleep(0.2)
        reader.stop()
        if len(reader.done) < len(fleet.models):
            fleet.violations.add(f"{reader.name} has only read {reader.done}")
    for model in fleet.models:
        model.check_read()
    check_archive(fleet)
    if "Traceback" in fleet.cluster.log_text():
        fleet.violations.add("a traceback is in the brokers' log")


def check_archive(fleet: Fleet) -> None:
    archive = Archive.open(fleet.bucket)
    until_s = time.monotonic() + READ_S_MAX
    for model in fleet.models:
        while archived_end(archive, model) < model.acknowledged_end:
            if time.monotonic() > until_s:
                fleet.violations.add(f"{model.name} is archived to {archived_end(archive, model)}")
                break
            time.sleep(0.5)
    access = ["--endpoint-url", fleet.bucket.endpoint_url, "--region", REGION]
    verified = run_here(
        ["archive", "verify", "--deep", "--remote", fleet.bucket.url, *access],
        environment=dict(os.environ),
        folder=fleet.cluster.folder,
    )
    if verified.code:
        fleet.violations.add(f"archive verify: {verified.text}")
    for topic in (REPLICATED, SINGLE):
        scan_topic(fleet, topic)


def archived_end(archive: Archive, model: PartitionModel) -> int:
    manifest = archive.manifest(model.topic, model.number)
    return 0 if manifest is None else max(manifest.end_offset, manifest.tail_end_offset)


def scan_topic(fleet: Fleet, topic: str) -> None:
    options = {"s3.endpoint.url": fleet.bucket.endpoint_url}
    columns = ["partition", "offset", "value", "key"]
    table = scan(fleet.bucket.url, topic, columns=columns, options=options).read_all()
    rows: defaultdict[int, list[Row]] = defaultdict(list)
    for row in table.to_pylist():
        rows[row["partition"]].append((row["offset"], row["value"], row["key"]))
    for model in fleet.of(topic):
        reading = model.begin_pass(0, generation=model.generation, who="lake")
        for row in sorted(rows[model.number], key=lambda one: one[0]):
            reading.accept(*row)
        fleet.counts["records scanned by the lake"] += reading.count
        if reading.next_offset < model.acknowledged_end:
            fleet.violations.add(
                f"lake: {model.name} ends at {reading.next_offset},"
                f" {model.acknowledged_end - 1} was acknowledged"
            )


def run(folder: Path, *, brokers: int, seed: int, seconds: float) -> tuple[Fleet, list[str]]:
    """Lives for so long; returns the cluster, which has ended, and what was wrong."""
    violations, chance = Violations(), random.Random(seed)
    with Fleet(folder, brokers, violations) as fleet:
        with living(fleet, seed):
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s and not violations.texts:
                fleet.take_step(chance)
        check(fleet)
    # Each may have doubled records: librdkafka's issue 4953.
    if bumps := sum(path.read_text().count(BUMP) for path in folder.glob("producer-*.log")):
        fleet.counts["times that librdkafka numbered anew what was not answered"] = bumps
    return fleet, violations.texts
