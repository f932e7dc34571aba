"""A compacted topic over both tiers: consumers, the lake and a scrub agree, also after a kill."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from strandline.spark_lake import scan
from tests.conftest import S3Bucket
from tests.support.broker import eventually, size_bytes
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST_LOCAL
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.clients]

TOPIC = "table"
KEYS = 700
VALUE_BYTES = 500
ROUNDS = 8
COMPACTED = {
    **TIERED,
    **FREE_LOCALLY,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.3",
    "delete.retention.ms": "0",
}

Table = dict[bytes, bytes]


def write(broker: TieredBroker, table: Table, *, seed: int) -> None:
    """A new value, or a tombstone, for each key in some order; batches of all codecs."""
    source = random.Random(seed)
    codec = ("lz4", "none", "zstd", "gzip")[seed % 4]
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.codec": codec})
    for number in source.sample(range(KEYS), KEYS):
        key, value = b"%d" % number, source.randbytes(VALUE_BYTES)
        if source.random() < 0.1:
            producer.produce(TOPIC, key=key, value=None, partition=0)
            table.pop(key, None)
        else:
            producer.produce(TOPIC, key=key, value=value, partition=0)
            table[key] = value
    assert producer.flush(WAIT_S) == 0


def consumed(broker: TieredBroker, end_offset: int) -> Iterator[tuple[int, bytes, bytes | None]]:
    """What a client reads from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    deadline_s = time.monotonic() + WAIT_S
    while consumer.position([TopicPartition(TOPIC, 0)])[0].offset < end_offset:
        assert time.monotonic() < deadline_s
        for message in consumer.consume(1000, timeout=1):
            if message.error() is None:
                offset, key = message.offset(), message.key()
                assert offset is not None
                assert key is not None
                yield offset, bytes(key), message.value()
            else:
                consumer.close()
                return
    consumer.close()


def table_of(broker: TieredBroker, end_offset: int) -> Table:
    """What a consumer ends with."""
    table: Table = {}
    offsets: list[int] = []
    for offset, key, value in consumed(broker, end_offset):
        offsets.append(offset)
        if value is None:
            table.pop(key, None)
        else:
            table[key] = bytes(value)
    assert offsets == sorted(set(offsets))
    return table


def test_a_compacted_topic_is_compacted_in_both_tiers_and_loses_no_key(
    make_broker: MakeBroker, archive: Archive, s3_bucket: S3Bucket
) -> None:
    broker = make_broker(settings={"log.cleaner.backoff.ms": "200"})
    broker.start()
    table: Table = {}
    with broker.client(TOPIC) as client:
        client.create_topic(COMPACTED)
        for seed in range(ROUNDS):
            write(broker, table, seed=seed)

        def is_compacted() -> bool:
            manifest = archive.manifest(TOPIC)
            return manifest is not None and manifest.compaction is not None

        eventually(is_compacted, timeout_s=WAIT_S)
        pending = broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        end_offset = client.offset_at(-1)
    assert archive.segments(TOPIC)[-1].end_offset == pending
    archived_records = sum(entry.record_count for entry in archive.segments(TOPIC))
    assert archived_records < pending // 2
    assert table_of(broker, end_offset) == table
    broker.kill()
    broker.start()
    assert table_of(broker, end_offset) == table

    # The lake reads the same from the bucket alone: the archived part of the table.
    options = {"s3.endpoint.url": s3_bucket.endpoint_url}
    rows = scan(s3_bucket.url, TOPIC, columns=["offset", "key", "value"], options=options)
    lake = {row["key"]: row for row in rows.read_all().to_pylist()}
    in_archive = {
        key: (offset, value)
        for offset, key, value in consumed(broker, end_offset)
        if offset < pending
    }
    assert {key: (row["offset"], row["value"]) for key, row in lake.items()} == in_archive
    some_key = next(iter(in_archive))
    found = scan(s3_bucket.url, TOPIC, filters=[("key", "==", some_key)], options=options)
    assert in_archive[some_key] in {
        (row["offset"], row["value"]) for row in found.read_all().to_pylist()
    }
    assert archive.findings() == []
    assert broker.warnings("compact") == []
    assert SEGMENT_BYTES < KEYS * VALUE_BYTES * ROUNDS


def test_a_fetch_from_a_gap_at_the_end_of_the_archive_goes_on_with_what_is_local(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker(settings={"log.cleaner.backoff.ms": "100"})
    broker.start()
    value = random.Random(1).randbytes(10_000)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

    def write_keys(names: list[str]) -> None:
        for name in names:
            producer.produce(TOPIC, key=name, value=value, partition=0)
            # A batch each.
            assert producer.flush(WAIT_S) == 0

    def first_segment_has_a_gap() -> bool:
        files = broker.segment_files(TOPIC)
        # A pass before the second segment is closed leaves the last of the first, key "again".
        return len(files) == 3 and 0 < size_bytes(files[0]) < (80 + 1) * len(value)

    with broker.client(TOPIC) as client:
        client.create_topic({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
        write_keys([*(f"a{number}" for number in range(80)), *["again"] * 40])
        write_keys([f"b{number}" for number in range(110)])
        eventually(first_segment_has_a_gap, timeout_s=WAIT_S)
        border = int(broker.segment_files(TOPIC)[1].stem)
        properties = {
            **TIERED,
            "cleanup.policy": "delete",
            "local.retention.bytes": str(SEGMENT_BYTES // 2),
        }
        assert broker.alter_topic(TOPIC, properties) == 0
        eventually(lambda: client.offset_at(EARLIEST_LOCAL) == border, timeout_s=WAIT_S)
    eventually(lambda: archive.end_offset(TOPIC) > border, timeout_s=WAIT_S)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    for offset in (85, border - 1):
        consumer.assign([TopicPartition(TOPIC, 0, offset)])
        (message,) = consumer.consume(1, timeout=WAIT_S)
        assert message.error() is None
        assert message.offset() >= border
        assert message.key() == b"again"
    consumer.close()
