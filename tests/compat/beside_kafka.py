"""The second part of `make takeover`: two copies of one folder, one for Kafka and one for us.

    Kafka       small segments, transactions, idempotent producers, tombstones
                kill -9
    two copies  the same damage in both: torn and overwritten tails, turned bits, files that are
                gone, damaged or nobody's
    Kafka       recovers its copy and compacts the tables, twice
    strandline  recovers and compacts the other one

Both have to have the same batches, with the same records in them, between the same offsets, and
name the same aborted transactions. Follows what LogLoaderTest and LogCleanerTest of Kafka show.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin import NewTopic as Topic

from bench.comparison.peers import Kafka, until
from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.storage.clock import SystemClock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.cleaner.cleaner import CleanerConfig, LogCleaner
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import TopicPartition as Name
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.records.compression import Codec
from tests.support.manual_clock import ManualClock
from tests.support.wire import WireClient
from tests.system.calls import (
    EARLIEST,
    LATEST,
    fetch_request,
    fetch_topic,
    fetched_bytes,
    offset_at,
    produce,
)
from tests.unit.storage.local.compaction import InlineProcess, InThisThread

WAIT_S = 60.0
LOGS = tuple(f"log{number:02}" for number in range(24))
TABLES = tuple(f"table{number:02}" for number in range(8))
SEGMENT_BYTES = 1500
DELETE_RETENTION_MS = 3000
ROUNDS = 6
# Kafka 4.1 has no later one.
LIST_OFFSETS_VERSION = 9
SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.initial.task.delay.ms": "100",
    # A transaction that is open stays so.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
}
SEGMENTS = {"internal.segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": "200"}
TABLE = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    # Until both have a copy.
    "min.compaction.lag.ms": "3600000",
}
CONFIG = LogConfig(
    segment_bytes=SEGMENT_BYTES,
    index_interval_bytes=200,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DELETE_RETENTION_MS,
    file_delete_delay_ms=0,
)
# Closes the segment before it, so that this can be compacted.
CLOSING = encode_batch([Record(offset=0, timestamp_ms=1, key=b"end", value=bytes(1300))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a log has below its last stable offset: batches, but for size and CRC, and records."""

    start_offset: int
    batches: tuple[tuple[BatchHeader, tuple[Record, ...]], ...]
    # Producer id and first offset.
    aborted: frozenset[tuple[int, int]]


def run(folder: Path, say: Callable[[str], None]) -> None:
    """Raises AssertionError where both are not the same."""
    kafka = Kafka(folder, settings=SETTINGS)
    theirs, ours = folder / "data", folder / "ours"
    try:
        kafka.start()
        _write(kafka, random.Random(5))
        kafka.end(by=signal.SIGKILL)
        source = random.Random(7)
        damage = {topic: _damage(theirs / f"{topic}-0", source) for topic in LOGS}
        shutil.copytree(theirs, ours)
        kafka.start()
        with _client(kafka) as client:
            until(lambda: _are_led(client), timeout_s=WAIT_S)
            logs = {topic: _served(client, topic) for topic in LOGS}
            _let_compact(kafka)
            rounds = [_compacted(client, theirs)]
            time.sleep(DELETE_RETENTION_MS / 1000)
            for topic in TABLES:
                produce(client, topic, CLOSING)
            rounds.append(_compacted(client, theirs))
    finally:
        kafka.end()
    for topic, expected in logs.items():
        log = _open(ours, topic, SystemClock())
        assert _found(log) == expected, f"{topic}: {damage[topic]}"
        log.close()
    say(f"{len(logs)} damaged logs: what is left is what Kafka leaves")
    for topic in TABLES:
        _compact_twice(ours, topic, [tables[topic] for tables in rounds])
    batch_count = sum(len(found.batches) for found in rounds[-1].values())
    say(f"{len(TABLES)} tables: compacted to the same {batch_count} batches as by Kafka")


def _client(kafka: Kafka) -> WireClient:
    return WireClient(int(kafka.bootstrap.rpartition(":")[2]))


def _write(kafka: Kafka, source: random.Random) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics = [Topic(name, 1, 1, config=SEGMENTS) for name in LOGS]
    topics += [Topic(name, 1, 1, config={**SEGMENTS, **TABLE}) for name in TABLES]
    for created in admin.create_topics(topics).values():
        created.result(WAIT_S)
    payers = [_payer(kafka.bootstrap, number) for number in range(2)]
    with _client(kafka) as client:
        until(lambda: _are_led(client), timeout_s=WAIT_S)
        sequences: dict[tuple[str, int], int] = {}
        for _ in range(ROUNDS):
            for payer in payers:
                payer.begin_transaction()
            for topic in (*LOGS, *TABLES):
                for payer in payers:
                    if source.random() < 0.6:
                        payer.produce(topic, partition=0, key=_key(source), value=_value(source))
                _send_idempotent(client, topic, sequences, source)
            for payer in payers:
                assert payer.flush(WAIT_S) == 0
                end = payer.commit_transaction if source.random() < 0.5 else payer.abort_transaction
                end(WAIT_S)
        payers[0].begin_transaction()
        for topic in LOGS[::4]:
            payers[0].produce(topic, partition=0, key=b"open", value=b"open")
        assert payers[0].flush(WAIT_S) == 0
        for topic in (*LOGS, *TABLES):
            _send_idempotent(client, topic, sequences, source)
    # Its checkpoints, too.
    time.sleep(1)


