"""Clients see nothing above the high watermark, though the log has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.coordination.archive.state_archive import (
    LedLog,
    LiveRecord,
    StateArchive,
    read_group_state,
)
from strandline.broker.coordination.records.replay_chunk import read_chunk
from strandline.broker.handlers.admin.partition_admin import PartitionAdminHandlers
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.metadata.offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    OffsetHandlers,
)
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.network.responses import DeferredAnswer, Parts
from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import RequestHeader
from strandline.broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from strandline.broker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersTopic,
)
from strandline.broker.protocol.messages.fetch import FetchResponse, FetchResponsePartition
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.telemetry.requests import RemoteWaits
from strandline.storage.files import FileRange
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.model import Isolation
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.remote.keys import GROUPS_PREFIX
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.unit.broker.cluster.served import serving
from tests.unit.broker.handlers.fetch.fetch_rig import fetch_of_one, handler_over
from tests.unit.storage.local.builders import NOW_MS, batch, marker
from tests.unit.storage.local.log_folders import open_dirs

VERSION = 12
CONTEXT = RequestContext(api_version=10, client_id="")
HOURS_MS = 3_600_000


def _append(partition: Partition, first_ms: int = NOW_MS, count: int = 10) -> None:
    """Records that no other replica has yet."""
    times = [first_ms + i for i in range(count)]
    partition.log.append(batch(timestamps_ms=times), leader_epoch=0)


def _replicate(partition: Partition, offset: int) -> None:
    partition.log.local.advance_high_watermark(offset)


def play(folder: Path, scenario: Callable[[ReplicaManager, Partition], Awaitable[None]]) -> None:
    """With a partition of which ten records are replicated, and ten are not."""

    async def run() -> None:
        with ThreadPoolExecutor(1) as disk:
            dirs = open_dirs(folder)
            replicas = await serving(dirs, disk, partitions=1)
            partition = replicas.partition("t", 0)
            assert partition is not None
            partition.append(batch(timestamps_ms=[NOW_MS + i for i in range(10)]))
            _append(partition, NOW_MS + 100)
            assert (partition.high_watermark, partition.log.end_offset) == (10, 20)
            await scenario(replicas, partition)
            dirs.close()

    asyncio.run(run())


# --- Fetch -----------------------------------------------------------------------------------


def _fetch(handler: FetchHandler, offset: int, **changes: object) -> DeferredAnswer | Parts:
    request = fetch_of_one(VERSION, offset, **changes)
    request.topics[0].name = "t"  # type: ignore[misc]
    header = RequestHeader(ApiKey.FETCH, VERSION, 1, "test", 0)
    answer = handler.handle(request, header, 0.0)
    assert isinstance(answer, DeferredAnswer | list)
    return answer


def _read(parts: Parts) -> FetchResponsePartition:
    content = b"".join(
        part.read() if isinstance(part, FileRange) else bytes(cast(bytes, part)) for part in parts
    )
    # Behind the length, the correlation id and the tags of the header.
    response = codec.decode(FetchResponse, VERSION, memoryview(content)[9:])
    ((partition,),) = [topic.partitions for topic in response.topics]
    return partition


def _ends(answer: FetchResponsePartition) -> list[int]:
    content = b"".join(bytes(cast(bytes, part)) for part in answer.records)
    return [one.header.next_offset for one in walk(content)]


@pytest.mark.parametrize("isolation", [Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED, 2])
def test_a_fetch_answers_nothing_above_it(tmp_path: Path, isolation: int) -> None:
    """A client's isolation level of 2 is not that of a follower."""

    async def scenario(replicas: ReplicaManager, partition: Partition) -> None:
        handler = handler_over(replicas)
        for offset, ends in ((0, [10]), (10, []), (15, []), (20, [])):
            answered = _fetch(handler, offset, isolation_level=int(isolation), max_wait_ms=0)
            assert isinstance(answered, list)
            answer = _read(answered)
            assert _ends(answer) == ends, offset
            assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (
                0,
                10,
                10,
            )
        _replicate(partition, 20)
        answered = _fetch(handler, 10, isolation_level=int(isolation), max_wait_ms=0)
        assert isinstance(answered, list)
        assert _ends(_read(answered)) == [20]

    play(tmp_path, scenario)


