"""A follower that was away catches up: its rate, and with an archive the bytes from its leader.

It stands still (SIGSTOP) until it is out of sync and all is produced. Of the archived topic leaders
keep a tenth on their disks: the follower goes on behind the archive, and fetches what lies there.
"""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

from confluent_kafka.admin import NewTopic

from bench.clients.rdkafka import ProduceLoad, producers
from bench.clusters.peers import Cluster, Strandline
from bench.clusters.rig import (
    RECORD_BYTES,
    Figures,
    acknowledge,
    await_places,
    create,
    is_in_sync,
    places,
    running,
)

BATCH_BYTES = 1_000_000
SEGMENTS = 40
WAIT_S = 600.0
FETCHED = "kafka_server_brokertopicmetrics_replicationbytesin_total"


def catching_up(name: str, folder: Path, seconds: float, *, gigabytes: float) -> Figures:
    with running(name, folder, replicas=3) as cluster:
        create(cluster, NewTopic("t", 1, 3))
        with _Away(cluster) as away:
            _produce(cluster, gigabytes, away.others)
        taken_s = away.caught_up_after_s()
        return {f"{gigabytes:g} GB, MB/s": 1000 * gigabytes / taken_s, "caught up, s": taken_s}


def catching_up_archived(name: str, folder: Path, seconds: float, *, gigabytes: float) -> Figures:
    settings = {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": (folder / "bucket").as_uri(),
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "100",
    }
    total_bytes = int(gigabytes * 1e9)
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": str(total_bytes // SEGMENTS),
        "local.retention.bytes": str(total_bytes // 10),
    }
    (folder / "bucket").mkdir(exist_ok=True)
    with running(name, folder, replicas=3, settings=settings) as cluster:
        assert isinstance(cluster, Strandline)
        create(cluster, NewTopic("t", 1, 3, config=config))
        with _Away(cluster) as away:
            _produce(cluster, gigabytes, away.others)
            _await_freed(cluster, away.leader, 1.5 * total_bytes / 10)
        taken_s = away.caught_up_after_s()
        fetched_bytes = _fetched_bytes(cluster, away.follower)
        local_bytes = _local_bytes(cluster, away.follower)
        return {
            f"{gigabytes:g} GB, 9/10 archived: caught up, s": taken_s,
            "from its leader, MB": fetched_bytes / 1e6,
            "of its local bytes": fetched_bytes / local_bytes,
        }


class _Away:
    """A follower of topic t that stands still within the block."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        acknowledge(cluster, "t", [0], acks=-1)
        await_places(cluster.bootstrap, "t", is_in_sync)
        place = places(cluster.bootstrap, "t")[0]
        self.leader = place.leader
        self.follower = next(one for one in place.replicas if one != self.leader)
        addresses = cluster.bootstrap.split(",")
        del addresses[self.follower - 1]
        self.others = ",".join(addresses)
        self._resumed_s = 0.0

    def __enter__(self) -> _Away:
        self._cluster.pause_broker(self.follower)
        await_places(self.others, "t", lambda one: self.follower not in one.isrs)
        return self

    def __exit__(self, *_: object) -> None:
        self._resumed_s = time.perf_counter()
        self._cluster.resume_broker(self.follower)

    def caught_up_after_s(self) -> float:
        await_places(self.others, "t", is_in_sync)
        return time.perf_counter() - self._resumed_s


def _produce(cluster: Cluster, gigabytes: float, bootstrap: str) -> None:
    load = ProduceLoad(
        topic="t",
        count=int(gigabytes * 1e9) // RECORD_BYTES,
        record_bytes=RECORD_BYTES,
        batch_bytes=BATCH_BYTES,
        acks=-1,
    )
    with producers(bootstrap, load) as ready:
        ready.run()


def _await_freed(cluster: Strandline, broker_id: int, bytes_max: float) -> None:
    """Returns when the leader's disk has no more than what its topic keeps there."""
    deadline_s = time.monotonic() + WAIT_S
    while _local_bytes(cluster, broker_id) > bytes_max:
        if time.monotonic() > deadline_s:
            raise TimeoutError("the leader keeps what its archive has")
        time.sleep(0.2)


def _local_bytes(cluster: Strandline, broker_id: int) -> int:
    folder = cluster.folder_of(broker_id) / "t-0"
    return sum(one.stat().st_size for one in folder.glob("*.log"))


def _fetched_bytes(cluster: Strandline, broker_id: int) -> float:
    with urllib.request.urlopen(cluster.metrics) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(FETCHED) and f'broker="{broker_id}"' in line and 'topic="t"' in line:
                return float(line.split()[-1])
    raise LookupError(f"no {FETCHED} of broker {broker_id}")