def _payer(bootstrap: str, number: int) -> Producer:
    payer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"payer-{number}",
            "compression.codec": ("none", "gzip")[number],
            "batch.num.messages": 3,
        }
    )
    payer.init_transactions(WAIT_S)
    return payer


def _key(source: random.Random) -> bytes:
    return b"k%d" % source.randrange(6)


def _value(source: random.Random) -> bytes | None:
    return None if source.random() < 0.25 else source.randbytes(source.randrange(150))


def _send_idempotent(
    client: WireClient,
    topic: str,
    sequences: dict[tuple[str, int], int],
    source: random.Random,
) -> None:
    now_ms = SystemClock().now_ms()
    for producer_id in (5000, 5001):
        count, sequence = source.randrange(1, 4), sequences.get((topic, producer_id), 0)
        records = [
            Record(offset=i, timestamp_ms=now_ms + i, key=_key(source), value=_value(source))
            for i in range(count)
        ]
        codec = source.choice((Codec.NONE, Codec.NONE, Codec.GZIP))
        encoded = encode_batch(
            records, codec=codec, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )
        answer = produce(client, topic, encoded)
        assert answer.error_code == 0, answer
        sequences[topic, producer_id] = sequence + count


# --- damage ----------------------------------------------------------------------------------


def _damage(folder: Path, source: random.Random) -> str:
    """Does one thing to the files of a log that Kafka survives; what it was."""
    kind, do = source.choice(tuple(_DAMAGE.items()))
    do(folder, source)
    return kind


def _tear(folder: Path, source: random.Random) -> None:
    last = sorted(folder.glob("*.log"))[-1]
    os.truncate(last, source.randrange(last.stat().st_size + 1))


def _append(folder: Path, source: random.Random) -> None:
    with open(sorted(folder.glob("*.log"))[-1], "ab") as file:
        file.write(source.choice((bytes(4096), source.randbytes(300), bytes(5))))


def _turn_a_bit(folder: Path, source: random.Random) -> None:
    last = sorted(folder.glob("*.log"))[-1]
    content = bytearray(last.read_bytes())
    if content:
        # Of the records: Kafka does not start over a base offset that is out of all bounds.
        content[-source.randrange(1, 8)] ^= 1 << source.randrange(8)
        last.write_bytes(content)


def _lose(pattern: str) -> Callable[[Path, random.Random], None]:
    def lose(folder: Path, source: random.Random) -> None:
        for path in folder.glob(pattern):
            if source.random() < 0.7:
                path.unlink()

    return lose


def _garble(pattern: str) -> Callable[[Path, random.Random], None]:
    def garble(folder: Path, source: random.Random) -> None:
        for path in folder.glob(pattern):
            if source.random() < 0.6:
                path.write_bytes(source.randbytes(source.choice((7, 13))))

    return garble


def _add_strays(folder: Path, _source: random.Random) -> None:
    for suffix in (".index", ".timeindex", ".txnindex"):
        (folder / f"{7777:020}{suffix}").touch()
    for snapshot in sorted(folder.glob("*.snapshot"))[-1:]:
        for offset in (3, 99_999):
            shutil.copy(snapshot, folder / f"{offset:020}.snapshot")
    first = sorted(folder.glob("*.log"))[0]
    for suffix in (".deleted", ".cleaned"):
        shutil.copy(first, folder / (first.name + suffix))


_DAMAGE: Mapping[str, Callable[[Path, random.Random], None]] = {
    "the last segment is torn": _tear,
    "there is garbage behind the last segment": _append,
    "a bit of the last segment is turned": _turn_a_bit,
    # With this one Kafka makes the others anew. An index of transactions alone that ends inside of
    # an entry stays so there, and readers get what was aborted; here it is made anew.
    "offset indexes are lost": _lose("*.index"),
    "offset indexes are garbled": _garble("*.index"),
    "snapshots are lost": _lose("*.snapshot"),
    "snapshots are garbled": _garble("*.snapshot"),
    "the epochs are lost": _lose("leader-epoch-checkpoint"),
    "there are files of nobody": _add_strays,
}


# --- Kafka -----------------------------------------------------------------------------------


def _are_led(client: WireClient) -> bool:
    codes = {
        offset_at(client, topic, LATEST, version=LIST_OFFSETS_VERSION).error_code
        for topic in (*LOGS, *TABLES)
    }
    return codes == {0}


