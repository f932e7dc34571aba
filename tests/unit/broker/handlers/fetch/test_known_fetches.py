"""A fetch that is known again is planned and encoded as it would be if it were not."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.sections import FetchConfig
from strandline.broker.handlers.dispatch.dispatch import Dispatcher
from strandline.broker.handlers.fetch import plan
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.known_fetches import (
    BODY_BYTES_MAX,
    CONNECTIONS_MAX,
    KnownFetch,
    KnownFetches,
    known_fetch,
)
from strandline.broker.handlers.fetch.sessions import FetchSessionCache
from strandline.broker.handlers.produce.produce import ProduceHandler
from strandline.broker.handlers.services.services import Services
from strandline.broker.network.answers import Answer
from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.fetch import decode_fetch_request, encode_fetch_response
from strandline.broker.protocol.header import encode_request_header, frame_response
from strandline.broker.protocol.messages.fetch import (
    FetchAbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    FetchTopic,
    ForgottenTopic,
)
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.broker.telemetry.requests import ApiTraffic, RequestTraffic
from strandline.storage.clock import SystemClock
from strandline.storage.files import FileRange
from strandline.storage.local.formats.producer_state import MarkerType
from strandline.storage.model import Isolation, Offset
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
# Sizes at which their own encoding becomes longer.
SIZES = (1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_150, 2_097_151)
VERSIONS = range(4, SPECS[ApiKey.FETCH].supported.highest + 1)


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


def _body(version: int, request: FetchRequest) -> memoryview:
    return memoryview(codec.join(codec.encode_request(request, version)))


def _known(version: int, request: FetchRequest) -> KnownFetch | None:
    body = _body(version, request)
    return known_fetch(version, body, decode_fetch_request(version, body))


# --- what is known again ---------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rack", ["", "eu-1a"])
def test_the_same_fetch_further_on_is_known_in_every_version(version: int, rack: str) -> None:
    known = _known(version, _request(version, rack=rack))
    assert known is not None
    numbers = random.Random(version)
    for offset in (0, 1, 78, 2**40, 2**63 - 1, -1, *(numbers.getrandbits(62) for _ in range(20))):
        assert known.match(version, _body(version, _request(version, offset, rack=rack))) == offset
        assert known.match(version + 1, _body(version, _request(version, offset))) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_any_other_bit_that_differs_is_another_request(version: int) -> None:
    request = _request(version, rack="eu-1a")
    body, known = _body(version, request), _known(version, request)
    assert known is not None
    free = 0
    for position, bit in itertools.product(range(len(body)), range(8)):
        changed = bytearray(body)
        changed[position] ^= 1 << bit
        offset = known.match(version, memoryview(changed))
        if offset is not None:
            free += 1
            assert offset != 77
    # The offset, and nothing else.
    assert free == 8 * 8
    assert known.match(version, body[:-1]) is None
    assert known.match(version, memoryview(bytes(body) + b"\0")) is None


@pytest.mark.parametrize("offset", [0, 1, 500, 2**32 - 1, 2**32, 0x0101_0101_0101_0101, 2**63 - 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_offset_whose_bytes_stand_elsewhere_too_is_not_mistaken(
    version: int, offset: Offset
) -> None:
    """It may stay unknown until the next one, which has another offset."""
    request = _request(version, offset, max_wait_ms=offset >> 32, min_bytes=offset & 0x7FFFFFFF)
    known = _known(version, request)
    if known is not None:
        further = _request(version, 99, max_wait_ms=offset >> 32, min_bytes=offset & 0x7FFFFFFF)
        assert known.match(version, _body(version, further)) == 99


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
        {"rack_id": "r" * BODY_BYTES_MAX},
    ]
    assert _known(version, _request(version)) is not None
    for change in changes:
        assert _known(version, _request(version, **change)) is None, change  # type: ignore[arg-type]


def test_connections_that_are_known_are_bounded() -> None:
    known, request = KnownFetches(), _request(16)
    for number in range(CONNECTIONS_MAX + 10):
        for _ in range(2):
            known.note(f"peer {number}", 16, _body(16, request), request)
    assert known.get("peer 9") is None
    assert known.get("peer 10") is not None


def test_connections_that_sent_one_fetch_are_bounded_too() -> None:
    known, request = KnownFetches(), _request(16)
    for _ in range(2):
        for number in range(CONNECTIONS_MAX + 1):
            known.note(f"peer {number}", 16, _body(16, request), request)
    assert known.get("peer 0") is None


def test_who_reads_partitions_in_turns_is_not_known() -> None:
    known = KnownFetches()
    wanted = [
        FetchPartition(partition=i, fetch_offset=77, partition_max_bytes=1 << 20) for i in range(2)
    ]
    for turn in range(10):
        topic = FetchTopic(topic_id=TOPIC_ID, partitions=[wanted[turn % 2]])
        request = _request(16, topics=[topic])
        known.note("peer", 16, _body(16, request), request)
        assert known.get("peer") is None
    known.note("peer", 16, _body(16, request), request)
    assert known.get("peer") is not None


# --- how it is answered ----------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", Isolation)
def test_an_answer_with_records_is_encoded_as_any_other_to_the_byte(
    version: int, isolation: Isolation
) -> None:
    known = _known(version, _request(version, isolation_level=int(isolation)))
    assert known is not None
    for end_offset, size_bytes in itertools.product((80, 90), SIZES):
        content = memoryview(bytes(size_bytes))
        answer = FetchResponsePartition(
            index=0,
            high_watermark=end_offset,
            last_stable_offset=end_offset - 1,
            log_start_offset=4,
            aborted_transactions=() if isolation is Isolation.READ_COMMITTED else None,
            records=(content[:50], content[50:]),
            records_bytes=size_bytes,
        )
        named = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "topic"}
        topic = FetchResponseTopic(partitions=[answer], **named)  # type: ignore[arg-type]
        body = encode_fetch_response(version, FetchResponse(topics=[topic]))
        encoded = known.response(size_bytes, answer)
        assert encoded is not None
        expected = frame_response(ApiKey.FETCH, version, size_bytes, body)
        assert codec.join(encoded).hex() == codec.join(expected).hex()


def test_an_answer_that_says_more_than_records_is_left_to_the_encoder() -> None:
    known = _known(16, _request(16))
    assert known is not None
    records = {"index": 0, "high_watermark": 9, "records": (b"records",), "records_bytes": 7}
    aborted = FetchAbortedTransaction(producer_id=1, first_offset=2)
    for change in ({"records_bytes": 0}, {"error_code": 1}, {"aborted_transactions": [aborted]}):
        answer = FetchResponsePartition(**(records | change))  # type: ignore[arg-type]
        assert known.response(1, answer) is None, change


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    """Offsets 0 to 99, of which a transaction at 40 was aborted."""
    local = open_log(tmp_path / "t")
    fill(local, 4)
    append(local, batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    append_marker(local, MarkerType.ABORT, producer_id=1)
    fill(local, 5)
    with ThreadPoolExecutor(1) as pool:
        log = UnifiedLog(local)
        yield Partition(PARTITION, TOPIC_ID, log, LEADER_EPOCH, syncs=pool, traffic=TopicTraffic())
    local.close()


def _dispatcher(partition: Partition) -> tuple[Dispatcher, ApiTraffic]:
    """One that serves fetches; made within a running loop."""
    clock = SystemClock()
    served = {0: partition}
    services = SimpleNamespace(
        replicas=SimpleNamespace(partitions_of=lambda *_: served),
        config=BrokerConfig(fetch=FetchConfig(bytes_max=10**6)),
        quotas=SimpleNamespace(is_active=False),
        traffic=RequestTraffic(clock),
        clock=clock,
        cold_pace=None,
        records=None,
        metadata=None,
    )
    fetch = FetchHandler(cast("Services", services), cast("FetchSessionCache", None))
    dispatcher = Dispatcher(
        cast("Services", services),
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

    def counted(version: int, body: memoryview) -> FetchRequest:
        nonlocal decoded
        decoded += 1
        return decode_fetch_request(version, body)

    monkeypatch.setattr(plan, "decode_fetch_request", counted)

    async def main() -> None:
        dispatcher, fetches = _dispatcher(partition)
        # At the end its wait is over at once; behind it there is an error.
        offsets = [*range(30, 50), partition.log.end_offset, partition.log.end_offset + 1]
        for number, offset in enumerate(offsets):
            fetch = _request(version, offset, isolation_level=int(isolation), max_wait_ms=0)
            head = encode_request_header(ApiKey.FETCH, version, 1000 + number, "client")
            frame = memoryview(head + _body(version, fetch))
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
