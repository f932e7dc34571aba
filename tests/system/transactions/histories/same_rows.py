"""What readers of a broker and of its archive see of `random_transactions.py`, as lists of rows.

consumer   librdkafka, from the log start to where it says that the partition ends
scan       the lake in Python
stream     the lake's stream as Spark calls it, without Spark
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from strandline.spark_lake import count, scan
from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.spark_lake.spark.stream import StrandlineStreamReader
from strandline.spark_lake.table.run import TableRequest, TableRun
from tests.conftest import S3Bucket
from tests.support.broker import eventually
from tests.system.tiers.tiered_broker import WAIT_S
from tests.system.transactions.histories.random_transactions import (
    LOG,
    TABLE,
    Place,
    RandomTransactions,
    Rows,
)
from tests.unit.spark_lake.stream_steps import Json, step

ISOLATIONS = {"read_committed": True, "read_uncommitted": False}
COLUMNS = ("partition", "offset", "value")
# Asked for the rows of one topic, with these options of the lake.
ReadLake = Callable[[str, Mapping[str, str]], Mapping[int, Rows]]


def consumed(bootstrap: str, place: Place, isolation: str) -> Rows:
    """What a real consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(*place, OFFSET_BEGINNING)])
    rows: Rows = []
    while True:
        (message,) = consumer.consume(1, WAIT_S)
        error = message.error()
        if error is None:
            rows.append((int(message.offset() or 0), bytes(message.value() or b"")))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return rows


def by_partition(rows: list[dict[str, Any]]) -> Mapping[int, Rows]:
    found: defaultdict[int, Rows] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        found[row["partition"]].append((row["offset"], bytes(row["value"])))
    return found


def lake_options(bucket: S3Bucket, isolation: str) -> dict[str, str]:
    return {"s3.endpoint.url": bucket.endpoint_url, "isolationLevel": isolation}


def scanned(bucket: S3Bucket) -> ReadLake:
    """`scan`, and `count` must agree with it."""

    def read(topic: str, options: Mapping[str, str]) -> Mapping[int, Rows]:
        rows = scan(bucket.url, topic, columns=COLUMNS, options=options).read_all().to_pylist()
        assert count(bucket.url, topic, options=options) == len(rows)
        return by_partition(rows)

    return read


def check_consumer(history: RandomTransactions) -> None:
    """A consumer gets what the model has, or of the compacted topic the last of each key."""
    model = history.model
    for isolation, committed in ISOLATIONS.items():
        for place in history.places:
            rows = consumed(history.broker.bootstrap, place, isolation)
            wanted = model.rows(place, committed=committed)
            if place[0] == LOG:
                assert rows == wanted, (place, isolation)
                continue
            assert set(rows) <= set(wanted), (place, isolation)
            missing = set(model.latest(place).values()) - {offset for offset, _ in rows}
            assert not missing, (place, isolation, missing)


def check_lake(history: RandomTransactions, read: ReadLake) -> None:
    """The lake has what a consumer gets, as far as the archive says how transactions ended."""
    for isolation in ISOLATIONS:
        options = lake_options(history.broker.bucket, isolation)
        for place in history.places:
            eventually(
                lambda p=place, o=options, i=isolation: is_same(history, p, read, o, i),
                timeout_s=WAIT_S,
            )


def is_same(
    history: RandomTransactions,
    place: Place,
    read: ReadLake,
    options: Mapping[str, str],
    isolation: str,
) -> bool:
    """Whether the lake has the rows of a consumer, or the first of them if the archive lags.

    Raises AssertionError if it has others; False while the archive changes.
    """
    manifest = history.archive.manifest(*place)
    found = read(place[0], options).get(place[1], [])
    if manifest is None or manifest != history.archive.manifest(*place):
        return False
    rows = consumed(history.broker.bootstrap, place, isolation)
    wanted = [row for row in rows if row[0] < manifest.tail_end_offset]
    # The markers of committed transactions may lie behind the archive's end.
    lags = isolation == "read_committed" and manifest.tail_end_offset < history.ends(place)[1]
    same = found == (wanted[: len(found)] if lags else wanted)
    # The local segments and those of the bucket are compacted each by itself.
    assert same or place[0] == TABLE, told(history, place, isolation, found, wanted)
    return same


def told(
    history: RandomTransactions, place: Place, isolation: str, found: Rows, wanted: Rows
) -> str:
    """What is wrong, without the values."""
    manifest = history.archive.manifest(*place)
    assert manifest is not None
    return (
        f"{place} {isolation}: the lake has {[offset for offset, _ in found]}, a consumer"
        f" {[offset for offset, _ in wanted]}; segments to {manifest.end_offset}, pieces"
        f" {[(one.base_offset, one.end_offset) for one in manifest.tail]}, undecided from"
        f" {history.model.stable_offset(place, -1)}"
    )


class LakeStream:
    """A stream over LOG from the beginning on; `rows` is all that it gave, batch after batch."""

    def __init__(self, bucket: S3Bucket, isolation: str) -> None:
        options = {"path": bucket.url, "subscribe": LOG, "startingOffsets": "earliest"}
        source = StrandlineDataSource({**options, **lake_options(bucket, isolation)})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StrandlineStreamReader)
        self._reader = reader
        self._position: Json | None = None
        self.rows: list[tuple[int, int]] = []

    def follow(self) -> None:
        """Batches until there is nothing new."""
        while True:
            start = self._reader.initialOffset() if self._position is None else self._position
            rows, end = step(self._reader, start)
            self.rows += rows
            self._position = end
            if end == start:
                return


class LakeTable:
    """A table of LOG, whose syncs go on where the last one ended."""

    def __init__(self, bucket: S3Bucket, isolation: str, folder: Path) -> None:
        self._run = TableRun(
            TableRequest(
                remote=bucket.url,
                topic=LOG,
                table=f"lake.{isolation}",
                catalog=f"sqlite:///{folder / 'catalog.db'}",
                options=lake_options(bucket, isolation),
            )
        )

    def follow(self) -> None:
        self._run.sync(NoProgress())

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Partition and offset of each row."""
        assert self._run.store.load() is not None
        table = self._run.store.loaded.scan().to_arrow()
        columns = [table.column(name).to_pylist() for name in ("_topic_partition", "_offset")]
        return list(zip(*columns, strict=True))


class NoProgress:
    def begin(self, what: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...
