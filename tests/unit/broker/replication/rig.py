"""Brokers that replicate within one loop: real logs, leads, fetches of followers and fetchers.

    metadata  ──► the ReplicaManager of each broker
    fetcher   ──► the leader's handlers: a request goes there as bytes, and so does its answer back
    proposals ──► Control, which answers as a controller would

Only connections are left out. With `holds`, `Control` keeps proposals for the test to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from strandline.broker.cluster.in_sync.in_sync_set import Proposal
from strandline.broker.cluster.in_sync.leading import LeaderContext, Leading
from strandline.broker.cluster.in_sync.throttle import (
    FOLLOWERS,
    LEADERS,
    ReplicationThrottle,
)
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager, Replication
from strandline.broker.cluster.replicas.tiers import LocalTier
from strandline.broker.handlers.fetch.replica_fetch import ReplicaFetches
from strandline.broker.handlers.metadata.offsets import OffsetHandlers
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.network.responses import DeferredAnswer
from strandline.broker.peers.address import Address
from strandline.broker.peers.errors import PeerUnreachable
from strandline.broker.peers.peer import Peer
from strandline.broker.protocol.codec.codec import decode, decode_request, encode, join
from strandline.broker.protocol.formats.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
)
from strandline.broker.protocol.header import RequestHeader, body_of_response
from strandline.broker.protocol.messages.fetch import FetchRequest
from strandline.broker.protocol.messages.list_offsets import ListOffsetsRequest
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.replication.config import ReplicaFetchConfig
from strandline.broker.replication.fetchers import Fetchers
from strandline.broker.replication.leader import LeaderEndpoint
from strandline.storage.clock import SystemClock
from strandline.storage.config.definition import LONG_MAX
from strandline.storage.files import FileRange
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicId
from tests.unit.broker.cluster.controlled import A, registered
from tests.unit.broker.cluster.throttled import throttle_of
from tests.unit.storage.local.builders import batch
from tests.unit.storage.local.log_folders import open_dirs

TOPIC = "t"
WAIT_S = 5.0
FETCH_VERSION, OFFSETS_VERSION = 17, 9


async def until(is_so: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            await asyncio.sleep(0.001)


class Control:
    """Answers proposals, and keeps the metadata."""

    def __init__(self, count: int) -> None:
        self.image = MetadataImage().apply_entry(
            [registered(node_id) for node_id in range(1, count + 1)]
        )
        self.nodes: dict[int, Node] = {}
        # Brokers that read the archive themselves.
        self.archiving = set(range(1, count + 1))
        self.proposals: list[tuple[Leading, Proposal]] = []
        # The tasks of fetchers.
        self.running: list[asyncio.Future[Any]] = []
        self.holds = False
        # Requests of followers.
        self.asked_count = 0
        # Of replication that is throttled, bytes a second.
        self.rate = LONG_MAX
        self.throttles: list[ReplicationThrottle] = []

    def propose(self, topic_id: TopicId, index: int, leading: Leading, proposal: Proposal) -> None:
        self.proposals.append((leading, proposal))
        if not self.holds:
            asyncio.get_running_loop().call_soon(self.carry_out, leading, proposal)

    def carry_out(self, leading: Leading, proposal: Proposal) -> None:
        """As the controller: the answer comes first, the metadata later."""
        led = self.image.topics[TOPIC].partitions[0]
        if proposal.partition_epoch != led.partition_epoch:
            return
        epoch = led.partition_epoch + 1
        leading.altered(proposal, proposal.broker_ids, led.leader_epoch, epoch)
        task = asyncio.ensure_future(self.change(isr=sorted(proposal.broker_ids)))
        self.nodes[led.leader].tasks.append(task)

    async def apply(self, *records: Any) -> None:
        before = self.image
        self.image = before.apply_entry(records)
        for throttle in self.throttles:
            throttle.follow(MetadataDelta(before, self.image), self.image)
        for node in self.nodes.values():
            if not node.is_cut_from_control:
                await node.replicas.follow(MetadataDelta(before, self.image), self.image)

    async def create(self, *replicas: int, isr: Sequence[int] | None = None, **config: str) -> None:
        texts = {key.replace("_", "."): text for key, text in config.items()}
        records = topic_records(TOPIC, A, [replicas], texts)
        await self.apply(
            *(
                one.replaced(isr=isr or replicas) if isinstance(one, PartitionRecord) else one
                for one in records
            )
        )

    async def change(self, **values: Any) -> None:
        await self.apply(PartitionChangeRecord(partition_id=0, topic_id=A, **values))

    async def elect(self, leader: int, isr: Sequence[int] | None = None) -> None:
        await self.change(leader=leader, isr=isr)

    async def fence(self, node_id: int) -> None:
        await self._set_fenced(node_id, 1)

    async def unfence(self, node_id: int) -> None:
        await self._set_fenced(node_id, -1)

    async def _set_fenced(self, node_id: int, fenced: int) -> None:
        epoch = self.image.brokers[node_id].broker_epoch
        await self.apply(
            BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=epoch, fenced=fenced)
        )


class Loopback:
    """A connection to another node of the rig, as Peer."""

    def __init__(self, control: Control, asker: int, node_id: int, address: Address) -> None:
        self.address = address
        self._control, self._asker, self._node_id = control, asker, node_id

    async def call(self, request: Any, answer: type[Any], *, timeout_s: float) -> Any:
        self._control.asked_count += 1
        node = self._control.nodes[self._node_id]
        if node.is_cut or self._control.nodes[self._asker].is_cut:
            raise PeerUnreachable("cut")
        version = FETCH_VERSION if isinstance(request, FetchRequest) else OFFSETS_VERSION
        body = join(encode(request, version))
        frame = await node.answer(request, version, memoryview(bytearray(body)))
        if node.is_cut or self._control.nodes[self._asker].is_cut:
            raise PeerUnreachable("cut")
        return decode(answer, version, frame)

    def close(self) -> None:
        pass


@dataclass(slots=True)
class Node:
    """One broker."""

    node_id: int
    dirs: LogDirs
    replicas: ReplicaManager
    fetchers: Fetchers
    fetches: ReplicaFetches
    offsets: OffsetHandlers
    tasks: list[asyncio.Future[Any]] = field(default_factory=list)
    is_cut: bool = False
    is_cut_from_control: bool = False

    @property
    def partition(self) -> Partition:
        found = self.replicas.partition(TOPIC, 0)
        assert found is not None
        return found

    @property
    def end(self) -> int:
        return self.partition.log.end_offset

    def append(self, count: int = 1, **more: Any) -> int:
        """Appends a batch as a producer's; returns its end."""
        info = self.partition.append(memoryview(bytearray(batch(count, **more))))
        return info.last_offset + 1

    def content(self) -> bytes:
        return b"".join(one.log_path.read_bytes() for one in self.partition.log.local.segments)

    async def answer(self, request: Any, version: int, body: memoryview) -> memoryview:
        header = RequestHeader(request.spec.key, version, 1, "follower", 0)
        if isinstance(request, FetchRequest):
            decoded = decode_request(FetchRequest, version, body)
            found = deferred = self.fetches.handle(decoded, header, None)
            if isinstance(deferred, DeferredAnswer):
                coming: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                deferred.attach(coming.set_result, coming.set_exception)
                try:
                    found = await coming
                except asyncio.CancelledError:
                    deferred.cancel()
                    raise
            parts = [one.read() if isinstance(one, FileRange) else bytes(one) for one in found]
            whole = b"".join(parts)
            return body_of_response(ApiKey.FETCH, version, memoryview(whole)[4:])
        decoded = decode_request(ListOffsetsRequest, version, body)
        context = cast(RequestContext, SimpleNamespace(api_version=version))
        response = self.offsets.list_offsets(decoded, context)
        return memoryview(join(encode(response, version)))


