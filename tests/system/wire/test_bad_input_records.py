"""Batches that must not be stored: each gets its error code, and nothing of it is in the log."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable

import pytest

from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from strandline.storage.model import TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.record import encode_batch, with_crc
from strandline.storage.records.compression import Codec, compress
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import (
    MakeTopic,
    append,
    assert_serves,
    batch,
    describe_topic,
    end_offset,
    frame_of,
    produce,
    produce_request,
    read_all,
    records,
    software,
)

pytestmark = pytest.mark.slow

CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
RECORD_LIST_TOO_LARGE = 18
INVALID_REQUIRED_ACKS = 21
INVALID_TIMESTAMP = 32
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
INVALID_PRODUCER_ID_MAPPING = 49
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87
UNKNOWN_TOPIC_ID = 100

PRODUCE_VERSIONS = range(3, 13)
FAR_FUTURE_MS = 9_000_000_000_000


def changed(position: int, code: str, value: int, encoded: bytes | None = None) -> bytes:
    """A batch with one field overwritten and the CRC made true again."""
    target = bytearray(batch(3) if encoded is None else encoded)
    struct.pack_into(code, target, position, value)
    return bytes(with_crc(target))


def with_attributes(bits: int) -> bytes:
    return changed(batch_format.CRC_START, ">h", bits)


def with_length(batch_length: int) -> bytes:
    return changed(8, ">i", batch_length)


def with_broken_crc() -> bytes:
    encoded = bytearray(batch(3))
    encoded[-1] ^= 0x01
    return bytes(encoded)


WHOLE = len(batch(3)) - batch_format.LOG_OVERHEAD_BYTES

REFUSED: dict[str, tuple[bytes | None, int]] = {
    "one bit of a record flipped": (with_broken_crc(), CORRUPT_MESSAGE),
    "magic 3": (changed(16, ">b", 3), CORRUPT_MESSAGE),
    "magic -1": (changed(16, ">b", -1), CORRUPT_MESSAGE),
    "magic 0, a message set of old": (changed(16, ">b", 0), INVALID_RECORD),
    "magic 1, a message set of old": (changed(16, ">b", 1), INVALID_RECORD),
    "more records than offsets": (changed(57, ">i", 4), INVALID_RECORD),
    "fewer records than offsets": (changed(57, ">i", 2), INVALID_RECORD),
    "no records": (changed(57, ">i", 0), INVALID_RECORD),
    "a negative number of records": (changed(57, ">i", -3), INVALID_RECORD),
    "a negative last offset delta": (changed(23, ">i", -1), INVALID_RECORD),
    "batch length below a header": (with_length(48), CORRUPT_MESSAGE),
    "negative batch length": (with_length(-1), CORRUPT_MESSAGE),
    "batch length beyond the request": (with_length(WHOLE + 1), INVALID_RECORD),
    "largest batch length": (with_length(2**31 - 1), INVALID_RECORD),
    "bytes behind the batch": (batch(3) + b"x", INVALID_RECORD),
    "two batches": (batch(3) + batch(2), INVALID_RECORD),
    "a truncated batch": (batch(3)[:-1], INVALID_RECORD),
    "a truncated header": (batch(3)[:60], INVALID_RECORD),
    "twelve bytes": (bytes(12), INVALID_RECORD),
    "records of no bytes": (b"", INVALID_RECORD),
    "null records": (None, INVALID_RECORD),
    "codec 5": (with_attributes(5), UNSUPPORTED_COMPRESSION_TYPE),
    "codec 7": (with_attributes(7), UNSUPPORTED_COMPRESSION_TYPE),
    "a control batch": (encode_batch(records(1), control=True), INVALID_RECORD),
    "a control batch with a producer": (
        encode_batch(records(1), control=True, transactional=True, producer_id=1, producer_epoch=0),
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "a timestamp that claims to be the broker's": (
        encode_batch(records(1), timestamp_type=TimestampType.LOG_APPEND_TIME),
        INVALID_TIMESTAMP,
    ),
    "a timestamp far in the future": (batch(first_timestamp_ms=FAR_FUTURE_MS), INVALID_TIMESTAMP),
    "a producer with a negative sequence": (
        batch(producer_id=77, producer_epoch=0, base_sequence=-1),
        INVALID_RECORD,
    ),
    "a transactional batch without a producer": (
        encode_batch(records(1), transactional=True),
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    # It would open a transaction that nobody ends: what comes behind would not be stable for ever,
    # so that no `read_committed` consumer and no archive would ever get it.
    "a transactional batch of an idempotent producer": (
        encode_batch(
            records(1), producer_id=77, producer_epoch=0, base_sequence=0, transactional=True
        ),
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
}


def with_records(payload: bytes, *, codec: Codec = Codec.NONE, count: int = 3) -> bytes:
    """A batch whose header says `count` records and whose CRC is true, around `payload`."""
    target = bytearray(batch(count)[: batch_format.HEADER_BYTES])
    struct.pack_into(">i", target, 8, batch_format.BATCH_LENGTH_MIN + len(payload))
    struct.pack_into(">h", target, batch_format.CRC_START, codec)
    return bytes(with_crc(target + payload))


def payload_of(count: int) -> bytearray:
    return bytearray(batch(count)[batch_format.HEADER_BYTES :])


def with_byte(position: int, value: int) -> bytes:
    payload = payload_of(3)
    payload[position] = value
    return bytes(payload)


# What Kafka's LogValidator refuses when it reads the records; codes as it gives them. It refuses
# wrong keys, values and headers too (docs/decisions/0005).
UNTRUE_RECORDS: dict[str, bytes] = {
    "fewer records than the header says": with_records(bytes(payload_of(2))),
    "more records than the header says": with_records(bytes(payload_of(4))),
    "no records at all": with_records(b""),
    "a length beyond the batch": with_records(with_byte(0, 0x7E)),
    "a negative length": with_records(with_byte(0, 0x01)),
    "a length that is too short": with_records(with_byte(0, 0x04)),
    "a varint without end": with_records(b"\xff" * 40),
    "what is not compressed as it says": with_records(bytes(payload_of(3)), codec=Codec.LZ4),
    "fewer records than the header says, compressed": with_records(
        compress(Codec.LZ4, bytes(payload_of(2))), codec=Codec.LZ4
    ),
}


@pytest.mark.parametrize("encoded", UNTRUE_RECORDS.values(), ids=UNTRUE_RECORDS.keys())
def test_records_that_are_not_as_their_header_says_are_refused(
    broker: BrokerProcess, client: WireClient, topic: str, encoded: bytes
) -> None:
    """The CRC over them is true, so that a consumer would be the first to meet them."""
    for version in (3, 8, 12):
        with WireClient(broker.port) as new:
            answer = produce(new, topic, encoded, version=version)
            assert (answer.error_code, answer.base_offset) == (INVALID_RECORD, -1)
            assert answer.error_message or version < 8
            assert append(new, topic, batch(3)) >= 0
    assert end_offset(client, topic) == 9
    assert len(read_all(client, topic)) == 9


@pytest.mark.parametrize(("encoded", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_batch_leaves_no_trace_in_the_log(
    client: WireClient, topic: str, encoded: bytes | None, code: int
) -> None:
    append(client, topic, batch(2, value=b"before"))
    for version in (3, 8, 12):
        answer = produce(client, topic, encoded, version=version)
        assert (answer.error_code, answer.base_offset) == (code, -1)
        assert answer.error_message or version < 8
    assert end_offset(client, topic) == 2
    assert append(client, topic, batch(1, value=b"after")) == 2
    assert [record.value for record in read_all(client, topic)] == [b"before"] * 2 + [b"after"]


def test_a_good_batch_is_taken_in_every_version(client: WireClient, topic: str) -> None:
    for position, version in enumerate(PRODUCE_VERSIONS):
        answer = produce(client, topic, batch(), version=version)
        assert (answer.error_code, answer.base_offset) == (0, position)
        assert answer.log_start_offset == (0 if version >= 5 else -1)


def test_one_bad_partition_does_not_harm_the_others_of_its_request(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    parts = [batch(2), with_broken_crc(), batch(1)]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topics=[
            ProduceTopic(
                name=topic,
                partitions=[
                    ProducePartition(index=index, records=memoryview(encoded))
                    for index, encoded in enumerate(parts)
                ],
            )
        ],
    )
    ((*answers,),) = (t.partitions for t in client.ask(request, ProduceResponse, 9).topics)
    assert [(a.index, a.error_code) for a in answers] == [(0, 0), (1, CORRUPT_MESSAGE), (2, 0)]
    assert [end_offset(client, topic, partition=index) for index in range(3)] == [2, 0, 1]


def test_a_partition_that_is_named_twice_gets_both_batches_in_order(
    client: WireClient, topic: str
) -> None:
    """Kafka keeps the last and loses the first without a word; nobody is told a lie here."""
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topics=[
            ProduceTopic(
                name=topic,
                partitions=[
                    ProducePartition(index=0, records=memoryview(batch(value=value)))
                    for value in (b"first", b"second")
                ],
            )
        ],
    )
    ((*answers,),) = (t.partitions for t in client.ask(request, ProduceResponse, 9).topics)
    assert [(a.error_code, a.base_offset) for a in answers] == [(0, 0), (0, 1)]
    assert [record.value for record in read_all(client, topic)] == [b"first", b"second"]


# --- sizes -----------------------------------------------------------------------------------


def test_a_batch_above_max_message_bytes_is_too_large_and_one_at_it_is_not(
    client: WireClient, make_topic: MakeTopic
) -> None:
    largest = batch(value=b"x" * 5000)
    topic = make_topic(1, {"max.message.bytes": str(len(largest))})
    too_large = batch(value=b"x" * 5001)
    assert produce(client, topic, too_large).error_code == MESSAGE_TOO_LARGE
    assert end_offset(client, topic) == 0
    assert append(client, topic, largest) == 0


def test_the_default_limit_of_a_batch_is_kafkas(client: WireClient, topic: str) -> None:
    """1 MiB of records and the batch's overhead of 12 bytes."""
    room = 1024 * 1024 + 12 - len(batch(value=b""))
    answer = produce(client, topic, batch(value=b"x" * (room + 1)))
    assert answer.error_code == MESSAGE_TOO_LARGE
    assert append(client, topic, batch(value=b"x" * (room - 8))) == 0


