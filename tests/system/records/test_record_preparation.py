"""Appends that need more than the batch header: codecs of a topic, old formats, single records."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import crc32c
import pytest
from confluent_kafka import Producer

from strandline.broker.protocol.codec import codec as wire_codec
from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from strandline.storage.records.batch import any_batch
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.compression import Codec
from tests.support.broker import BrokerProcess
from tests.support.old_formats import CODECS, message_set
from tests.support.wire import WireClient
from tests.system.calls import (
    MakeTopic,
    batch,
    end_offset,
    fetch,
    fetch_request,
    fetch_topic,
    fetched_bytes,
    new_producer_id,
    produce,
    produce_request,
    read_all,
    records,
    records_in,
)

pytestmark = pytest.mark.slow

CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87
DAY_MS = 86_400_000


# --- compression.type ------------------------------------------------------------------------


@pytest.mark.parametrize("stored", list(Codec))
@pytest.mark.parametrize("sent", list(Codec))
def test_a_topic_stores_its_own_codec_whatever_is_sent(
    client: WireClient, make_topic: MakeTopic, stored: Codec, sent: Codec
) -> None:
    name = "uncompressed" if stored is Codec.NONE else stored.name.lower()
    topic = make_topic(configs={"compression.type": name})
    answers = [produce(client, topic, batch(20, value=b"v" * 200, codec=sent)) for _ in range(3)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [
        (0, 0),
        (0, 20),
        (0, 40),
    ]
    fetched = fetch(client, topic)
    found = list(walk(fetched_bytes(fetched)))
    assert {batch.header.codec for batch in found} == {stored}
    assert {batch.header.record_count for batch in found} == {20}
    assert [record.offset for record in records_in(fetched)] == list(range(60))
    assert {record.value for record in records_in(fetched)} == {b"v" * 200}


@pytest.mark.parametrize(("name", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", 1, 19)])
def test_a_higher_level_stores_fewer_bytes(
    client: WireClient, make_topic: MakeTopic, name: str, low: int, high: int
) -> None:
    text = b" ".join(b"%d" % (i * i % 977) for i in range(4000))
    stored_bytes = []
    for level in (low, high):
        topic = make_topic(
            configs={"compression.type": name, f"compression.{name}.level": str(level)}
        )
        assert produce(client, topic, batch(5, value=text)).error_code == 0
        stored_bytes.append(len(fetched_bytes(fetch(client, topic))))
    assert stored_bytes[1] < stored_bytes[0] < 5 * len(text)


def test_a_batch_that_grows_beyond_the_limit_is_refused(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(configs={"compression.type": "uncompressed", "max.message.bytes": "2000"})
    answer = produce(client, topic, batch(10, value=b"v" * 500, codec=Codec.ZSTD))
    assert answer.error_code == MESSAGE_TOO_LARGE
    assert end_offset(client, topic) == 0


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_is_refused_and_costs_little_memory(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic, codec: Codec
) -> None:
    topic = make_topic(configs={"compression.type": "snappy"})
    bomb = batch(1, value=bytes(160 * 1024 * 1024), codec=codec)
    for _ in range(5):
        answer = produce(client, topic, bomb)
        assert answer.error_code == MESSAGE_TOO_LARGE
        assert "exceed" in (answer.error_message or "")
    assert broker.resident_mib() < 200
    assert produce(client, topic, batch(1)).error_code == 0


def test_sequences_hold_over_the_trip_off_the_loop(
    client: WireClient, make_topic: MakeTopic
) -> None:
    """Pipelined, with repeats, a gap and another producer between them."""
    topic = make_topic(configs={"compression.type": "zstd"})
    producer_id = new_producer_id(client)

    def encoded(sequence: int) -> bytes:
        return batch(
            3,
            value=b"%d" % sequence,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )

    sent = [0, 3, 3, 6, 0, 12, 9, 12]
    ids = [client.send(produce_request(topic, encoded(sequence)), 9) for sequence in sent]
    answers = []
    for correlation_id in ids:
        response = client.receive(ProduceResponse, 9, correlation_id)
        ((answer,),) = (t.partitions for t in response.topics)
        answers.append((answer.error_code, answer.base_offset))
    gap = (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert answers == [(0, 0), (0, 3), (0, 3), (0, 6), (0, 0), gap, (0, 9), (0, 12)]
    values = [record.value for record in records_in(fetch(client, topic))]
    assert values == [b"%d" % sequence for sequence in (0, 3, 6, 9, 12) for _ in range(3)]


def test_many_producers_at_once_lose_nothing_and_keep_their_order(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(2, configs={"compression.type": "lz4"})

    def run(number: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "compression.type": ("none", "gzip", "snappy", "zstd")[number],
            }
        )
        for i in range(1500):
            producer.produce(topic, b"%d" % i, key=b"%d" % number, partition=i % 2)
        assert producer.flush(60) == 0

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    for partition in (0, 1):
        found = read_all(client, topic, partition=partition)
        for number in range(4):
            mine = [int(r.value or b"") for r in found if r.key == b"%d" % number]
            assert mine == list(range(partition, 1500, 2))


# --- single records --------------------------------------------------------------------------


def test_records_outside_the_allowed_time_are_named_one_by_one(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(
        configs={
            "message.timestamp.before.max.ms": str(DAY_MS),
            "message.timestamp.after.max.ms": str(DAY_MS),
        }
    )
    now_ms = int(time.time() * 1000)
    times = [now_ms, now_ms - 2 * DAY_MS, now_ms, now_ms + 2 * DAY_MS, -1]
    encoded = encode_batch(
        [
            Record(offset=i, timestamp_ms=time_ms, key=None, value=b"v")
            for i, time_ms in enumerate(times)
        ],
        codec=Codec.LZ4,
    )
    for version in (7, 8, 9):
        answer = produce(client, topic, encoded, version=version)
        assert answer.error_code == INVALID_TIMESTAMP
        assert [wrong.batch_index for wrong in answer.record_errors] == (
            [1, 3] if version >= 8 else []
        )
    assert "before.max.ms" in (answer.error_message or "")
    assert str(times[1]) in (answer.record_errors[0].batch_index_error_message or "")
    assert end_offset(client, topic) == 0
    assert produce(client, topic, batch(3, first_timestamp_ms=now_ms)).error_code == 0


@pytest.mark.parametrize("configs", [{}, {"compression.type": "gzip"}])
def test_records_from_the_future_are_named_whatever_the_topic(
    client: WireClient, make_topic: MakeTopic, configs: dict[str, str]
) -> None:
    topic = make_topic(2, configs)
    now_ms = int(time.time() * 1000)
    times = [now_ms, now_ms + 2 * DAY_MS, now_ms, now_ms + 3 * DAY_MS]
    encoded = encode_batch(
        [
            Record(offset=i, timestamp_ms=time_ms, key=None, value=b"v")
            for i, time_ms in enumerate(times)
        ],
        codec=Codec.LZ4,
    )
    request = produce_request(topic, encoded)
    both = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topics=[
            ProduceTopic(
                name=topic,
                partitions=[
                    ProducePartition(index=0, records=encoded),
                    ProducePartition(index=1, records=batch(2)),
                    ProducePartition(index=0, records=encoded),
                ],
            )
        ],
    )
    for version in (7, 8, 9):
        (alone,) = client.ask(request, ProduceResponse, version).topics[0].partitions
        first, good, second = client.ask(both, ProduceResponse, version).topics[0].partitions
        for answer in (alone, first, second):
            assert (answer.error_code, answer.log_start_offset) == (INVALID_TIMESTAMP, 0)
            named = [wrong.batch_index for wrong in answer.record_errors]
            assert named == ([1, 3] if version >= 8 else [])
            if version >= 8:
                assert str(times[1]) in (answer.error_message or "")
        assert good.error_code == 0
    assert end_offset(client, topic) == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_compacted_topic_takes_no_record_without_a_key(
    client: WireClient, make_topic: MakeTopic, codec: Codec
) -> None:
    topic = make_topic(configs={"cleanup.policy": "compact"})
    keys = [b"a", None, b"b", None, b""]
    encoded = encode_batch(
        [
            Record(offset=i, timestamp_ms=1_700_000_000_000, key=key, value=b"v")
            for i, key in enumerate(keys)
        ],
        codec=codec,
    )
    answer = produce(client, topic, encoded)
    assert answer.error_code == INVALID_RECORD
    assert [wrong.batch_index for wrong in answer.record_errors] == [1, 3]
    assert "without a key" in (answer.error_message or "")
    assert end_offset(client, topic) == 0
    assert produce(client, topic, batch(3, codec=codec)).error_code == 0


def test_records_without_a_key_are_named_beside_those_of_a_wrong_time(
    client: WireClient, make_topic: MakeTopic
) -> None:
    """LogValidatorTest.testBatchWithInvalidRecordsAndInvalidTimestamp: the time gives the code."""
    topic = make_topic(configs={"cleanup.policy": "compact"})
    now_ms = int(time.time() * 1000)
    sent = [(b"a", 0), (None, 0), (b"b", 2 * DAY_MS), (None, 2 * DAY_MS)]
    encoded = encode_batch(
        [
            Record(offset=i, timestamp_ms=now_ms + ahead_ms, key=key, value=b"v")
            for i, (key, ahead_ms) in enumerate(sent)
        ]
    )
    answer = produce(client, topic, encoded)
    assert answer.error_code == INVALID_TIMESTAMP
    assert [wrong.batch_index for wrong in answer.record_errors] == [1, 2, 3]
    assert (answer.error_message or "").startswith("record 2: ")
    assert end_offset(client, topic) == 0


def test_records_that_are_not_as_their_header_says_are_refused_where_they_are_read(
    client: WireClient, make_topic: MakeTopic
) -> None:
    """LogValidatorTest.testRecordBatchWithCountOverrides: a code that producers do not repeat."""
    topic = make_topic(configs={"message.timestamp.before.max.ms": str(DAY_MS * 36500)})
    length = batch(3)[61]
    for changes in (
        [(61, ">B", length + 2)],
        [(57, ">i", 4), (23, ">i", 3)],
        [(57, ">i", 2), (23, ">i", 1)],
    ):
        assert produce(client, topic, _changed(batch(3), changes)).error_code == INVALID_RECORD
    assert end_offset(client, topic) == 0

    recompressed = make_topic(configs={"compression.type": "zstd"})
    no_gzip = _changed(batch(3), [(21, ">h", Codec.GZIP)])
    assert produce(client, recompressed, no_gzip).error_code == INVALID_RECORD


def _changed(encoded: bytes, changes: Iterable[tuple[int, str, int]]) -> bytes:
    """The batch with other values at some positions, and a CRC that is right again."""
    changed = bytearray(encoded)
    for position, form, value in changes:
        struct.pack_into(form, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


def test_acks_0_to_a_topic_that_reads_records_is_appended_or_the_connection_closed(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(configs={"compression.type": "gzip", "max.message.bytes": "500"})
    with WireClient(broker.port) as silent:
        silent.send(produce_request(topic, batch(1), acks=0), 9)
        silent.send(produce_request(topic, batch(1), acks=0), 9)
        silent.send(produce_request(topic, batch(1, value=b"v" * 1000), acks=0), 9)
        assert silent.closed_by_broker()
    assert end_offset(client, topic) == 2


# --- old formats -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 0), (2, 1)])
def test_old_messages_become_one_batch(
    client: WireClient, make_topic: MakeTopic, version: int, magic: int, name: str
) -> None:
    topic = make_topic()
    sent = [
        Record(
            offset=i,
            timestamp_ms=1_700_000_000_000 - 7 * i if magic else -1,
            key=b"k%d" % i if i else None,
            value=b"v" * 100 if i != 2 else None,
        )
        for i in range(6)
    ]
    encoded = message_set(sent, magic=magic, codec=CODECS[name])
    encoded += message_set(sent[:1], magic=magic, codec=CODECS[name])
    for base in (0, 7):
        answer = produce(client, topic, encoded, version=version)
        assert (answer.error_code, answer.base_offset) == (0, base)
    fetched = fetch(client, topic)
    headers = [found.header for found in walk(fetched_bytes(fetched))]
    assert [(header.record_count, header.codec) for header in headers] == [(7, CODECS[name])] * 2
    found = records_in(fetched)
    assert [record.offset for record in found] == list(range(14))
    expected = [(r.timestamp_ms, r.key, r.value) for r in [*sent, sent[0]]]
    assert [(r.timestamp_ms, r.key, r.value) for r in found] == expected * 2


def test_old_messages_are_judged_like_others(client: WireClient, make_topic: MakeTopic) -> None:
    topic = make_topic(configs={"max.message.bytes": "1000"})
    good = message_set(records(1), magic=1)
    torn, damaged = good[:-1], bytearray(good)
    damaged[-1] ^= 1
    zstd = bytearray(good)
    zstd[17] = 4
    struct.pack_into(">I", zstd, 12, zlib.crc32(zstd[16:]))
    large = message_set(records(1, value=b"v" * 1500), magic=1)
    for encoded, code in (
        (torn, CORRUPT_MESSAGE),
        (bytes(damaged), CORRUPT_MESSAGE),
        (bytes(zstd), UNSUPPORTED_COMPRESSION_TYPE),
        (large, MESSAGE_TOO_LARGE),
        (batch(1), INVALID_RECORD),
        (b"", INVALID_RECORD),
    ):
        assert produce(client, topic, encoded, version=2).error_code == code
    assert produce(client, topic, good, version=3).error_code == INVALID_RECORD
    assert end_offset(client, topic) == 0


def test_an_old_kafka_python_producer_is_served(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic
) -> None:
    """Pinned to 0.10 it sends Produce 2 with message format 1, without asking for versions."""
    from kafka import KafkaProducer

    topic = make_topic()
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        api_version=(0, 10),
        compression_type="gzip",
        enable_idempotence=False,
    )
    sent = [producer.send(topic, b"%d" % i, timestamp_ms=1_700_000_000_000 + i) for i in range(50)]
    assert [future.get(60).offset for future in sent] == list(range(50))
    producer.close(5)
    found = read_all(client, topic)
    assert [record.value for record in found] == [b"%d" % i for i in range(50)]
    assert [record.timestamp_ms for record in found] == [1_700_000_000_000 + i for i in range(50)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_old_fetches_get_old_messages(
    client: WireClient, make_topic: MakeTopic, version: int, magic: int, codec: Codec
) -> None:
    topic = make_topic()
    assert produce(client, topic, batch(5, codec=codec)).error_code == 0
    assert produce(client, topic, batch(3)).error_code == 0
    assert produce(client, topic, message_set(records(2), magic=magic), version=2).error_code == 0
    fetched = fetch(client, topic, version=version)
    content = fetched_bytes(fetched)
    found = list(any_batch.walk(content))
    assert {one.header.magic for one in found} == {magic}
    assert {one.header.codec for one in found} == {0, codec}
    read = [
        record
        for one in found
        for record in any_batch.iter_records(content, one.header, one.position)
    ]
    assert [record.offset for record in read] == list(range(10))
    expected = [*records(5), *records(3), *records(2)]
    times = [record.timestamp_ms if magic else -1 for record in expected]
    assert [record.timestamp_ms for record in read] == times
    assert [(r.key, r.value) for r in read] == [(r.key, r.value) for r in expected]
    later = fetched_bytes(fetch(client, topic, offset=6, version=version))
    assert next(iter(any_batch.walk(later))).header.base_offset == 6
    assert fetch(client, topic, offset=10, version=version).records_bytes == 0


def test_an_old_fetch_waits_for_records_and_is_told_of_what_it_cannot_read(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    request = fetch_request(fetch_topic(topic, {0: 0}), max_wait_ms=10_000)
    with WireClient(broker.port) as waiting:
        correlation_id = waiting.send(request, 3)
        assert produce(client, topic, batch(1)).error_code == 0
        response = waiting.receive(FetchResponse, 3, correlation_id)
    assert fetched_bytes(response.topics[0].partitions[0])
    assert produce(client, topic, batch(1, codec=Codec.ZSTD)).error_code == 0
    answer = fetch(client, topic, offset=1, version=3)
    assert answer.error_code == UNSUPPORTED_COMPRESSION_TYPE


def test_an_old_kafka_python_consumer_is_served(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic
) -> None:
    """Pinned to 0.10.1 it sends ListOffsets 1 and Fetch 3."""
    from kafka import KafkaConsumer, TopicPartition

    topic = make_topic()
    for codec in (Codec.NONE, Codec.GZIP):
        assert produce(client, topic, batch(20, codec=codec)).error_code == 0
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, api_version=(0, 10, 1), consumer_timeout_ms=60_000
    )
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    found = [next(consumer) for _ in range(40)]
    consumer.close()
    assert [record.offset for record in found] == list(range(40))
    assert [record.timestamp for record in found[:20]] == [r.timestamp_ms for r in records(20)]


def test_the_frame_of_an_old_request_is_the_one_of_old_clients() -> None:
    """No transactional id in front, written out: Kafka 4 no longer has a table of it."""
    body = wire_codec.join(wire_codec.encode(produce_request("t", b"xyz", acks=1), 0))
    assert body == bytes.fromhex("0001 00001388 00000001 0001 74 00000001 00000000 00000003 78797a")


def test_records_without_a_key_are_refused_by_a_compacted_topic_one_by_one(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(configs={"cleanup.policy": "compact"})
    keys = [b"k", None, b"k", None]
    records = [
        Record(offset=i, timestamp_ms=int(time.time() * 1000), key=key, value=b"v")
        for i, key in enumerate(keys)
    ]
    for version in (7, 8, 9):
        answer = produce(client, topic, encode_batch(records), version=version)
        assert answer.error_code == INVALID_RECORD
        named = [wrong.batch_index for wrong in answer.record_errors]
        assert named == ([1, 3] if version >= 8 else [])
    assert produce(client, topic, encode_batch(records[:1]), version=9).error_code == 0
