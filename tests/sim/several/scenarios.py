"""Clients of a cluster in trouble, and what they find at the end: a scenario each.

records         idempotent producers: acknowledged is there once, and in order
minima          the same, while min.insync.replicas is lowered and raised
transactions    transactional producers: committed is read whole and once, aborted never
groups          members of a group: commits do not go back
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from strandline.broker.cluster.metadata.image import PartitionImage
from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalConfig,
)
from strandline.broker.protocol.messages.init_producer_id import InitProducerIdRequest
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.local.log.log import LocalLog
from strandline.storage.records.batch.any_batch import iter_records, walk
from strandline.storage.records.batch.record import Record, encode_batch
from tests.sim.client import RETRY_S, Refused, Unanswered, check
from tests.sim.cluster import World, play
from tests.sim.members import Commits, Member
from tests.sim.several.cluster import VirtualCluster
from tests.sim.several.routing import RoutedClient
from tests.sim.several.troubles import Troubles
from tests.sim.several.watch import Watch
from tests.sim.transactions import Outcomes, Transactor

PARTITIONS = 3
# Beyond this somebody waits for what never comes.
WORLD_S_MAX = 500.0
READ_S_MAX = 300.0
IN_SYNC_S_MAX = 120.0
HEALED_S = 5.0
NOT_SYNCED = {"log_flush_interval_messages": "9223372036854775807"}
ARCHIVED = {
    "remote.storage.enable": "true",
    "strandline.remote.active.segment.upload.ms": "1000",
}
# replica.lag.time.max.ms: so short that followers leave the in-sync set, or as long as troubles.
LAGS_MS = ("2000", "2000", "30000")
# replica.fetch.max.bytes: with one batch a fetch, a follower stands at each batch once.
FETCHES_BYTES = ("1", "1048576")


@dataclass
class Scene:
    """A cluster, its watch, and its clients."""

    world: World
    cluster: VirtualCluster
    watch: Watch
    # Of the clients' topic.
    replicas: int
    is_archived: bool = False
    # All troubles are over.
    healed: asyncio.Event = field(default_factory=asyncio.Event)
    producer_ids: set[tuple[int, int]] = field(default_factory=set)

    def client(self, name: str) -> RoutedClient:
        return RoutedClient(
            self.world.network, self.cluster.brokers, name=name, on_answer=self.watch.on_answer
        )


# What clients do while the cluster is in trouble; returns what they check at the end.
Clients: TypeAlias = Callable[[Scene], Awaitable[None]]


def scenario(
    clients: Clients,
    *,
    troubles: int = 6,
    only: Sequence[str] | None = None,
    replicas: int = 1,
    is_synced: bool = True,
    is_archived: bool = False,
) -> Callable[[World], Coroutine[object, object, None]]:
    """Returns a scenario: clients work while so many troubles come.

    Unless `is_synced`, brokers sync nothing, as Kafka's defaults have it. If `is_archived`, they
    have an archive, and so has the topic.
    """

    async def played(world: World) -> None:
        watch = Watch(world)
        settings = {} if is_synced else NOT_SYNCED
        if replicas > 1:
            settings = {
                **settings,
                "replica_lag_time_max_ms": world.random.choice(LAGS_MS),
                "replica_fetch_max_bytes": world.random.choice(FETCHES_BYTES),
            }
        cluster = VirtualCluster(world, settings=settings, is_archived=is_archived)
        watch.add(cluster)
        with watch.watching():
            try:
                scene = Scene(world, cluster, watch, replicas, is_archived)
                trouble = Troubles(
                    world,
                    cluster,
                    only,
                    replicas=replicas,
                    is_in_sync=lambda: _are_in_sync(scene),
                )
                await _play(scene, clients, trouble, troubles)
            except BaseException:
                for node in cluster.nodes:
                    await node.kill()
                raise
        watch.check()

    return played


async def _play(scene: Scene, clients: Clients, troubles: Troubles, times: int) -> None:
    await scene.cluster.start()
    configs = {"min.insync.replicas": "2"} if scene.replicas > 1 else {}
    if scene.is_archived:
        configs |= ARCHIVED
    first = scene.client("first")
    await first.create_topic("t", PARTITIONS, configs, replicas=scene.replicas)
    try:
        async with asyncio.timeout(WORLD_S_MAX), asyncio.TaskGroup() as tasks:
            tasks.create_task(_troubled(scene, troubles, times))
            tasks.create_task(_played_by(clients, scene))
            tasks.create_task(scene.watch.fail_early())
    except TimeoutError:
        raise AssertionError("it hangs") from None
    if scene.replicas > 1:
        await check_replicas(scene)
    await scene.cluster.stop()


async def _troubled(scene: Scene, troubles: Troubles, times: int) -> None:
    await troubles.run(times)
    # Until then a leader that was deposed does not know it, and answers from what it had.
    await asyncio.sleep(HEALED_S)
    scene.healed.set()


async def _played_by(clients: Clients, scene: Scene) -> None:
    try:
        await clients(scene)
    finally:
        scene.watch.clients_ended.set()


def play_scenario(
    seed: int,
    folder: Path,
    clients: Clients,
    *,
    troubles: int = 6,
    only: Sequence[str] | None = None,
    replicas: int = 1,
    is_synced: bool = True,
    is_archived: bool = False,
) -> World:
    played = scenario(
        clients,
        troubles=troubles,
        only=only,
        replicas=replicas,
        is_synced=is_synced,
        is_archived=is_archived,
    )
    return play(seed, folder, played)


# --- replicas -----------------------------------------------------------------------------------


async def check_replicas(scene: Scene) -> None:
    """All replicas are in sync again, and their logs are the same bytes."""
    deadline_s = scene.world.loop.time() + IN_SYNC_S_MAX
    while not _are_in_sync(scene):
        assert scene.world.loop.time() < deadline_s, ("not in sync again", _partitions(scene))
        await asyncio.sleep(1)
    # The high watermark comes with the next fetch.
    await asyncio.sleep(5)
    for one in _partitions(scene):
        logs = {}
        for broker in scene.cluster.brokers:
            local = broker.log("t", one.partition)
            logs[broker.node_id] = local.end_offset, local.high_watermark, _content_of(local)
        assert len(set(logs.values())) == 1, (one, "replicas differ", logs)


def _are_in_sync(scene: Scene) -> bool:
    """Whether all partitions, also of coordinators, have leaders and all replicas in sync."""
    image = scene.watch.image_of(scene.cluster.controller.process)
    return all(
        len(one.isr) == len(one.replicas) and one.leader >= 0
        for topic in image.topics.values()
        for one in topic.partitions
    )


def _partitions(scene: Scene) -> Sequence[PartitionImage]:
    image = scene.watch.image_of(scene.cluster.controller.process)
    return image.topics["t"].partitions


def _content_of(local: LocalLog) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(local.directory.glob("*.log")))


# --- records ---------------------------------------------------------------------------------


@dataclass
class Sent:
    """What one producer of one partition was told."""

    partition: int
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    # In the order in which they were sent; those of unknown outcome, too.
    sent: list[bytes] = field(default_factory=list)

    def check(self, found: dict[int, bytes]) -> None:
        own = {offset: value for offset, value in found.items() if value in self.sent}
        for offset, value in self.acknowledged.items():
            assert found.get(offset) == value, (self.partition, offset, value, "lost")
        places = [self.sent.index(value) for _, value in sorted(own.items())]
        assert places == sorted(set(places)), (self.partition, places, "twice, or out of order")


class IdempotentProducer:
    """One producer of one partition: it sends a record again until it knows its outcome."""

    def __init__(self, scene: Scene, client: RoutedClient, name: str, partition: int) -> None:
        self._scene = scene
        self._client = client
        self._name = name
        self.sent = Sent(partition)
        self._producer_id = -1
        self._epoch = 0
        self._sequence = 0

    async def run(self, count: int) -> None:
        world = self._scene.world
        await self._begin()
        for number in range(count):
            value = b"%s/%d" % (self._name.encode(), number)
            self.sent.sent.append(value)
            await self._send(value)
            await asyncio.sleep(world.random.uniform(0.05, 2.0))

    async def _begin(self) -> None:
        while True:
            try:
                answer = await self._client.ask(InitProducerIdRequest(transaction_timeout_ms=1), 4)
                check(answer.error_code)
            except (Refused, Unanswered):
                await asyncio.sleep(RETRY_S)
                continue
            found = answer.producer_id, answer.producer_epoch
            assert found not in self._scene.producer_ids, (found, "a producer id was given twice")
            self._scene.producer_ids.add(found)
            self._producer_id, self._epoch = found
            self._sequence = 0
            return

    async def _send(self, value: bytes) -> None:
        world, partition = self._scene.world, self.sent.partition
        record = Record(offset=0, timestamp_ms=world.clock.now_ms(), key=None, value=value)
        encoded = encode_batch(
            [record],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
        )
        while True:
            try:
                offset = await self._client.produce("t", encoded, partition=partition)
            except Unanswered:
                await asyncio.sleep(RETRY_S)
            except Refused as refused:
                world.note("refused", self._name, refused.code.name)
                if refused.code in (
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    ErrorCode.UNKNOWN_PRODUCER_ID,
                ):
                    raise AssertionError(f"{value!r} {refused.code.name}: lost before") from None
                await asyncio.sleep(RETRY_S)
            else:
                told = self.sent.acknowledged
                assert offset not in told, (offset, value, "acknowledged twice")
                told[offset] = value
                self._sequence += 1
                return


async def records(scene: Scene, count: int = 20) -> None:
    producers = [
        IdempotentProducer(scene, scene.client(f"p{number}"), f"p{number}", number % PARTITIONS)
        for number in range(PARTITIONS + 1)
    ]
    has_ended = asyncio.Event()
    followed: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
    async with asyncio.TaskGroup() as tasks:
        for partition in range(PARTITIONS):
            tasks.create_task(_follow(scene, partition, has_ended, followed[partition]))
        async with asyncio.TaskGroup() as producing:
            for producer in producers:
                producing.create_task(producer.run(count))
        has_ended.set()
    await scene.healed.wait()
    reader = scene.client("reader")
    async with asyncio.timeout(READ_S_MAX):
        for partition in range(PARTITIONS):
            found = await reader.read_all("t", partition=partition)
            for offset, value in followed[partition].items():
                assert found.get(offset) == value, (partition, offset, value, "read, and lost")
            for producer in producers:
                if producer.sent.partition == partition:
                    producer.sent.check(found)


async def _follow(
    scene: Scene, partition: int, has_ended: asyncio.Event, found: dict[int, bytes]
) -> None:
    """Reads a partition again and again, each offset once, until the producers have ended."""
    client = scene.client(f"follower-{partition}")
    offset = 0
    while not has_ended.is_set():
        try:
            answer = await client.fetch("t", offset, partition=partition)
        except (Refused, Unanswered):
            await asyncio.sleep(RETRY_S)
            continue
        buffer = codec.join(answer.records)
        for batch in walk(buffer):
            assert batch.header.base_offset <= offset, (offset, "records are missing")
            for record in iter_records(buffer, batch.header, batch.position):
                value = bytes(record.value or b"")
                assert found.setdefault(record.offset, value) == value, (record, "changed")
            offset = max(offset, batch.header.next_offset)


async def minima(scene: Scene) -> None:
    altering = asyncio.create_task(_alter_minimum(scene))
    try:
        await records(scene)
    finally:
        altering.cancel()


async def _alter_minimum(scene: Scene) -> None:
    client, minimum = scene.client("administrator"), 2
    while True:
        await asyncio.sleep(scene.world.random.uniform(0.2, 6.0))
        value = str(3 - minimum)
        config = IncrementalConfig(
            name="min.insync.replicas", config_operation=ConfigOperation.SET, value=value
        )
        topic = IncrementalAlterConfigsResource(
            resource_type=ConfigResourceType.TOPIC, resource_name="t", configs=[config]
        )
        try:
            answer = await client.ask(IncrementalAlterConfigsRequest(resources=[topic]), 1)
        except (Refused, Unanswered):
            continue
        if not answer.responses[0].error_code:
            minimum = int(value)


async def nothing(scene: Scene) -> None:
    """No clients: the brokers alone."""
    await asyncio.sleep(90)
    del scene


# --- transactions and groups ------------------------------------------------------------------


async def transactions(scene: Scene, count: int = 8) -> None:
    outcomes = Outcomes("t")
    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            client = scene.client(f"tx{number}")
            one = Transactor(scene.world, client, f"tx{number}", outcomes, PARTITIONS)
            tasks.create_task(one.run(count))
    reader = scene.client("reader")
    try:
        async with asyncio.timeout(READ_S_MAX):
            for partition in range(PARTITIONS):
                found = await reader.read_committed("t", partition=partition)
                outcomes.check(partition, found)
    except TimeoutError:
        raise AssertionError("a transaction hangs: it is never decided") from None


async def groups(scene: Scene, rounds: int = 8) -> None:
    commits = Commits("g", "t")
    members = [
        Member(scene.world, scene.client(f"m{number}"), commits, PARTITIONS) for number in range(3)
    ]
    async with asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(member.run(rounds))
    # Members also give rounds up because the only broker with their group is away.
    await scene.healed.wait()
    await Member(scene.world, scene.client("last"), commits, PARTITIONS).run(4)
    assert commits.acknowledged, "nobody committed"
