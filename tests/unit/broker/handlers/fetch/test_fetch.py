"""A fetch that is known again is answered and counted as that of a stranger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.broker.handlers.dispatch.dispatch import Dispatcher
from strandline.broker.handlers.fetch import plan
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.sessions import FetchSessionCache
from strandline.broker.handlers.produce.produce import ProduceHandler
from strandline.broker.network.responses import Answer, ColdParts
from strandline.broker.protocol.codec.codec import decode, decode_request
from strandline.broker.protocol.header import RequestHeader
from strandline.broker.protocol.messages.fetch import FetchRequest, FetchResponse
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.telemetry.requests import ApiTraffic
from strandline.storage.files import FileRange
from strandline.storage.model import Isolation, Offset, TopicPartition
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.tiering.log.cold_read import RemoteRead
from tests.support.wire import encode_request_header
from tests.system.calls import fetch_request, fetch_topic
from tests.unit.broker.cluster.served import leading
from tests.unit.broker.handlers.fetch.fetch_rig import body_of, fetch_of_one, services_over
from tests.unit.storage.local.builders import (
    append,
    append_marker,
    batch,
    fill,
    open_log,
)

LEADER_EPOCH = 4


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    """Offsets 0 to 99, of which a transaction at 40 was aborted."""
    local = open_log(tmp_path / "t")
    fill(local, 4)
    append(local, batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    append_marker(local, MarkerType.ABORT, producer_id=1)
    fill(local, 5)
    with leading(local, epoch=LEADER_EPOCH) as made:
        yield made


def _dispatcher(partition: Partition) -> tuple[Dispatcher, ApiTraffic]:
    """One that serves fetches; made within a running loop."""
    served = {0: partition}
    services = services_over(SimpleNamespace(partitions_of=lambda *_: served))
    fetch = FetchHandler(services, cast("FetchSessionCache", None))
    dispatcher = Dispatcher(
        services,
        cast("ProduceHandler", None),
        fetch,
        {},
        decoding=cast("Executor", None),
    )
    return dispatcher, services.traffic.apis[ApiKey.FETCH]


def _content(parts: Answer) -> str:
    assert isinstance(parts, list)
    return b"".join(part.read() if isinstance(part, FileRange) else part for part in parts).hex()


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("version", [4, 10, 12, 16])
def test_of_a_consumer_that_reads_on_the_third_fetch_is_not_decoded(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, version: int, isolation: Isolation
) -> None:
    """Its answers and what is counted are those of strangers, of whom nothing is known."""
    decoded = 0

    def counted(cls: type[FetchRequest], version: int, body: memoryview) -> FetchRequest:
        nonlocal decoded
        decoded += 1
        return decode_request(cls, version, body)

    monkeypatch.setattr(plan, "decode_request", counted)

    async def main() -> None:
        dispatcher, fetches = _dispatcher(partition)
        # At the end its wait is over at once; behind it there is an error.
        offsets = [*range(30, 50), partition.log.end_offset, partition.log.end_offset + 1]
        for number, offset in enumerate(offsets):
            fetch = fetch_of_one(version, offset, isolation_level=int(isolation), max_wait_ms=0)
            head = encode_request_header(ApiKey.FETCH, version, 1000 + number, "client")
            frame = memoryview(head + body_of(version, fetch))
            answers, counts = set(), set()
            for peer in ("peer", f"stranger {number}"):
                before = fetches.total.count, fetches.request_bytes, _counts(partition)
                answers.add(_content(dispatcher.handle(frame, peer, 0.0)))
                after = fetches.total.count, fetches.request_bytes, _counts(partition)
                counts.add(tuple(a - b for a, b in zip(_flat(after), _flat(before), strict=True)))
            assert len(answers) == len(counts) == 1
        assert dict(fetches.versions()) == {version: 2 * len(offsets)}
        assert decoded == len(offsets) + 2

    asyncio.run(main())


def _counts(partition: Partition) -> tuple[int, ...]:
    return tuple(getattr(partition.traffic, name) for name in TopicTraffic.__slots__)


def _flat(counts: tuple[int, int, tuple[int, ...]]) -> tuple[int, ...]:
    requests, size_bytes, traffic = counts
    return requests, size_bytes, *traffic


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("local_offset", "cold_bytes", "expected"), [(0, 10, False), (0, 10**5, True), (100, 10, True)]
)
def test_only_an_answer_with_more_cold_records_than_local_ones_yields_to_live_traffic(
    partition: Partition, local_offset: int, cold_bytes: int, *, expected: bool, is_late: bool
) -> None:
    async def read_remote(*_: object, **__: object) -> RemoteRead:
        if is_late:
            await asyncio.sleep(0)
        return RemoteRead(
            buffers=[memoryview(bytes(cold_bytes))], size_bytes=cold_bytes, next_offset=1
        )

    archived = SimpleNamespace(
        topic_partition=TopicPartition("far", 0),
        is_leader=True,
        fetch_refusal=lambda _epoch, _offset: None,
        traffic=TopicTraffic(),
        high_watermark=1,
        last_stable_offset=1,
        log=SimpleNamespace(
            config=partition.log.config,
            has_unknown_extent=False,
            local=SimpleNamespace(start_offset=1, high_watermark=1),
            log_start_offset=0,
            read=lambda *_, **__: None,
            read_remote=read_remote,
        ),
    )
    served = {"near": partition, "far": archived}
    services = services_over(SimpleNamespace(partitions_of=lambda topic: {0: served[topic]}))
    services.cold_pace.answer_bytes_max = lambda _: None  # type: ignore[method-assign]

    async def main() -> bool:
        fetch = FetchHandler(services, cast("FetchSessionCache", None))
        wanted = fetch_topic("near", {0: local_offset}), fetch_topic("far", {0: 0})
        header = RequestHeader(ApiKey.FETCH, 12, 1, "", 0)
        answer = fetch.handle(fetch_request(*wanted), header, 0.0)
        return isinstance(await answer if isinstance(answer, Awaitable) else answer, ColdParts)

    assert asyncio.run(main()) is expected


@pytest.mark.parametrize("version", range(4))
def test_an_old_client_passes_segments_of_transaction_markers_alone(
    tmp_path: Path, version: int
) -> None:
    """Old messages have no markers; without more it would ask for them for ever."""
    local = open_log(tmp_path / "t")
    for number in range(3):
        sent = batch(producer_id=1, producer_epoch=0, base_sequence=number, transactional=True)
        append(local, sent)
        append_marker(local, MarkerType.COMMIT, producer_id=1)
        local.roll()
    for _ in range(2):
        append_marker(local, MarkerType.COMMIT, producer_id=1)
        local.roll()
    fill(local, 1)
    last_offset = local.end_offset - 1
    with leading(local, epoch=LEADER_EPOCH) as made:
        served = {0: made}
        services = services_over(SimpleNamespace(partitions_of=lambda *_: served))

        async def next_offset(offset: Offset) -> Offset:
            handler = FetchHandler(services, cast("FetchSessionCache", None))
            header = RequestHeader(ApiKey.FETCH, version, 1, "", 0)
            answer = handler.handle(fetch_of_one(version, offset, max_wait_ms=0), header, 0.0)
            assert isinstance(answer, Awaitable)
            frame = memoryview(bytes.fromhex(_content(await answer)))
            (topic,) = decode(FetchResponse, version, frame[8:]).topics
            records = b"".join(bytes(part) for part in topic.partitions[0].records)
            ends = [one.header.next_offset for one in walk(records)]
            return ends[-1] if ends else offset

        async def offsets() -> list[Offset]:
            seen = [0]
            while len(seen) < 2 or seen[-1] != seen[-2]:
                seen.append(await next_offset(seen[-1]))
            return seen

        assert asyncio.run(offsets())[-1] == last_offset + 1
