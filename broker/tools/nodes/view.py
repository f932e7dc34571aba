"""Who is in a cluster and in which state, of what several requests tell.

DescribeCluster         who is registered, and fenced
DescribeQuorum          the controller, and how far each is with the metadata
librdkafka's metadata   who has which share
metrics                 since when a process runs, if there are any

online                   it serves
in controlled shutdown   it hands over, and then stops; told by the metrics of the controller alone
fenced                   registered, and has no session: it starts, is down, or hangs
gone                     not registered, and partitions have it as a replica
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strandline.broker.tools.client.cluster import (
    Cluster,
    InSyncCount,
    Key,
    RegisteredBroker,
    Share,
)
from strandline.broker.tools.client.connection import ClusterConnection
from strandline.broker.tools.nodes.pages import NodeFigures, figures_of
from strandline.broker.tools.nodes.quorum import (
    MetadataQuorum,
    Nodes,
    Unasked,
    ask_nodes,
)

ONLINE: Final = "online"
IN_SHUTDOWN: Final = "in controlled shutdown"
FENCED: Final = "fenced"
GONE: Final = "gone"
# Kafka's BrokerRegistrationState.
_SHUTS_DOWN: Final = 20
_MINIMUM: Final = "min.insync.replicas"
# Topics with partitions that lack replicas, whose properties are asked for.
TOPICS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMember:
    """A broker and its share of the partitions. Times are ms since 1970, None if unknown.

    `since_ms` is when its process began, of one that is not online when it was last heard.
    `metadata_lag` counts the records of the metadata log that it has not fetched. `behind_s` is for
    how long it has not been in sync, as far back as leaders know; None if it is, or nobody says.
    """

    node_id: int
    address: str | None
    rack: str | None
    state: str
    since_ms: int | None
    leads: int
    replicas: int
    in_sync: int
    metadata_lag: int | None
    behind_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingController:
    """The controller that decides, and the end of its log."""

    node_id: int
    address: str | None
    epoch: int
    metadata_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The brokers that are registered, or have replicas, and the partitions that nobody leads or
    that lack replicas in sync: of these `under_minimum` have fewer than min.insync.replicas, and
    `at_minimum` just as many.

    Without an answer `controller` is None, and `unasked` says why.
    """

    cluster_id: str
    controller: LeadingController | None
    members: tuple[ClusterMember, ...]
    leaderless: tuple[Key, ...]
    unasked: str = ""
    under_replicated: tuple[Key, ...] = ()
    under_minimum: tuple[Key, ...] = ()
    at_minimum: tuple[Key, ...] = ()

    @property
    def is_well(self) -> bool:
        return not (self.absent or self.leaderless or self.under_replicated)

    @property
    def absent(self) -> Sequence[ClusterMember]:
        """Those that do not serve."""
        return [one for one in self.members if one.state in (FENCED, GONE)]


def view_cluster(connection: ClusterConnection, cluster: Cluster) -> ClusterView:
    """Raises ToolFailure."""
    share = cluster.share()
    nodes: Nodes | None = None
    unasked = ""
    try:
        nodes = ask_nodes(connection)
    except Unasked as error:
        unasked = str(error)
    quorum = None if nodes is None else nodes.quorum
    if isinstance(quorum, Unasked):
        quorum, unasked = None, str(quorum)
    registered = share.brokers if nodes is None or nodes.brokers is None else nodes.brokers
    figures = figures_of(connection, cluster, [one.node_id for one in registered])
    lacking = share.under_replicated
    topics = list(dict.fromkeys(one.topic for one in lacking))[:TOPICS_MAX]
    minimums = cluster.topic_property(topics, _MINIMUM)
    return ClusterView(
        cluster_id=share.cluster_id,
        controller=None if quorum is None else _controller(quorum),
        members=tuple(members(share, registered, quorum, figures)),
        leaderless=share.leaderless,
        unasked=unasked,
        under_replicated=tuple((one.topic, one.partition) for one in lacking),
        under_minimum=tuple(
            (one.topic, one.partition) for one in lacking if _spare(one, minimums) < 0
        ),
        at_minimum=tuple(
            (one.topic, one.partition) for one in lacking if _spare(one, minimums) == 0
        ),
    )


def _spare(one: InSyncCount, minimums: Mapping[str, str | None]) -> int:
    """How many in sync may be lost until acks=all is refused; negative: it is."""
    minimum = int(minimums.get(one.topic) or 1)
    return one.in_sync - min(minimum, one.replicas)


def members(
    share: Share,
    registered: Sequence[RegisteredBroker],
    quorum: MetadataQuorum | None,
    figures: Mapping[int, NodeFigures],
) -> list[ClusterMember]:
    """Returns a line for each broker that is registered, or has replicas."""
    by_id = {one.node_id: one for one in registered}
    behind_s: dict[int, float] = {}
    for one in figures.values():
        for node_id, seconds in one.behind_s.items():
            behind_s[node_id] = max(seconds, behind_s.get(node_id, 0.0))
    return [
        replace(
            _member(node_id, by_id.get(node_id), share, quorum, figures.get(node_id)),
            behind_s=behind_s.get(node_id),
        )
        for node_id in sorted(by_id.keys() | share.replicas.keys())
    ]


def _member(
    node_id: int,
    broker: RegisteredBroker | None,
    share: Share,
    quorum: MetadataQuorum | None,
    figures: NodeFigures | None,
) -> ClusterMember:
    follower = None if quorum is None else quorum.followers.get(node_id)
    state = _state(broker, figures)
    since_ms = None if follower is None else follower.fetched_ms
    if state in (ONLINE, IN_SHUTDOWN):
        since_ms = None if figures is None else figures.began_ms
    lag = None
    if quorum is not None and follower is not None:
        lag = max(0, quorum.end_offset - follower.end_offset)
    return ClusterMember(
        node_id=node_id,
        address=None if broker is None else broker.address,
        rack=None if broker is None else broker.rack,
        state=state,
        since_ms=since_ms,
        leads=share.leads[node_id],
        replicas=share.replicas[node_id],
        in_sync=share.in_sync[node_id],
        metadata_lag=lag,
    )


def _state(broker: RegisteredBroker | None, figures: NodeFigures | None) -> str:
    if broker is None:
        return GONE
    if broker.is_fenced:
        return FENCED
    shuts_down = figures is not None and figures.registration_state == _SHUTS_DOWN
    return IN_SHUTDOWN if shuts_down else ONLINE


def _controller(quorum: MetadataQuorum) -> LeadingController:
    return LeadingController(
        node_id=quorum.leader_id,
        address=quorum.leader_address,
        epoch=quorum.epoch,
        metadata_end_offset=quorum.end_offset,
    )
