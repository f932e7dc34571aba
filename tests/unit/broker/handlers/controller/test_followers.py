"""What is remembered of those who follow the metadata log."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from strandline.broker.handlers.controller.followers import (
    FOLLOWERS_MAX,
    METADATA_TOPIC_ID,
    FollowerHandlers,
)
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchReplicaState,
    FetchRequest,
    FetchTopic,
)
from tests.sim.loop import VirtualClock, run
from tests.unit.broker.controller.test_feed import World


def fetch_of(world: World, node_id: int) -> FetchRequest:
    return FetchRequest(
        replica_state=FetchReplicaState(replica_id=node_id, replica_epoch=-1),
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            FetchTopic(
                topic_id=METADATA_TOPIC_ID,
                partitions=[
                    FetchPartition(
                        partition=0,
                        current_leader_epoch=5,
                        fetch_offset=world.feed.end,
                        last_fetched_epoch=5,
                        partition_max_bytes=2**20,
                    )
                ],
            )
        ],
    )


def test_ids_that_followers_make_up_are_remembered_up_to_a_bound() -> None:
    async def scenario() -> None:
        world = World()
        handlers = FollowerHandlers(
            world.feed,
            node_id=3000,
            cluster_id="c",
            advertised=lambda _: SimpleNamespace(host="h", port=1),  # type: ignore[arg-type,return-value]
            snapshot=lambda _: asyncio.sleep(0),
            clock=VirtualClock(),
        )
        context = SimpleNamespace(caller=SimpleNamespace(listener="CONTROLLER"))
        for node_id in range(2 * FOLLOWERS_MAX):
            # One that goes on fetching stays.
            for one in (1, node_id):
                await handlers.fetch(fetch_of(world, one), context)  # type: ignore[arg-type]
        found = [one.replica_id for one in handlers.observers(range(2 * FOLLOWERS_MAX))]
        assert len(found) == FOLLOWERS_MAX
        assert found[0] == 1
        assert found[-1] == 2 * FOLLOWERS_MAX - 1

    run(scenario)
