"""A broker follows the log of the active controller, which it finds by the answers of others."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import pytest

from strandline.broker.cluster.membership.feed import MetadataFeed, Observer, OtherCluster
from strandline.broker.cluster.membership.quorum import Quorum
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.peers.address import Address
from strandline.broker.peers.peer import connect_by
from strandline.broker.peers.security import PeerSecurity
from strandline.broker.protocol.messages.fetch import (
    FetchCurrentLeader,
    FetchDivergingEpoch,
    FetchNodeEndpoint,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    FetchSnapshotId,
)
from strandline.broker.protocol.messages.fetch_snapshot import (
    FetchSnapshotPartitionResult,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    FetchSnapshotTopicResult,
    SnapshotId,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import SystemClock
from strandline.storage.errors import UnsupportedFormat
from tests.support.fake_controller import FakeController
from tests.unit.broker.cluster.membership.test_replay import CLUSTER, batch, topic

T = TypeVar("T")
CLOCK = SystemClock()
WAIT_S = 30.0
LEADER, EPOCH = 100, 5


class Log:
    """The log of a controller that leads, and what it answers to a fetch."""

    def __init__(self, *batches: bytes, start: int = 0) -> None:
        self.content = dict(zip(range(start, start + 2 * len(batches), 2), batches, strict=True))
        self.epoch = EPOCH
        self.high_watermark = start + 2 * len(batches)
        self.snapshot: bytes = b""

    async def answer(self, request: FetchRequest) -> FetchResponse:
        (asked,) = request.topics[0].partitions
        if asked.current_leader_epoch != self.epoch:
            return answered(ErrorCode.FENCED_LEADER_EPOCH, leader=LEADER, epoch=self.epoch)
        offset = asked.fetch_offset
        if self.snapshot and offset < min(self.content, default=1 << 40):
            return answered(
                snapshot=FetchSnapshotId(end_offset=min(self.content), epoch=3),
                epoch=self.epoch,
            )
        found = b"".join(one for base, one in self.content.items() if base >= offset)
        if not found:
            await asyncio.sleep(0.01)
        return answered(records=found, high_watermark=self.high_watermark, epoch=self.epoch)


def answered(
    code: ErrorCode = ErrorCode.NONE,
    *,
    leader: int = LEADER,
    epoch: int = EPOCH,
    at: Address | None = None,
    records: bytes = b"",
    high_watermark: int = -1,
    snapshot: FetchSnapshotId | None = None,
    diverging: FetchDivergingEpoch | None = None,
) -> FetchResponse:
    partition = FetchResponsePartition(
        index=0,
        error_code=code,
        high_watermark=high_watermark,
        current_leader=FetchCurrentLeader(leader_id=leader, leader_epoch=epoch),
        snapshot_id=snapshot,
        diverging_epoch=diverging,
        records=(records,) if records else (),
        records_bytes=len(records),
    )
    endpoints = (
        [] if at is None else [FetchNodeEndpoint(node_id=leader, host=at.host, port=at.port)]
    )
    return FetchResponse(
        topics=[FetchResponseTopic(topic_id=uuid.UUID(int=1), partitions=[partition])],
        node_endpoints=endpoints,
    )


def following(
    servers: list[Address], work: Callable[[MetadataFeed, MetadataView, Quorum], Awaitable[T]]
) -> Callable[[], Awaitable[T]]:
    async def run() -> T:
        quorum, view = Quorum(servers), MetadataView(MetadataImage())
        connect = connect_by(PeerSecurity(listener="C"), client_id="broker-9", clock=CLOCK)
        observer = Observer(node_id=9, directory_id=uuid.UUID(int=7), cluster_id=CLUSTER)
        with ThreadPoolExecutor(1) as executor:
            feed = MetadataFeed(observer, quorum, connect, CLOCK, view=view, executor=executor)
            running = asyncio.ensure_future(feed.run())
            try:
                async with asyncio.timeout(WAIT_S):
                    waiting = asyncio.ensure_future(work(feed, view, quorum))
                    await asyncio.wait((waiting, running), return_when=asyncio.FIRST_COMPLETED)
                    if not waiting.done():
                        waiting.cancel()
                        running.result()
                    return waiting.result()
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await running

    return run


async def topics_at(feed: MetadataFeed, view: MetadataView, offset: int) -> list[str]:
    await feed.reached(offset)
    return sorted(view.image.topics)


def test_the_log_is_followed_from_its_begin_and_as_it_grows() -> None:
    log = Log(batch(0, *topic("a", 1)))

    async def grow(feed: MetadataFeed, view: MetadataView, _: Quorum) -> None:
        await feed.caught_up()
        assert sorted(view.image.topics) == ["a"]
        log.content[2] = batch(2, *topic("b", 2))
        log.high_watermark = 4
        assert await topics_at(feed, view, 3) == ["a", "b"]
        assert feed.applied_offset == 3

    async def run() -> None:
        async with FakeController({ApiKey.FETCH: log.answer}) as controller:
            await following([controller.address], grow)()
            first = controller.of(FetchRequest)[0]
            assert (first.cluster_id, first.replica_state.replica_id) == (CLUSTER, 9)

    asyncio.run(run())


def test_any_controller_names_the_active_one() -> None:
    log = Log(batch(0, *topic("a", 1)))

    async def run() -> None:
        async with FakeController({ApiKey.FETCH: log.answer}) as active:
            redirect = {
                ApiKey.FETCH: lambda _: answered(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, at=active.address
                )
            }
            async with FakeController(redirect) as other:

                async def look(feed: MetadataFeed, view: MetadataView, quorum: Quorum) -> None:
                    assert await topics_at(feed, view, 1) == ["a"]
                    assert quorum.active is not None
                    assert (quorum.active.node_id, quorum.epoch) == (LEADER, EPOCH)
                    assert quorum.active.address == active.address

                await following([other.address], look)()
                assert len(other.of(FetchRequest)) == 1

    asyncio.run(run())


def test_without_an_address_the_next_bootstrap_server_is_asked() -> None:
    log = Log(batch(0, *topic("a", 1)))

    async def run() -> None:
        async with FakeController({ApiKey.FETCH: log.answer}) as active:
            nameless = {ApiKey.FETCH: lambda _: answered(ErrorCode.NOT_LEADER_OR_FOLLOWER)}
            async with FakeController(nameless) as other:

                async def look(feed: MetadataFeed, view: MetadataView, _: Quorum) -> None:
                    assert await topics_at(feed, view, 1) == ["a"]

                await following([other.address, active.address], look)()

    asyncio.run(run())


def test_the_answers_of_a_deposed_controller_are_not_believed() -> None:
    """It still has the epoch before, and offers other records."""
    new, old = Log(batch(0, *topic("a", 1))), Log(batch(0, *topic("stale", 9)))
    new.epoch, old.epoch = EPOCH + 1, EPOCH

    async def run() -> None:
        async with (
            FakeController({ApiKey.FETCH: new.answer}) as active,
            FakeController({ApiKey.FETCH: old.answer}) as deposed,
        ):

            async def look(feed: MetadataFeed, view: MetadataView, quorum: Quorum) -> None:
                assert await topics_at(feed, view, 1) == ["a"]
                assert quorum.active is not None
                quorum.doubt(quorum.active)
                new.content[2] = batch(2, *topic("b", 2))
                new.high_watermark = 4
                assert await topics_at(feed, view, 3) == ["a", "b"]

            await following([active.address, deposed.address], look)()

    asyncio.run(run())


@pytest.mark.parametrize("piece_bytes", [7, 1 << 20])
def test_a_broker_behind_the_log_start_reads_the_snapshot_in_pieces(piece_bytes: int) -> None:
    log = Log(batch(70, *topic("c", 3), epoch=EPOCH), start=70)
    log.snapshot = batch(0, b"", control=True) + batch(1, *topic("a", 1), *topic("b", 2))

    def piece(request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        (asked,) = request.topics[0].partitions
        assert (asked.snapshot_id.end_offset, asked.snapshot_id.epoch) == (70, 3)
        content = log.snapshot[asked.position : asked.position + piece_bytes]
        return FetchSnapshotResponse(
            topics=[
                FetchSnapshotTopicResult(
                    name=request.topics[0].name,
                    partitions=[
                        FetchSnapshotPartitionResult(
                            index=0,
                            snapshot_id=SnapshotId(end_offset=70, epoch=3),
                            size=len(log.snapshot),
                            position=asked.position,
                            unaligned_records=content,
                        )
                    ],
                )
            ]
        )

    async def look(feed: MetadataFeed, view: MetadataView, _: Quorum) -> None:
        assert await topics_at(feed, view, 71) == ["a", "b", "c"]

    async def run() -> None:
        answers = {ApiKey.FETCH: log.answer, ApiKey.FETCH_SNAPSHOT: piece}
        async with FakeController(answers) as controller:
            await following([controller.address], look)()

    asyncio.run(run())


def test_a_controller_of_another_cluster_is_refused() -> None:
    async def look(feed: MetadataFeed, _view: MetadataView, _quorum: Quorum) -> None:
        await feed.caught_up()

    async def run() -> None:
        refusing = {
            ApiKey.FETCH: lambda _: FetchResponse(
                error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[]
            )
        }
        async with FakeController(refusing) as controller:
            with pytest.raises(OtherCluster, match=CLUSTER):
                await following([controller.address], look)()

    asyncio.run(run())


def test_what_cannot_be_read_ends_the_feed_with_its_name() -> None:
    log = Log(batch(0, b"\x01\x63\x00"))

    async def look(feed: MetadataFeed, _view: MetadataView, _quorum: Quorum) -> None:
        await feed.caught_up()

    async def run() -> None:
        async with FakeController({ApiKey.FETCH: log.answer}) as controller:
            with pytest.raises(UnsupportedFormat, match="unknown type 99"):
                await following([controller.address], look)()

    asyncio.run(run())
