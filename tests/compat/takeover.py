"""`make takeover`: a folder of an Apache Kafka that was killed, taken over and given back.

    Kafka       every codec, a compacted topic that it cleaned, committed and aborted transactions
                kill -9
    strandline  recovers each partition folder: the records, transactions and lookups are those
                that Kafka's consumers saw; nothing is cut; `verify` has no findings; appends
    Kafka       starts on the same folder and serves all of it, what we appended too

Then the same folder is recovered and compacted by both, and each reads the metadata log of the
other: see beside_kafka.py and cluster_metadata.py.

The libraries of Kafka come from Maven Central (`make kafka-jars`).
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.comparison.peers import Kafka, until
from strandline.storage.clock import SystemClock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.inspect.verify import FileDamage, verify_folders
from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import TopicPartition as Name
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from tests.compat import beside_kafka, cluster_metadata

SEGMENT_BYTES = 1024 * 1024
WAIT_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = {
    "codecs": {},
    "table": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "transfers": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A record as a consumer gets it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def write(bootstrap: str) -> None:
    """Fills all topics."""
    source = random.Random(7)
    for codec in CODECS:
        producer = _producer(bootstrap, codec, idempotent=codec in ("lz4", "none"))
        for number in range(1500):
            producer.produce(
                "codecs",
                partition=0,
                key=None if number % 9 == 0 else b"%s-%d" % (codec.encode(), number),
                value=None if number % 11 == 0 else source.randbytes(number % 900),
                headers=[("codec", codec.encode()), ("none", None)] if number % 3 == 0 else [],
                timestamp=1_700_000_000_000 + source.randrange(10**9),
            )
        assert producer.flush(WAIT_S) == 0
    for number in range(8):
        producer = _producer(bootstrap, CODECS[number % 5], idempotent=number % 2 == 0)
        for key in range(600):
            value = None if (key + number) % 7 == 0 else source.randbytes(900)
            producer.produce("table", partition=0, key=b"%d" % key, value=value)
        assert producer.flush(WAIT_S) == 0
    for number in range(12):
        producer = _producer(bootstrap, "none", transactional_id=f"payer-{number % 3}")
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for key in range(20):
            producer.produce("transfers", partition=0, key=b"%d-%d" % (number, key), value=b"x")
        if number % 3 == 0:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)


def _producer(
    bootstrap: str, codec: str, *, idempotent: bool = False, transactional_id: str = ""
) -> Producer:
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "compression.codec": codec,
        "enable.idempotence": idempotent or bool(transactional_id),
        "batch.size": 16_000,
        "linger.ms": 5,
    }
    if transactional_id:
        settings["transactional.id"] = transactional_id
    return Producer(settings)


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Seen]:
    """The whole topic, as a consumer gets it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "takeover",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen: list[Seen] = []
    silent_s = 0
    while True:
        # Waits for all it asks for, or for a second.
        messages = consumer.consume(1000, timeout=1)
        silent_s = 0 if messages else silent_s + 1
        assert silent_s < WAIT_S, f"no answer about {topic}"
        for message in messages:
            error = message.error()
            if error is not None:
                assert error.code() == -191, error  # the end of the partition
                consumer.close()
                return seen
            offset = message.offset()
            assert offset is not None
            seen.append(
                Seen(
                    offset=offset,
                    timestamp_ms=message.timestamp()[1],
                    key=message.key(),
                    value=message.value(),
                    headers=tuple(message.headers() or ()),
                )
            )


def open_log(folder: Path, topic: str) -> LocalLog:
    """Recovers the partition folder, believing nothing but Kafka's recovery point."""
    name = Name(topic, 0)
    directory = folder / f"{topic}-0"
    topic_id = checkpoint.read_topic_id(directory)
    assert topic_id is not None, directory
    points = checkpoint.read_offsets(folder / checkpoint.RECOVERY_POINTS)
    starts = checkpoint.read_offsets(folder / checkpoint.LOG_STARTS)
    cleaned = checkpoint.read_offsets(folder / checkpoint.CLEANED_OFFSETS)
    return LocalLog.open(
        directory,
        topic_partition=name,
        topic_id=topic_id,
        config=LogConfig(segment_bytes=SEGMENT_BYTES, file_delete_delay_ms=0),
        clock=SystemClock(),
        recovery_point=points.get(name, 0),
        log_start_offset=starts.get(name, 0),
        clean_shutdown=False,
        was_compacted=name in cleaned,
    )


