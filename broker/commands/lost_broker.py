"""What becomes of the partitions of a broker that is gone for good, and how others take them over.

    1 ask the cluster   which partitions have no other replica
    2 ask the bucket    up to where each is archived; this is all that is left of it
    3 unregister        from here on nobody waits for the broker
    4 reassign          each partition gets another broker, under its next leader epoch; that one
                        begins with what the archive has, producers and epochs with it

What was acknowledged behind the archive's end is lost. Its end is not known, so it is not guessed.
A run that was interrupted after 3 is repeated: the partitions are still those of that broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Final

from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS
from strandline.broker.peers.connection import PeerConnection
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.metadata import MetadataResponse
from strandline.broker.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from strandline.broker.tools.client.failures import ToolFailure
from strandline.broker.tools.nodes.requests import all_topics, call, check, reassign
from strandline.storage.errors import ObjectNotFound
from strandline.storage.model import Offset, TopicId, TopicIdPartition
from strandline.storage.remote.keys import GROUPS_PREFIX, TRANSACTIONS_PREFIX, state_key
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.cluster_info import load_cluster_info
from strandline.storage.remote.object_store.interface import ObjectStore

# How long a taken over partition may be without a leader, until it is told.
LEADER_S_MAX: Final = 30.0
LOOK_S: Final = 0.25
_NOBODY: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPartition:
    """A partition whose only replica was on the lost broker, and who takes it over."""

    topic: str
    topic_id: TopicId
    partition: int
    successor: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBroker:
    """What the cluster says: `shared` counts its partitions that have other replicas."""

    cluster_id: str
    node_id: int
    is_registered: bool
    partitions: Sequence[LostPartition]
    shared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What the bucket has of a partition: offsets from `start` to `end`; None: nothing.

    `state` says of which time the state of a coordinator is, in words.
    """

    partition: LostPartition
    start: Offset | None = None
    end: Offset | None = None
    state: str = ""

    @property
    def archived(self) -> str:
        if self.state:
            return self.state
        return "nothing" if self.end is None else f"offsets {self.start} to {self.end}"

    @property
    def lost(self) -> str:
        if self.state:
            return "what was committed since"
        return "all of it" if self.end is None else f"what was written from {self.end} on"


def check_owner(store: ObjectStore, cluster_id: str) -> None:
    """Raises ToolFailure if the archive is another cluster's. Blocks."""
    owner = load_cluster_info(store)
    if owner is None or owner.cluster_id != cluster_id:
        found = "no archive" if owner is None else f"the archive of cluster {owner.cluster_id}"
        raise ToolFailure(f"{store.url} has {found}, this is cluster {cluster_id}")


# --- 1 the cluster -------------------------------------------------------------------------------


async def find_lost(connected: PeerConnection, node_id: int) -> LostBroker:
    """Raises ToolFailure if the broker lives, or nobody is left."""
    described = await call(
        connected,
        DescribeClusterRequest(include_fenced_brokers=True),
        DescribeClusterResponse,
        "cannot describe the cluster",
    )
    registered = {one.broker_id: one.is_fenced for one in described.brokers}
    if registered.get(node_id) is False:
        raise ToolFailure(
            f"broker {node_id} serves",
            remedy="move its partitions away with kafka-reassign-partitions, or stop it for good",
        )
    others = sorted(one for one, is_fenced in registered.items() if not is_fenced)
    if not others:
        raise ToolFailure("no other broker serves, which could take anything over")
    metadata = await all_topics(connected)
    successors = cycle(others)
    found, shared = [], 0
    for topic in sorted(metadata.topics, key=lambda one: one.name or ""):
        for place in sorted(topic.partitions, key=lambda one: one.partition_index):
            if list(place.replica_nodes) == [node_id]:
                found.append(
                    LostPartition(
                        topic=topic.name or "",
                        topic_id=topic.topic_id,
                        partition=place.partition_index,
                        successor=next(successors),
                    )
                )
            shared += node_id in place.replica_nodes and len(place.replica_nodes) > 1
    return LostBroker(
        cluster_id=described.cluster_id,
        node_id=node_id,
        is_registered=node_id in registered,
        partitions=found,
        shared=shared,
    )


# --- 2 the bucket --------------------------------------------------------------------------------


def remains_of(store: ObjectStore, partitions: Sequence[LostPartition]) -> Iterator[Remains]:
    """Looks up what the bucket has of each. Blocks. Raises StorageError."""
    for one in partitions:
        if one.topic in INTERNAL_TOPICS:
            yield Remains(partition=one, state=_state_of(store, one))
            continue
        key = TopicIdPartition(one.topic, one.topic_id, one.partition)
        stored = manifest_store.load(store, key)
        if stored is None:
            yield Remains(partition=one)
            continue
        manifest = stored.manifest
        end = max((part.end_offset for part in manifest.tail), default=0)
        yield Remains(
            partition=one,
            start=manifest.log_start_offset,
            end=max(end, manifest.end_offset, manifest.log_start_offset),
        )


def _state_of(store: ObjectStore, one: LostPartition) -> str:
    is_groups = one.topic == OFFSETS_TOPIC
    try:
        store.head(state_key(GROUPS_PREFIX if is_groups else TRANSACTIONS_PREFIX, one.partition))
    except ObjectNotFound:
        return "no group, or none archived" if is_groups else "no transaction, or none archived"
    return f"the {'groups' if is_groups else 'transactions'} of the last upload"


# --- 3, 4 the takeover ---------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class TakenOver:
    """The outcome: what was refused, by the name of the partition, and who has no leader yet."""

    refused: dict[str, str] = field(default_factory=dict)
    leaderless: list[str] = field(default_factory=list)


async def take_over(connected: PeerConnection, lost: LostBroker) -> TakenOver:
    """Raises ToolFailure if the broker is not unregistered."""
    if lost.is_registered:
        answer = await call(
            connected,
            UnregisterBrokerRequest(broker_id=lost.node_id),
            UnregisterBrokerResponse,
            f"cannot unregister broker {lost.node_id}",
        )
        check(answer.error_code, answer.error_message, f"broker {lost.node_id} is not removed")
    outcome = TakenOver()
    if lost.partitions:
        wanted = {(one.topic, one.partition): [one.successor] for one in lost.partitions}
        outcome.refused |= await reassign(connected, wanted)
        await _await_leaders(connected, lost, outcome)
    return outcome


async def _await_leaders(connected: PeerConnection, lost: LostBroker, outcome: TakenOver) -> None:
    wanted = {one.name for one in lost.partitions} - outcome.refused.keys()
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + LEADER_S_MAX
    while wanted and loop.time() < deadline_s:
        leaders = _leaders(await all_topics(connected))
        wanted = {name for name in wanted if leaders.get(name, _NOBODY) == _NOBODY}
        if wanted:
            await asyncio.sleep(LOOK_S)
    outcome.leaderless += sorted(wanted)


def _leaders(metadata: MetadataResponse) -> Mapping[str, int]:
    return {
        f"{topic.name}-{place.partition_index}": place.leader_id
        for topic in metadata.topics
        for place in topic.partitions
    }
