"""What real producers wrote comes out of the bucket as a real consumer gets it from the broker."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from strandline.spark_lake import count, scan
from strandline.spark_lake.plan.planner import Skip
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.storage.errors import AccessDenied, ObjectCorrupt, TierError, TierUnavailable
from tests.conftest import S3Bucket
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.system.tiers.lake.uploads import uploaded
from tests.system.tiers.tiered_broker import SEGMENT_BYTES, TIERED, WAIT_S, Archive, TieredBroker

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.clients]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 2
RECORDS_PER_CODEC = 1000


def sent(codec: str) -> Iterator[dict[str, Any]]:
    """Records with keys, values and headers, some of them null, some empty.

    Values are random, but those that no codec has made small yet: these can be made small.
    """
    source = random.Random(codec)
    repeated = 100 if codec == "none" else 1
    for number in range(RECORDS_PER_CODEC):
        value = source.randbytes((number % 13 and 2000) // repeated) * repeated
        yield {
            "key": None if number % 7 == 0 else f"{codec}-{number}".encode(),
            "value": None if number % 11 == 0 else value,
            "headers": [("codec", codec.encode()), ("none", None)] if number % 3 == 0 else None,
            "timestamp": 1_700_000_000_000 + source.randrange(10**6),
            "partition": number % PARTITIONS,
        }


def consumed(broker: TieredBroker, ends: dict[int, int]) -> list[dict[str, Any]]:
    """The same columns as a scan, in order of partition and offset."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "lake",
        "enable.partition.eof": "false",
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("t", partition, 0) for partition in ends])
    rows: list[dict[str, Any]] = []
    given_up_s = time.monotonic() + WAIT_S
    while len(rows) < sum(ends.values()):
        messages = consumer.consume(1000, timeout=0.5)
        assert messages or time.monotonic() < given_up_s, f"{len(rows)} of {ends}"
        for message in messages:
            assert message.error() is None, message.error()
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if offset < ends[partition]:
                pairs = [{"key": key, "value": value} for key, value in message.headers() or ()]
                rows.append(
                    {
                        "key": message.key(),
                        "value": message.value(),
                        "topic": message.topic(),
                        "partition": partition,
                        "offset": offset,
                        "timestamp": message.timestamp()[1],
                        "timestampType": message.timestamp()[0] - 1,
                        "headers": pairs or None,
                    }
                )
    consumer.close()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.parametrize("compression", ["producer", "zstd"])
def test_records_of_all_codecs_are_the_same_from_the_bucket_and_from_the_broker(
    broker: TieredBroker, archive: Archive, s3_bucket: S3Bucket, compression: str
) -> None:
    with broker.client("t") as client, broker.client("t", 1) as other:
        client.create_topic(
            {
                **TIERED,
                "segment.bytes": str(2 * SEGMENT_BYTES),
                "strandline.remote.compression.type": compression,
            },
            partitions=PARTITIONS,
        )
        for codec in CODECS:
            producer = Producer(
                {
                    "bootstrap.servers": broker.bootstrap,
                    "compression.codec": codec,
                    "enable.idempotence": codec in ("lz4", "zstd"),
                    "linger.ms": 5,
                }
            )
            for record in sent(codec):
                producer.produce("t", **record)
            assert producer.flush(30) == 0
        ends = {0: broker.wait_until_archived(client), 1: broker.wait_until_archived(other)}
    assert min(ends.values()) > SEGMENT_BYTES // 2000
    rewritten = [e for e in archive.segments("t") if e.recompressed_from_bytes is not None]
    assert bool(rewritten) == (compression == "zstd")
    options = {"s3.endpoint.url": s3_bucket.endpoint_url, "includeHeaders": True}
    rows = scan(s3_bucket.url, "t", options=options).read_all().to_pylist()
    for row in rows:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    assert rows == consumed(broker, ends)
    assert count(s3_bucket.url, "t", options=options) == len(rows)
    # The filters that the broker made at upload know every key, and deny others.
    key = next(row["key"] for row in rows if row["key"])
    found = scan(s3_bucket.url, "t", filters=[("key", "==", key)], options=options).read_all()
    assert found.column("key").to_pylist() == [key]
    query = make_query(s3_bucket.url, "t", filters=[("key", "==", "nobody")], options=options)
    plan = query.plan(query.open())
    assert plan.segments_planned + plan.skipped[Skip.KEYS].segment_count == plan.segments_total
    assert plan.skipped[Skip.KEYS].segment_count > 0
    broker.stop()
    assert scan(s3_bucket.url, "t", options=options).read_all().num_rows == len(rows)


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (Rule(action=Action.STATUS, status=403, code="AccessDenied", times=-1), AccessDenied),
        (Rule(action=Action.CORRUPT, path=r"\.log", at_byte=500, times=-1), ObjectCorrupt),
        (Rule(action=Action.STATUS, path=r"\.log", status=503, times=-1), TierUnavailable),
    ],
)
def test_what_the_store_answers_is_told_with_the_object(
    s3_bucket: S3Bucket, fault_proxy: FaultProxy, tmp_path: Path, rule: Rule, kind: type[TierError]
) -> None:
    uploaded(s3_bucket, tmp_path)
    fault_proxy.add(rule)
    options = {"s3.endpoint.url": fault_proxy.endpoint_url}
    with pytest.raises(kind, match=s3_bucket.url):
        scan(s3_bucket.url, "t", options=options).read_all()


@pytest.mark.parametrize("action", [Action.CORRUPT, Action.RESET_BEFORE, Action.TRUNCATE])
def test_what_goes_wrong_once_costs_no_row(
    s3_bucket: S3Bucket, fault_proxy: FaultProxy, tmp_path: Path, action: Action
) -> None:
    uploaded(s3_bucket, tmp_path)
    rule = fault_proxy.add(Rule(action=action, path=r"\.log", at_byte=500))
    options = {"s3.endpoint.url": fault_proxy.endpoint_url}
    table = scan(s3_bucket.url, "t", columns=["offset"], options=options, threads=1).read_all()
    assert table.column("offset").to_pylist() == list(range(600))
    assert rule.hit_count == 1
