"""Producer ids for many producers at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from strandline.broker.cluster.metadata.active_controller import (
    ActiveController,
    ControllerClient,
)
from strandline.broker.cluster.metadata.controller_messages import TopicDefaults
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.coordination.transactions.producer_ids import ProducerIds
from tests.support.memory_store import MemoryStore
from tests.unit.broker.cluster.controlled import registered
from tests.unit.broker.cluster.metadata_rig import opened


def test_producers_that_begin_at_the_same_time_share_one_change_of_the_metadata() -> None:
    """Each change is synced, and all others of the broker wait behind it."""

    async def begin() -> None:
        log = opened(MemoryStore())
        log.append([registered()])
        with ThreadPoolExecutor(1) as executor:
            metadata = MetadataView(log.image)
            active = ActiveController(metadata, log, executor=executor)
            client = ControllerClient(active, node_id=1, topic_defaults=TopicDefaults)
            ids = ProducerIds(client)
            version_before = metadata.image.version
            taken = await asyncio.gather(*(ids.take() for _ in range(1500)))
        assert sorted(taken) == list(range(1500))
        # Two blocks of a thousand.
        assert metadata.image.version - version_before == 2

    asyncio.run(begin())
