"""A metadata log in a store of any kind, opened and filled."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata_log import (
    MetadataLog,
)
from strandline.broker.cluster.metadata.records import (
    config_records,
    partition_records,
    topic_records,
)
from strandline.broker.protocol.formats.metadata_records import (
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.storage.remote.object_store.interface import ObjectStore
from tests.support.memory_store import MemoryStore
from tests.unit.broker.cluster.controlled import registered

CLUSTER = "c-1"


def opened(
    store: ObjectStore,
    mirror: ObjectStore | None = None,
    *,
    cluster_id: str = CLUSTER,
    snapshot_interval: int = 4,
    intervals_max: int = 1,
) -> MetadataLog:
    """A snapshot follows every `snapshot_interval` entries, however large it is."""
    metadata = MetadataLog(
        store,
        mirror,
        cluster_id=cluster_id,
        snapshot_interval=snapshot_interval,
        intervals_max=intervals_max,
    )
    metadata.load()
    return metadata


def created(number: int) -> list[MetadataRecord]:
    topic_id = uuid.UUID(int=number + 1)
    return topic_records(f"t{number}", topic_id, ((1,), (1,)), {"retention.ms": str(number)})


def producer_ids(next_producer_id: int) -> list[MetadataRecord]:
    return [ProducerIdsRecord(broker_id=1, next_producer_id=next_producer_id)]


def fill(metadata: MetadataLog, count: int, first: int = 0) -> MetadataImage:
    for number in range(first, first + count):
        metadata.append(created(number))
    return metadata.image


def keys_in(store: MemoryStore) -> list[str]:
    return store.keys()


def history() -> Iterator[list[MetadataRecord]]:
    """Entries of every type, for a dozen versions."""
    yield [*created(0), *created(1)]
    yield [registered()]
    yield partition_records(uuid.UUID(int=1), 2, ((1, 2),))
    yield config_records(ConfigResourceType.TOPIC, "t1", {"retention.ms": "1"}, {"segment.ms": "9"})
    yield [RemoveTopicRecord(topic_id=uuid.UUID(int=1))]
    yield producer_ids(1000)
    for number in range(2, 8):
        elected = PartitionChangeRecord(
            partition_id=1, topic_id=uuid.UUID(int=number + 1), leader=2
        )
        yield [*created(number), elected]


def copy_of(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    for key in keys_in(store):
        copy.put(key, store.get(key))
    return copy
