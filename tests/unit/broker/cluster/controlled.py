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
from strandline.broker.cluster.metadata.records import TopicCreated
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


def with_topic(
    name: str = "a", topic_id: uuid.UUID = A, partitions: int = 2, **properties: str
) -> MetadataImage:
    return MetadataImage().apply(
        TopicCreated(
            topic=name,
            topic_id=topic_id,
            replicas=((1,),) * partitions,
            properties={key.replace("_", "."): text for key, text in properties.items()},
        )
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
        image or MetadataImage(),
        topics,
        node_ids=nodes,
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
