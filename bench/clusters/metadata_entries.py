"""What one entry of the metadata costs a broker's loop, with 50,000 partitions.

No other process runs: entries are encoded here, and replayed as a broker does that fetched them
from its controller. This broker has a replica of each partition, and leads a third of them; their
logs are copies of one. CPU of the loop's thread, median.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from unittest.mock import patch

from bench.clusters.rig import Figures
from bench.tiers.metadata import copying_logs
from strandline.broker.cluster.in_sync.leading import LeaderContext
from strandline.broker.cluster.membership.replay import MetadataReplay
from strandline.broker.cluster.metadata.image import PartitionImage
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager, Replication
from strandline.broker.cluster.replicas.tiers import LocalTier
from strandline.broker.protocol.formats.metadata_records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    encode_record,
)
from strandline.storage.clock import SystemClock
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.records.batch.record import Record, encode_batch

CLUSTER_ID = "x4AJGXQSRnephtTZzujw4w"
NODES = (1, 2, 3)
THIS_NODE = 1
TOPICS, PARTITIONS = 5_000, 10
TOPICS_PER_ENTRY = 100
ENTRIES_MEASURED = 30


class _NoFetchers:
    """Fetches nothing."""

    def follow(self, partition: Partition, image: PartitionImage) -> None:
        pass

    def stop(self, partition: Partition) -> None:
        pass


class _Broker:
    """One that applies entries."""

    def __init__(self, folder: Path, disk: ThreadPoolExecutor) -> None:
        clock = SystemClock()
        self._replay = MetadataReplay(CLUSTER_ID)
        self._end_offset = 0
        self.dirs = LogDirs.open([folder], node_id=THIS_NODE, cluster_id=CLUSTER_ID, clock=clock)
        context = LeaderContext(
            node_id=THIS_NODE,
            now_ms=lambda: clock.monotonic_s() * 1000,
            lag_ms_max=lambda: 30_000,
            brokers=lambda: self._replay.image.brokers,
            broker_epoch=lambda: 0,
            propose=lambda *_: None,
        )
        self._replicas = ReplicaManager(
            self.dirs,
            LocalTier({}, lookups=disk),
            node_id=THIS_NODE,
            topic_defaults=dict,
            folders=FolderWork(lambda _: disk),
            syncs=lambda _: disk,
            replication=Replication(cluster=context, followers=_NoFetchers()),
        )

    @property
    def partition_count(self) -> int:
        return sum(one.partition_count for one in self._replay.image.topics.values())

    async def apply(self, records: Sequence[MetadataRecord]) -> float:
        """Applies an entry; returns the ms of this thread that it took."""
        batch = encode_batch(
            [
                Record(offset=offset, timestamp_ms=1, key=None, value=encode_record(one))
                for offset, one in enumerate(records, self._end_offset)
            ],
            leader_epoch=1,
        )
        self._end_offset += len(records)
        began_s = time.thread_time()
        applied = self._replay.take(batch, self._end_offset)
        assert applied is not None
        await self._replicas.follow(applied.delta, applied.image)
        return 1000 * (time.thread_time() - began_s)


def metadata_entries(name: str, folder: Path, seconds: float) -> Figures:
    return asyncio.run(_measured(folder / "metadata"))


async def _measured(folder: Path) -> Figures:
    copying = copying_logs(LogDirs.create_logs)
    with ThreadPoolExecutor(1) as disk, patch.object(LogDirs, "create_logs", copying):
        folder.mkdir()
        broker = _Broker(folder, disk)
        await broker.apply([_registered(node_id) for node_id in NODES])
        for first in range(0, TOPICS, TOPICS_PER_ENTRY):
            made = (_topic(number) for number in range(first, first + TOPICS_PER_ENTRY))
            await broker.apply([record for topic in made for record in topic])
        assert broker.partition_count == TOPICS * PARTITIONS
        gc.collect()
        gc.freeze()
        figures = {}
        for what, entries in _entries().items():
            costs = [await broker.apply(next(entries)) for _ in range(ENTRIES_MEASURED)]
            figures[f"{what}, ms"] = statistics.median(costs)
        gc.unfreeze()
        return figures


def _entries() -> Mapping[str, Iterator[Sequence[MetadataRecord]]]:
    return {
        "a replica leaves the set": (_changed(number, isr=[1, 2]) for number in count()),
        "a leader elected": (_changed(number, leader=2) for number in count()),
        "a topic made": (_topic(TOPICS + number) for number in count()),
        "a broker fenced, or not": (
            [
                BrokerRegistrationChangeRecord(
                    broker_id=3, broker_epoch=0, fenced=-1 if number % 2 else 1
                )
            ]
            for number in count()
        ),
    }


def _registered(node_id: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=uuid.UUID(int=node_id),
        broker_epoch=0,
        end_points=(),
        features=(),
        fenced=False,
    )


def _topic(number: int) -> Sequence[MetadataRecord]:
    placed = [NODES[at % 3 :] + NODES[: at % 3] for at in range(PARTITIONS)]
    return topic_records(f"topic.{number:06}", _topic_id(number), placed, {})


def _topic_id(number: int) -> uuid.UUID:
    return uuid.UUID(int=number + 1)


def _changed(number: int, **values: object) -> Sequence[MetadataRecord]:
    return [PartitionChangeRecord(partition_id=0, topic_id=_topic_id(number), **values)]
