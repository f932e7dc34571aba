"""Whole scans of small archives in a local folder, as Spark runs them but without Spark."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from strandline.spark_lake import ScanReport, read_scan_reports
from strandline.spark_lake.archive import segments
from strandline.spark_lake.spark.source import PlannedDataSource, StrandlineDataSource
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import AbortedTransaction
from strandline.storage.model import TimestampType as RecordTimestampType
from strandline.storage.records.batch.record import Header, Record, encode_batch
from strandline.storage.records.compression import Codec
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
)

Row = dict[str, Any]


class Lake:
    """An archive and queries over it."""

    def __init__(self, folder: Path) -> None:
        self.archive = ArchiveBuilder(folder / "archive")
        self.reports = folder / "reports"

    def query(
        self,
        *filters: Filter,
        topic: str | None = "t",
        schema: StructType | None = None,
        **options: str,
    ) -> list[Row]:
        given = {
            "path": self.archive.url,
            "engine": "python",
            "scanReport": str(self.reports),
            **options,
        }
        if topic is not None:
            given["subscribe"] = topic
        return self.rows(given, filters, schema)

    def rows(
        self, options: dict[str, str], filters: Sequence[Filter], schema: StructType | None
    ) -> list[Row]:
        """Pickles whatever Spark pickles, in the order Spark does."""
        source = pickle.loads(pickle.dumps(PlannedDataSource(options)))
        schema = schema or source.schema()
        reader = source.reader(schema)
        left = list(reader.pushFilters(list(filters)))
        assert left == []
        _, *splits = reader.partitions()
        partitions = pickle.loads(pickle.dumps(splits))
        reader = pickle.loads(pickle.dumps(reader))
        batches = [batch for partition in partitions for batch in reader.read(partition)]
        expected = to_arrow_schema(schema, timezone="UTC")
        for batch in batches:
            assert batch.schema.equals(expected)
            batch.validate(full=True)
        return list(pa.Table.from_batches(batches, expected).to_pylist())

    @property
    def report(self) -> ScanReport:
        return read_scan_reports(self.reports)[-1]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def row_of(record: Record, *, topic: str = "t", partition: int = 0) -> Row:
    return {
        "key": record.key,
        "value": record.value,
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": at(record.timestamp_ms),
        "timestampType": 0,
    }


def at(timestamp_ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=timestamp_ms)


def offsets(rows: Iterable[Row]) -> list[int]:
    return [row["offset"] for row in rows]


# --- rows and columns ------------------------------------------------------------------------


def test_records_of_all_codecs_become_rows_as_the_kafka_source_has_them(lake: Lake) -> None:
    lake.archive.add_topic("t", partitions=2)
    made = make_records(100)
    for number, codec in enumerate(Codec):
        part = made[number * 20 : number * 20 + 20]
        lake.archive.add_segment("t", make_batches(part, codec=codec))
    other = make_records(7, seed=2)
    lake.archive.add_segment("t", make_batches(other), partition=1)
    expected = [row_of(record) for record in made]
    expected += [row_of(record, partition=1) for record in other]
    assert lake.query() == expected


def test_headers_come_when_asked_for_and_are_null_where_there_are_none(lake: Lake) -> None:
    lake.archive.add_topic("t")
    made = make_records(30, headers=True)
    made[3] = Record(
        offset=3, timestamp_ms=START_MS, key=None, value=None, headers=(Header("ключ", b"v"),)
    )
    lake.archive.add_segment("t", make_batches(made, codec=Codec.SNAPPY))
    assert [row["headers"] for row in lake.query(includeHeaders="true")] == [
        [{"key": header.key, "value": header.value} for header in record.headers] or None
        for record in made
    ]
    assert "headers" not in lake.query()[0]


def test_header_keys_that_are_no_text_are_replaced_not_passed_on(lake: Lake) -> None:
    lake.archive.add_topic("t")
    good = encode_batch(
        [Record(offset=0, timestamp_ms=0, key=None, value=None, headers=(Header("ab", None),))]
    )
    lake.archive.add_segment("t", [with_payload(good, lambda data: data.replace(b"ab", b"\xffb"))])
    (row,) = lake.query(includeHeaders="true")
    assert row["headers"] == [{"key": "\ufffdb", "value": None}]


def with_payload(encoded: bytes, change: Callable[[bytes], bytes]) -> bytes:
    from strandline.storage.records.batch.record import with_crc

    return bytes(with_crc(bytearray(encoded[:61] + change(encoded[61:]))))


def test_log_append_time_is_shown_as_such(lake: Lake) -> None:
    lake.archive.add_topic("t")
    made = make_records(3)
    lake.archive.add_segment(
        "t", [encode_batch(made, timestamp_type=RecordTimestampType.LOG_APPEND_TIME)]
    )
    rows = lake.query()
    assert {row["timestampType"] for row in rows} == {1}
    assert {row["timestamp"] for row in rows} == {at(made[-1].timestamp_ms)}


def test_a_schema_chooses_columns(lake: Lake) -> None:
    lake.archive.add_topic("t")
    lake.archive.add_segment("t", make_batches(make_records(5)))
    chosen = StructType([StructField("offset", LongType()), StructField("topic", StringType())])
    assert lake.query(schema=chosen)[1] == {"offset": 1, "topic": "t"}


def test_a_schema_with_another_column_or_type_is_refused(lake: Lake) -> None:
    source = StrandlineDataSource({"path": lake.archive.url, "subscribe": "t"})
    with pytest.raises(InvalidConfig, match="the column size; there are key, value"):
        source.reader(StructType([StructField("size", LongType())]))
    with pytest.raises(InvalidConfig, match="offset as string, it is bigint"):
        source.reader(StructType([StructField("offset", StringType())]))


def test_the_columns_are_those_of_sparks_kafka_source(lake: Lake) -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    source = StrandlineDataSource(
        {"path": lake.archive.url, "subscribe": "t", "includeHeaders": "true"}
    )
    assert source.schema() == StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
            StructField("headers", ArrayType(header)),
        ]
    )


# --- selections and bounds -------------------------------------------------------------------


def test_topics_are_selected_by_name_pattern_and_partition(lake: Lake) -> None:
    for topic in ("orders", "orders-2", "carts"):
        lake.archive.add_topic(topic, partitions=2)
        for partition in range(2):
            lake.archive.add_segment(topic, make_batches(make_records(3)), partition=partition)

    def partitions(**options: str) -> set[tuple[str, int]]:
        rows = lake.query(topic=None, **options)
        return {(row["topic"], row["partition"]) for row in rows}

    assert partitions(subscribe="carts, orders") == {
        ("carts", 0),
        ("carts", 1),
        ("orders", 0),
        ("orders", 1),
    }
    assert partitions(subscribePattern="orders.+") == {("orders-2", 0), ("orders-2", 1)}
    assert partitions(subscribePattern="ers-2$") == {("orders-2", 0), ("orders-2", 1)}
    assert partitions(assign='{"carts": [1], "orders": [0]}') == {("carts", 1), ("orders", 0)}
    assert partitions(subscribePattern=".*") == {
        (topic, partition) for topic in ("orders", "orders-2", "carts") for partition in range(2)
    }


def test_a_topic_without_an_archive_yet_is_empty(lake: Lake) -> None:
    lake.archive.add_topic("t", partitions=3)
    assert lake.query() == []
    found = lake.query(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest")
    assert found == []


def test_a_topic_made_again_is_the_living_one(lake: Lake) -> None:
    lake.archive.add_topic("t", deleted_ms=5)
    lake.archive.add_topic("t")
    lake.archive.add_segment("t", make_batches(make_records(4)))
    assert len(lake.query()) == 4


def test_offset_bounds_are_exact(lake: Lake) -> None:
    lake.archive.add_topic("t", partitions=2)
    for start in (0, 50):
        records = make_records(50, base_offset=start)
        lake.archive.add_segment("t", make_batches(records, codec=Codec.ZSTD))
    lake.archive.add_segment("t", make_batches(make_records(9)), partition=1)
    rows = lake.query(
        startingOffsets='{"t": {"0": 37, "1": -2}}', endingOffsets='{"t": {"0": 62, "1": 4}}'
    )
    assert offsets(rows) == [*range(37, 62), *range(4)]


def test_a_log_start_inside_a_segment_hides_the_rows_below_it(lake: Lake) -> None:
    lake.archive.add_topic("t")
    lake.archive.add_segment("t", make_batches(make_records(50)))
    lake.archive.move_log_start("t", 13)
    assert offsets(lake.query()) == list(range(13, 50))


def test_offsets_outside_the_archive_are_an_error_unless_data_loss_is_accepted(lake: Lake) -> None:
    lake.archive.add_topic("t")
    lake.archive.add_segment("t", make_batches(make_records(20)))
    ending = '{"t": {"0": 25}}'
    with pytest.raises(InvalidConfig, match="archive has 0 to 20"):
        lake.query(endingOffsets=ending)
    assert len(lake.query(endingOffsets=ending, failOnDataLoss="false")) == 20


def unordered_times(lake: Lake) -> list[Record]:
    """300 records in three segments whose timestamps go back and forth."""
    source = random.Random(5)
    made = [
        Record(
            offset=offset,
            timestamp_ms=START_MS + offset * 10 + source.randrange(-400, 400),
            key=None,
            value=bytes(30),
        )
        for offset in range(300)
    ]
    lake.archive.add_topic("t")
    for start in (0, 100, 200):
        lake.archive.add_segment(
            "t", make_batches(made[start : start + 100], per_batch=7), chunk_bytes=900
        )
    return made


def test_a_starting_timestamp_is_the_offset_of_the_first_record_at_or_after_it(lake: Lake) -> None:
    made = unordered_times(lake)
    # Nothing but the chunk that ends with it has the last one.
    last_ms = max(record.timestamp_ms for record in made)
    for timestamp_ms in (0, START_MS + 55, START_MS + 1234, START_MS + 2900, last_ms):
        first = next(r.offset for r in made if r.timestamp_ms >= timestamp_ms)
        assert offsets(lake.query(startingTimestamp=str(timestamp_ms))) == list(range(first, 300))
        by_partition = f'{{"t": {{"0": {timestamp_ms}}}}}'
        assert offsets(lake.query(endingOffsetsByTimestamp=by_partition)) == list(range(first))


def test_a_page_of_the_manifest_can_hold_the_starting_timestamp(lake: Lake) -> None:
    made = unordered_times(lake)
    lake.archive.seal_page("t", 2)
    timestamp_ms = START_MS + 1500
    first = next(r.offset for r in made if r.timestamp_ms >= timestamp_ms)
    assert offsets(lake.query(startingTimestamp=str(timestamp_ms))) == list(range(first, 300))


def test_a_timestamp_below_the_log_start_is_not_found_there(lake: Lake) -> None:
    made = unordered_times(lake)
    lake.archive.move_log_start("t", 57)
    timestamp_ms = made[40].timestamp_ms
    first = next(r.offset for r in made[57:] if r.timestamp_ms >= timestamp_ms)
    assert offsets(lake.query(startingTimestamp=str(timestamp_ms))) == list(range(first, 300))


def test_a_timestamp_behind_the_archive_is_an_error_or_nothing(lake: Lake) -> None:
    unordered_times(lake)
    late = str(START_MS * 2)
    with pytest.raises(InvalidConfig, match="startingOffsetsByTimestampStrategy=latest"):
        lake.query(startingTimestamp=late)
    assert lake.query(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    assert len(lake.query(endingTimestamp=late)) == 300


@pytest.mark.parametrize("has_manifest", [False, True])
def test_a_partition_without_records_has_none_at_a_time_as_in_sparks_kafka_source(
    lake: Lake, has_manifest: bool
) -> None:
    archive = lake.archive
    archive.add_topic("t", partitions=2)
    archive.add_segment("t", make_batches(make_records(10)))
    if has_manifest:
        archive.save(archive.manifest("t", 1))
    start = {"startingTimestamp": str(START_MS)}
    with pytest.raises(InvalidConfig, match="t partition 1 has no archived record at or after"):
        lake.query(**start)
    assert len(lake.query(**start, startingOffsetsByTimestampStrategy="latest")) == 10


def test_an_end_that_turns_out_to_lie_before_the_start_is_refused(lake: Lake) -> None:
    """As Spark's Kafka source does: offsets and times are compared once both are offsets."""
    unordered_times(lake)
    end = {"endingTimestamp": str(START_MS)}
    message = "startingOffsets and endingTimestamp: t partition 0 would begin at offset 250 and end"
    with pytest.raises(InvalidConfig, match=message):
        lake.query(startingOffsets='{"t": {"0": 250}}', **end)
    assert lake.query(startingOffsets='{"t": {"0": 0}}', **end) == []