def _served(client: WireClient, topic: str) -> Found:
    start_offset = offset_at(client, topic, EARLIEST, version=LIST_OFFSETS_VERSION).offset
    content, aborted, offset = b"", set(), start_offset
    while True:
        request = fetch_request(fetch_topic(topic, {0: offset}), isolation_level=1)
        ((answer,),) = (t.partitions for t in client.ask(request, FetchResponse, 12).topics)
        assert answer.error_code == 0, (topic, answer)
        aborted |= {
            (one.producer_id, one.first_offset) for one in answer.aborted_transactions or ()
        }
        found = fetched_bytes(answer)
        if not found:
            return _of(start_offset, content, aborted)
        content += found
        offset = max(batch.header.next_offset for batch in walk(found))


def _let_compact(kafka: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    resources = [
        ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        for topic in TABLES
    ]
    for altered in admin.incremental_alter_configs(resources).values():
        altered.result(WAIT_S)


def _compacted(client: WireClient, data: Path) -> dict[str, Found]:
    """What the tables are when Kafka's cleaner has done all that it can."""
    until(lambda: _is_clean(data), timeout_s=WAIT_S)
    return {topic: _served(client, topic) for topic in TABLES}


def _is_clean(data: Path) -> bool:
    path = data / checkpoint.CLEANED_OFFSETS
    cleaned = checkpoint.read_offsets(path) if path.exists() else {}
    return all(
        cleaned.get(Name(topic, 0), 0) == max(int(p.stem) for p in _logs(data / f"{topic}-0"))
        for topic in TABLES
    )


def _logs(folder: Path) -> list[Path]:
    return list(folder.glob("*.log"))


# --- ours ------------------------------------------------------------------------------------


class _CleanedOffsets:
    """The checkpoint of the cleaner, for one log."""

    def __init__(self) -> None:
        self._offset: int | None = None

    def cleaned_offset(self, _opened: LocalLog) -> int | None:
        return self._offset

    def write_cleaned_offset(self, opened: LocalLog, offset: int) -> None:
        self._offset = opened.cleaned_offset = offset


def _open(
    data: Path, topic: str, clock: SystemClock | ManualClock, config: LogConfig = CONFIG
) -> LocalLog:
    name, directory = Name(topic, 0), data / f"{topic}-0"
    topic_id = checkpoint.read_topic_id(directory)
    assert topic_id is not None, directory
    log = LocalLog.open(
        directory,
        topic_partition=name,
        topic_id=topic_id,
        config=config,
        clock=clock,
        recovery_point=checkpoint.read_offsets(data / checkpoint.RECOVERY_POINTS).get(name, 0),
        log_start_offset=checkpoint.read_offsets(data / checkpoint.LOG_STARTS).get(name, 0),
        clean_shutdown=False,
    )
    log.advance_high_watermark(log.end_offset)
    return log


def _found(log: LocalLog) -> Found:
    content, offset, end_offset = b"", log.start_offset, log.last_stable_offset
    while offset < end_offset:
        read = log.read(offset, bytes_max=1 << 20, end_offset=end_offset)
        if read.range is None:
            break
        content += read.range.read()
        offset = read.next_offset
    aborted = log.aborted_transactions(log.start_offset, end_offset)
    return _of(log.start_offset, content, {(one.producer_id, one.first_offset) for one in aborted})


def _of(start_offset: int, content: bytes, aborted: set[tuple[int, int]]) -> Found:
    batches = []
    for batch in walk(content):
        header = batch.header
        records = () if header.is_control else iter_records(content, header, batch.position)
        batches.append(
            (
                # Deflate is not the same everywhere, epochs begin with a start, and what is written
                # anew begins with its horizon or, with Kafka, its first record.
                header._replace(batch_length=0, crc=0, leader_epoch=0, base_timestamp_ms=0),
                tuple(map(_owned, records)),
            )
        )
    return Found(start_offset=start_offset, batches=tuple(batches), aborted=frozenset(aborted))


def _owned(record: Record) -> Record:
    return replace(
        record,
        key=None if record.key is None else bytes(record.key),
        value=None if record.value is None else bytes(record.value),
    )


def _compact_twice(data: Path, topic: str, expected: Sequence[Found]) -> None:
    clock = ManualClock(SystemClock().now_ms())
    log = _open(data, topic, clock, replace(CONFIG, cleanup_policy=("compact",)))
    cleaner = LogCleaner(
        lambda: [log],
        offsets=_CleanedOffsets(),
        executor=InThisThread(),
        clock=clock,
        settings=CleanerConfig,
        make_process=InlineProcess,  # type: ignore[arg-type]
    )
    for number, found in enumerate(expected):
        log.flush()
        asyncio.run(cleaner.run_once())
        assert _found(log) == found, f"{topic}, round {number}"
        clock.advance_ms(DELETE_RETENTION_MS)
        log.append(memoryview(bytearray(CLOSING)), leader_epoch=log.leader_epochs.latest_epoch)
        log.advance_high_watermark(log.end_offset)
    log.close()
