"""Tiering in simulated worlds: what was acknowledged is there, once and in order, in either tier.

Segments are copied and freed while the store fails, answers late or is away, disks are slow, and
the broker dies; with the power goes what was not synced. Each seed is another world.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strandline.storage.crash_points import COPY_AFTER_REWRITE, CRASH_POINTS
from strandline.storage.records.batch.record import Record, encode_batch
from tests.sim.chaos import Chaos, die_at
from tests.sim.client import EARLIEST, LATEST, Refused, Unanswered, VirtualClient
from tests.sim.cluster import VirtualBroker, World, play
from tests.support.heavy import first

EARLIEST_LOCAL = -4
RECORDS = 60
# Nine of them make a segment.
VALUE_BYTES = 120_000
SEGMENT_BYTES = 1 << 20
TOPIC = {
    "remote.storage.enable": "true",
    "segment.bytes": str(SEGMENT_BYTES),
    "local.retention.bytes": "1",
    "flush.messages": "1",
    "retention.ms": "-1",
}
SEEDS = range(12)
# The steps of a segment's way: all but its rewriting, which the topic does not ask for.
STEPS = [
    one
    for one in CRASH_POINTS
    if one.startswith(("copy.", "delete.")) and one != COPY_AFTER_REWRITE
]


@dataclass
class Written:
    """What one producer of one partition was told."""

    partition: int
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    # In the order in which they were sent, the unacknowledged ones too.
    sent: list[bytes] = field(default_factory=list)


def tiered_broker(world: World) -> VirtualBroker:
    return world.broker(
        remote_log_storage_system_enable="true",
        strandline_remote_url="file:///in/memory",
        # Most of a world's computing is that somebody looks and finds nothing to do.
        remote_log_manager_task_interval_ms="2000",
        log_retention_check_interval_ms="3000",
        log_initial_task_delay_ms="1000",
        strandline_remote_delete_grace_ms="60000",
    )


async def write(
    world: World, client: VirtualClient, written: Written, records: int = RECORDS
) -> None:
    for number in range(records):
        value = b"%d/%d/" % (written.partition, number)
        value += world.random.randbytes(8).hex().encode() * (VALUE_BYTES // 16)
        record = Record(offset=0, timestamp_ms=world.clock.now_ms(), key=None, value=value)
        written.sent.append(value)
        try:
            offset = await client.produce("t", encode_batch([record]), partition=written.partition)
        except (Refused, Unanswered) as error:
            world.note("not acknowledged", written.partition, number, str(error))
        else:
            assert offset not in written.acknowledged, (offset, "acknowledged twice")
            written.acknowledged[offset] = value
            world.note("acknowledged", written.partition, number, offset)
        await asyncio.sleep(world.random.uniform(0.01, 3.0))


async def check(world: World, client: VirtualClient, written: Written) -> None:
    """All that was acknowledged behind the log start, once and in order, and nothing unsent."""
    found = await client.read_all("t", partition=written.partition)
    start = await client.offset_at("t", EARLIEST, partition=written.partition)
    for offset, value in written.acknowledged.items():
        if offset >= start:
            assert found.get(offset) == value, (written.partition, offset, "lost")
    places = [written.sent.index(value) for _, value in sorted(found.items())]
    assert places == sorted(set(places)), (written.partition, places)
    world.note("read", written.partition, start, len(found))


async def troubles(world: World, broker: VirtualBroker) -> None:
    await Chaos(world, broker, STEPS).run(12)


async def scenario(
    world: World,
    *,
    retention_bytes: int = -1,
    records: int = RECORDS,
    trouble: Callable[[World, VirtualBroker], Coroutine[Any, Any, None]] = troubles,
) -> None:
    broker = tiered_broker(world)
    await broker.start()
    client = world.client(broker)
    await client.create_topic("t", 2, {**TOPIC, "retention.bytes": str(retention_bytes)})
    written = [Written(partition) for partition in range(2)]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(trouble(world, broker))
        for one in written:
            tasks.create_task(write(world, world.client(broker), one, records))
    # Long enough for each failed call to be tried again.
    await asyncio.sleep(900)
    for one in written:
        await check(world, client, one)
        local = await client.offset_at("t", EARLIEST_LOCAL, partition=one.partition)
        start = await client.offset_at("t", EARLIEST, partition=one.partition)
        assert local > 0, "nothing was freed"
        if retention_bytes < 0:
            assert start == 0
        else:
            end = await client.offset_at("t", LATEST, partition=one.partition)
            kept_bytes = VALUE_BYTES * (end - start)
            assert retention_bytes <= kept_bytes < retention_bytes + 2 * SEGMENT_BYTES, start
            assert start > 0
    await broker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(2, SEEDS))
def test_what_was_acknowledged_is_there_once_and_in_order_in_either_tier(
    seed: int, tmp_path: Path
) -> None:
    play(seed, tmp_path, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(2, SEEDS))
def test_retention_takes_the_oldest_alone(seed: int, tmp_path: Path) -> None:
    async def with_retention(world: World) -> None:
        await scenario(world, retention_bytes=1_500_000)

    play(100 + seed, tmp_path, with_retention)


@pytest.mark.slow
@pytest.mark.parametrize("step", first(3, STEPS))
def test_a_death_at_a_step_of_a_segment_s_way_loses_nothing(step: str, tmp_path: Path) -> None:
    async def deaths(_: World, broker: VirtualBroker) -> None:
        await die_at(step, broker)

    async def with_deaths(world: World) -> None:
        await scenario(world, retention_bytes=1_500_000, trouble=deaths)

    play(7, tmp_path, with_deaths)


@pytest.mark.slow
def test_two_runs_of_a_seed_leave_the_same_trace(tmp_path: Path) -> None:
    async def few(world: World, broker: VirtualBroker) -> None:
        await Chaos(world, broker, STEPS).run(3)

    async def short(world: World) -> None:
        await scenario(world, records=24, trouble=few)

    one, again, other = (
        play(seed, tmp_path / str(number), short) for number, seed in enumerate((1, 1, 2))
    )
    assert all(event == same for event, same in zip(one.trace, again.trace, strict=False))
    assert len(one.trace) == len(again.trace)
    assert one.digest() != other.digest(), "each seed is a world of its own"


@pytest.mark.slow
def test_the_checker_finds_what_a_power_loss_takes_of_records_that_were_not_synced(
    tmp_path: Path,
) -> None:
    """Without flush.messages=1 a record is acknowledged before its sync, as in Kafka."""

    async def unsynced(world: World) -> None:
        broker = tiered_broker(world)
        await broker.start()
        client = world.client(broker)
        await client.create_topic("t", 1, {**TOPIC, "flush.messages": "1000000"})
        written = Written(0)
        await write(world, client, written)
        await broker.lose_power()
        await broker.start()
        await check(world, client, written)

    with pytest.raises(AssertionError, match="lost"):
        play(1, tmp_path, unsynced)
