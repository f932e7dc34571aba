"""A broker that was killed has all that it wrote, if its machine did not go down (last_run.py).

Three replicas, two in sync at least, nothing is synced. One after the other is gone: the first is
stopped, the second is killed, and the last one loses its power. Then the second has what the last
one has lost, and leads without it; or, if it may not vouch for that, nobody leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.image import NO_LEADER, PartitionImage
from strandline.storage.crash_points import (
    MEMBER_AFTER_LOGS,
    MEMBER_AFTER_NOTE,
    MEMBER_AFTER_REGISTRATION,
    MEMBER_BEFORE_REGISTRATION,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.records.batch.record import Record, encode_batch
from tests.sim.client import RETRY_S, Refused, Unanswered
from tests.sim.cluster import VirtualBroker, World, play
from tests.sim.several.cluster import VirtualCluster
from tests.sim.several.routing import RoutedClient
from tests.sim.several.scenarios import NOT_SYNCED
from tests.sim.several.watch import SESSION_S, Watch

COUNT = 20
GONE_S = SESSION_S + 5
# Long enough for an election, if there is one.
ELECTED_S = 20.0


@dataclass
class Killed:
    """A cluster whose second broker was killed, and whose last one has lost its power."""

    world: World
    cluster: VirtualCluster
    watch: Watch
    client: RoutedClient
    killed: VirtualBroker
    last: VirtualBroker

    @property
    def partition(self) -> PartitionImage:
        return self.watch.image_of(self.cluster.controller.process).topics["t"].partitions[0]

    @property
    def log_file(self) -> Path:
        (path,) = (self.killed.folder / "t-0").glob("*.log")
        return path

    async def leads_with_everything(self) -> None:
        assert self.partition.leader == self.killed.node_id, self.partition
        # Below the minimum in sync nobody is told of new records: consumers see them later.
        local = self.killed.log("t", 0)
        assert local.end_offset == COUNT, local

    async def does_not_lead(self) -> None:
        assert self.partition.leader == NO_LEADER, self.partition
        assert self.killed.node_id not in self.partition.eligible_leader_replicas, self.partition


@asynccontextmanager
async def killed_cluster(world: World) -> AsyncIterator[Killed]:
    watch = Watch(world)
    cluster = VirtualCluster(world, settings=NOT_SYNCED)
    watch.add(cluster)
    with watch.watching():
        await cluster.start()
        client = RoutedClient(world.network, cluster.brokers, name="c", on_answer=watch.on_answer)
        await client.create_topic("t", 1, {"min.insync.replicas": "2"}, replicas=3)
        for number in range(COUNT):
            await _send(world, client, number)
        first, killed, last = cluster.brokers
        await first.stop()
        await asyncio.sleep(GONE_S)
        await killed.kill()
        await asyncio.sleep(GONE_S)
        await last.lose_power()
        await asyncio.sleep(GONE_S)
        found = Killed(world, cluster, watch, client, killed, last)
        assert set(found.partition.eligible_leader_replicas) == {2, 3}, found.partition
        yield found
        for broker in cluster.brokers:
            if not broker.is_running:
                await cluster.start_again(broker)
        await cluster.stop()


async def _send(world: World, client: RoutedClient, number: int) -> None:
    record = Record(offset=0, timestamp_ms=world.clock.now_ms(), key=None, value=b"%d" % number)
    while True:
        try:
            assert await client.produce("t", encode_batch([record])) == number
            return
        except (Refused, Unanswered):
            await asyncio.sleep(RETRY_S)


@pytest.mark.slow
def test_a_killed_broker_leads_with_all_that_the_last_one_lost(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with killed_cluster(world) as found:
            await found.killed.start()
            await asyncio.sleep(ELECTED_S)
            await found.leads_with_everything()
            await found.cluster.start_again(found.last)
            values = await found.client.read_all("t")
            while len(values) < COUNT:
                await asyncio.sleep(RETRY_S)
                values = await found.client.read_all("t")
            assert values == {number: b"%d" % number for number in range(COUNT)}
        found.watch.check()

    play(1, tmp_path, scenario)


async def nothing(_found: Killed) -> None:
    """It comes back as it was."""


async def power_gone(found: Killed) -> None:
    """The machine goes down behind the kill: its process does not run any more."""
    found.killed.boots += 1


async def damaged(found: Killed) -> None:
    content = bytearray(found.log_file.read_bytes())
    content[len(content) // 2] ^= 1
    found.log_file.write_bytes(content)


async def torn(found: Killed) -> None:
    record = Record(offset=COUNT, timestamp_ms=0, key=None, value=b"on its way")
    with found.log_file.open("ab") as file:
        file.write(encode_batch([record])[:-4])


async def removed(found: Killed) -> None:
    """An operator takes the partition's folder away, as one does with a damaged replica."""
    (found.killed.folder / "t-0").rename(found.world.folder / "away")


async def killed_at(found: Killed, point: str) -> None:
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        await found.killed.start()
    await found.killed.kill()
    # The controller knows of its end.
    await asyncio.sleep(GONE_S)


async def before_registration(found: Killed) -> None:
    await killed_at(found, MEMBER_BEFORE_REGISTRATION)


async def after_registration(found: Killed) -> None:
    await killed_at(found, MEMBER_AFTER_REGISTRATION)


async def after_the_logs(found: Killed) -> None:
    await killed_at(found, MEMBER_AFTER_LOGS)


async def after_the_note(found: Killed) -> None:
    await killed_at(found, MEMBER_AFTER_NOTE)


async def after_damage_was_repaired(found: Killed) -> None:
    """Its log looks whole to the next start."""
    await damaged(found)
    await killed_at(found, MEMBER_AFTER_LOGS)


async def before_registration_and_a_loss_of_power(found: Killed) -> None:
    await before_registration(found)
    await power_gone(found)


Meanwhile = Callable[[Killed], Awaitable[None]]
MAY_LEAD: tuple[Meanwhile, ...] = (nothing, torn, before_registration, after_the_note)
MAY_NOT: tuple[Meanwhile, ...] = (
    power_gone,
    damaged,
    removed,
    after_registration,
    after_the_logs,
    after_damage_was_repaired,
    before_registration_and_a_loss_of_power,
)


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", [*MAY_LEAD, *MAY_NOT])
def test_it_leads_only_if_it_has_everything(meanwhile: Meanwhile, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with killed_cluster(world) as found:
            await meanwhile(found)
            await found.killed.start()
            await asyncio.sleep(ELECTED_S)
            if meanwhile in MAY_LEAD:
                await found.leads_with_everything()
            else:
                await found.does_not_lead()

    play(1, tmp_path, scenario)
