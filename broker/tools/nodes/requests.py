"""Requests to a cluster about its partitions, by our own client: those of moves and elections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from strandline.broker.peers.connection import PeerConnection
from strandline.broker.peers.errors import PeerError
from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.broker.tools.client.connection import ClusterConnection
from strandline.broker.tools.client.failures import ToolFailure
from strandline.broker.tools.nodes.quorum import Unasked, ask_first, error_text

ANSWER_S_MAX: Final = 30.0

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", bound=Response)


def asked(connection: ClusterConnection, ask: Callable[[PeerConnection], Awaitable[T]]) -> T:
    """Asks the first broker that answers. Raises ToolFailure."""
    try:
        return asyncio.run(ask_first(connection, ask))
    except Unasked as error:
        raise ToolFailure(f"no broker answers: {error}") from None


async def call(
    connected: PeerConnection, request: Request, answer: type[AnswerT], what: str
) -> AnswerT:
    """`what` begins the error. Raises ToolFailure."""
    try:
        return await connected.call(request, answer, timeout_s=ANSWER_S_MAX)
    except PeerError as error:
        raise ToolFailure(f"{what}: {error}") from None


async def all_topics(connected: PeerConnection) -> MetadataResponse:
    """Raises ToolFailure."""
    return await call(connected, MetadataRequest(), MetadataResponse, "cannot list the topics")


async def reassign(
    connected: PeerConnection, wanted: Mapping[tuple[str, int], Sequence[int]]
) -> dict[str, str]:
    """Gives partitions other replicas; returns what was refused, by the name of the partition.

    Raises ToolFailure.
    """
    by_topic: dict[str, list[ReassignablePartition]] = {}
    for (topic, number), replicas in wanted.items():
        by_topic.setdefault(topic, []).append(
            ReassignablePartition(partition_index=number, replicas=replicas)
        )
    answer = await call(
        connected,
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(name=name, partitions=them) for name, them in by_topic.items()
            ]
        ),
        AlterPartitionReassignmentsResponse,
        "cannot reassign the partitions",
    )
    check(answer.error_code, answer.error_message, "the partitions are not reassigned")
    return {
        f"{one.name}-{place.partition_index}": error_text(place.error_code, place.error_message)
        for one in answer.responses
        for place in one.partitions
        if place.error_code
    }


def check(code: int, message: str | None, what: str) -> None:
    """Raises ToolFailure for an error."""
    if code:
        raise ToolFailure(f"{what}: {error_text(code, message)}")
