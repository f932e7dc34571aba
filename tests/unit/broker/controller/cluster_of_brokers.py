"""Images of clusters with several brokers, and what brokers ask of their controller."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from strandline.broker.cluster.metadata.controller_messages import Decision
from strandline.broker.cluster.metadata.image import MetadataImage, PartitionImage
from strandline.broker.cluster.metadata.records import Replicas, topic_records
from strandline.broker.controller.partitions.alone import NO_DEFAULTS, entries_of
from strandline.broker.controller.partitions.decided import Partitions
from strandline.broker.controller.partitions.index import PartitionIndex
from strandline.broker.protocol.formats.metadata_records import (
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
)
from strandline.broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from strandline.broker.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    RegisteringFeature,
    RegisteringListener,
)

ResultT = TypeVar("ResultT")

CLUSTER = "fPZv1VBsRFmnlRvmGcOW9w"
TOPIC_ID = uuid.UUID(int=0xA)
LEVELS = {"metadata.version": 25, "transaction.version": 2}
NO_BROKERS = MetadataImage(version=1, cluster_id=CLUSTER).apply_entry(
    [FeatureLevelRecord(name=name, feature_level=level) for name, level in LEVELS.items()]
)


def folder(number: int) -> uuid.UUID:
    """A log folder's id; the first hundred are reserved."""
    return uuid.UUID(int=1000 + number)


def incarnation(number: int) -> uuid.UUID:
    return uuid.UUID(int=9000 + number)


def broker(
    node_id: int,
    epoch: int = 0,
    *,
    fenced: bool = False,
    log_dirs: Sequence[uuid.UUID] = (),
    shuts_down: bool = False,
    rack: str | None = None,
) -> RegisterBrokerRecord:
    """A registered process; its only log folder has the number of the broker."""
    return RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=incarnation(node_id),
        broker_epoch=epoch,
        end_points=(),
        features=(),
        rack=rack,
        fenced=fenced,
        in_controlled_shutdown=shuts_down,
        log_dirs=log_dirs or [folder(node_id)],
    )


def cluster(
    *brokers: RegisterBrokerRecord, partitions: Sequence[Replicas] = (), **properties: str
) -> MetadataImage:
    """Brokers, and a topic `t`: all of its replicas are in sync, and the first ones lead."""
    image = NO_BROKERS.apply_entry(brokers) if brokers else NO_BROKERS
    if not partitions:
        return image
    texts = {name.replace("_", "."): text for name, text in properties.items()}
    return image.apply_entry(topic_records("t", TOPIC_ID, tuple(partitions), texts))


def leaders(image: MetadataImage) -> list[int]:
    return [partition.leader for partition in image.topics["t"].partitions]


def in_sync(image: MetadataImage) -> list[Replicas]:
    return [partition.isr for partition in image.topics["t"].partitions]


def eligible(image: MetadataImage) -> list[Replicas]:
    return [partition.eligible_leader_replicas for partition in image.topics["t"].partitions]


def first(image: MetadataImage) -> PartitionImage:
    """The first partition of `t`."""
    return image.topics["t"].partitions[0]


def partitions_of(image: MetadataImage, defaults: Mapping[str, str] = NO_DEFAULTS) -> Partitions:
    """What a controller decides on; `defaults` are those of topics."""
    return Partitions(image=image, index=PartitionIndex.of(image), defaults=defaults)


def carried_out(
    image: MetadataImage,
    decide: Callable[[Partitions], Decision[ResultT]],
    *,
    entries: list[Sequence[MetadataRecord]] | None = None,
    defaults: Mapping[str, str] = NO_DEFAULTS,
) -> tuple[MetadataImage, Sequence[ResultT]]:
    """Decides, and appends the entries; returns the image after them, and the results."""
    decided, results = entries_of(image, decide, defaults)
    for records in decided:
        image = image.apply_entry(records)
    if entries is not None:
        entries += decided
    return image, results


def registration(
    node_id: int = 1,
    *,
    process: int | None = None,
    log_dirs: Sequence[uuid.UUID] | None = None,
    cluster_id: str = CLUSTER,
    features: dict[str, tuple[int, int]] | None = None,
    rack: str | None = None,
    from_zookeeper: bool = False,
    previous: int = -1,
) -> BrokerRegistrationRequest:
    """The request of a process; one without number is that of `broker`."""
    ranges = {"metadata.version": (7, 30), "transaction.version": (0, 2)}
    return BrokerRegistrationRequest(
        broker_id=node_id,
        cluster_id=cluster_id,
        incarnation_id=incarnation(node_id if process is None else process),
        listeners=[RegisteringListener(name="PLAINTEXT", host="h", port=9092, security_protocol=0)],
        features=[
            RegisteringFeature(
                name=name, min_supported_version=lowest, max_supported_version=highest
            )
            for name, (lowest, highest) in (ranges if features is None else features).items()
        ],
        rack=rack,
        is_migrating_zk_broker=from_zookeeper,
        previous_broker_epoch=previous,
        log_dirs=[folder(node_id)] if log_dirs is None else log_dirs,
    )


def heartbeat(
    node_id: int = 1,
    epoch: int = 0,
    *,
    at: int = 10_000,
    fence: bool = False,
    shut_down: bool = False,
    offline: Sequence[uuid.UUID] = (),
) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=node_id,
        broker_epoch=epoch,
        current_metadata_offset=at,
        want_fence=fence,
        want_shut_down=shut_down,
        offline_log_dirs=offline,
    )