def test_a_waiting_fetch_is_woken_by_it_and_not_by_an_append(tmp_path: Path) -> None:
    async def scenario(replicas: ReplicaManager, partition: Partition) -> None:
        handler = handler_over(replicas)
        waiting = _fetch(handler, 10, max_wait_ms=HOURS_MS)
        assert isinstance(waiting, DeferredAnswer)
        answers: list[Parts] = []
        waiting.attach(answers.append, lambda error: pytest.fail(repr(error)))
        _append(partition)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (answers, handler.parked_count) == ([], 1)
        # Its owner moves the high watermark to the end.
        partition.append(batch(timestamps_ms=[NOW_MS + 200]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [_ends(_read(parts)) for parts in answers] == [[20, 30, 31]]

    play(tmp_path, scenario)


# --- ListOffsets, DeleteRecords, DescribeProducers -------------------------------------------


def _services(replicas: ReplicaManager) -> Services:
    return cast(
        Services,
        SimpleNamespace(
            replicas=replicas,
            metadata=None,
            config=BrokerConfig(),
            traffic=SimpleNamespace(remote_lookups=RemoteWaits()),
            clock=ManualClock(NOW_MS),
        ),
    )


async def _list(replicas: ReplicaManager, timestamp: int, isolation: Isolation) -> int:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        isolation_level=int(isolation), topics=[ListOffsetsTopic(name="t", partitions=[wanted])]
    )
    response = OffsetHandlers(_services(replicas)).list_offsets(request, CONTEXT)
    if isinstance(response, Awaitable):
        response = await response
    ((answer,),) = [topic.partitions for topic in response.topics]
    assert answer.error_code == 0
    return answer.offset


def test_no_offset_at_or_above_it_is_listed(tmp_path: Path) -> None:
    async def scenario(replicas: ReplicaManager, partition: Partition) -> None:
        for isolation in (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED):
            told = {
                timestamp: await _list(replicas, timestamp, isolation)
                for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, NOW_MS + 9, NOW_MS + 10)
            }
            # As in Kafka: a record with the highest timestamp that is not to be read is not found.
            assert list(told.values()) == [10, 0, -1, 9, -1]
        _replicate(partition, 20)
        for timestamp, offset in ((LATEST, 20), (MAX_TIMESTAMP, 19), (NOW_MS + 10, 10)):
            assert await _list(replicas, timestamp, Isolation.READ_UNCOMMITTED) == offset

    play(tmp_path, scenario)


def test_the_last_stable_offset_that_is_listed_waits_for_the_marker(tmp_path: Path) -> None:
    async def scenario(replicas: ReplicaManager, partition: Partition) -> None:
        records = batch(5, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        partition.log.append(records, leader_epoch=0, origin=AppendOrigin.VERIFIED)
        ended = marker(MarkerType.COMMIT, producer_id=7)
        partition.log.append(ended, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
        for high_watermark, stable_offset in ((20, 20), (25, 20), (26, 26)):
            _replicate(partition, high_watermark)
            assert await _list(replicas, LATEST, Isolation.READ_COMMITTED) == stable_offset

    play(tmp_path, scenario)


def test_records_above_it_are_not_deleted(tmp_path: Path) -> None:
    async def scenario(replicas: ReplicaManager, partition: Partition) -> None:
        handlers = OffsetHandlers(_services(replicas))
        for offset, code, log_start in (
            (11, ErrorCode.OFFSET_OUT_OF_RANGE, 0),
            (-2, ErrorCode.OFFSET_OUT_OF_RANGE, 0),
            (-1, ErrorCode.NONE, 10),
        ):
            wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name="t", partitions=[wanted])], timeout_ms=1000
            )
            response = await handlers.delete_records(request, CONTEXT)
            ((answer,),) = [topic.partitions for topic in response.topics]
            assert answer.error_code == code
            assert partition.log.log_start_offset == log_start

    play(tmp_path, scenario)


