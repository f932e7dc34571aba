"""Consumers fetch from any replica, and a leader names the one in their rack (KIP-392)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.sections import RACK_AWARE_SELECTOR, FetchConfig
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.sessions import FetchSessionCache
from strandline.broker.network.responses import DeferredAnswer
from strandline.broker.protocol.codec.codec import decode
from strandline.broker.protocol.formats.metadata_records import BrokerEndpoint
from strandline.broker.protocol.header import RequestHeader, body_of_response
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.files import FileRange
from tests.unit.broker.cluster.controlled import A, registered
from tests.unit.broker.handlers.fetch.fetch_rig import HOURS_MS, services_over
from tests.unit.broker.replication.rig import Control, Node, cluster, until

LISTENER = "OUTSIDE"
VERSION = 17


class Reader:
    """Consumers of one broker."""

    def __init__(
        self, control: Control, node: Node, *, selector: str = RACK_AWARE_SELECTOR
    ) -> None:
        services = services_over(node.replicas)
        services.config = BrokerConfig(  # type: ignore[misc]
            fetch=FetchConfig(replica_selector=selector)
        )
        services.metadata = _View(control)  # type: ignore[misc, assignment]
        self._handler = FetchHandler(services, cast("FetchSessionCache", None))

    def ask(
        self,
        offset: int,
        *,
        rack: str = "",
        wait_ms: int = 0,
        min_bytes: int = 1,
        epoch: int = -1,
        version: int = VERSION,
    ) -> asyncio.Future[FetchResponsePartition]:
        wanted = FetchPartition(
            partition=0,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
        )
        topic = FetchTopic(name="t", topic_id=A if version >= 13 else None, partitions=[wanted])
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[topic],
            rack_id=rack,
        )
        header = RequestHeader(ApiKey.FETCH, version, 1, "", 0)
        answer = self._handler.handle(request, header, 0.0, None, LISTENER)
        return asyncio.ensure_future(_answered(answer, version))


class _View:
    def __init__(self, control: Control) -> None:
        self._control = control

    @property
    def image(self) -> Any:
        return self._control.image


async def _answered(answer: Any, version: int) -> FetchResponsePartition:
    if isinstance(answer, DeferredAnswer):
        coming: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.attach(coming.set_result, coming.set_exception)
        answer = await coming
    parts = [one.read() if isinstance(one, FileRange) else bytes(one) for one in answer]
    body = body_of_response(ApiKey.FETCH, version, memoryview(b"".join(parts))[4:])
    (topic,) = decode(FetchResponse, version, body).topics
    (partition,) = topic.partitions
    return partition


def _records(answer: FetchResponsePartition) -> bytes:
    return b"".join(bytes(one) for one in answer.records)  # type: ignore[arg-type]


async def in_racks(control: Control, **racks: str) -> None:
    """Gives broker N the rack of `bN`."""
    endpoint = BrokerEndpoint(name=LISTENER, host="kafka.example", port=9092, security_protocol=0)
    await control.apply(
        *(
            control.image.brokers[int(name[1:])].replaced(rack=rack, end_points=[endpoint])
            for name, rack in racks.items()
        )
    )


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_the_leader_names_the_in_sync_replica_of_the_clients_rack(tmp_path: Path) -> None:
    async def select() -> None:
        async with cluster(tmp_path, 3) as control:
            await in_racks(control, b1="a", b2="b", b3="c")
            await control.create(1, 2, 3)
            leader, follower = control.nodes[1], control.nodes[2]
            end = leader.append(3)
            await until(lambda: follower.partition.high_watermark == end)
            reader = Reader(control, leader)
            named = await reader.ask(0, rack="b")
            assert (named.preferred_read_replica, named.records) == (2, ())
            assert named.high_watermark == end
            # It does not wait, however long the client would.
            assert (await reader.ask(end, rack="b", wait_ms=HOURS_MS)).preferred_read_replica == 2
            for rack in ("a", "", "elsewhere"):
                served = await reader.ask(0, rack=rack)
                assert served.preferred_read_replica == -1
                assert served.records
            # What it does not have yet is read from the leader; so is all without a selector.
            follower.is_cut = True
            end = leader.append(1)
            assert (await reader.ask(end, rack="b")).preferred_read_replica == -1
            unset = Reader(control, leader, selector="")
            assert (await unset.ask(0, rack="b")).preferred_read_replica == -1

    run(select())


@pytest.mark.parametrize("why", ["not in sync", "fenced", "without the listener"])
def test_it_names_no_replica_that_is(tmp_path: Path, why: str) -> None:
    async def select() -> None:
        async with cluster(tmp_path, 2) as control:
            await in_racks(control, b1="a", b2="b")
            await control.create(1, 2)
            leader, follower = control.nodes[1], control.nodes[2]
            end = leader.append(3)
            await until(lambda: follower.partition.high_watermark == end)
            reader = Reader(control, leader)
            assert (await reader.ask(0, rack="b")).preferred_read_replica == 2
            follower.is_cut = True
            if why == "not in sync":
                await control.change(isr=[1])
            elif why == "fenced":
                await control.fence(2)
            else:
                await control.apply(registered(2).replaced(rack="b"))
            assert (await reader.ask(0, rack="b")).preferred_read_replica == -1

    run(select())


def test_of_several_in_the_rack_it_names_the_one_that_is_furthest(tmp_path: Path) -> None:
    async def select() -> None:
        async with cluster(tmp_path, 3) as control:
            await in_racks(control, b1="a", b2="b", b3="b")
            await control.create(1, 2, 3)
            leader, two, three = control.nodes.values()
            end = leader.append(3)
            await until(lambda: leader.partition.high_watermark == end)
            three.is_cut = True
            end = leader.append(1)
            await until(lambda: _told_end(leader, 2) == end)
            assert (await Reader(control, leader).ask(0, rack="b")).preferred_read_replica == 2
            assert two.end == end

    run(select())


def _told_end(leader: Node, follower_id: int) -> int:
    leading = leader.partition.leading
    assert leading is not None
    follower = leading.follower(follower_id)
    assert follower is not None
    return follower.end_offset


def test_a_follower_serves_what_is_below_its_high_watermark(tmp_path: Path) -> None:
    async def read() -> None:
        async with cluster(tmp_path, 3) as control:
            await control.create(1, 2, 3, isr=(1, 2, 3))
            leader, follower, other = control.nodes.values()
            safe = leader.append(3)
            await until(lambda: follower.partition.high_watermark == safe)
            visible_bytes = leader.partition.log.local.size_bytes
            other.is_cut = True
            end = leader.append(2)
            await until(lambda: follower.end == end)
            epoch = follower.partition.leader_epoch
            reader = Reader(control, follower)
            answer = await reader.ask(0, rack="b", epoch=epoch)
            assert (answer.error_code, answer.high_watermark) == (ErrorCode.NONE, safe)
            assert _records(answer) == leader.content()[:visible_bytes]
            # It has these, and must not show them yet: as in Kafka they are as if not there.
            for offset in (safe, end):
                empty = await reader.ask(offset)
                assert (empty.error_code, empty.records) == (ErrorCode.NONE, ())
            # Not out of range, which only the leader knows: it would begin again.
            behind = await reader.ask(end + 1, version=16)
            assert behind.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (behind.current_leader.leader_id, behind.current_leader.leader_epoch) == (
                follower.partition.leader_id,
                epoch,
            )
            assert (await reader.ask(0, epoch=epoch + 1)).error_code == (
                ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            await control.change(leader=1)
            assert (await reader.ask(0, epoch=epoch)).error_code == ErrorCode.FENCED_LEADER_EPOCH
            # Clients that cannot be sent to a follower look for the leader.
            assert (await reader.ask(0, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(read())


def test_a_fetch_that_waits_at_a_follower_is_answered_once_records_are_visible_there(
    tmp_path: Path,
) -> None:
    async def wait() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2)
            leader, follower = control.nodes[1], control.nodes[2]
            coming = Reader(control, follower).ask(0, wait_ms=HOURS_MS)
            end = leader.append(1)
            async with asyncio.timeout(5):
                answer = await coming
            assert answer.records
            assert answer.high_watermark == end

    run(wait())


def test_it_waits_for_as_many_bytes_as_the_client_wants(tmp_path: Path) -> None:
    async def wait() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2)
            leader, follower = control.nodes[1], control.nodes[2]
            leader.append(1)
            size_bytes = leader.partition.log.local.size_bytes
            coming = Reader(control, follower).ask(0, wait_ms=HOURS_MS, min_bytes=2 * size_bytes)
            await until(lambda: follower.partition.high_watermark == 1)
            await asyncio.sleep(0)
            assert not coming.done()
            leader.append(1)
            async with asyncio.timeout(5):
                answer = await coming
            assert len(_records(answer)) == 2 * size_bytes

    run(wait())


def test_it_is_answered_when_another_leader_is_elected(tmp_path: Path) -> None:
    async def elect() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2)
            follower = control.nodes[2]
            epoch = follower.partition.leader_epoch
            coming = Reader(control, follower).ask(0, wait_ms=HOURS_MS, epoch=epoch)
            await asyncio.sleep(0)
            await control.elect(2)
            async with asyncio.timeout(5):
                answer = await coming
            assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH

    run(elect())
