"""A metadata log in a store of any kind, opened and filled."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata_log import (
    MetadataLog,
)
from strandline.broker.cluster.metadata.records import (
    BrokerStarted,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdsAllocated,
    TopicConfigsSet,
    TopicCreated,
    TopicDeleted,
)
from strandline.storage.remote.object_store.interface import ObjectStore
from tests.support.memory_store import MemoryStore

CLUSTER = "c-1"


def opened(
    store: ObjectStore,
    mirror: ObjectStore | None = None,
    *,
    cluster_id: str = CLUSTER,
    snapshot_interval: int = 4,
) -> MetadataLog:
    metadata = MetadataLog(
        store, mirror, cluster_id=cluster_id, snapshot_interval=snapshot_interval
    )
    metadata.load()
    return metadata


def created(number: int) -> TopicCreated:
    return TopicCreated(
        topic=f"t{number}",
        topic_id=uuid.UUID(int=number + 1),
        replicas=((1,), (1,)),
        properties={"retention.ms": str(number)},
    )


def fill(metadata: MetadataLog, count: int, first: int = 0) -> MetadataImage:
    for number in range(first, first + count):
        metadata.append([created(number)])
    return metadata.image


def keys_in(store: MemoryStore) -> list[str]:
    return store.keys()


def history() -> Iterator[list[MetadataRecord]]:
    """Entries of every type, for a dozen versions."""
    yield [created(0), created(1)]
    yield [BrokerStarted(node_id=1)]
    yield [PartitionsAdded(topic_id=uuid.UUID(int=1), first_partition=2, replicas=((1, 2),))]
    yield [TopicConfigsSet(topic_id=uuid.UUID(int=2), properties={"segment.ms": "9"})]
    yield [TopicDeleted(topic_id=uuid.UUID(int=1))]
    yield [ProducerIdsAllocated(next_producer_id=1000)]
    for number in range(2, 8):
        yield [created(number), BrokerStarted(node_id=2)]


def copy_of(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    for key in keys_in(store):
        copy.put(key, store.get(key))
    return copy
