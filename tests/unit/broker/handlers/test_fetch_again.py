"""A fetch that is known again is answered as it would be if it were not."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.broker.handlers.dispatch import dispatch
from strandline.broker.handlers.dispatch.dispatch import Dispatcher
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.fetch_again import (
    CONNECTIONS_MAX,
    FRAME_BYTES_MAX,
    FetchAgain,
    KnownFetches,
    fetch_again,
)
from strandline.broker.handlers.produce.produce import ProduceHandler
from strandline.broker.handlers.services.services import Services
from strandline.broker.network.answers import ColdParts, Deferred
from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.fetch import decode_fetch_request
from strandline.broker.protocol.header import (
    RequestHeader,
    decode_request_header,
    encode_request_header,
)
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.broker.protocol.schema.schema import Part
from strandline.broker.telemetry.requests import RemoteWaits, RequestTraffic
from strandline.storage.clock import SystemClock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError
from strandline.storage.files import FileRange
from strandline.storage.local.formats.producer_state import MarkerType
from strandline.storage.model import Isolation, Offset
from strandline.storage.tiering.log.cold_read import RemoteRead
from strandline.storage.tiering.log.unified_log import UnifiedLog
from tests.unit.storage.local.builders import (
    PARTITION,
    TOPIC_ID,
    append,
    append_marker,
    batch,
    fill,
    open_log,
)

LEADER_EPOCH = 4
LOG_START, LOCAL_START = 4, 10
# Sizes at which their own encoding becomes longer.
SIZES = (0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_150, 2_097_151)
VERSIONS = range(10, SPECS[ApiKey.FETCH].supported.highest + 1)


def _request(
    version: int, offset: Offset = 77, *, rack: str = "", epoch: int = -1, **changes: object
) -> FetchRequest:
    wanted = FetchPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        partition_max_bytes=1 << 20,
    )
    named = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "topic"}
    fields: dict[str, object] = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 22,
        "topics": [FetchTopic(partitions=[wanted], **named)],  # type: ignore[arg-type]
        "rack_id": rack,
    }
    return FetchRequest(**(fields | changes))  # type: ignore[arg-type]


def _frame(
    version: int, request: FetchRequest, *, correlation_id: int = 1, client_id: str | None = "c"
) -> memoryview:
    head = encode_request_header(ApiKey.FETCH, version, correlation_id, client_id)
    return memoryview(head + codec.join(codec.encode_request(request, version)))


def _decoded(frame: memoryview) -> tuple[FetchRequest, RequestHeader]:
    header = decode_request_header(frame)
    return decode_fetch_request(header.api_version, frame[header.body_position :]), header


def _again(frame: memoryview) -> FetchAgain | None:
    return fetch_again(frame, *_decoded(frame))


# --- what is known again ---------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client_id", [None, "", "rdkafka"])
@pytest.mark.parametrize("rack", ["", "eu-1a"])
def test_the_same_fetch_further_on_is_known_in_every_version(
    version: int, client_id: str | None, rack: str
) -> None:
    again = _again(_frame(version, _request(version, rack=rack), client_id=client_id))
    assert again is not None
    numbers = random.Random(version)
    for offset in (0, 1, 78, 2**40, 2**63 - 1, -1, *(numbers.getrandbits(62) for _ in range(20))):
        frame = _frame(
            version,
            _request(version, offset, rack=rack),
            correlation_id=offset % 2**31,
            client_id=client_id,
        )
        assert again.match(frame) == (offset % 2**31, offset)


@pytest.mark.parametrize("version", VERSIONS)
def test_any_other_bit_that_differs_is_another_request(version: int) -> None:
    frame = _frame(version, _request(version, rack="eu-1a"))
    again = _again(frame)
    assert again is not None
    free = 0
    for position, bit in itertools.product(range(len(frame)), range(8)):
        changed = bytearray(frame)
        changed[position] ^= 1 << bit
        match = again.match(memoryview(changed))
        if match is not None:
            free += 1
            assert match != (1, 77)
    # The correlation id and the offset, and nothing else.
    assert free == (4 + 8) * 8
    assert again.match(frame[:-1]) is None
    assert again.match(memoryview(bytes(frame) + b"\0")) is None


@pytest.mark.parametrize("offset", [0, 1, 500, 2**32 - 1, 2**32, 0x0101_0101_0101_0101, 2**63 - 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_offset_whose_bytes_stand_elsewhere_too_is_not_mistaken(
    version: int, offset: Offset
) -> None:
    """It may stay unknown until the next one, which has another offset."""
    request = _request(version, offset, max_wait_ms=offset >> 32, min_bytes=offset & 0x7FFFFFFF)
    again = _again(_frame(version, request))
    if again is not None:
        further = _request(version, 99, max_wait_ms=offset >> 32, min_bytes=offset & 0x7FFFFFFF)
        assert again.match(_frame(version, further)) == (1, 99)


def test_what_has_more_to_it_than_one_partition_is_not_known_again() -> None:
    version = 16
    (topic,) = _request(version).topics
    (wanted,) = topic.partitions
    other = FetchTopic(topic_id=uuid.uuid4(), partitions=[wanted])
    told = FetchPartition(
        partition=0, fetch_offset=77, last_fetched_epoch=3, partition_max_bytes=1 << 20
    )
    changes: list[dict[str, object]] = [
        {"session_epoch": 0},
        {"session_id": 5, "session_epoch": 7},
        {"session_id": 5},
        {"topics": []},
        {"topics": [topic, other]},
        {"topics": [FetchTopic(topic_id=TOPIC_ID, partitions=[wanted, wanted])]},
        {"topics": [FetchTopic(topic_id=TOPIC_ID, partitions=[told])]},
        {"forgotten_topics": [ForgottenTopic(topic_id=TOPIC_ID, partitions=[0])]},
        {"rack_id": "r" * FRAME_BYTES_MAX},
    ]
    assert _again(_frame(version, _request(version))) is not None
    for change in changes:
        assert _again(_frame(version, _request(version, **change))) is None, change
    # A client that may not know all codecs.
    assert _again(_frame(9, _request(9))) is None


def test_connections_that_are_known_are_bounded() -> None:
    known = KnownFetches()
    frame = _frame(16, _request(16))
    for number in range(CONNECTIONS_MAX + 10):
        for _ in range(2):
            known.note(f"peer {number}", frame, *_decoded(frame))
    assert known.get("peer 9") is None
    assert known.get("peer 10") is not None


def test_connections_that_sent_one_fetch_are_bounded_too() -> None:
    known = KnownFetches()
    frame = _frame(16, _request(16))
    for _ in range(2):
        for number in range(CONNECTIONS_MAX + 1):
            known.note(f"peer {number}", frame, *_decoded(frame))
    assert known.get("peer 0") is None


def test_who_reads_partitions_in_turns_is_not_known() -> None:
    known = KnownFetches()
    wanted = [
        FetchPartition(partition=i, fetch_offset=77, partition_max_bytes=1 << 20) for i in range(2)
    ]
    for turn in range(10):
        topic = FetchTopic(topic_id=TOPIC_ID, partitions=[wanted[turn % 2]])
        frame = _frame(16, _request(16, topics=[topic]))
        known.note("peer", frame, *_decoded(frame))
        assert known.get("peer") is None
    known.note("peer", frame, *_decoded(frame))
    assert known.get("peer") is not None


# --- what is answered ------------------------------------------------------------------------


class _ColdLog(UnifiedLog):
    """Has an archive below the local log, with as many bytes in it as is asked for."""

    size_bytes = 100

    def read_remote_from_memory(
        self, offset: Offset, *, bytes_max: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> RemoteRead | None:
        # Whatever the offset: what may be asked of it is not for an archive to say.
        if not self.size_bytes:
            return None
        content = f"{offset} {bytes_max} {isolation} ".encode().ljust(self.size_bytes, b".")
        buffers = [memoryview(content)[:50], memoryview(content)[50:]]
        return RemoteRead(buffers=buffers, size_bytes=len(content), next_offset=offset + 1)


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    config = LogConfig(remote_storage_enable=True)
    local = open_log(tmp_path / "t", log_start_offset=LOCAL_START, config=config)
    fill(local, 3)
    with ThreadPoolExecutor(1) as pool:
        log = _ColdLog(local, log_start_offset=LOG_START)
        yield Partition(PARTITION, TOPIC_ID, log, LEADER_EPOCH, syncs=pool, traffic=TopicTraffic())
    local.close()


class _Replicas:
    def __init__(self, partition: Partition) -> None:
        self.served = {0: partition}

    def partitions_of(self, topic: str | None, topic_id: uuid.UUID | None) -> object:
        return self.served if topic == "topic" or topic_id == TOPIC_ID else {}


def _services(partition: Partition) -> SimpleNamespace:
    return SimpleNamespace(
        replicas=_Replicas(partition),
        sessions=None,
        config=SimpleNamespace(fetch_max_bytes=10**6, remote_fetch_max_wait_ms=500),
        quotas=SimpleNamespace(is_active=False),
        traffic=SimpleNamespace(
            apis={ApiKey.FETCH: SimpleNamespace(failed_answers=0, errors=Counter())},
            remote_fetches=RemoteWaits(),
        ),
        clock=SystemClock(),
        cold_pace=SimpleNamespace(is_held=lambda _: False, answer_bytes_max=lambda _: None),
        records=None,
    )


async def _made(services: SimpleNamespace) -> FetchHandler:
    return FetchHandler(cast("Services", services))


def _handler(services: SimpleNamespace) -> FetchHandler:
    return asyncio.run(_made(services))


def _counts(partition: Partition) -> list[int]:
    traffic = partition.traffic
    return [getattr(traffic, name) for name in TopicTraffic.__slots__]


def _both(handler: FetchHandler, partition: Partition, frame: memoryview) -> tuple[object, object]:
    """What is answered the long way, and to who is known; both count the same."""
    request, header = _decoded(frame)
    before = _counts(partition)
    long = handler.handle(request, header, 0.0)
    between = _counts(partition)
    again = _again(frame)
    assert again is not None
    match = again.match(frame)
    assert match is not None
    short = handler.handle_again(again, *match)
    after = _counts(partition)
    if short is None:
        assert after == between
    else:
        assert [b - a for a, b in zip(before, between, strict=True)] == [
            b - a for a, b in zip(between, after, strict=True)
        ]
    return long, short


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", Isolation)
def test_the_answer_is_the_same_to_the_byte(
    partition: Partition, version: int, isolation: Isolation
) -> None:
    handler = _handler(_services(partition))
    log = cast(_ColdLog, partition.log)
    for size_bytes, epoch, most in itertools.product(
        SIZES[1:], (-1, LEADER_EPOCH), (0, 1 << 10, 1 << 30)
    ):
        log.size_bytes = size_bytes
        request = _request(version, 7, epoch=epoch, isolation_level=int(isolation), max_bytes=most)
        long, short = _both(handler, partition, _frame(version, request, correlation_id=size_bytes))
        assert isinstance(long, ColdParts)
        assert isinstance(short, ColdParts)
        assert codec.join(short).hex() == codec.join(long).hex()


def test_what_happens_to_the_partition_is_in_the_next_answer(partition: Partition) -> None:
    handler = _handler(_services(partition))
    frame = _frame(16, _request(16, 7))
    again = _again(frame)
    assert again is not None
    answers = set()
    for _ in range(3):
        request, header = _decoded(frame)
        long = handler.handle(request, header, 0.0)
        short = handler.handle_again(again, 1, 7)
        assert isinstance(long, ColdParts)
        assert short is not None
        assert codec.join(short) == codec.join(long)
        answers.add(codec.join(short))
        fill(partition.log.local, 1)
    assert len(answers) == 3


def test_who_wants_anything_but_records_that_are_there_goes_the_long_way(
    partition: Partition,
) -> None:
    services = _services(partition)
    handler = _handler(services)
    again = _again(_frame(16, _request(16)))
    assert again is not None

    def is_answered(offset: Offset = 7, known: FetchAgain = again) -> bool:
        return handler.handle_again(known, 1, offset) is not None

    # From the archive up to 9, from the disk up to 39.
    assert [offset for offset in range(-1, 45) if is_answered(offset)] == [*range(4, 40)]
    for epoch in (LEADER_EPOCH - 1, LEADER_EPOCH + 1):
        other = _again(_frame(16, _request(16, epoch=epoch)))
        assert other is not None
        assert not is_answered(known=other)
    services.quotas.is_active = True
    assert not is_answered()
    services.quotas.is_active = False
    assert is_answered()
    services.cold_pace.is_held = lambda _: True
    assert not is_answered()
    services.cold_pace.is_held = lambda _: False
    cast(_ColdLog, partition.log).size_bytes = 0
    assert not is_answered()
    cast(_ColdLog, partition.log).size_bytes = 1
    assert is_answered()
    services.replicas.served = {}
    assert not is_answered()


# --- what is answered from this disk ---------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Partition]:
    """Offsets 10 to 89 in three segments, deleted below 20.

    Of three transactions the first was aborted, the second committed, and the third is open at 80.
    """
    log = open_log(tmp_path / "t", log_start_offset=LOCAL_START)
    fill(log, 3)
    log.roll()
    for producer_id, kind in ((1, MarkerType.ABORT), (2, MarkerType.COMMIT)):
        append(log, _of_transaction(producer_id))
        append_marker(log, kind, producer_id=producer_id)
    fill(log, 2)
    log.roll()
    fill(log, 1, record_count=6)
    append(log, _of_transaction(3))
    fill(log, 1, record_count=9)
    with ThreadPoolExecutor(1) as pool:
        tiers = UnifiedLog(log, log_start_offset=20)
        yield Partition(
            PARTITION, TOPIC_ID, tiers, LEADER_EPOCH, syncs=pool, traffic=TopicTraffic()
        )
    with suppress(DiskError):  # A test may have stopped it.
        log.close()


def _of_transaction(producer_id: int) -> memoryview:
    return batch(producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def _content(parts: Sequence[Part]) -> bytes:
    return b"".join(
        part.read() if isinstance(part, FileRange) else bytes(part)  # type: ignore[arg-type]
        for part in parts
    )


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("version", [10, 12, VERSIONS[-1]])
def test_records_of_this_disk_are_the_same_to_the_byte(
    local: Partition, version: int, isolation: Isolation
) -> None:
    """Who would wait, or be told of an error or of an aborted transaction, goes the long way."""
    answered = asyncio.run(_answered_from_disk(local, version, isolation))
    log = local.log
    if isolation is Isolation.READ_UNCOMMITTED:
        assert answered == set(range(log.log_start_offset, log.end_offset))
    else:
        aborted = {40, 41}
        assert answered == set(range(log.log_start_offset, log.last_stable_offset)) - aborted


async def _answered_from_disk(
    partition: Partition, version: int, isolation: Isolation
) -> set[Offset]:
    """The offsets from which records came the short way."""
    handler = await _made(_services(partition))
    answered: set[Offset] = set()
    for offset, most, least in itertools.product(
        range(LOCAL_START - 1, partition.log.end_offset + 2), (-1, 1000, 1 << 20), (1, 1 << 21)
    ):
        request = _request(
            version,
            offset,
            epoch=LEADER_EPOCH if offset % 2 else -1,
            isolation_level=int(isolation),
            max_bytes=most,
            min_bytes=least,
        )
        long, short = _both(handler, partition, _frame(version, request))
        if isinstance(long, Deferred):
            long.cancel()
            assert short is None
        elif short is not None:
            assert _content(short).hex() == _content(long).hex()  # type: ignore[arg-type]
            answered.add(offset)
        else:
            assert isinstance(long, list)
            has_records = any(isinstance(part, FileRange) for part in long)
            aborted = partition.log.aborted_transactions(offset, partition.log.end_offset)
            assert not has_records or (isolation is Isolation.READ_COMMITTED and aborted)
    return answered


def test_what_is_appended_is_in_the_next_answer_from_disk(local: Partition) -> None:
    handler = _handler(_services(local))
    again = _again(_frame(16, _request(16)))
    assert again is not None
    answers = set()
    for _ in range(3):
        short = handler.handle_again(again, 1, local.log.end_offset - 1)
        assert short is not None
        answers.add(_content(short))
        fill(local.log.local, 1)
    assert len(answers) == 3


def test_a_log_that_was_stopped_answers_the_long_way(local: Partition) -> None:
    handler = _handler(_services(local))
    again = _again(_frame(16, _request(16)))
    assert again is not None
    assert handler.handle_again(again, 1, 30) is not None
    local.log.local.stop(DiskError("input/output error"))
    assert handler.handle_again(again, 1, 30) is None
    assert local.traffic.failed_fetch == 0


def test_of_a_consumer_that_reads_on_the_third_fetch_is_not_decoded(
    local: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered and counted as the first two were."""
    clock = SystemClock()
    services = _services(local)
    services.clock, services.traffic, services.metadata = clock, RequestTraffic(clock), None
    dispatcher = Dispatcher(
        cast("Services", services),
        cast("ProduceHandler", None),
        _handler(services),
        {},
        decoding=cast("Executor", None),
    )
    decoded: list[memoryview] = []

    def noted(frame: memoryview) -> RequestHeader:
        decoded.append(frame)
        return decode_request_header(frame)

    monkeypatch.setattr(dispatch, "decode_request_header", noted)
    fetches = services.traffic.apis[ApiKey.FETCH]
    counts = []
    for offset in (45, 46, 47, 48):
        frame = _frame(16, _request(16, offset))
        answer = dispatcher.handle(frame, "peer", clock.monotonic_s())
        assert isinstance(answer, list)
        counts.append((fetches.request_bytes, fetches.total.count, dict(fetches.versions())))
        assert fetches.response_bytes > 0
    assert len(decoded) == 2
    assert [count for _, count, _ in counts] == [1, 2, 3, 4]
    assert [size for size, _, _ in counts] == [(len(frame) + 4) * i for i in (1, 2, 3, 4)]
    assert counts[-1][2] == {16: 4}
