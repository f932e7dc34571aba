"""The same records from Spark's Kafka source and from the lake: columns, types, rows, mistakes.

Not part of `make test`, because it needs the jars of Spark's Kafka source from Maven Central:
`make check-kafka-source`. A broker with both tiers, real producers, a real S3 server; every record
is archived before anybody compares. Transactions are not compared: our broker has no coordinator
for their producers yet.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.spark_lake import load as load_archive
from strandline.spark_lake import register
from tests.conftest import S3Bucket, make_bucket
from tests.support.broker import eventually
from tests.support.ministack import ServerProcess
from tests.system.tiers.tiered_broker import ARCHIVE_ALL, TIERED, Archive, TieredBroker

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / "bench-data" / "kafka-source"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000
PARTITIONS = 3
RECORDS = 300
TOPICS = ("mixed", "stamped", "shortened")
TRIMMED = 70

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.clients,
    pytest.mark.timeout(600),
]


@dataclass(frozen=True)
class Both:
    """Two readers of the same records."""

    spark: SparkSession
    bootstrap: str
    bucket: S3Bucket
    ends: dict[str, dict[str, int]]

    def kafka(self, **options: object) -> DataFrame:
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        # How long it waits for records that do not come; two minutes by default.
        patience = {"kafkaConsumer.pollTimeoutMs": 5000}
        return reader.options(**_texts({**patience, **options})).load()

    def lake(self, **options: object) -> DataFrame:
        reader = self.spark.read.format("strandline").option(
            "s3.endpoint.url", self.bucket.endpoint_url
        )
        return reader.options(**_texts(options)).load(self.bucket.url)

    def assert_same(self, **options: object) -> int:
        """Compares both with these options, and `load`; how many rows there are."""
        kafka, lake = self.kafka(**options), self.lake(**options)
        assert kafka.schema == lake.schema
        expected = _rows(kafka)
        assert _rows(lake) == expected
        given = {**_texts(options), "s3.endpoint.url": self.bucket.endpoint_url}
        assert _rows(load_archive(self.spark, self.bucket.url, options=given)) == expected
        return len(expected)


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {
        name: json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in options.items()
    }


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    rows = frame.orderBy("topic", "partition", "offset").collect()
    return [row.asDict(recursive=True) for row in rows]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    jars = sorted(JARS.glob("*.jar"))
    assert jars, f"no libraries under {JARS}: run `make check-kafka-source`"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("strandline beside kafka")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def both(
    spark: SparkSession, ministack: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    """`mixed`: all codecs; `stamped`: LogAppendTime; `shortened`: begins at TRIMMED in partition 0.

    Their last partition is empty.
    """
    bucket = make_bucket(ministack.endpoint_url)
    broker = TieredBroker(tmp_path_factory.mktemp("broker"), bucket)
    broker.start()
    try:
        _create(broker, "mixed")
        _create(broker, "stamped", **{"message.timestamp.type": "LogAppendTime"})
        _create(broker, "shortened")
        for topic in ("mixed", "stamped"):
            for codec in CODECS:
                _produce(broker, topic, codec)
        _produce(broker, "shortened", "none")
        archive = Archive.open(bucket)
        ends = {topic: _archived(broker, archive, topic) for topic in TOPICS}
        _trim(broker, archive)
        yield Both(spark, broker.bootstrap, bucket, ends)
    finally:
        broker.kill()


def _create(broker: TieredBroker, topic: str, **configs: str) -> None:
    with broker.client(topic) as client:
        client.create_topic({**TIERED, **ARCHIVE_ALL, **configs}, partitions=PARTITIONS)


def _produce(broker: TieredBroker, topic: str, codec: str) -> None:
    """Keys, values and headers, some of them null and some empty; times out of order."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "compression.codec": codec,
            "enable.idempotence": codec in ("lz4", "zstd"),
            "linger.ms": 5,
        }
    )
    source = random.Random(codec)
    for number in range(RECORDS):
        producer.produce(
            topic,
            key=None if number % 7 == 0 else f"{codec}-{number}".encode()[: number % 5 and 99],
            value=None if number % 11 == 0 else source.randbytes(number % 13 and 300),
            headers=[
                ("codec", codec.encode()),
                ("codec", b"\xff again"),
                ("none", None),
                ("Schlüssel", b""),
            ]
            if number % 3 == 0
            else None,
            timestamp=START_MS + CODECS.index(codec) * 100_000 + source.randrange(100_000),
            partition=number % (PARTITIONS - 1),
        )
    assert producer.flush(30) == 0