def test_bounds_name_the_partitions_that_are_read_and_no_others(lake: Lake) -> None:
    unordered_times(lake)
    for name in ("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp"):
        with pytest.raises(InvalidConfig, match=f"{name} names t partition 3, which is not read"):
            lake.query(**{name: '{"t": {"0": 0, "3": 0}}'})


# --- pruning ---------------------------------------------------------------------------------


@pytest.fixture
def large(lake: Lake) -> Lake:
    """Three segments of three chunks each: 400 records of 10 KiB, ten to a batch."""
    lake.archive.add_topic("t")
    for start in (0, 400, 800):
        records = make_records(400, base_offset=start, value_bytes=10 * 1024)
        lake.archive.add_segment("t", make_batches(records))
    return lake


def test_a_time_filter_reads_only_the_chunks_that_may_match(large: Lake) -> None:
    start_ms, end_ms = START_MS + 500_000, START_MS + 520_000
    rows = large.query(
        GreaterThanOrEqual(("timestamp",), at(start_ms)), LessThan(("timestamp",), at(end_ms))
    )
    assert offsets(rows) == list(range(500, 520))
    report = large.report
    assert (report.plan.segments_planned, report.plan.segments_total) == (1, 3)
    assert (report.segments_read, report.rows, report.tasks_ended) == (1, 20, 1)
    assert report.chunks_skipped == 2
    assert report.bytes_read <= report.plan.bytes_planned < 1.3 * 1024 * 1024
    assert "20 rows from 1 of 3 segments" in str(report)


