"""Throttled replicas wait for the rate, unless they are in sync (Kafka's ReplicationQuotasTest)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.broker.cluster.in_sync.throttle import FOLLOWERS, LEADERS
from strandline.broker.cluster.metadata.records import ConfigResourceType
from strandline.broker.protocol.formats.metadata_records import ConfigRecord
from strandline.storage.config.definition import LONG_MAX
from tests.unit.broker.replication.rig import TOPIC, Control, Node, cluster, until

BATCHES = 30


def rate_of(control: Control, side: str, node_id: int) -> float:
    """Bytes a second that a broker counted on one side."""
    found = control.throttles[2 * (node_id - 1) + (side == FOLLOWERS)]
    return found.byte_rate


async def lagging(control: Control, side: str) -> tuple[Node, Node]:
    """Broker 2 has nothing, is not in sync, and its replication is throttled on one side."""
    control.rate = 1
    await control.create(1, 2, isr=(1,), **{side: "*"})
    leader, follower = control.nodes[1], control.nodes[2]
    follower.is_cut = True
    for _ in range(BATCHES):
        leader.append(1)
    follower.is_cut = False
    return leader, follower


@pytest.mark.parametrize("side", [LEADERS, FOLLOWERS])
def test_one_that_is_not_in_sync_waits_for_the_rate_and_goes_on_when_it_is_raised(
    tmp_path: Path, side: str
) -> None:
    async def throttle() -> None:
        async with cluster(
            tmp_path, partition_bytes_max=1, backoff_ms=10, wait_ms_max=10
        ) as control:
            leader, follower = await lagging(control, side)
            # One answer is above the bound already.
            await until(lambda: follower.end == 1)
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert follower.end == 1
            assert rate_of(control, side, 1 if side == LEADERS else 2) > 0
            control.rate = LONG_MAX
            await until(lambda: follower.end == leader.end)
            await until(lambda: control.image.topics[TOPIC].partitions[0].isr == (1, 2))

    asyncio.run(throttle())


@pytest.mark.parametrize("side", [LEADERS, FOLLOWERS])
def test_it_goes_on_when_its_topic_is_not_throttled_any_more(tmp_path: Path, side: str) -> None:
    async def throttle() -> None:
        async with cluster(
            tmp_path, partition_bytes_max=1, backoff_ms=10, wait_ms_max=10
        ) as control:
            leader, follower = await lagging(control, side)
            await until(lambda: follower.end == 1)
            await control.apply(
                ConfigRecord(
                    resource_type=ConfigResourceType.TOPIC,
                    resource_name=TOPIC,
                    name=side,
                    value=None,
                )
            )
            await until(lambda: follower.end == leader.end)

    asyncio.run(throttle())


def test_replicas_in_sync_pass_and_are_counted(tmp_path: Path) -> None:
    async def throttle() -> None:
        async with cluster(tmp_path, wait_ms_max=10) as control:
            control.rate = 1
            await control.create(1, 2, **{LEADERS: "0:1", FOLLOWERS: "0:2"})
            leader, follower = control.nodes[1], control.nodes[2]
            for _ in range(2):
                leader.append(1)
                await until(lambda: follower.partition.high_watermark == leader.end)
            assert rate_of(control, LEADERS, 1) > control.rate
            assert rate_of(control, FOLLOWERS, 2) > control.rate
            # The throttles of the other side cover other replicas.
            assert rate_of(control, FOLLOWERS, 1) == rate_of(control, LEADERS, 2) == 0

    asyncio.run(throttle())


def test_other_topics_are_neither_held_back_nor_counted(tmp_path: Path) -> None:
    async def throttle() -> None:
        async with cluster(
            tmp_path, partition_bytes_max=1, backoff_ms=10, wait_ms_max=10
        ) as control:
            control.rate = 1
            await control.create(1, 2, isr=(1,), **{LEADERS: "1:1", FOLLOWERS: "1:2,0:3"})
            leader, follower = control.nodes[1], control.nodes[2]
            for _ in range(BATCHES):
                leader.append(1)
            await until(lambda: follower.end == leader.end)
            assert rate_of(control, LEADERS, 1) == rate_of(control, FOLLOWERS, 2) == 0

    asyncio.run(throttle())
