"""Placement of replicas on brokers: automatic, or checked if the client assigns them.

Automatic placement is that of Kafka's StripedReplicaPlacer: over racks first, over their brokers
second, and each partition begins one further than the one before:

    partition 0   A0 B0 C0          racks A, B, C with three brokers each
    partition 1   B1 C1 A1
    partition 2   C2 A2 B2

Both begin anywhere, by chance. Where every broker was the first once, all are shuffled, so that
the same brokers do not always follow each other: if one fails, the others share what it led. The
first replica, which leads, is on an unfenced broker. Fenced brokers of a rack come after its
others, and brokers that are shutting down get nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import NodeId, Replicas
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage import entropy

T = TypeVar("T")
# Returns one of [0, count).
Pick: TypeAlias = Callable[[int], int]


def by_chance(count: int) -> int:
    """Returns one of [0, count)."""
    return entropy.number(0, count - 1)


@dataclass(frozen=True, slots=True)
class UsableBroker:
    """A broker that may get replicas; those without a rack share one."""

    node_id: NodeId
    rack: str | None = None
    fenced: bool = False


def usable_brokers(image: MetadataImage) -> list[UsableBroker]:
    """Returns the registered brokers, without those that are shutting down."""
    return [
        UsableBroker(node_id, broker.rack, broker.fenced)
        for node_id, broker in image.brokers.items()
        if not broker.in_controlled_shutdown
    ]


def place(
    count: int,
    replication_factor: int,
    brokers: Iterable[UsableBroker],
    *,
    pick: Pick = by_chance,
) -> tuple[Replicas, ...]:
    """Places the replicas of `count` partitions. Raises Refusal if there are too few brokers."""
    racks = _Racks(brokers, pick)
    racks.check(replication_factor)
    return tuple(racks.place(replication_factor) for _ in range(count))


class _Brokers:
    """Brokers of one rack, one after the other, from another one in each round."""

    def __init__(self, node_ids: Iterable[NodeId], pick: Pick) -> None:
        self._nodes = sorted(node_ids)
        self._pick = pick
        self._first = pick(len(self._nodes)) if self._nodes else 0
        self._given = 0
        self._round = 0

    def next(self, number: int) -> NodeId | None:
        """Returns the next broker of a round, None if all were given in it."""
        if not self._nodes:
            return None
        if number != self._round:
            self._round, self._given = number, 0
            self._first = (self._first + 1) % len(self._nodes)
        if self._given == len(self._nodes):
            return None
        self._given += 1
        return self._nodes[(self._first + self._given - 1) % len(self._nodes)]

    def shuffle(self) -> None:
        _shuffle(self._nodes, self._pick)


class _Rack:
    """The brokers of one rack."""

    def __init__(self, brokers: Sequence[UsableBroker], pick: Pick) -> None:
        self._fenced = _Brokers((one.node_id for one in brokers if one.fenced), pick)
        self._unfenced = _Brokers((one.node_id for one in brokers if not one.fenced), pick)

    def next_unfenced(self, number: int) -> NodeId | None:
        return self._unfenced.next(number)

    def next(self, number: int) -> NodeId | None:
        node = self._unfenced.next(number)
        return self._fenced.next(number) if node is None else node

    def shuffle(self) -> None:
        self._fenced.shuffle()
        self._unfenced.shuffle()


class _Racks:
    """All racks; each placement is a round, and begins one rack further than the one before."""

    def __init__(self, brokers: Iterable[UsableBroker], pick: Pick) -> None:
        all_brokers = list(brokers)
        self._pick = pick
        self._broker_count = len(all_brokers)
        self._unfenced_count = sum(not one.fenced for one in all_brokers)
        # Without a name first, as Kafka sorts them.
        names = sorted({one.rack for one in all_brokers}, key=lambda name: (name is not None, name))
        self._racks = {
            name: _Rack([one for one in all_brokers if one.rack == name], pick) for name in names
        }
        self._order = list(self._racks.values())
        self._first = pick(len(self._order)) if self._order else 0
        self._round = 0

    def check(self, replication_factor: int) -> None:
        """Raises Refusal if so many replicas cannot be placed."""
        if replication_factor > self._broker_count:
            fault = (
                f"The target replication factor of {replication_factor} cannot be reached because"
                f" only {self._broker_count} broker(s) are registered."
            )
        elif not self._unfenced_count:
            fault = "All brokers are currently fenced."
        else:
            return
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): {fault}",
        )

    def place(self, replication_factor: int) -> Replicas:
        if self._round and self._unfenced_count > 1 and self._round % self._unfenced_count == 0:
            self._shuffle()
        if self._first == len(self._order):
            self._first = 0
        leader, leads = self._leader()
        nodes = [leader]
        at = self._first
        while len(nodes) < replication_factor:
            if at == leads:
                # It has one replica already; the next time round it may get another.
                leads = -1
            elif (node := self._order[at].next(self._round)) is not None:
                nodes.append(node)
            at = (at + 1) % len(self._order)
        self._round += 1
        self._first += 1
        return tuple(nodes)

    def _leader(self) -> tuple[NodeId, int]:
        """Returns an unfenced broker and the number of its rack."""
        for distance in range(len(self._order)):
            at = (self._first + distance) % len(self._order)
            node = self._order[at].next_unfenced(self._round)
            if node is not None:
                return node, at
        raise AssertionError("no unfenced broker, although there is one")

    def _shuffle(self) -> None:
        _shuffle(self._order, self._pick)
        for rack in self._racks.values():
            rack.shuffle()


def _shuffle(items: list[T], pick: Pick) -> None:
    for count in range(len(items), 1, -1):
        other = pick(count)
        items[count - 1], items[other] = items[other], items[count - 1]


def check_assignments(
    assignments: Sequence[Replicas],
    node_ids: Collection[NodeId],
    *,
    replication_factor: int | None = None,
) -> None:
    """Raises Refusal unless all are non-empty, equally long, and name known brokers once each."""
    for replicas in assignments:
        if not replicas:
            fault = "The manual partition assignment includes an empty replica list."
        elif unknown := [node for node in replicas if node not in node_ids]:
            fault = (
                f"The manual partition assignment includes broker {unknown[0]}, but no such broker"
                " is registered."
            )
        elif repeated := [node for node, times in Counter(replicas).items() if times > 1]:
            fault = (
                f"The manual partition assignment includes the broker {repeated[0]} more than once."
            )
        elif replication_factor is not None and len(replicas) != replication_factor:
            fault = (
                f"The manual partition assignment includes a partition with {len(replicas)}"
                " replica(s), but this is not consistent with previous partitions, which have"
                f" {replication_factor} replica(s)."
            )
        else:
            replication_factor = len(replicas)
            continue
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