def test_an_offset_filter_reads_only_the_chunks_that_may_match(large: Lake) -> None:
    assert offsets(large.query(EqualTo(("offset",), 1111))) == [1111]
    assert large.report.chunks_skipped == 2
    assert large.report.segments_read == 1


def test_a_filter_that_no_chunk_matches_reads_no_log(lake: Lake) -> None:
    lake.archive.add_topic("t")
    # The segment reaches over the gap, so only its chunks tell that nothing lies in it.
    early, late = (
        make_records(150, value_bytes=9000),
        make_records(150, base_offset=10_000, value_bytes=9000),
    )
    lake.archive.add_segment("t", make_batches([*early, *late]))
    between = at(START_MS + 5_000_000)
    rows = lake.query(
        GreaterThan(("timestamp",), between),
        LessThan(("timestamp",), between + dt.timedelta(seconds=9)),
    )
    assert rows == []
    assert lake.report.segments_skipped == 1
    assert lake.report.segments_read == 0
    assert lake.report.bytes_read < 2000


def test_topic_and_partition_filters_prune_partitions(lake: Lake) -> None:
    lake.archive.add_topic("t", partitions=3)
    for partition in range(3):
        lake.archive.add_segment("t", make_batches(make_records(5)), partition=partition)
    rows = lake.query(EqualTo(("partition",), 1), EqualTo(("topic",), "t"))
    assert {row["partition"] for row in rows} == {1}
    assert (lake.report.segments_read, lake.report.plan.segments_total) == (1, 3)
    assert lake.query(EqualTo(("topic",), "u")) == []