def test_producers_are_described_as_of_the_end_of_the_log(tmp_path: Path) -> None:
    """Kafka's UnifiedLog.activeProducers: one that has ended its transaction hangs nowhere."""

    async def scenario(replicas: ReplicaManager, partition: Partition) -> None:
        handlers = PartitionAdminHandlers(_services(replicas))

        def started_at() -> int:
            topic = DescribeProducersTopic(name="t", partition_indexes=[0])
            response = handlers.describe_producers(
                DescribeProducersRequest(topics=[topic]), CONTEXT
            )
            ((answer,),) = [topic.partitions for topic in response.topics]
            (producer,) = answer.active_producers
            return producer.current_txn_start_offset

        records = batch(5, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        partition.log.append(records, leader_epoch=0, origin=AppendOrigin.VERIFIED)
        assert started_at() == 20
        ended = marker(MarkerType.COMMIT, producer_id=7)
        partition.log.append(ended, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
        assert started_at() == -1
        assert partition.last_stable_offset == 10

    play(tmp_path, scenario)


def test_a_follower_describes_its_producers_as_well(tmp_path: Path) -> None:
    """Whoever looks for hanging transactions may ask for those of one broker."""

    async def scenario(replicas: ReplicaManager, partition: Partition) -> None:
        handlers = PartitionAdminHandlers(_services(replicas))
        records = batch(5, producer_id=7, producer_epoch=0, base_sequence=0)
        partition.log.append(records, leader_epoch=0, origin=AppendOrigin.CLIENT)
        partition.end_leading(2, 1)
        topic = DescribeProducersTopic(name="t", partition_indexes=[0, 1])
        response = handlers.describe_producers(DescribeProducersRequest(topics=[topic]), CONTEXT)
        ((here, missing),) = [topic.partitions for topic in response.topics]
        assert (here.error_code, [one.producer_id for one in here.active_producers]) == (0, [7])
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    play(tmp_path, scenario)


# --- coordinators ----------------------------------------------------------------------------


def test_others_rely_on_replicated_records_alone(tmp_path: Path) -> None:
    async def scenario(_: ReplicaManager, partition: Partition) -> None:
        assert partition.may_rely_on(10)
        assert not partition.may_rely_on(11)
        _replicate(partition, 20)
        assert partition.may_rely_on(20)

    play(tmp_path, scenario)


def test_a_coordinator_loads_its_log_to_the_end(tmp_path: Path) -> None:
    """Kafka's CoordinatorLoaderImpl, with FetchIsolation.LOG_END."""

    async def scenario(_: ReplicaManager, partition: Partition) -> None:
        def decode(content: object, offset: int) -> Iterator[int]:
            yield from (one.header.next_offset for one in walk(cast(bytes, content)))

        chunk = read_chunk(partition.log, 0, partition.log.end_offset, decode)
        assert (chunk.records, chunk.next_offset) == ((10, 20), 20)

    play(tmp_path, scenario)


def test_the_mirror_of_a_coordinator_ends_there(tmp_path: Path) -> None:
    def commit(value: bytes) -> memoryview:
        record = Record(offset=0, timestamp_ms=1, key=b"key", value=value)
        return memoryview(bytearray(encode_batch([record])))

    def live(store: MemoryStore) -> list[LiveRecord]:
        return [one for one in read_group_state(store, 0) or () if one.key == b"key"]

    async def scenario(_: ReplicaManager, partition: Partition) -> None:
        store, clock = MemoryStore(), ManualClock()
        partition.append(commit(b"old"))
        partition.log.append(commit(b"new"), leader_epoch=0)
        with ThreadPoolExecutor(1) as executor:
            archive = StateArchive(
                store,
                lambda: [LedLog(partition.log, partition.leader_epoch)],
                executor=executor,
                clock=clock,
                prefix=GROUPS_PREFIX,
            )
            for high_watermark, value in ((21, b"old"), (22, b"new")):
                _replicate(partition, high_watermark)
                assert await archive.run_once() == 1
                assert [one.value for one in live(store)] == [value]
                assert await archive.run_once() == 0

    play(tmp_path, scenario)
