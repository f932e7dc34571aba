"""`make cluster-faults MINUTES=30 BROKERS=3 SEED=7`: real brokers and clients, and all faults.

    plan.py       what happens, from the seed alone     clients/     producers, consumers, groups
    troubles.py   carries it out                        history.py   what each of them was told
    machines.py   processes, disks and links            copies.py    all copies at the end
    node.py       the world around each process         checks.py    what must hold of both
    many.py       the same of a topic of millions

Rounds follow each other, each with a cluster of its own and the next seed. A round that breaks a
promise ends the run with 1, and keeps its folder.

    python -m tests.system.cluster_faults.run --minutes 5 --brokers 3 --seed 7
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import TEST_ENVIRONMENT, make_bucket
from tests.support.broker import REPOSITORY, eventually
from tests.support.fault_proxy import FaultProxy
from tests.support.ministack import ministack
from tests.system.cluster_faults import copies, many
from tests.system.cluster_faults.checks import Outcome, violations
from tests.system.cluster_faults.machines import REPLICAS, Machines
from tests.system.cluster_faults.many import MANY, ManyOutcome
from tests.system.cluster_faults.people import COPIED, LIBRARIES, ORDERED, SOURCE, TOPICS, People
from tests.system.cluster_faults.plan import KINDS, STORE_AWAY, draw
from tests.system.cluster_faults.troubles import Troubles

FOLDER = REPOSITORY / "bench-data" / "cluster-faults"
# Generous: on a loaded machine everything takes many times as long.
WAIT_S = 300.0
# Producers write on for so long after the last trouble.
CALM_S = 1.0
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "1000",
    "strandline.remote.groups.upload.ms": "1000",
}
TIERED = {"remote.storage.enable": "true", "segment.ms": "2000"}
# Leaves the disk once it is archived: readers and new replicas go to the bucket.
COLD = {**TIERED, "local.retention.bytes": "1", "local.retention.ms": "1000"}
# So that all replicas have the same part of it, and readers need both.
LARGE = {**TIERED, "segment.bytes": "16777216", "local.retention.ms": "20000"}
CONFIGS = {
    ORDERED: TIERED,
    "plain": COLD,
    COPIED: TIERED,
    "transactions": COLD,
    SOURCE: {},
    MANY: LARGE,
}
REGION = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much happens in a round."""

    brokers: int = 3
    seconds: float = 60.0
    partitions: int = 3
    records_per_s: int = 1000
    # Of Java's producer.
    many_per_s: int = 50_000
    value_bytes: int = 60
    copiers: int = 2
    # How far apart troubles begin: 1 leaves little time to write in.
    calm: float = 1.0
    kinds: Sequence[str] = KINDS
    libraries: Sequence[str] = LIBRARIES
    has_s3: bool = False
    fault: str = ""

    @property
    def topics(self) -> list[str]:
        return [topic for library in self.libraries for topic in TOPICS[library]]


@dataclass(kw_only=True)
class Told:
    """What a round came to."""

    found: list[str] = field(default_factory=list)
    acknowledged: int = 0
    read: int = 0
    # Rows that the lake has.
    archived: int = 0
    troubles: int = 0


def play(folder: Path, seed: int, size: Size, say: Callable[[str], None]) -> Told:
    """One round; a violation is found, not raised."""
    told = Told()
    with ExitStack() as stack:
        url, access, proxy = f"file://{folder / 'bucket'}", {}, None
        settings = dict(SETTINGS)
        if size.has_s3:
            server = stack.enter_context(ministack(folder / "s3.log"))
            url = make_bucket(server.endpoint_url).url
            proxy = stack.enter_context(FaultProxy(server.port))
            access = {"s3.endpoint.url": server.endpoint_url, "s3.region": REGION}
            settings["strandline.remote.s3.endpoint.url"] = proxy.endpoint_url
            settings["strandline.remote.s3.region"] = REGION
        else:
            (folder / "bucket").mkdir(parents=True)
        settings["strandline.remote.url"] = url
        machines = Machines(
            folder / "machines", brokers=size.brokers, settings=settings, fault=size.fault
        )
        stack.enter_context(machines)
        _create(machines.bootstrap, size)
        people = People(
            folder / "people",
            [one.process.bootstrap for one in machines.brokers],
            partitions=size.partitions,
            records_per_s=size.records_per_s,
            value_bytes=size.value_bytes,
            copiers=size.copiers if COPIED in size.topics else 0,
            libraries=size.libraries,
            many_per_s=size.many_per_s,
        )
        stack.callback(people.kill)
        troubles = Troubles(machines, people, size.topics, size.partitions, say, proxy)
        kinds = [one for one in size.kinds if proxy is not None or one != STORE_AWAY]
        plan = draw(seed, brokers=size.brokers, seconds=size.seconds, kinds=kinds, calm=size.calm)
        outcomes: list[Outcome] = []
        of_many = None
        try:
            eventually(troubles.have_all_begun, timeout_s=WAIT_S, interval_s=0.1)
            troubles.run(plan, size.seconds)
            say("        healed")
            outcomes, of_many = _end(machines, people, troubles, size, url, access)
        except (AssertionError, KafkaException, subprocess.TimeoutExpired) as error:
            told.found.append(f"the cluster does not get well again: {error}")
        told.troubles = troubles.done
        told.found += troubles.ended
    for outcome in outcomes:
        told.found += violations(outcome)
        told.acknowledged += sum(1 for _ in outcome.events("acknowledged"))
        told.acknowledged += sum(offset for _, _, offset, _ in outcome.events("commit"))
        told.read += sum(1 for _ in outcome.events("read"))
        told.archived += sum(map(len, (outcome.lake or {}).values()))
    if of_many is not None:
        told.found += many.violations(of_many)
        told.acknowledged += many.count_of(of_many.acknowledged)
        told.read += many.count_of(of_many.read)
        told.archived += many.count_of(of_many.lake)
    told.found += [
        f"{one.name} fell over something: {text[text.index('Traceback') :][:2000]}"
        for one in machines.all
        if "Traceback" in (text := one.process.log_text())
    ]
    return told