@pytest.mark.parametrize("split_bytes", [1 << 20, 3 << 20, 64 << 20])
def test_slices_of_segments_meet_without_gap_or_overlap(large: Lake, split_bytes: int) -> None:
    rows = large.query(splitBytes=str(split_bytes))
    assert offsets(rows) == list(range(1200))
    assert large.report.segments_read == 3
    limited = large.query(GreaterThan(("offset",), 399), splitBytes=str(split_bytes))
    assert offsets(limited) == list(range(400, 1200))


@pytest.mark.parametrize("window_bytes", [100, 5_000, 123_457])
def test_windows_may_cut_batches_anywhere(
    lake: Lake, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        segments.LogReader.__init__, "__kwdefaults__", {"window_bytes": window_bytes}
    )
    lake.archive.add_topic("t")
    made = make_records(60, value_bytes=500)
    lake.archive.add_segment("t", make_batches(made, codec=Codec.LZ4))
    assert lake.query() == [row_of(record) for record in made]


def test_sealed_pages_are_read_like_the_root(large: Lake) -> None:
    large.archive.seal_page("t", 1)
    large.archive.seal_page("t", 1)
    assert offsets(large.query()) == list(range(1200))
    requests = large.report.plan.requests
    assert offsets(large.query(GreaterThan(("offset",), 1150))) == list(range(1151, 1200))
    # Two pages fewer, and the `.meta` of the one segment that is read in part.
    assert large.report.plan.requests == requests - 2 + 1


