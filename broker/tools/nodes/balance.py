"""Which replicas and leaders move so that brokers have equal shares, by number and by bytes.

    1 replicas   from who has more than its share to who has less, while the shares become more
                 equal; never onto fewer racks than now
    2 leaders    the order of replicas, whose first one leads when it can, is changed so that each
                 broker is the first of as many partitions as others

A share is equal enough if the number of replicas is the mean, up or down to a whole one, and the
bytes are within a tenth of theirs: to move what changes less costs more than it gives. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final, TypeAlias

# Part of the mean by which the bytes of a broker may differ from it.
BYTES_TOLERANCE: Final = 0.1
# Moves of replicas in one plan: seconds on six brokers, minutes on thirty. The next plan goes on.
MOVES_MAX: Final = 100_000
# What rounding may seem to gain is no gain.
GAIN_MIN: Final = 1e-9
# Part of the gain of the best move that another one must have to be taken without a longer search.
NEAR_BEST: Final = 0.9


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

    def cost(self, node_id: int, count: int = 0, size: float = 0) -> float:
        """How far a broker is from its share, with so much more; squares add up."""
        by_count = (self.counts[node_id] + count) / max(1.0, self._count_mean) - 1
        by_size = (self.sizes[node_id] + size) / self._size_mean - 1 if self._size_mean else 0.0
        return by_count**2 + by_size**2

    def ideal_bytes(self, giver: int, taker: int) -> float:
        """The size of the partition whose move gains most."""
        return max(0.0, (self.sizes[giver] - self.sizes[taker]) / 2)

    def gain(self, giver: int, taker: int, size: float) -> float:
        before = self.cost(giver) + self.cost(taker)
        return before - self.cost(giver, -1, -size) - self.cost(taker, 1, size)

    def move(self, giver: int, taker: int, size: int) -> None:
        self.counts[giver] -= 1
        self.counts[taker] += 1
        self.sizes[giver] -= size
        self.sizes[taker] += size


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """A partition, who gives a replica of it, and who takes it."""

    number: int
    size_bytes: int
    giver: int
    taker: int


# Size and number of partitions, in this order.
_Held: TypeAlias = "list[tuple[int, int]]"


class _Places:
    """The partitions by the set of brokers that have them, and by size.

    Whether one broker can take a partition of another depends on that set alone, and what they gain
    on the size: the best of a set is next to the ideal size. So no partition is looked at twice.
    """

    def __init__(
        self,
        partitions: Sequence[PlacedPartition],
        wanted: dict[int, list[int]],
        racks: Mapping[int, str | None],
    ) -> None:
        self._wanted = wanted
        self._racks = racks
        self._held: dict[frozenset[int], _Held] = {}
        # The same lists by each broker of the set, and the sizes of all that it has.
        self._of: dict[int, dict[frozenset[int], _Held]] = {one: {} for one in racks}
        self._sizes: dict[int, list[int]] = {one: [] for one in racks}
        for number, nodes in wanted.items():
            size_bytes = partitions[number].size_bytes
            self._held_by(frozenset(nodes)).append((size_bytes, number))
            for node_id in nodes:
                self._sizes[node_id].append(size_bytes)
        for held in self._held.values():
            held.sort()
        for sizes in self._sizes.values():
            sizes.sort()

    def _held_by(self, nodes: frozenset[int]) -> _Held:
        if nodes not in self._held:
            held = self._held[nodes] = []
            for node_id in nodes:
                self._of[node_id][nodes] = held
        return self._held[nodes]

    def nearest_bytes(self, giver: int, ideal_bytes: float) -> int | None:
        """The size nearest to the ideal of what a broker has; None if it has nothing."""
        sizes = self._sizes[giver]
        place = bisect_left(sizes, ideal_bytes)
        return min(
            sizes[max(0, place - 1) : place + 1],
            key=lambda one: abs(one - ideal_bytes),
            default=None,
        )

    def moves(self, giver: int, taker: int, ideal_bytes: float) -> Iterator[_Move]:
        """Yields the best moves between two brokers: two at most of each set."""
        for nodes, held in self._of[giver].items():
            if taker in nodes or not self._keeps_racks(nodes, giver, taker):
                continue
            place = bisect_left(held, (ideal_bytes, -1))
            for size_bytes, number in held[max(0, place - 1) : place + 1]:
                yield _Move(number=number, size_bytes=size_bytes, giver=giver, taker=taker)

    def _keeps_racks(self, nodes: frozenset[int], giver: int, taker: int) -> bool:
        racks = self._racks
        others = {racks[one] for one in nodes if one != giver}
        return racks[taker] not in others or racks[giver] in others

    def move(self, move: _Move) -> None:
        nodes = self._wanted[move.number]
        self._held_by(frozenset(nodes)).remove((move.size_bytes, move.number))
        nodes[nodes.index(move.giver)] = move.taker
        insort(self._held_by(frozenset(nodes)), (move.size_bytes, move.number))
        self._sizes[move.giver].remove(move.size_bytes)
        insort(self._sizes[move.taker], move.size_bytes)


def _spread_replicas(
    partitions: Sequence[PlacedPartition],
    wanted: dict[int, list[int]],
    racks: Mapping[int, str | None],
) -> None:
    brokers = sorted(racks)
    load = _Load(partitions, wanted, brokers)
    places = _Places(partitions, wanted, racks)
    for _ in range(MOVES_MAX):
        best = _best_move(load, places, brokers)
        if best is None:
            return
        places.move(best)
        load.move(best.giver, best.taker, best.size_bytes)


def _best_move(load: _Load, places: _Places, brokers: Sequence[int]) -> _Move | None:
    """Looks at those pairs first that could gain most, until none of the others can gain more.

    One of the two is beyond its share.
    """
    givers = {one for one in brokers if load.may_give(one)}
    takers = {one for one in brokers if load.may_take(one)}
    pairs = [
        (load.gain(giver, taker, size_bytes), giver, taker)
        for giver in brokers
        for taker in (brokers if giver in givers else takers)
        if giver != taker
        and (size_bytes := places.nearest_bytes(giver, load.ideal_bytes(giver, taker))) is not None
    ]
    pairs.sort(key=lambda one: -one[0])
    best: _Move | None = None
    best_gain = GAIN_MIN
    for gain_max, giver, taker in pairs:
        if gain_max <= (best_gain if best is None else best_gain / NEAR_BEST):
            break
        for move in places.moves(giver, taker, load.ideal_bytes(giver, taker)):
            gain = load.gain(giver, taker, move.size_bytes)
            if gain > best_gain:
                best, best_gain = move, gain
    return best


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
