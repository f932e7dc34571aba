"""Images and calls for the tests of the controller."""

from __future__ import annotations

import uuid
from itertools import count

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import (
    Decision,
    Intent,
    NewTopic,
    ReplicaAssignment,
    TopicDefaults,
    TopicResult,
)
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import ZERO_TOPIC_ID

DEFAULTS = TopicDefaults()
TIERED = TopicDefaults(tiering_enabled=True)
A = uuid.UUID(int=0xA)
UNKNOWN = uuid.UUID(int=0xDEAD)


def since(before: MetadataImage, after: MetadataImage) -> tuple[MetadataDelta, MetadataImage]:
    """What a follower of the metadata gets that had `before`."""
    return MetadataDelta(before, after), after


def since_nothing(image: MetadataImage) -> tuple[MetadataDelta, MetadataImage]:
    """The first publication."""
    return since(MetadataImage(), image)


def registered(node_id: int = 1, *, fenced: bool = False) -> RegisterBrokerRecord:
    """A broker process without listeners."""
    return RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=uuid.UUID(int=node_id),
        broker_epoch=0,
        end_points=(),
        features=(),
        fenced=fenced,
    )


def with_brokers(*node_ids: int) -> MetadataImage:
    return MetadataImage().apply_entry(map(registered, node_ids))


def with_topic(
    name: str = "a", topic_id: uuid.UUID = A, partitions: int = 2, **properties: str
) -> MetadataImage:
    """A topic on the only broker."""
    texts = {key.replace("_", "."): text for key, text in properties.items()}
    return MetadataImage().apply_entry(
        [registered(), *topic_records(name, topic_id, ((1,),) * partitions, texts)]
    )


def create(
    *topics: NewTopic,
    image: MetadataImage | None = None,
    nodes: tuple[int, ...] = (1,),
    defaults: TopicDefaults = DEFAULTS,
    intent: Intent = Intent.APPLY,
) -> Decision[TopicResult]:
    ids = (uuid.UUID(int=number) for number in count(1000))
    return controller.create_topics(
        image or with_brokers(*nodes),
        topics,
        defaults=defaults,
        intent=intent,
        new_topic_id=lambda: next(ids),
    )


def refusal(*topics: NewTopic, **rest: object) -> tuple[ErrorCode, str | None]:
    decision = create(*topics, **rest)  # type: ignore[arg-type]
    assert not decision.records
    (result,) = decision.results
    assert (result.topic_id, result.partition_count) == (ZERO_TOPIC_ID, -1)
    return result.error_code, result.error_message


def assigned(*replicas: tuple[int, ...]) -> tuple[ReplicaAssignment, ...]:
    return tuple(
        ReplicaAssignment(partition=number, replicas=nodes) for number, nodes in enumerate(replicas)
    )
