"""A fetch that is known again is planned and encoded as it would be if it were not."""

from __future__ import annotations

import itertools
import random
import uuid

import pytest

from strandline.broker.handlers.fetch.repeated_fetches import (
    BODY_BYTES_MAX,
    CONNECTIONS_MAX,
    RepeatedFetch,
    RepeatedFetches,
    known_fetch,
)
from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import frame_response
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
from strandline.storage.model import Isolation, Offset
from tests.unit.broker.handlers.fetch.fetch_rig import body_of, fetch_of_one
from tests.unit.storage.local.builders import (
    TOPIC_ID,
)

# Sizes at which their own encoding becomes longer.
SIZES = (1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_150, 2_097_151)
VERSIONS = range(4, SPECS[ApiKey.FETCH].supported.highest + 1)


def _known(version: int, request: FetchRequest) -> RepeatedFetch | None:
    body = body_of(version, request)
    return known_fetch(version, body, codec.decode_request(FetchRequest, version, body))


# --- what is known again ---------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rack", ["", "eu-1a"])
def test_the_same_fetch_further_on_is_known_in_every_version(version: int, rack: str) -> None:
    known = _known(version, fetch_of_one(version, rack=rack))
    assert known is not None
    numbers = random.Random(version)
    for offset in (0, 1, 78, 2**40, 2**63 - 1, -1, *(numbers.getrandbits(62) for _ in range(20))):
        assert (
            known.match(version, body_of(version, fetch_of_one(version, offset, rack=rack)))
            == offset
        )
        assert known.match(version + 1, body_of(version, fetch_of_one(version, offset))) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_any_other_bit_that_differs_is_another_request(version: int) -> None:
    request = fetch_of_one(version, rack="eu-1a")
    body, known = body_of(version, request), _known(version, request)
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
    request = fetch_of_one(version, offset, max_wait_ms=offset >> 32, min_bytes=offset & 0x7FFFFFFF)
    known = _known(version, request)
    if known is not None:
        further = fetch_of_one(version, 99, max_wait_ms=offset >> 32, min_bytes=offset & 0x7FFFFFFF)
        assert known.match(version, body_of(version, further)) == 99


def test_what_has_more_to_it_than_one_partition_is_not_known_again() -> None:
    version = 16
    (topic,) = fetch_of_one(version).topics
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
    assert _known(version, fetch_of_one(version)) is not None
    for change in changes:
        assert _known(version, fetch_of_one(version, **change)) is None, change  # type: ignore[arg-type]


def test_connections_that_are_known_are_bounded() -> None:
    known, request = RepeatedFetches(), fetch_of_one(16)
    for number in range(CONNECTIONS_MAX + 10):
        for _ in range(2):
            known.note(f"peer {number}", 16, body_of(16, request), request)
    assert known.get("peer 9") is None
    assert known.get("peer 10") is not None


def test_connections_that_sent_one_fetch_are_bounded_too() -> None:
    known, request = RepeatedFetches(), fetch_of_one(16)
    for _ in range(2):
        for number in range(CONNECTIONS_MAX + 1):
            known.note(f"peer {number}", 16, body_of(16, request), request)
    assert known.get("peer 0") is None


def test_who_reads_partitions_in_turns_is_not_known() -> None:
    known = RepeatedFetches()
    wanted = [
        FetchPartition(partition=i, fetch_offset=77, partition_max_bytes=1 << 20) for i in range(2)
    ]
    for turn in range(10):
        topic = FetchTopic(topic_id=TOPIC_ID, partitions=[wanted[turn % 2]])
        request = fetch_of_one(16, topics=[topic])
        known.note("peer", 16, body_of(16, request), request)
        assert known.get("peer") is None
    known.note("peer", 16, body_of(16, request), request)
    assert known.get("peer") is not None


# --- how it is answered ----------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", Isolation)
def test_an_answer_with_records_is_encoded_as_any_other_to_the_byte(
    version: int, isolation: Isolation
) -> None:
    known = _known(version, fetch_of_one(version, isolation_level=int(isolation)))
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
        body = codec.encode(FetchResponse(topics=[topic]), version)
        encoded = known.response(size_bytes, answer)
        assert encoded is not None
        expected = frame_response(ApiKey.FETCH, version, size_bytes, body)
        assert codec.join(encoded).hex() == codec.join(expected).hex()


def test_an_answer_that_says_more_than_records_is_left_to_the_encoder() -> None:
    known = _known(16, fetch_of_one(16))
    assert known is not None
    records = {"index": 0, "high_watermark": 9, "records": (b"records",), "records_bytes": 7}
    aborted = FetchAbortedTransaction(producer_id=1, first_offset=2)
    for change in ({"records_bytes": 0}, {"error_code": 1}, {"aborted_transactions": [aborted]}):
        answer = FetchResponsePartition(**(records | change))  # type: ignore[arg-type]
        assert known.response(1, answer) is None, change