@asynccontextmanager
async def cluster(path: Path, count: int = 2, **settings: int) -> AsyncIterator[Control]:
    """So many brokers, 1 and up, and what controls them."""
    control = Control(count)
    config = ReplicaFetchConfig(**{"wait_ms_max": 50, "backoff_ms": 20, **settings})
    clock = SystemClock()
    with ThreadPoolExecutor(2) as disk:
        for node_id in range(1, count + 1):
            control.nodes[node_id] = _node(control, node_id, path, disk, config, clock)
        running = [asyncio.create_task(one.fetchers.run()) for one in control.nodes.values()]
        try:
            yield control
        finally:
            for one in running:
                one.cancel()
            for ended in await asyncio.gather(*running, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended
            for node in control.nodes.values():
                await asyncio.gather(*node.tasks)
                node.dirs.close()


def _node(
    control: Control,
    node_id: int,
    path: Path,
    disk: ThreadPoolExecutor,
    config: ReplicaFetchConfig,
    clock: SystemClock,
) -> Node:
    def epoch_of(broker_id: int) -> int:
        return control.image.brokers[broker_id].broker_epoch

    def endpoint_of(leader_id: int) -> LeaderEndpoint:
        address = Address("rig", leader_id)
        return LeaderEndpoint(
            leader_id,
            node_id=node_id,
            broker_epoch=lambda: epoch_of(node_id),
            address_of=lambda _: address,
            peer_of=lambda _: cast(Peer, Loopback(control, node_id, leader_id, address)),
            config=config,
        )

    leaders, followers = (
        throttle_of(name, lambda: control.rate, node_id=node_id) for name in (LEADERS, FOLLOWERS)
    )
    control.throttles += [leaders, followers]
    fetchers = Fetchers(
        endpoint_of,
        clock,
        fetcher_count=config.fetcher_count,
        backoff_ms=config.backoff_ms,
        throttle=followers,
        spawn=lambda work: control.running.append(asyncio.ensure_future(work)),
    )
    replicas = ReplicaManager(
        dirs := open_dirs(path / str(node_id)),
        LocalTier({}, lookups=disk),
        node_id=node_id,
        topic_defaults=dict,
        folders=FolderWork(lambda _: disk),
        syncs=lambda _: disk,
        replication=Replication(
            cluster=LeaderContext(
                node_id=node_id,
                now_ms=lambda: clock.monotonic_s() * 1000,
                lag_ms_max=lambda: config.lag_ms_max,
                brokers=lambda: control.image.brokers,
                broker_epoch=lambda: epoch_of(node_id),
                propose=control.propose,
                throttle=leaders,
            ),
            followers=fetchers,
        ),
    )
    services = cast(Services, SimpleNamespace(replicas=replicas, clock=clock))
    return Node(
        node_id,
        dirs,
        replicas,
        fetchers,
        ReplicaFetches(
            replicas,
            clock,
            bytes_max=55 << 20,
            has_archive=lambda broker_id: broker_id in control.archiving,
        ),
        OffsetHandlers(services),
    )
