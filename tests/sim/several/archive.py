"""The archive of a partition whose leader dies, with a deletion on its way to the store.

late_deletion   the deletion of an earlier leader, by a retention that was altered since, comes too
                late
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.storage.errors import TierUnavailable
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.manifest import Manifest
from tests.sim.client import EARLIEST, RETRY_S, Refused, Unanswered
from tests.sim.several.routing import RoutedClient
from tests.sim.several.scenarios import ARCHIVED, Scene
from tests.support.memory_store import Fault, Timing

TOPIC = "kept"
HOUR_MS = 3_600_000
# Of a record that is an hour old: soon, but not before all of the log is archived. The newest
# segment stays open.
SOON_MS = 10_000
CONFIGS = {
    **ARCHIVED,
    "retention.ms": str(HOUR_MS + SOON_MS),
    "segment.ms": str(HOUR_MS // 2),
    "min.insync.replicas": "2",
}
# Long enough for a new leader, and for what it does to the archive.
SETTLED_S = 25.0


async def late_deletion(scene: Scene) -> None:
    """What the present retention keeps stays, whatever an earlier leader had begun."""
    client = scene.client("keeper")
    await client.create_topic(TOPIC, 1, CONFIGS, replicas=3)
    begun = asyncio.Event()
    with _held_deletion(scene, begun.set):
        await _write(scene, client, age_ms=HOUR_MS)
        await _write(scene, client)
        await begun.wait()
    (leader,) = (
        one for one in scene.cluster.brokers if one.node_id == client.known_node((TOPIC, 0))
    )
    await leader.kill()
    await _keep_everything(client)
    await asyncio.sleep(SETTLED_S)
    start = await _start(client)
    scene.world.store.deliver_late()
    # Whoever commits then learns what is in the bucket.
    await _write(scene, client)
    await asyncio.sleep(SETTLED_S)
    now = await _start(client)
    assert now == start, (start, now, "deleted late")
    await scene.cluster.start_again(leader)


@contextmanager
def _held_deletion(scene: Scene, on_held: Callable[[], None]) -> Iterator[None]:
    """The first commit that moves the log start stays on its way to the store."""
    held: list[Manifest] = []

    def spy(commit: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(commit)
        def committed(store: Any, before: Any, new: Manifest, **more: Any) -> Any:
            is_deletion = before is not None and (
                new.log_start_offset > before.manifest.log_start_offset
            )
            if new.topic == TOPIC and is_deletion and not held:
                held.append(new)
                late = Fault(operation="put", error=TierUnavailable, moment=Timing.LATE)
                scene.world.store.add_fault(late)
                on_held()
            return commit(store, before, new, **more)

        return committed

    with patch.object(manifest_store, "commit", spy(manifest_store.commit)):
        yield


async def _write(scene: Scene, client: RoutedClient, *, age_ms: int = 0) -> None:
    timestamp_ms = scene.world.clock.now_ms() - age_ms
    encoded = encode_batch([Record(offset=0, timestamp_ms=timestamp_ms, key=None, value=b"one")])
    await _asked(lambda: client.produce(TOPIC, encoded))


async def _keep_everything(client: RoutedClient) -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=ConfigResourceType.TOPIC,
                resource_name=TOPIC,
                configs=[
                    IncrementalConfig(
                        name="retention.ms", config_operation=ConfigOperation.SET, value="-1"
                    )
                ],
            )
        ]
    )
    answer = await _asked(lambda: client.ask(request, 1))
    assert [one.error_code for one in answer.responses] == [0], answer


async def _start(client: RoutedClient) -> int:
    found: int = await _asked(lambda: client.offset_at(TOPIC, EARLIEST))
    return found


async def _asked(ask: Callable[[], Any]) -> Any:
    while True:
        try:
            return await ask()
        except (Refused, Unanswered):
            await asyncio.sleep(RETRY_S)
