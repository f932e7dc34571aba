"""Which replicas and leaders move so that brokers have equal shares, by number and by bytes.

    1 replicas   from who has more than its share to who has less, while the shares become more
                 equal; never onto fewer racks than now
    2 leaders    the order of replicas, whose first one leads when it can, is changed so that each
                 broker is the first of as many partitions as others

A share is equal enough if the number of replicas is the mean, up or down to a whole one, and the
bytes are within a tenth of theirs: to move what changes less costs more than it gives. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final

# Part of the mean by which the bytes of a broker may differ from it.
BYTES_TOLERANCE: Final = 0.1
# Moves of replicas in one plan: each looks at all partitions. The next plan goes on.
MOVES_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPartition:
    """A partition, its replicas with the preferred leader first, and the bytes of one of them."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    size_bytes: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """A partition with other replicas, or with the same in another order."""

    before: PlacedPartition
    replicas: tuple[int, ...]

    @property
    def is_moved(self) -> bool:
        """Whether another broker gets a replica."""
        return set(self.replicas) != set(self.before.replicas)

    @property
    def new_count(self) -> int:
        """How many replicas move."""
        return len(set(self.replicas) - set(self.before.replicas))

    @property
    def copied_bytes(self) -> int:
        """What new replicas fetch."""
        return self.new_count * self.before.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerShare:
    """What a broker has; `leads` counts the partitions of which it is the first replica."""

    replicas: int
    size_bytes: int
    leads: int


def shares(
    brokers: Sequence[int], placed: Sequence[tuple[PlacedPartition, tuple[int, ...]]]
) -> Mapping[int, BrokerShare]:
    """Returns what each broker has, if partitions have these replicas."""
    replicas, sizes, leads = Counter[int](), Counter[int](), Counter[int]()
    for partition, nodes in placed:
        leads[nodes[0]] += 1
        for node_id in nodes:
            replicas[node_id] += 1
            sizes[node_id] += partition.size_bytes
    return {
        one: BrokerShare(replicas=replicas[one], size_bytes=sizes[one], leads=leads[one])
        for one in brokers
    }


def plan_balance(
    partitions: Sequence[PlacedPartition], racks: Mapping[int, str | None]
) -> list[PlannedPartition]:
    """Returns what changes, in the order of `partitions`; `racks` has all brokers that serve.

    All replicas must be on these brokers.
    """
    wanted = {number: list(one.replicas) for number, one in enumerate(partitions)}
    _spread_replicas(partitions, wanted, racks)
    _spread_leaders(wanted, list(racks))
    return [
        PlannedPartition(before=one, replicas=tuple(wanted[number]))
        for number, one in enumerate(partitions)
        if tuple(wanted[number]) != one.replicas
    ]


# --- 1 replicas ----------------------------------------------------------------------------------


class _Load:
    """Replicas and bytes of each broker, and how far they are from equal."""

    def __init__(
        self,
        partitions: Sequence[PlacedPartition],
        wanted: Mapping[int, Sequence[int]],
        brokers: Sequence[int],
    ) -> None:
        self.counts = dict.fromkeys(brokers, 0)
        self.sizes = dict.fromkeys(brokers, 0)
        for number, nodes in wanted.items():
            for node_id in nodes:
                self.counts[node_id] += 1
                self.sizes[node_id] += partitions[number].size_bytes
        self._count_mean = sum(self.counts.values()) / len(brokers)
        self._size_mean = sum(self.sizes.values()) / len(brokers)

    def may_give(self, node_id: int) -> bool:
        over = self.sizes[node_id] > (1 + BYTES_TOLERANCE) * self._size_mean
        return over or self.counts[node_id] > ceil(self._count_mean)

    def may_take(self, node_id: int) -> bool:
        under = self.sizes[node_id] < (1 - BYTES_TOLERANCE) * self._size_mean
        return under or self.counts[node_id] < floor(self._count_mean)

    def cost(self, node_id: int, count: int = 0, size: int = 0) -> float:
        """How far a broker is from its share, with so much more; squares add up."""
        by_count = (self.counts[node_id] + count) / max(1.0, self._count_mean) - 1
        by_size = (self.sizes[node_id] + size) / self._size_mean - 1 if self._size_mean else 0.0
        return by_count**2 + by_size**2

    def gain(self, giver: int, taker: int, size: int) -> float:
        before = self.cost(giver) + self.cost(taker)
        return before - self.cost(giver, -1, -size) - self.cost(taker, 1, size)

    def move(self, giver: int, taker: int, size: int) -> None:
        self.counts[giver] -= 1
        self.counts[taker] += 1
        self.sizes[giver] -= size
        self.sizes[taker] += size


def _spread_replicas(
    partitions: Sequence[PlacedPartition],
    wanted: dict[int, list[int]],
    racks: Mapping[int, str | None],
) -> None:
    brokers = sorted(racks)
    load = _Load(partitions, wanted, brokers)
    for _ in range(MOVES_MAX):
        best: tuple[float, int, int, int] | None = None
        for number, giver, taker in _moves(load, wanted, brokers):
            gain = load.gain(giver, taker, partitions[number].size_bytes)
            if gain > 1e-9 and (best is None or gain > best[0]):
                nodes = wanted[number]
                if _rack_count(nodes, racks, giver, taker) >= _rack_count(nodes, racks):
                    best = (gain, number, giver, taker)
        if best is None:
            return
        _, number, giver, taker = best
        wanted[number][wanted[number].index(giver)] = taker
        load.move(giver, taker, partitions[number].size_bytes)


def _moves(
    load: _Load, wanted: Mapping[int, Sequence[int]], brokers: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """Yields a partition, who gives it, and who takes it: one of them is beyond its share."""
    givers = {one for one in brokers if load.may_give(one)}
    takers = {one for one in brokers if load.may_take(one)}
    for number, nodes in wanted.items():
        for giver in nodes:
            for taker in brokers if giver in givers else takers:
                if taker not in nodes:
                    yield number, giver, taker


def _rack_count(
    nodes: Sequence[int],
    racks: Mapping[int, str | None],
    giver: int | None = None,
    taker: int | None = None,
) -> int:
    return len({racks[taker if one == giver and taker is not None else one] for one in nodes})


# --- 2 leaders -----------------------------------------------------------------------------------


def _spread_leaders(wanted: dict[int, list[int]], brokers: Sequence[int]) -> None:
    """Each step makes two brokers more equal, so it ends."""
    leads = Counter(nodes[0] for nodes in wanted.values())
    is_better = True
    while is_better:
        is_better = False
        for nodes in wanted.values():
            least = min(nodes, key=lambda one: leads[one])
            if leads[nodes[0]] - leads[least] >= 2:
                leads[nodes[0]] -= 1
                leads[least] += 1
                place = nodes.index(least)
                nodes[0], nodes[place] = least, nodes[0]
                is_better = True
    assert set(leads) <= set(brokers), (leads, brokers)
