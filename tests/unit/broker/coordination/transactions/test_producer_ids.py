"""Producer ids for many producers at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from strandline.broker.cluster.metadata.active_controller import ActiveController
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.config.loading import load_config
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.coordination.transactions.producer_ids import ProducerIds
from strandline.broker.server.decisions import decisions
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
            running = RunningConfig(load_config())
            active = ActiveController(metadata, log, decisions(running), executor=executor)
            ids = ProducerIds(active, 1)
            version_before = metadata.image.version
            taken = await asyncio.gather(*(ids.take() for _ in range(1500)))
        assert sorted(taken) == list(range(1500))
        # Two blocks of a thousand.
        assert metadata.image.version - version_before == 2

    asyncio.run(begin())