def _trim(broker: TieredBroker, archive: Archive) -> None:
    """Deletes the records of `shortened` below TRIMMED, and waits until the archive has it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.delete_records([TopicPartition("shortened", 0, TRIMMED)]).values():
        done.result(30)

    def is_trimmed() -> bool:
        manifest = archive.manifest("shortened")
        return manifest is not None and manifest.log_start_offset == TRIMMED

    eventually(is_trimmed, timeout_s=60)


def _archived(broker: TieredBroker, archive: Archive, topic: str) -> dict[str, int]:
    """Where the partitions end, once all of them is archived."""
    ends: dict[str, int] = {}
    for partition in range(PARTITIONS):
        with broker.client(topic, partition) as client:
            end = client.offset_at(-1)
        if end:
            eventually(
                lambda p=partition, e=end: archive.end_offset(topic, p) >= e,  # type: ignore[misc]
                timeout_s=60,
            )
        ends[str(partition)] = end
    return ends


# --- the same rows ----------------------------------------------------------------------------


def test_all_codecs_nulls_headers_and_times_are_the_same(both: Both) -> None:
    total = RECORDS * len(CODECS)
    assert both.assert_same(subscribe="mixed", includeHeaders=True) == total
    assert both.assert_same(subscribe="stamped", includeHeaders=True) == total
    assert both.assert_same(subscribe="mixed") == total
    kinds = both.lake(subscribe="mixed,stamped").select("topic", "timestampType").distinct()
    assert {tuple(row) for row in kinds.collect()} == {("mixed", 0), ("stamped", 1)}


def test_topics_are_chosen_alike(both: Both) -> None:
    total = RECORDS * len(CODECS)
    assert both.assert_same(subscribe="mixed, stamped") == 2 * total
    assert both.assert_same(subscribe=" mixed,, stamped,") == 2 * total
    assert both.assert_same(SUBSCRIBE="mixed", StartingOFFSETS="earliest") == total
    assert both.assert_same(subscribePattern="(mix|stamp)ed") == 2 * total
    # It is looked for anywhere in the name.
    assert both.assert_same(subscribePattern="^m") == total
    assert both.assert_same(subscribePattern="m.*d") == 2 * total
    assert both.assert_same(assign={"mixed": [0, 2], "stamped": [1]}) == total


def test_offsets_choose_alike(both: Both) -> None:
    start = {"mixed": {"0": 10, "1": -2, "2": -2}}
    end = {"mixed": {"0": 30, "1": -1, "2": -1}}
    end_of_one = both.ends["mixed"]["1"]
    assert both.assert_same(subscribe="mixed", startingOffsets=start, endingOffsets=end) == (
        20 + end_of_one
    )
    assert both.assert_same(subscribe="mixed", startingOffsets="earliest", endingOffsets=end) > 0
    nothing = {"mixed": {"0": 10, "1": 7, "2": 0}}
    same = {"startingOffsets": nothing, "endingOffsets": nothing}
    assert both.assert_same(subscribe="mixed", **same) == 0


def test_times_choose_alike(both: Both) -> None:
    middle = START_MS + 250_000
    assert (
        both.assert_same(
            subscribe="mixed",
            startingTimestamp=middle,
            startingOffsetsByTimestampStrategy="latest",
        )
        > 0
    )
    per_partition = {"mixed": {"0": middle, "1": middle + 60_000}}
    some = {"assign": {"mixed": [0, 1]}}
    assert both.assert_same(**some, startingOffsetsByTimestamp=per_partition) > 0
    assert both.assert_same(**some, endingOffsetsByTimestamp=per_partition) > 0
    assert both.assert_same(**some, endingTimestamp=middle) > 0
    # One time goes before the other bounds, as documented there.
    assert (
        both.assert_same(
            **some,
            startingTimestamp=middle,
            startingOffsetsByTimestamp=per_partition,
            startingOffsets={"mixed": {"0": 1, "1": 2}},
        )
        > 0
    )
    # No record is that late: an error, or nothing of that partition.
    late = {"mixed": {"0": START_MS + 10**9, "1": middle}}
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert both.assert_same(**some, startingOffsetsByTimestamp=late, **strategy) > 0
    # An end that no record reaches is the end.
    assert both.assert_same(**some, endingOffsetsByTimestamp=late) > 0


def test_tasks_are_as_many_and_as_small_as_asked_for(both: Both) -> None:
    few = {"subscribe": "mixed", "maxRecordsPerPartition": 100}
    assert both.assert_same(**few) == RECORDS * len(CODECS)
    # Spark's own, in the version of these jars, reads whole partitions in batch queries.
    sizes = both.lake(**few).rdd.glom().map(len).collect()
    assert max(sizes) <= 100
    assert sum(sizes) == RECORDS * len(CODECS)
    both_ways = {"subscribe": "mixed", "minPartitions": 7, "maxRecordsPerPartition": 100}
    assert both.assert_same(**both_ways) == RECORDS * len(CODECS)
    sizes = both.lake(**both_ways).rdd.glom().map(len).collect()
    assert max(sizes) <= 100
    assert len(sizes) >= 7
    more = {"subscribe": "mixed", "minPartitions": 7}
    assert both.assert_same(**more) == RECORDS * len(CODECS)
    assert both.lake(**more).rdd.getNumPartitions() >= 7


def test_what_is_not_there_is_passed_over_alike_if_that_is_accepted(both: Both) -> None:
    beyond = {"mixed": {"0": both.ends["mixed"]["0"] + 5000, "1": -1}}
    assert (
        both.assert_same(assign={"mixed": [0, 1]}, endingOffsets=beyond, failOnDataLoss=False)
        == both.ends["mixed"]["0"] + both.ends["mixed"]["1"]
    )


def test_what_lies_before_the_log_start_is_passed_over_alike_if_that_is_accepted(
    both: Both,
) -> None:
    one = {"assign": {"shortened": [0]}}
    left = both.ends["shortened"]["0"] - TRIMMED
    assert both.assert_same(**one) == left
    assert both.assert_same(**one, startingOffsets={"shortened": {"0": -2}}) == left
    early = {**one, "startingOffsets": {"shortened": {"0": 3}}}
    assert both.assert_same(**early, failOnDataLoss=False) == left
    at_start = {**one, "startingOffsets": {"shortened": {"0": TRIMMED}}}
    assert both.assert_same(**at_start, endingOffsets={"shortened": {"0": TRIMMED + 4}}) == 4
    # Times before it are those of records that are gone: the first that is left is meant.
    assert both.assert_same(**one, startingTimestamp=0) == left


def test_a_pattern_without_a_match_is_told_where_sparks_source_gives_nothing(both: Both) -> None:
    assert both.kafka(subscribePattern="^nothing").count() == 0
    with pytest.raises(PySparkException, match="subscribePattern matches no topic"):
        both.lake(subscribePattern="^nothing").count()


# --- the same mistakes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "mixed", "subscribePattern": "m.*"},
        {"subscribe": "mixed", "assign": {"mixed": [0]}},
        {"assign": "mixed"},
        {"subscribe": ","},
        {"subscribe": ""},
        {"subscribe": "mixed", "startingOffsets": ""},
        {"subscribe": "mixed", "failOnDataLoss": ""},
        {"subscribe": "mixed", "startingOffsets": "latest"},
        {"subscribe": "mixed", "endingOffsets": "earliest"},
        {"subscribe": "mixed", "startingOffsets": {"mixed": {"0": -1, "1": 0, "2": 0}}},
        {"subscribe": "mixed", "endingOffsets": {"mixed": {"0": -2, "1": 0, "2": 0}}},
        {"subscribe": "mixed", "startingOffsets": {"mixed": {"0": 1}}},
        {
            "subscribePattern": "^mixed$",
            "startingOffsets": {"mixed": {"0": 1, "1": 1, "2": 0}, "stamped": {"0": 1}},
        },
        {"subscribe": "mixed", "startingOffsets": "soon"},
        {"subscribe": "mixed", "startingTimestamp": 2**63},
        {"subscribe": "mixed", "startingTimestamp": "1_700_000_000_000"},
        {"subscribe": "mixed", "startingTimestamp": "yesterday"},
        {"subscribe": "mixed", "startingTimestamp": START_MS + 10**9},
        # Its last partition is empty.
        {"subscribe": "mixed", "startingTimestamp": START_MS},
        {"assign": {"mixed": [0]}, "startingOffsets": {"mixed": {"0": 1, "1": 1}}},
        {"assign": {"mixed": [0]}, "endingOffsetsByTimestamp": {"mixed": {"0": 1, "7": 1}}},
        {
            "assign": {"mixed": [0]},
            "startingTimestamp": START_MS + 300_000,
            "endingTimestamp": START_MS + 100_000,
        },
        {
            "assign": {"mixed": [0]},
            "startingOffsets": {"mixed": {"0": 300}},
            "endingTimestamp": START_MS,
        },
        {"subscribe": "mixed", "minPartitions": 0},
        {"subscribe": "mixed", "minPartitions": "many"},
        {"subscribe": "mixed", "maxRecordsPerPartition": 0},
        {"subscribe": "mixed", "maxRecordsPerPartition": -5},
        {
            "assign": {"mixed": [0]},
            "startingOffsets": {"mixed": {"0": 20}},
            "endingOffsets": {"mixed": {"0": 10}},
        },
        {
            "assign": {"mixed": [0]},
            "startingOffsetsByTimestamp": {"mixed": {"0": START_MS + 20}},
            "endingOffsetsByTimestamp": {"mixed": {"0": START_MS + 10}},
        },
        {
            "assign": {"mixed": [0, 1]},
            "startingOffsets": {"mixed": {"0": 1, "1": 1}},
            "endingOffsets": {"mixed": {"0": 10}},
        },
        {"assign": {"mixed": [0]}, "endingOffsets": {"mixed": {"0": 10**9}}},
        {"assign": {"mixed": [0]}, "startingOffsets": {"mixed": {"0": 10**9}}},
        {"assign": {"shortened": [0]}, "startingOffsets": {"shortened": {"0": 3}}},
        {"subscribe": "nothing"},
        {"assign": {"mixed": [0]}, "startingOffsets": {"stamped": {"0": 1}}},
        {"assign": {"mixed": [0]}, "startingOffsetsByTimestampStrategy": "guess"},
    ],
    ids=str,
)
def test_what_one_refuses_the_other_refuses(both: Both, options: dict[str, Any]) -> None:
    with pytest.raises(Exception):  # noqa: B017  # Java has as many classes as mistakes
        both.kafka(**options).count()
    with pytest.raises(PySparkException, match=r"options? "):
        both.lake(**options).count()
