"""Groups and transactions in simulated worlds: what was acknowledged holds, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strandline.storage.crash_points import (
    TRANSACTION_AFTER_COMPLETE,
    TRANSACTION_AFTER_MARKER,
    TRANSACTION_AFTER_PREPARE,
)
from tests.sim.chaos import Chaos, die_at
from tests.sim.cluster import VirtualBroker, World, play
from tests.sim.members import Commits, Member
from tests.sim.transactions import Outcomes, Transactor
from tests.support.heavy import first

PARTITIONS = 3
SEEDS = range(12)
STEPS = (TRANSACTION_AFTER_PREPARE, TRANSACTION_AFTER_MARKER, TRANSACTION_AFTER_COMPLETE)


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


async def troubles(world: World, broker: VirtualBroker) -> None:
    await Chaos(world, broker, STEPS).run(10)


async def transactions(
    world: World,
    trouble: Callable[[World, VirtualBroker], Coroutine[Any, Any, None]] = troubles,
) -> None:
    broker = durable_broker(world)
    await broker.start()
    client = world.client(broker)
    await client.create_topic("t", PARTITIONS)
    outcomes = Outcomes("t")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(trouble(world, broker))
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
@pytest.mark.parametrize("step", first(1, STEPS))
def test_a_death_at_a_step_of_a_transaction_s_end_changes_no_outcome(
    step: str, tmp_path: Path
) -> None:
    async def deaths(_: World, broker: VirtualBroker) -> None:
        await die_at(step, broker)

    play(7, tmp_path, partial(transactions, trouble=deaths))


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, (1, 2, 3)))
@pytest.mark.parametrize("scenario", [groups, transactions])
def test_two_runs_of_a_seed_leave_the_same_trace(
    scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int, tmp_path: Path
) -> None:
    one, other = (play(seed, tmp_path / str(number), scenario) for number in range(2))
    assert one.digest() == other.digest()
