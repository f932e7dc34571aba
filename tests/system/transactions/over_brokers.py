"""Consume, transform and produce over several brokers, while brokers, controller and workers die.

    source --> two workers, each with a transactional id --> target        on all brokers
    victims: a broker, the controller, a worker, and now and then the supervisor with all of them

Each input must be in the target exactly once. The same seed makes the same kills in the same order.
Frameworks of the JVM take the workers' place in tests/compat/jvm.

    python -m tests.system.transactions.exactly_once --brokers 3 --minutes 2 --seed 7
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import eventually
from tests.support.several_brokers import SeveralBrokers
from tests.system.transactions.exactly_once import (
    DRAIN_S,
    INPUTS_PER_ROUND,
    SOURCE,
    TARGET,
    Trial,
    Worker,
    keep_running,
    run_for,
)

PARTITIONS = 6
# One kill of all in so many.
ALL_IN = 6
WAIT_S = 60
SETTINGS = (
    "transaction.state.log.num.partitions=6",
    "offsets.topic.num.partitions=6",
    "broker.session.timeout.ms=3000",
)


def run(
    folder: Path,
    trial: Trial,
    *,
    brokers: int,
    seed: int,
    rounds: int,
    until_s: float = 0.0,
    replicas: int = 1,
) -> Counter[bytes]:
    """Kills at least `rounds` times, and goes on until `until_s`; how often each input came."""
    chance, sent = random.Random(seed), 0
    replicated = (
        f"default.replication.factor={replicas}",
        f"min.insync.replicas={(replicas + 1) // 2}",
    )
    cluster = SeveralBrokers(folder / "brokers", *SETTINGS, *replicated, brokers=brokers)
    with cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topics = [NewTopic(name, trial.partitions, replicas) for name in (SOURCE, TARGET)]
        for made in admin.create_topics(topics).values():
            made.result(WAIT_S)
        workers = [
            Worker(command, folder / f"worker-{number}.log")
            for number, command in enumerate(trial.commands(cluster))
        ]
        try:
            while rounds > 0 or time.monotonic() < until_s:
                rounds -= 1
                keep_running(workers)
                trial.send(cluster, range(sent, sent + INPUTS_PER_ROUND))
                sent += INPUTS_PER_ROUND
                run_for(workers, chance.uniform(0.5, trial.pause_s_max))
                _kill_something(chance, cluster, workers)
            expected = {b"%d" % number for number in range(sent)}

            def is_drained() -> bool:
                keep_running(workers)
                return expected <= set(trial.inputs(_committed(cluster.bootstrap, trial)))

            eventually(is_drained, timeout_s=DRAIN_S)
        finally:
            for worker in workers:
                worker.kill()
        found = Counter(trial.inputs(_committed(cluster.bootstrap, trial)))
        assert set(found) == expected
        return found


def _kill_something(chance: random.Random, cluster: SeveralBrokers, workers: list[Worker]) -> None:
    if chance.randrange(ALL_IN) == 0:
        cluster.stop(signal.SIGKILL)
        cluster.await_ends()
        cluster.__enter__()
        return
    victims = [*cluster.present_pids(), "worker"]
    victim = chance.choice(sorted(victims))
    if victim == "worker":
        chance.choice(workers).kill()
    else:
        cluster.kill_present(victim)


def _committed(bootstrap: str, trial: Trial) -> list[bytes]:
    """All that a reader of committed records finds up to the present ends."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    places = [confluent_kafka.TopicPartition(TARGET, one, 0) for one in range(trial.partitions)]
    found: list[bytes] = []
    try:
        ends = [consumer.get_watermark_offsets(one, timeout=WAIT_S)[1] for one in places]
        consumer.assign(places)
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            found += [one.value() for one in consumer.consume(500, 0.2) if not one.error()]
            at = {one.partition: max(one.offset, 0) for one in consumer.position(places)}
            if all(at[one.partition] >= end for one, end in zip(places, ends, strict=True)):
                break
    except confluent_kafka.KafkaException:
        # A broker is away; who waits for all of it looks again.
        return found
    finally:
        consumer.close()
    return found


def run_alone(trial: Trial, *, brokers: int, seed: int, minutes: float, replicas: int = 1) -> int:
    """A run in a folder of its own; the exit code."""
    until_s = time.monotonic() + minutes * 60
    with tempfile.TemporaryDirectory(prefix="strandline-") as name:
        found = run(
            Path(name),
            trial,
            brokers=brokers,
            seed=seed,
            rounds=1,
            until_s=until_s,
            replicas=replicas,
        )
    twice = sum(count != 1 for count in found.values())
    told = f"{len(found)} inputs, {twice} of them more than once"
    print(f"{brokers} brokers, {replicas} replicas: {told}", flush=True)
    return int(twice > 0)