def test_a_query_that_stops_early_reports_what_it_read(large: Lake) -> None:
    options = {
        "path": large.archive.url,
        "subscribe": "t",
        "scanReport": str(large.reports),
    }
    source = StrandlineDataSource(options)
    reader = source.reader(source.schema())
    batches = reader.read(reader.partitions()[0])
    next(batches)
    batches.close()
    assert large.report.tasks_ended == 1
    assert 0 < large.report.rows < 1200


def test_a_plan_without_splits_reads_nothing(lake: Lake) -> None:
    source = StrandlineDataSource({"path": lake.archive.url, "subscribe": "t"})
    assert list(source.reader(source.schema()).read(InputPartition(None))) == []


# --- transactions ----------------------------------------------------------------------------


def transactional(first: int, count: int, *, producer_id: int, control: bool = False) -> bytes:
    return encode_batch(
        [
            Record(offset=offset, timestamp_ms=START_MS, key=b"\x00\x00\x00\x00", value=b"v")
            for offset in range(first, first + count)
        ],
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=control,
    )


def test_control_batches_and_aborted_transactions_are_left_out(lake: Lake) -> None:
    lake.archive.add_topic("t")
    plain = encode_batch([Record(offset=14, timestamp_ms=START_MS, key=None, value=None)])
    lake.archive.add_segment(
        "t",
        [
            transactional(0, 3, producer_id=7),  # committed at 3
            transactional(3, 1, producer_id=7, control=True),
            transactional(4, 4, producer_id=7),  # aborted at 12
            transactional(8, 2, producer_id=8),  # in between, committed at 13
            transactional(10, 2, producer_id=7),
            transactional(12, 1, producer_id=7, control=True),
            transactional(13, 1, producer_id=8, control=True),
            plain,
            transactional(15, 2, producer_id=7),  # committed later
        ],
        aborted=[AbortedTransaction(7, 4, 12, 13)],
    )
    assert offsets(lake.query()) == [0, 1, 2, 8, 9, 14, 15, 16]
    assert offsets(lake.query(isolationLevel="read_uncommitted")) == [
        0,
        1,
        2,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        14,
        15,
        16,
    ]