def _create(bootstrap: str, size: Size) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(one, size.partitions, REPLICAS, config=CONFIGS[one]) for one in size.topics]
    for made in admin.create_topics(topics).values():
        made.result(WAIT_S)


def _end(
    machines: Machines,
    people: People,
    troubles: Troubles,
    size: Size,
    url: str,
    access: dict[str, str],
) -> tuple[list[Outcome], ManyOutcome | None]:
    """Everything works again, and all copies are read."""

    def is_well() -> bool:
        troubles.tick()
        return people.all_in_sync()

    eventually(is_well, timeout_s=WAIT_S, interval_s=0.2)
    time.sleep(CALM_S)
    people.end()
    outcomes = {topic: Outcome(topic=topic) for topic in size.topics if topic != MANY}

    def is_copied() -> bool:
        troubles.tick()
        counts = []
        for topic in (SOURCE, COPIED):
            found, _ = copies.read_all(machines.bootstrap, topic, size.partitions, "read_committed")
            counts.append(sum(map(len, found.values())))
        return counts[1] >= counts[0]

    if COPIED in outcomes:
        eventually(is_copied, timeout_s=WAIT_S, interval_s=0.3)
        people.end_copiers()
    for topic, outcome in outcomes.items():
        ask = (machines.bootstrap, topic, size.partitions)
        outcome.histories = people.histories(topic)
        outcome.records, outcome.ends = copies.read_all(*ask, "read_uncommitted")
        committed, _ = copies.read_all(*ask, "read_committed")
        outcome.committed = {
            partition: {offset: one.text for offset, one in found.items()}
            for partition, found in committed.items()
        }
    if COPIED in outcomes:
        outcomes[COPIED].source = outcomes[SOURCE]
    of_many = None if people.many is None else people.many.outcome()
    machines.end(troubles.ended.append)
    for topic, outcome in outcomes.items():
        for partition in range(size.partitions):
            _look_into_folders(machines, outcome, partition)
        if CONFIGS[topic]:
            outcome.lake = copies.in_lake(url, topic, size.partitions, access)
    if of_many is not None:
        of_many.lake = many.runs_in_lake(url, access)
        for one in machines.brokers:
            for partition in range(size.partitions):
                found = copies.replica(one.process.data / f"{MANY}-{partition}")
                if found is not None:
                    of_many.replicas[one.name, partition] = found
    return list(outcomes.values()), of_many


def _look_into_folders(machines: Machines, outcome: Outcome, partition: int) -> None:
    folders = {}
    for one in machines.brokers:
        folder = one.process.data / f"{outcome.topic}-{partition}"
        found = copies.replica(folder)
        if found is not None:
            outcome.replicas[one.name, partition] = found
            folders[one.name] = found.start_offset, folder
    if folders:
        outcome.decoded[partition] = copies.decoded(min(folders.values())[1])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of troubles in a round")
    parser.add_argument("--rate", type=int, default=1000, help="of records a second")
    parser.add_argument("--many", type=int, default=50_000, help="the same of Java's producer")
    parser.add_argument(
        "--calm", type=float, default=1.0, help="2: half as many troubles, and more records"
    )
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--s3", action="store_true", help="a bucket of S3, which goes away too")
    parser.add_argument("--fault", default="", help="planted into the brokers: planted.py")
    options = parser.parse_args()
    kinds, libraries = options.kinds.split(","), options.libraries.split(",")
    for told, known in ((kinds, KINDS), (libraries, LIBRARIES)):
        if unknown := set(told) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: none of {', '.join(known)}")
    # Its processes end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ.update(TEST_ENVIRONMENT)
    size = Size(
        brokers=options.brokers,
        seconds=options.seconds,
        records_per_s=options.rate,
        many_per_s=options.many,
        calm=options.calm,
        has_s3=options.s3,
        kinds=kinds,
        libraries=libraries,
        fault=options.fault,
    )
    until_s, seed, acknowledged = time.monotonic() + options.minutes * 60, options.seed, 0
    while True:
        folder = FOLDER / str(seed)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"seed {seed}, {size.brokers} brokers", flush=True)
        told = play(folder, seed, size, lambda text: print(text, flush=True))
        acknowledged += told.acknowledged
        print(
            f"seed {seed}: {told.troubles} troubles, {told.acknowledged} records acknowledged,"
            f" {told.read} read, {told.archived} archived, {len(told.found)} violations;"
            f" {acknowledged} acknowledged in all rounds",
            flush=True,
        )
        for text in told.found:
            print(f"  {text}", flush=True)
        if told.found:
            print(f"kept in {folder}", flush=True)
            return 1
        shutil.rmtree(folder)
        seed += 1
        if time.monotonic() >= until_s:
            return 0


if __name__ == "__main__":
    sys.exit(main())
