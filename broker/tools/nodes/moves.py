"""Asks a cluster for all that a plan of balance needs, and carries the plan out.

    1 metadata, DescribeCluster        who has which replicas, and serves
    2 ListPartitionReassignments       nothing may be on the move already
    3 DescribeLogDirs, of each broker  bytes
    4 AlterPartitionReassignments      a few partitions at a time, until all their replicas are in
                                       sync; then those whose order alone changes
    5 ElectLeaders                     the first replicas lead

A run that is interrupted leaves what it began to the controller, which ends it; the next run plans
anew. Every step can be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strandline.broker.peers.connection import PeerConnection
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
)
from strandline.broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from strandline.broker.protocol.messages.metadata import MetadataResponse
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.tools.client.connection import ClusterConnection
from strandline.broker.tools.client.failures import ToolFailure
from strandline.broker.tools.nodes.balance import PlacedPartition, PlannedPartition
from strandline.broker.tools.nodes.quorum import error_text
from strandline.broker.tools.nodes.requests import all_topics, asked, call, check, reassign
from strandline.storage.plurals import counted

# Partitions that are copied at a time: each is read once from its leader.
COPIED_AT_ONCE: Final = 10
# Whose replicas get another order, or leader, alone: a controller takes 10,000 records at once.
ORDERED_AT_ONCE: Final = 1000
LOOK_S: Final = 0.5
# For one portion; the controller goes on without us.
PORTION_S_MAX: Final = 3600.0

_DONE: Final = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The partitions of a cluster, and the racks of its brokers, which all serve."""

    partitions: Sequence[PlacedPartition]
    racks: Mapping[int, str | None]


def placement(connection: ClusterConnection) -> Placement:
    """Raises ToolFailure if a broker is away, or partitions are on the move already."""
    metadata = asked(connection, _settled)
    sizes: dict[tuple[str, int], int] = {}
    for broker in metadata.brokers:
        own = replace(connection, bootstrap=f"{broker.host}:{broker.port}")
        for key, size_bytes in asked(own, _sizes).items():
            sizes[key] = max(size_bytes, sizes.get(key, 0))
    return Placement(
        partitions=[
            PlacedPartition(
                topic=topic.name or "",
                partition=place.partition_index,
                replicas=tuple(place.replica_nodes),
                size_bytes=sizes.get((topic.name or "", place.partition_index), 0),
            )
            for topic in sorted(metadata.topics, key=lambda one: one.name or "")
            for place in sorted(topic.partitions, key=lambda one: one.partition_index)
        ],
        racks={one.node_id: one.rack for one in metadata.brokers},
    )


async def _settled(connected: PeerConnection) -> MetadataResponse:
    described = await call(
        connected,
        DescribeClusterRequest(include_fenced_brokers=True),
        DescribeClusterResponse,
        "cannot describe the cluster",
    )
    metadata = await all_topics(connected)
    serve = {one.node_id for one in metadata.brokers}
    away = {one.broker_id for one in described.brokers} - serve
    away |= {
        node_id
        for topic in metadata.topics
        for place in topic.partitions
        for node_id in place.replica_nodes
    } - serve
    if away:
        raise ToolFailure(
            f"broker {min(away)} does not serve",
            remedy="start it, or give others its partitions: strandline cluster status",
        )
    moving = await _moving(connected)
    if moving:
        raise ToolFailure(
            f"{counted(len(moving), 'partition')} on the move already",
            remedy="wait, or cancel that with kafka-reassign-partitions",
        )
    return metadata


async def _moving(connected: PeerConnection) -> set[tuple[str, int]]:
    answer = await call(
        connected,
        ListPartitionReassignmentsRequest(),
        ListPartitionReassignmentsResponse,
        "cannot list reassignments",
    )
    check(answer.error_code, answer.error_message, "reassignments are not listed")
    return {
        (topic.name, place.partition_index) for topic in answer.topics for place in topic.partitions
    }


async def _sizes(connected: PeerConnection) -> Mapping[tuple[str, int], int]:
    answer = await call(
        connected,
        DescribeLogDirsRequest(topics=None),
        DescribeLogDirsResponse,
        f"{connected.address} does not tell sizes",
    )
    check(answer.error_code, None, f"{connected.address} does not tell sizes")
    return {
        (topic.name, place.partition_index): place.partition_size
        for folder in answer.results
        for topic in folder.topics
        for place in topic.partitions
        if not place.is_future_key
    }


# --- 4, 5 ----------------------------------------------------------------------------------------


async def carry_out(
    connected: PeerConnection,
    plan: Sequence[PlannedPartition],
    on_portion: Callable[[int], None],
) -> dict[str, str]:
    """Returns what was refused, by the name of the partition; `on_portion` gets how many are done.

    Raises ToolFailure if a portion takes longer than an hour, or the cluster does not answer.
    """
    copied = [one for one in plan if one.is_moved]
    ordered = [one for one in plan if not one.is_moved]
    portions = (*_portions(copied, COPIED_AT_ONCE), *_portions(ordered, ORDERED_AT_ONCE))
    refused: dict[str, str] = {}
    done = 0
    for portion in portions:
        refused |= await reassign(
            connected, {(one.before.topic, one.before.partition): one.replicas for one in portion}
        )
        await _await_moved(connected)
        done += len(portion)
        on_portion(done)
    moved = [one for one in plan if one.before.name not in refused]
    for portion in _portions(moved, ORDERED_AT_ONCE):
        refused |= await _elect(connected, portion)
    return refused


def _portions(plan: Sequence[PlannedPartition], size: int) -> list[Sequence[PlannedPartition]]:
    return [plan[first : first + size] for first in range(0, len(plan), size)]


async def _await_moved(connected: PeerConnection) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + PORTION_S_MAX
    while moving := await _moving(connected):
        if loop.time() > deadline_s:
            raise ToolFailure(
                f"{counted(len(moving), 'partition')} still on the move; the controller goes on",
                remedy="run it again later: it plans anew",
            )
        await asyncio.sleep(LOOK_S)


async def _elect(connected: PeerConnection, plan: Sequence[PlannedPartition]) -> dict[str, str]:
    by_topic: dict[str, list[int]] = {}
    for one in plan:
        by_topic.setdefault(one.before.topic, []).append(one.before.partition)
    answer = await call(
        connected,
        ElectLeadersRequest(
            election_type=ElectionType.PREFERRED,
            topic_partitions=[
                ElectLeadersTopic(topic=topic, partitions=numbers)
                for topic, numbers in by_topic.items()
            ],
        ),
        ElectLeadersResponse,
        "cannot elect leaders",
    )
    check(answer.error_code, None, "no leaders are elected")
    return {
        f"{topic.topic}-{one.partition_id}": f"its first replica does not lead:"
        f" {error_text(one.error_code, one.error_message)}"
        for topic in answer.replica_election_results
        for one in topic.partition_result
        if one.error_code not in _DONE
    }