def records_of(log: LocalLog) -> list[Seen]:
    """What a read_committed consumer of ours would get."""
    offset, seen = log.start_offset, []
    aborted = log.aborted_transactions(log.start_offset, log.end_offset)

    def is_aborted(header: BatchHeader) -> bool:
        return header.is_transactional and any(
            one.producer_id == header.producer_id
            and one.first_offset <= header.base_offset <= one.last_offset
            for one in aborted
        )

    while offset < log.end_offset:
        found = log.read(offset, bytes_max=1 << 20)
        assert found.range is not None, offset
        content = found.range.read()
        for batch in walk(content):
            if not batch.header.is_control and not is_aborted(batch.header):
                seen += map(_seen, iter_records(content, batch.header, batch.position))
        offset = found.next_offset
    return seen


def _seen(record: Record) -> Seen:
    return Seen(
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=None if record.key is None else bytes(record.key),
        value=None if record.value is None else bytes(record.value),
        headers=tuple(
            (header.key, None if header.value is None else bytes(header.value))
            for header in record.headers
        ),
    )


def take_over(folder: Path, topic: str, expected: list[Seen]) -> Seen:
    """Opens, compares and appends; what was appended."""
    log = open_log(folder, topic)
    report = log.recovery_report
    assert (report.bytes_cut, report.segments_removed) == (0, 0), report
    found = records_of(log)
    assert found == expected, f"{topic}: {len(found)} records, Kafka served {len(expected)}"
    for seen in random.Random(1).sample(expected, 20):
        hit = log.find_timestamp(seen.timestamp_ms)
        first = next(one for one in expected if one.timestamp_ms >= seen.timestamp_ms)
        assert hit is None or hit.offset <= first.offset, (topic, seen, hit)
    appended = Seen(
        offset=log.end_offset, timestamp_ms=1, key=b"ours", value=topic.encode(), headers=()
    )
    batch = encode_batch([Record(offset=0, timestamp_ms=1, key=b"ours", value=topic.encode())])
    log.append(memoryview(bytearray(batch)), leader_epoch=max(log.leader_epochs.latest_epoch, 0))
    log.close()
    return appended


def run(folder: Path, say: Callable[[str], None]) -> None:
    """Raises AssertionError at what is not as it must be."""
    kafka = Kafka(
        folder,
        settings={
            "log.cleaner.backoff.ms": "200",
            "log.segment.bytes": str(SEGMENT_BYTES),
            "log.flush.offset.checkpoint.interval.ms": "1000",
            # The records are of years ago, and Kafka looks half a minute after its start.
            "log.retention.ms": "-1",
        },
    )
    data = folder / "data"
    try:
        kafka.start()
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        topics = [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
        for created in admin.create_topics(topics).values():
            created.result(WAIT_S)
        for topic in TOPICS:
            until(lambda topic=topic: _is_led(kafka, topic), timeout_s=WAIT_S)
        write(kafka.bootstrap)
        until(lambda: _is_cleaned(data), timeout_s=WAIT_S)
        say("Apache Kafka wrote: codecs, a table that it compacted, transactions")
        expected = {topic: read(kafka.bootstrap, topic) for topic in TOPICS}
        kafka.end(by=signal.SIGKILL)
        for topic, seen in expected.items():
            seen.append(take_over(data, topic, seen))
            say(f"{topic}: {len(seen) - 1} records are what Kafka served after kill -9")
        findings = [one for one in verify_folders([data]).findings if one.damage is FileDamage.DATA]
        assert findings == [], findings
        kafka.start()
        for topic, seen in expected.items():
            until(lambda topic=topic: _is_led(kafka, topic), timeout_s=WAIT_S)
            assert read(kafka.bootstrap, topic) == seen, topic
            say(f"{topic}: Kafka serves it with what we appended")
    finally:
        kafka.end()


def _is_led(kafka: Kafka, topic: str) -> bool:
    metadata = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(topic, timeout=10)
    return any(p.leader >= 0 for p in metadata.topics[topic].partitions.values())


def _is_cleaned(data: Path) -> bool:
    path = data / checkpoint.CLEANED_OFFSETS
    return path.exists() and checkpoint.read_offsets(path).get(Name("table", 0), 0) > 3000


def main() -> int:
    for part in (run, beside_kafka.run, cluster_metadata.run):
        with tempfile.TemporaryDirectory(prefix="strandline-takeover-") as name:
            part(Path(name), lambda line: print(line, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
