"""Enforces controller_mutation_rate: partitions that a client may create or delete per second.

Requests of versions that know THROTTLING_QUOTA_EXCEEDED are strict: when the quota is used up, the
remaining topics are refused with it. Older requests are carried out fully, and throttled
afterwards. Items refused for other reasons cost nothing, as far as that is known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from strandline.broker.cluster.metadata.controller_messages import (
    USE_DEFAULT,
    NewPartitions,
    NewTopic,
    TopicDefaults,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.schema.errors import ErrorCode

REFUSED = ErrorCode.THROTTLING_QUOTA_EXCEEDED

T = TypeVar("T")


class Admission:
    """The quota check of one request."""

    def __init__(
        self, services: NodeServices, context: RequestContext, *, strict_from: int
    ) -> None:
        """`strict_from` is the first version of the API that knows the error code."""
        self._quota = services.quotas.mutation(
            context.caller.user, context.client_id, strict=context.api_version >= strict_from
        )

    @property
    def throttle_ms(self) -> int:
        return 0 if self._quota is None else self._quota.throttle_ms

    def split(self, wanted: Sequence[T], cost: Callable[[T], int]) -> tuple[list[T], list[T]]:
        """Splits into admitted and refused items; `cost` counts partitions."""
        if self._quota is None:
            return list(wanted), []
        admitted: list[T] = []
        refused: list[T] = []
        for one in wanted:
            partitions = cost(one)
            may = partitions == 0 or self._quota.take(partitions)
            (admitted if may else refused).append(one)
        return admitted, refused


def creation_cost(image: MetadataImage, topic: NewTopic, defaults: TopicDefaults) -> int:
    """Partitions that creating the topic adds, for `controller_mutation_rate` (KIP-599)."""
    if topic.name in image.topics:
        return 0
    if topic.assignments:
        return len(topic.assignments)
    if topic.partition_count == USE_DEFAULT:
        return defaults.partition_count
    return max(topic.partition_count, 0)


def addition_cost(image: MetadataImage, wanted: NewPartitions) -> int:
    """Partitions that are added, for `controller_mutation_rate` (KIP-599)."""
    topic = image.topics.get(wanted.name)
    return 0 if topic is None else max(wanted.partition_count - topic.partition_count, 0)
