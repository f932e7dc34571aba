"""Groups and transactions in simulated worlds: what was acknowledged holds, whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.sim.chaos import Chaos
from tests.sim.cluster import VirtualBroker, World, play
from tests.sim.members import Commits, Member
from tests.sim.transactions import Outcomes, Transactor
from tests.support.heavy import first

PARTITIONS = 3
SEEDS = range(12)


def durable_broker(world: World) -> VirtualBroker:
    """Whose acknowledgements survive a power loss, its own topics' too."""
    return world.broker(
        log_flush_interval_messages="1",
        offsets_topic_num_partitions="2",
        transaction_state_log_num_partitions="2",
        group_initial_rebalance_delay_ms="0",
    )


async def groups(world: World) -> None:
    broker = durable_broker(world)
    await broker.start()
    await world.client(broker).create_topic("t", PARTITIONS)
    commits = Commits("g", "t")
    members = [
        Member(world, world.client(broker, name=f"m{number}"), commits, PARTITIONS)
        for number in range(3)
    ]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Chaos(world, broker).run(10))
        for member in members:
            tasks.create_task(member.run(20))
    # All alone, and with nothing in its way, one reads what all committed.
    await Member(world, world.client(broker, name="last"), commits, PARTITIONS).run(8)
    assert sum(map(len, commits.acknowledged.values())) > 30, commits
    await broker.stop()


async def transactions(world: World) -> None:
    broker = durable_broker(world)
    await broker.start()
    client = world.client(broker)
    await client.create_topic("t", PARTITIONS)
    outcomes = Outcomes("t")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Chaos(world, broker).run(10))
        for number in range(3):
            producer = world.client(broker, name=f"p{number}")
            one = Transactor(world, producer, f"tx{number}", outcomes, PARTITIONS)
            tasks.create_task(one.run(25))
    for partition in range(PARTITIONS):
        outcomes.check(partition, await client.read_committed("t", partition=partition))
    assert sum(map(len, outcomes.committed.values())) > 20
    assert outcomes.aborted
    await broker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(3, SEEDS))
def test_commits_are_monotone_and_each_partition_has_one_owner(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path, groups)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(3, SEEDS))
def test_committed_transactions_are_read_whole_and_once_and_aborted_ones_never(
    seed: int, tmp_path: Path
) -> None:
    play(seed, tmp_path, transactions)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [groups, transactions])
def test_two_runs_of_a_seed_leave_the_same_trace(scenario: object, tmp_path: Path) -> None:
    assert callable(scenario)
    for seed in (1, 2, 3):
        first, second = (play(seed, tmp_path / f"{seed}-{n}", scenario) for n in range(2))
        assert first.digest() == second.digest()
