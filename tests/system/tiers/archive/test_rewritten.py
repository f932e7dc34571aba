"""Batches that were rewritten with zstd on their way to the bucket, and everybody who reads them.

The folder is one that Kafka might have left behind: transactions that were committed, aborted and
left open, idempotent producers, every codec, both kinds of timestamps, null keys and values,
headers, and records of a megabyte. Whoever reads it from the bucket has to get what was written.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from strandline.broker.cli import main
from strandline.spark_lake import scan
from strandline.storage.clock import SystemClock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.model import TimestampType
from strandline.storage.model import TopicPartition as Partition
from strandline.storage.records.batch import any_batch
from strandline.storage.records.batch.marker import MarkerType, TransactionMarker, encode_marker
from strandline.storage.records.batch.record import Header, Record, encode_batch
from strandline.storage.records.compression import Codec
from tests.support.broker import eventually
from tests.support.wire import WireClient
from tests.system.calls import fetch, fetched_bytes
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST_LOCAL, LATEST_TIERED, LogClient
from tests.system.tiers.restoring import mirrors_topic, run_restore
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    REGION,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.clients]

TOPIC = "rewritten"
REWRITTEN = {
    **TIERED,
    **FREE_LOCALLY,
    "strandline.remote.compression.type": "zstd",
    "max.message.bytes": str(4 * SEGMENT_BYTES),
}
LARGE_BYTES = 1_000_000
ROUNDS = 160
FIRST_MS = 1_700_000_000_000
MARKER_COMMIT, MARKER_ABORT = MarkerType.COMMIT, MarkerType.ABORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A record as a consumer sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    timestamp_type: int


@dataclass(slots=True, kw_only=True)
class Written:
    """What was appended; `open_offset` is where the transaction begins that never ended."""

    rows: list[Row] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)
    # Every record's timestamp, those of markers too, by offset.
    times: dict[int, int] = field(default_factory=dict)
    open_offset: int = 0

    def seen(self, end_offset: int, *, committed: bool) -> list[Row]:
        """The rows below `end_offset` at an isolation level."""
        return [
            row
            for row in self.rows
            if row.offset < end_offset and not (committed and row.offset in self.aborted)
        ]

    def first_at(self, timestamp_ms: int, end_offset: int) -> int:
        """What ListOffsets finds for that time."""
        return next(o for o, ms in self.times.items() if ms >= timestamp_ms and o < end_offset)


class Writer:
    """Appends to a log as a broker's produce handler and its transactions do."""

    def __init__(self, log: LocalLog) -> None:
        self.written = Written()
        self._log = log
        self._chance = random.Random(5)
        self._sequences: dict[int, int] = {}
        self._open: dict[int, list[int]] = {}
        self._now_ms = FIRST_MS

    def batch(
        self,
        *,
        codec: Codec,
        producer_id: int = -1,
        transactional: bool = False,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        value_bytes: int = 900,
    ) -> None:
        base = self._log.end_offset
        count = 1 if value_bytes >= LARGE_BYTES else self._chance.randint(1, 30)
        made = [self._record(base + index, value_bytes) for index in range(count)]
        if timestamp_type is TimestampType.LOG_APPEND_TIME:
            made = [
                Record(
                    offset=record.offset,
                    timestamp_ms=made[-1].timestamp_ms,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
                for record in made
            ]
        sequence = self._sequences.get(producer_id, 0)
        if producer_id >= 0:
            self._sequences[producer_id] = sequence + count
        if transactional:
            self._open.setdefault(producer_id, []).extend(range(base, base + count))
        self._append(
            encode_batch(
                made,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
                base_sequence=sequence if producer_id >= 0 else -1,
                transactional=transactional,
                timestamp_type=timestamp_type,
            )
        )
        for record in made:
            self.written.times[record.offset] = record.timestamp_ms
            self.written.rows.append(
                Row(
                    offset=record.offset,
                    key=record.key,
                    value=record.value,
                    headers=tuple((header.key, header.value) for header in record.headers),
                    timestamp_ms=record.timestamp_ms,
                    timestamp_type=int(timestamp_type),
                )
            )

    def end(self, producer_id: int, kind: MarkerType) -> None:
        """The marker of that producer's transaction."""
        offsets = self._open.pop(producer_id, [])
        if kind is MARKER_ABORT:
            self.written.aborted.update(offsets)
        key, value = encode_marker(TransactionMarker(kind, 0))
        offset = self._log.end_offset
        self._now_ms += 7
        marker = Record(offset=offset, timestamp_ms=self._now_ms, key=key, value=value)
        self.written.times[offset] = self._now_ms
        self._append(
            encode_batch(
                [marker],
                producer_id=producer_id,
                producer_epoch=0,
                transactional=True,
                control=True,
            )
        )

    def _record(self, offset: int, value_bytes: int) -> Record:
        chance = self._chance
        self._now_ms += chance.randint(0, 5)
        word = chance.randbytes(20)
        return Record(
            offset=offset,
            # In no order within a batch.
            timestamp_ms=self._now_ms - chance.randint(0, 3),
            key=None if offset % 7 == 0 else b"key-%d" % (offset % 50),
            value=None if offset % 11 == 0 else word * (chance.randint(1, value_bytes) // 20 + 1),
            headers=(Header("a", None), Header("b", word)) if offset % 3 == 0 else (),
        )

    def _append(self, encoded: bytes) -> None:
        self._log.append(
            memoryview(bytearray(encoded)), leader_epoch=0, origin=AppendOrigin.COORDINATOR
        )


def write(broker: TieredBroker) -> Written:
    """Fills the partition while the broker is down."""
    with broker.client(TOPIC) as client:
        topic_id = client.create_topic(REWRITTEN)
    assert broker.stop() == 0
    log = LocalLog.open(
        broker.data / f"{TOPIC}-0",
        topic_partition=Partition(TOPIC, 0),
        topic_id=topic_id,
        config=LogConfig.resolve({"segment.bytes": str(SEGMENT_BYTES)}),
        clock=SystemClock(),
        recovery_point=0,
        log_start_offset=0,
        clean_shutdown=True,
    )
    writer = Writer(log)
    codecs = list(Codec)
    for number in range(ROUNDS):
        codec = codecs[number % len(codecs)]
        kind = list(TimestampType)[number // 3 % 2]
        writer.batch(codec=codec, timestamp_type=kind)
        writer.batch(codec=codec, producer_id=9, timestamp_type=kind)
        for producer_id in (11, 12):
            writer.batch(codec=codec, producer_id=producer_id, transactional=True)
        if number % 40 == 5:
            writer.batch(codec=codec, value_bytes=LARGE_BYTES)
            writer.batch(codec=codec, producer_id=12, transactional=True, value_bytes=LARGE_BYTES)
        # Transactions of both lengths: within a segment, and over the border of two.
        if number % 3 == 2:
            writer.end(11, MARKER_ABORT if number % 2 else MARKER_COMMIT)
        if number % 30 == 29:
            writer.end(12, MARKER_COMMIT if number % 60 == 29 else MARKER_ABORT)
    writer.end(11, MARKER_COMMIT)
    writer.end(12, MARKER_ABORT)
    log.roll()
    # Open at the end of a closed segment: what comes before is archived, this segment is not.
    writer.batch(codec=Codec.GZIP)
    writer.written.open_offset = log.end_offset
    writer.batch(codec=Codec.GZIP, producer_id=13, transactional=True)
    log.roll()
    writer.batch(codec=Codec.NONE)
    log.close()
    return writer.written


def consumed(broker: TieredBroker, end_offset: int, isolation: str) -> list[Row]:
    """All rows below `end_offset`, as librdkafka gives them."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.partition.eof": "false",
            "check.crcs": "true",
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    rows: list[Row] = []
    given_up_s = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < given_up_s:
            for message in consumer.consume(1000, timeout=0.5):
                assert message.error() is None, message.error()
                offset = message.offset()
                assert offset is not None
                if offset < end_offset:
                    rows.append(row_of(message, offset))
            # Markers move it on as well.
            (place,) = consumer.position([TopicPartition(TOPIC, 0)])
            if place.offset >= end_offset:
                return rows
        raise AssertionError(f"{len(rows)} rows, {rows[-1:]}")
    finally:
        consumer.close()


def row_of(message: Any, offset: int) -> Row:
    kind, timestamp_ms = message.timestamp()
    return Row(
        offset=offset,
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=timestamp_ms,
        timestamp_type=kind - 1,
    )


def check_reads(broker: TieredBroker, written: Written, end_offset: int) -> None:
    """Both isolation levels, and lookups by time."""
    assert consumed(broker, end_offset, "read_uncommitted") == written.seen(
        end_offset, committed=False
    )
    assert consumed(broker, end_offset, "read_committed") == written.seen(
        end_offset, committed=True
    )
    with broker.client(TOPIC) as client:
        check_times(client, written, end_offset)


def check_old_consumers(broker: TieredBroker, written: Written, end_offset: int) -> None:
    """They do not know zstd, and could read these batches before the archive rewrote them."""
    rows = written.seen(end_offset, committed=False)
    for version in (1, 3, 4, 9):
        with WireClient(broker.port) as client:
            read = read_by_old_consumer(client, rows[-1].offset + 1, version)
        assert read == [(row.offset, row.key, row.value) for row in rows]


def read_by_old_consumer(
    client: WireClient, end_offset: int, version: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    rows = []
    offset = 0
    given_up_s = time.monotonic() + WAIT_S
    while offset < end_offset:
        assert time.monotonic() < given_up_s, offset
        answer = fetch(client, TOPIC, offset, version=version, max_wait_ms=500)
        assert answer.error_code == 0
        content = fetched_bytes(answer)
        for one in any_batch.walk(content):
            assert one.header.codec != Codec.ZSTD
            if one.header.is_control:
                offset = one.header.next_offset
                continue
            rows += [
                (record.offset, record.key, record.value)
                for record in any_batch.iter_records(content, one.header, one.position)
                if offset <= record.offset < end_offset
            ]
            offset = one.header.next_offset
    return rows


def check_times(client: LogClient, written: Written, end_offset: int) -> None:
    known = [ms for offset, ms in written.times.items() if offset < end_offset]
    for timestamp_ms in random.Random(3).sample(range(min(known), max(known)), 40):
        listed = client.list_offset(timestamp_ms)
        wanted = written.first_at(timestamp_ms, end_offset)
        assert (listed.error_code, listed.offset) == (0, wanted)
        assert listed.timestamp_ms == written.times[wanted]


def check_lake(archive: Archive, written: Written, end_offset: int) -> None:
    options: dict[str, str | int | bool] = {
        "s3.endpoint.url": archive.bucket.endpoint_url,
        "includeHeaders": True,
    }
    rows = scan(archive.bucket.url, TOPIC, options=options).read_all().to_pylist()
    found = [
        Row(
            offset=row["offset"],
            key=row["key"],
            value=row["value"],
            headers=tuple((pair["key"], pair["value"]) for pair in row["headers"] or ()),
            timestamp_ms=round(row["timestamp"].timestamp() * 1000),
            timestamp_type=row["timestampType"],
        )
        for row in rows
    ]
    assert same(found, written.seen(end_offset, committed=True))


def same(found: Sequence[Row], wanted: Sequence[Row]) -> bool:
    """Said by the first that differs: whole rows have a megabyte."""
    for one, other in zip(found, wanted, strict=False):
        assert one == other
    assert len(found) == len(wanted)
    return True


def test_rewritten_batches_are_read_as_they_were_written_wherever_they_are_read(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker()
    broker.start()
    written = write(broker)
    broker.start()
    with broker.client(TOPIC) as client:
        end_offset = written.open_offset
        files = broker.segment_files(TOPIC)
        border = max(int(path.stem) for path in files if int(path.stem) < end_offset)
        eventually(lambda: client.offset_at(LATEST_TIERED) == border - 1, timeout_s=WAIT_S)
        eventually(lambda: client.offset_at(EARLIEST_LOCAL) == border, timeout_s=WAIT_S)
    entries = archive.segments(TOPIC)
    assert entries[-1].end_offset == border
    assert all(entry.recompressed_from_bytes is not None for entry in entries)
    assert len(entries) > 3
    check_reads(broker, written, border)
    check_old_consumers(broker, written, border)
    # Over the border of the tiers, too.
    last = written.seen(end_offset, committed=True)
    assert consumed(broker, end_offset, "read_committed") == last
    options = ["--remote", archive.bucket.url, "--endpoint-url", archive.bucket.endpoint_url]
    assert main(["archive", "verify", *options, "--region", REGION, "--deep"]) == 0
    check_lake(archive, written, border)
    replica = make_broker(
        name="replica", settings={"offsets.topic.num.partitions": "1", "node.id": "7"}
    )
    replica.command = ("serve", "--read-only")
    replica.start()
    check_reads(replica, written, border)
    replica.kill()
    eventually(lambda: mirrors_topic(archive, TOPIC), timeout_s=WAIT_S)
    broker.kill()
    shutil.rmtree(broker.data)
    ended = run_restore(broker)
    assert ended.returncode == 0, ended.stderr
    broker.start()
    check_reads(broker, written, border)
    with broker.client(TOPIC) as client:
        assert archive.end_offset(TOPIC) == border == client.offset_at(-1)
