"""All copies of a topic when nobody writes any more: by a broker, in folders, in the bucket."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from strandline.spark_lake import scan
from strandline.storage.records.batch.any_batch import iter_records, walk
from tests.system.cluster_faults.checks import BatchMark, LogRecord, Replica
from tests.system.cluster_faults.history import text_of

READ_S = 300.0
CALL_S = 20.0


def read_all(
    bootstrap: str, topic: str, partitions: int, isolation: str
) -> tuple[dict[int, dict[int, LogRecord]], dict[int, int]]:
    """By partition and offset what a consumer finds, to the present ends; and these."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "all",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
        }
    )
    found: dict[int, dict[int, LogRecord]] = {number: {} for number in range(partitions)}
    try:
        places = [TopicPartition(topic, number, 0) for number in range(partitions)]
        ends = _ends(bootstrap, places)
        consumer.assign(places)
        until_s = time.monotonic() + READ_S
        while any(max(one.offset, 0) < ends[one.partition] for one in consumer.position(places)):
            at = [(one.partition, one.offset) for one in consumer.position(places)]
            assert time.monotonic() < until_s, f"{topic} is read to {at}, and ends at {ends}"
            for message in consumer.consume(5000, 0.2):
                if message.error() is not None:
                    continue
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                epoch = message.leader_epoch()
                record = LogRecord(-1 if epoch is None else epoch, text_of(message.value()))
                found[partition][offset] = record
    finally:
        consumer.close()
    return found, ends


def _ends(bootstrap: str, places: list[TopicPartition]) -> dict[int, int]:
    """The high watermarks, also for whoever reads committed records: none is open then."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ends",
            "isolation.level": "read_uncommitted",
        }
    )
    until_s = time.monotonic() + READ_S
    try:
        while True:
            try:
                return {
                    one.partition: consumer.get_watermark_offsets(one, timeout=CALL_S)[1]
                    for one in places
                }
            except KafkaException:
                if time.monotonic() > until_s:
                    raise
    finally:
        consumer.close()


def replica(folder: Path) -> Replica | None:
    """The batches of a partition's folder; None without one."""
    segments = _segments(folder)
    if not segments:
        return None
    marks = []
    for path in segments:
        for batch in walk(path.read_bytes()):
            one = batch.header
            marks.append(BatchMark(one.base_offset, one.last_offset, one.leader_epoch, one.crc))
    return Replica(int(segments[0].stem), marks)


def decoded(folder: Path) -> dict[int, LogRecord]:
    """The records of a partition's folder, without markers of transactions."""
    found = {}
    for path in _segments(folder):
        content = path.read_bytes()
        for batch in walk(content):
            if batch.header.is_control:
                continue
            for record in iter_records(content, batch.header, batch.position):
                epoch = batch.header.leader_epoch
                found[record.offset] = LogRecord(epoch, text_of(bytes(record.value or b"")))
    return found


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"), key=lambda path: int(path.stem))


def in_lake(
    url: str, topic: str, partitions: int, options: Mapping[str, str]
) -> dict[int, dict[int, str]]:
    """What a reader of the bucket finds, by partition and offset."""
    found: dict[int, dict[int, str]] = {number: {} for number in range(partitions)}
    columns = ("partition", "offset", "value")
    rows = scan(url, topic, columns=columns, options=dict(options)).read_all()
    for row in rows.to_pylist():
        found[row["partition"]][row["offset"]] = text_of(row["value"])
    return found
