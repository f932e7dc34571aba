"""A plan makes shares equal, moves no more than that takes, and keeps racks."""

from __future__ import annotations

import random

import pytest

from strandline.broker.tools.nodes import balance
from strandline.broker.tools.nodes.balance import (
    BYTES_TOLERANCE,
    PlacedPartition,
    PlannedPartition,
    plan_balance,
    shares,
)

MB = 1 << 20


def placed(number: int, *replicas: int, size: int = MB) -> PlacedPartition:
    return PlacedPartition(topic="t", partition=number, replicas=replicas, size_bytes=size)


def after(
    partitions: list[PlacedPartition], plan: list[PlannedPartition]
) -> list[tuple[PlacedPartition, tuple[int, ...]]]:
    changed = {one.before.partition: one.replicas for one in plan}
    return [(one, changed.get(one.partition, one.replicas)) for one in partitions]


RACKLESS = {1: None, 2: None, 3: None}


def test_a_cluster_in_balance_stays_as_it_is() -> None:
    partitions = [placed(0, 1, 2), placed(1, 2, 3), placed(2, 3, 1)]
    assert plan_balance(partitions, RACKLESS) == []


def test_a_new_broker_gets_its_share_and_nobody_else_moves() -> None:
    partitions = [placed(number, 1 + number % 2, 2 - number % 2) for number in range(12)]
    plan = plan_balance(partitions, RACKLESS)
    found = shares([1, 2, 3], after(partitions, plan))
    assert [one.replicas for one in found.values()] == [8, 8, 8]
    assert [one.leads for one in found.values()] == [4, 4, 4]
    assert sum(one.copied_bytes for one in plan) == 8 * MB


def test_leaders_are_spread_by_the_order_of_replicas_alone() -> None:
    partitions = [placed(number, 1, 2, 3) for number in range(9)]
    plan = plan_balance(partitions, RACKLESS)
    assert sum(one.copied_bytes for one in plan) == 0
    assert len(plan) == 6
    assert [one.leads for one in shares([1, 2, 3], after(partitions, plan)).values()] == [3, 3, 3]


def test_bytes_count_beside_the_number() -> None:
    partitions = [
        *(placed(number, 1, size=100 * MB) for number in range(4)),
        *(placed(number, 2, size=MB) for number in range(4, 8)),
    ]
    plan = plan_balance(partitions, {1: None, 2: None})
    found = shares([1, 2], after(partitions, plan))
    assert [one.replicas for one in found.values()] == [4, 4]
    assert [one.size_bytes for one in found.values()] == [202 * MB, 202 * MB]


def test_racks_are_not_given_up() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    partitions = [placed(number, 1, 3) for number in range(6)]
    plan = plan_balance(partitions, racks)
    for _, nodes in after(partitions, plan):
        assert len({racks[one] for one in nodes}) == 2
    assert shares([2], after(partitions, plan))[2].replicas == 3


def test_whatever_the_beginning_shares_become_equal_and_partitions_stay_whole() -> None:
    for seed in range(40):
        world = random.Random(seed)
        brokers = list(range(1, world.randint(3, 6)))
        partitions = [
            placed(number, *world.sample(brokers, min(2, len(brokers))), size=world.randint(1, 9))
            for number in range(60)
        ]
        plan = plan_balance(partitions, dict.fromkeys(brokers))
        ended = after(partitions, plan)
        for one, nodes in ended:
            assert len(set(nodes)) == len(one.replicas), seed
        found = shares(brokers, ended).values()
        mean = sum(one.size_bytes for one in found) / len(brokers)
        for one in found:
            assert abs(one.size_bytes - mean) <= BYTES_TOLERANCE * mean + 9, seed
            assert abs(one.replicas - 120 / len(brokers)) <= 120 / len(brokers) * 0.2 + 1, seed
            assert abs(one.leads - 60 / len(brokers)) <= 2, seed
        assert (
            plan_balance(
                [placed(one.partition, *nodes, size=one.size_bytes) for one, nodes in ended],
                dict.fromkeys(brokers),
            )
            == []
        ), seed


def test_the_work_of_a_move_does_not_grow_with_the_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster of 20,000 partitions is planned in seconds."""
    looks = 0
    gain = balance._Load.gain

    def counted(*arguments: object) -> float:
        nonlocal looks
        looks += 1
        return gain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(balance._Load, "gain", counted)
    world = random.Random(1)
    brokers = range(1, 7)
    partitions = [
        placed(number, *world.sample(brokers, 3), size=int(world.lognormvariate(16, 2)))
        for number in range(20_000)
    ]
    # Broker 6 was away while the last ones were created.
    partitions += [
        placed(number, *world.sample(range(1, 6), 3)) for number in range(20_000, 20_400)
    ]
    plan = plan_balance(partitions, {node_id: f"rack {node_id % 3}" for node_id in brokers})
    moves = sum(one.new_count for one in plan)
    assert moves > 100
    assert looks < 300 * moves
    found = shares(list(brokers), after(partitions, plan)).values()
    assert max(one.replicas for one in found) - min(one.replicas for one in found) <= 2