def test_a_batch_that_fits_into_no_segment_is_refused(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(1, {"max.message.bytes": "4000000", "segment.bytes": "1048576"})
    answer = produce(client, topic, batch(value=b"x" * 1_100_000))
    assert answer.error_code == RECORD_LIST_TOO_LARGE
    assert end_offset(client, topic) == 0


# --- codecs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_zstd_needs_produce_version_7(client: WireClient, topic: str, version: int) -> None:
    answer = produce(client, topic, batch(codec=Codec.ZSTD), version=version)
    expected = 0 if version >= 7 else UNSUPPORTED_COMPRESSION_TYPE
    assert answer.error_code == expected
    assert end_offset(client, topic) == (1 if version >= 7 else 0)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_older_codecs_are_taken_in_every_version(
    client: WireClient, topic: str, codec: Codec
) -> None:
    assert produce(client, topic, batch(5, codec=codec), version=3).error_code == 0
    assert [record.value for record in read_all(client, topic)] == [b"value"] * 5


# --- where it should go ----------------------------------------------------------------------


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_an_unknown_topic_or_partition_is_named_as_such(
    client: WireClient, topic: str, topic_name: str, version: int
) -> None:
    for name, partition in ((topic_name, 0), (topic, 1), (topic, -1), (topic, 2**31 - 1), ("", 0)):
        answer = produce(client, name, batch(), partition=partition, version=version)
        assert answer.error_code == UNKNOWN_TOPIC_OR_PARTITION
        assert answer.index == partition
    # Producing creates nothing.
    assert describe_topic(client, topic_name).error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_topic_id_is_named_as_such(client: WireClient, topic: str) -> None:
    topic_id = describe_topic(client, topic).topic_id
    for unknown in (uuid.uuid4(), uuid.UUID(int=0)):
        assert produce(client, unknown, batch()).error_code == UNKNOWN_TOPIC_ID
    for partition in (1, -1):
        answer = produce(client, topic_id, batch(), partition=partition)
        assert answer.error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert produce(client, topic_id, batch()).error_code == 0
    assert end_offset(client, topic) == 1


# --- acks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [2, -2, 32767, -32768])
def test_acks_other_than_all_one_and_none_are_refused(
    client: WireClient, topic: str, acks: int
) -> None:
    assert produce(client, topic, batch(), acks=acks).error_code == INVALID_REQUIRED_ACKS
    assert end_offset(client, topic) == 0


def test_no_more_replicas_must_be_in_sync_than_there_are(
    client: WireClient, make_topic: MakeTopic
) -> None:
    """As in Kafka since 3.7: tools that are made for three brokers ask for two of them."""
    topic = make_topic(1, {"min.insync.replicas": "2"})
    assert produce(client, topic, batch(), acks=-1).error_code == 0
    assert produce(client, topic, batch(), acks=1).error_code == 0
    assert end_offset(client, topic) == 2


def test_acks_0_is_answered_by_silence(client: WireClient, topic: str) -> None:
    for number in range(10):
        client.send(produce_request(topic, batch(value=b"%d" % number), acks=0), 9)
    # The next answer on the connection belongs to the next request that wants one.
    assert client.ask(software(), ApiVersionsResponse, 4).error_code == 0
    assert [record.value for record in read_all(client, topic)] == [
        b"%d" % number for number in range(10)
    ]


ACKS_0_FAILURES: dict[str, Callable[[str], ProduceRequest]] = {
    "corrupt batch": lambda topic: produce_request(topic, with_broken_crc(), acks=0),
    "unknown partition": lambda topic: produce_request(topic, batch(), partition=9, acks=0),
    "unknown topic": lambda _: produce_request("no-such-topic", batch(), acks=0),
    "null records": lambda topic: produce_request(topic, None, acks=0),
}


@pytest.mark.parametrize("failing", ACKS_0_FAILURES.values(), ids=ACKS_0_FAILURES.keys())
def test_an_error_with_acks_0_closes_the_connection(
    broker: BrokerProcess,
    client: WireClient,
    topic: str,
    failing: Callable[[str], ProduceRequest],
) -> None:
    """The only way to tell a client that does not listen."""
    with WireClient(broker.port) as careless:
        careless.send_raw(frame_of(failing(topic), 9))
        assert careless.closed_by_broker()
    assert_serves(broker.port)
    assert end_offset(client, topic) == 0


def test_a_batch_of_a_transaction_that_nobody_began_is_refused(
    client: WireClient, topic: str
) -> None:
    encoded = encode_batch(
        records(1), producer_id=77, producer_epoch=0, base_sequence=0, transactional=True
    )
    request = ProduceRequest(
        transactional_id=f"tx of {topic}",
        acks=-1,
        timeout_ms=5000,
        topics=[
            ProduceTopic(
                name=topic, partitions=[ProducePartition(index=0, records=memoryview(encoded))]
            )
        ],
    )
    for version in (9, 11, 12):
        ((answer,),) = (t.partitions for t in client.ask(request, ProduceResponse, version).topics)
        assert answer.error_code == INVALID_PRODUCER_ID_MAPPING
    assert end_offset(client, topic) == 0
