"""The reader inside the JVM gives what the reader in Python gives: rows, types, and errors.

The two have nothing in common but the plan and the texts, so each is the other's oracle. Both read
the same archives: every codec and kind of record, filters and limits, and damage of every kind.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.spark_lake import load, register_views, scan
from strandline.spark_lake.jvm.engine import divided
from strandline.spark_lake.query.arrow_scan import FilterTuple, make_query
from strandline.storage.errors import InvalidConfig, StrandlineError
from strandline.storage.model import AbortedTransaction, TimestampType
from strandline.storage.records.batch.batch import HEADER, HEADER_BYTES
from strandline.storage.records.batch.record import Header, Record, encode_batch, with_crc
from strandline.storage.records.compression import Codec, compress
from strandline.storage.remote.segment.meta import TAIL_BYTES
from strandline.storage.tiering.copy.segment_walk import AdaptiveWalk
from tests.support.old_formats import CODECS
from tests.support.spark_session import reads_with_the_jar
from tests.unit.spark_lake.archive.old_archive import (
    RECORDS,
    archive_as_the_copier_does,
    old_and_new,
)
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HEADERS = {"includeHeaders": True}


def made(first: int, count: int, **more: Any) -> bytes:
    """One batch of these offsets; `more` as for `encode_batch`."""
    return encode_batch(make_records(count, base_offset=first, headers=True), **more)


def empty(first: int, last: int, *, codec: Codec = Codec.NONE) -> bytes:
    """What compaction leaves of a batch whose records are all gone."""
    batch = bytearray(HEADER.pack(first, 49, 0, 2, 0, codec, last - first, 0, 0, 5, 0, 0, 0))
    return bytes(with_crc(batch))


def raw_snappy(first: int, count: int) -> bytes:
    """As librdkafka frames it: one block without a stream around it."""
    framed = bytearray(made(first, count, codec=Codec.SNAPPY))
    # Magic, two versions, and the length of the only block.
    del framed[HEADER_BYTES : HEADER_BYTES + 20]
    framed[8:12] = (len(framed) - 12).to_bytes(4, "big")
    return bytes(with_crc(framed))


def streamed_zstd(first: int, count: int) -> bytes:
    """As Java's producer frames it: without the size of what it holds."""
    import zstandard

    plain = bytearray(made(first, count))
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    body = packer.compress(bytes(plain[HEADER_BYTES:])) + packer.flush()
    batch = plain[:HEADER_BYTES] + body
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[22] |= Codec.ZSTD
    return bytes(with_crc(batch))


def in_two(first: int, count: int, codec: Codec) -> bytes:
    """As two streams, one behind the other, which Java's libraries read as one."""
    plain = made(first, count)
    body = plain[HEADER_BYTES:]
    batch = bytearray(plain[:HEADER_BYTES])
    batch += compress(codec, body[:300]) + compress(codec, body[300:])
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[22] |= codec
    return bytes(with_crc(batch))


def transaction(first: int, count: int, producer_id: int, *, control: bool = False) -> bytes:
    return made(first, count, producer_id=producer_id, transactional=True, control=control)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> ArchiveBuilder:
    """Topic `t`: all kinds of batches, codecs and transactions; topic `big`: several windows."""
    archive = ArchiveBuilder(tmp_path_factory.mktemp("archive"))
    archive.add_topic("t", partitions=2)
    records = make_records(500, headers=True)
    for number, codec in enumerate(Codec):
        part = records[number * 100 : number * 100 + 100]
        archive.add_segment("t", make_batches(part, codec=codec))
    # Codecs change from batch to batch, there are gaps, and nothing is left of some batches.
    mixed = [
        made(500, 20, codec=Codec.ZSTD),
        raw_snappy(520, 10),
        made(530, 3),
        streamed_zstd(540, 300),
        empty(840, 849),
        empty(850, 859, codec=Codec.LZ4),
        made(870, 5, timestamp_type=TimestampType.LOG_APPEND_TIME),
        made(880, 5, codec=Codec.GZIP, timestamp_type=TimestampType.LOG_APPEND_TIME),
        encode_batch(
            [
                Record(offset=o, timestamp_ms=START_MS - o, key=None, value=b"old")
                for o in (885, 889, 899)
            ]
        ),
        encode_batch(
            [
                Record(
                    offset=900,
                    timestamp_ms=0,
                    key=b"",
                    value=b"",
                    headers=(
                        Header("caf\u00e9", b"1"),
                        Header("", None),
                        Header("again", b""),
                        Header("again", b"x"),
                    ),
                )
            ]
        ),
    ]
    archive.add_segment("t", mixed)
    archive.add_segment(
        "t",
        [
            transaction(0, 4, 7),  # aborted at 5
            made(4, 1),
            transaction(5, 1, 7, control=True),
            transaction(6, 4, 8),
            transaction(10, 1, 8, control=True),
            transaction(11, 4, 7),
            transaction(15, 1, 7, control=True),
        ],
        partition=1,
        aborted=[AbortedTransaction(7, 0, 5, 6)],
    )
    archive.add_topic("big")
    for first in (0, 3000):
        large = make_records(3000, base_offset=first, value_bytes=8000)
        codec = Codec.ZSTD if first else Codec.NONE
        archive.add_segment("big", make_batches(large, per_batch=7, codec=codec))
    archive.add_topic("none")
    return archive


def by_python(
    archive: ArchiveBuilder, topic: str = "t", *, options: dict[str, Any], **how: Any
) -> list[dict[str, Any]]:
    rows = scan(archive.url, topic, options=options, **how).read_all().to_pylist()
    for row in rows:
        if "timestamp" in row:
            row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    return [dict(row) for row in rows]


def by_jvm(
    spark: SparkSession, archive: ArchiveBuilder, topic: str = "t", *, options: Any, **how: Any
) -> list[dict[str, Any]]:
    frame = load(spark, archive.url, topic, options={**options, "engine": "jvm"}, **how)
    if "timestamp" in frame.columns:
        frame = frame.withColumn("timestamp", frame["timestamp"].cast("double") * 1000)
    return [row.asDict(recursive=True) for row in frame.collect()]


def both(
    spark: SparkSession, archive: ArchiveBuilder, topic: str = "t", **how: Any
) -> list[dict[str, Any]]:
    """The rows, once both readers gave the same."""
    how.setdefault("options", HEADERS)
    expected = by_python(archive, topic, **how)
    assert by_jvm(spark, archive, topic, **how) == expected
    return expected


def test_the_reader_is_of_the_jar_of_this_package(spark: SparkSession) -> None:
    reads_with_the_jar(spark)


def test_every_kind_of_batch_comes_out_the_same(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    rows = both(spark, archive)
    assert len(rows) == 500 + 20 + 10 + 3 + 300 + 10 + 3 + 1 + 9
    assert {row["timestampType"] for row in rows} == {0, 1}
    assert [one["key"] for one in rows[-10]["headers"]] == ["caf\u00e9", "", "again", "again"]
    frame = load(spark, archive.url, "t", options={**HEADERS, "engine": "jvm"})
    other = load(spark, archive.url, "t", options={**HEADERS, "engine": "python"})
    assert frame.schema == other.schema
    assert both(spark, archive, options={"isolationLevel": "read_uncommitted"})[-1]["offset"] == 14
    assert both(spark, archive, "none") == []


def test_streams_behind_each_other_in_one_batch_are_read_as_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    codecs = (Codec.GZIP, Codec.SNAPPY, Codec.ZSTD)
    for number, codec in enumerate(codecs):
        archive.add_segment("t", [in_two(100 * number, 100, codec)])
    assert [row["offset"] for row in both(spark, archive)] == list(range(300))


@pytest.mark.parametrize(
    "filters",
    [
        [("offset", ">=", 95), ("offset", "<", 543)],
        [("timestamp", ">", START_MS + 120_000), ("timestamp", "<=", START_MS + 530_000)],
        [("key", "in", ["key-7", "key-107", "key-601"])],
        [("key", "not in", ["key-7"]), ("offset", "!=", 8), ("offset", "<", 12)],
        [("value", "=", b"old")],
        [("partition", "=", 1)],
    ],
    ids=["offset", "timestamp", "keys", "negated", "value", "partition"],
)
def test_filters_keep_the_same_rows(
    spark: SparkSession, archive: ArchiveBuilder, filters: Sequence[FilterTuple]
) -> None:
    rows = both(spark, archive, filters=filters)
    assert 0 < len(rows) < 856
    assert both(spark, archive, filters=filters, columns=["offset"]) == [
        {"offset": row["offset"]} for row in rows
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"splitBytes": 5 * 1024 * 1024},
        {"maxRecordsPerPartition": 1111},
        {"startingOffsets": '{"big": {"0": 1234}}', "endingOffsets": '{"big": {"0": 4321}}'},
        {"startingTimestamp": str(START_MS + 2_999_000), "splitBytes": 1024 * 1024},
    ],
    ids=["windows", "by position", "by records", "limits", "chunks"],
)
def test_segments_of_many_windows_are_cut_and_joined_without_a_seam(
    spark: SparkSession, archive: ArchiveBuilder, options: dict[str, Any]
) -> None:
    rows = both(spark, archive, "big", options=options, columns=["offset", "value"])
    offsets = [row["offset"] for row in rows]
    assert offsets == list(range(offsets[0], offsets[-1] + 1))
    assert len(offsets) >= 3000


def test_a_batch_larger_than_a_window_is_read(spark: SparkSession, tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    sizes = (9_000_000, 10, 20_000_000, 1, 8_388_000)
    records = [
        Record(offset=n, timestamp_ms=n, key=None, value=bytes([n]) * size)
        for n, size in enumerate(sizes)
    ]
    archive.add_segment("t", [encode_batch([one]) for one in records])
    frame = load(spark, archive.url, "t", options={"engine": "jvm"})
    found = frame.selectExpr("offset", "length(value) n", "hex(right(value, 1)) last").collect()
    assert [tuple(row) for row in found] == [(n, s, f"{n:02X}") for n, s in enumerate(sizes)]


def test_pieces_of_the_open_segment_come_behind_the_segments(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    archive.add_segment("t", make_batches(make_records(40)))
    archive.add_piece("t", make_batches(make_records(40, base_offset=40)))
    assert [row["offset"] for row in both(spark, archive)] == list(range(80))
    some: list[FilterTuple] = [("key", "in", ["key-7", "key-47"])]
    assert [row["offset"] for row in both(spark, archive, filters=some)] == [7, 47]


def test_columns_that_nobody_asks_for_are_not_in_the_scan(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    frame = load(spark, archive.url, "t", options={"engine": "jvm"})
    plan = frame.select("offset")._jdf.queryExecution().executedPlan().toString()
    assert "value#" not in plan
    assert frame.select("topic", "partition").distinct().count() == 2
    assert frame.count() == 856
    assert len(frame.limit(3).collect()) == 3


# --- errors ------------------------------------------------------------------------------------


def refusals(spark: SparkSession, archive: ArchiveBuilder, **options: Any) -> str:
    """What both say, which must be the same."""
    with pytest.raises(StrandlineError) as expected:
        by_python(archive, options=options)
    with pytest.raises(Py4JJavaError) as caught:
        by_jvm(spark, archive, options=options)
    assert str(expected.value) in str(caught.value)
    assert f"{type(expected.value).__name__}: " in str(caught.value)
    return str(expected.value)


def put(position: int, content: bytes) -> Callable[[bytearray], None]:
    def change(whole: bytearray) -> None:
        start = position if position >= 0 else len(whole) + position
        whole[start : start + len(content)] = content

    return change


def cut(whole: bytearray) -> None:
    del whole[-10:]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put(-5, b"\0\xff\0"), "CRC of batch at offset 70"),
        (cut, "shorter than the manifest"),
        (put(16, b"\x03"), "magic"),
        (put(8, b"\x7f\xff\xff\xff"), "beyond its"),
        (put(8, bytes(4)), "length"),
        (put(0, bytes(7) + b"\x05"), "offsets 5 to 14 lies where 40 to 79 belong"),
        (put(57, b"\x7f\xff\xff\xff"), "2147483647 records at offsets 40 to 49"),
    ],
    ids=["bit", "short", "magic", "huge batch", "tiny batch", "offsets", "count"],
)
def test_damaged_segments_are_refused_in_the_same_words(
    spark: SparkSession, tmp_path: Path, change: Callable[[bytearray], None], says: str
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    entries = [
        archive.add_segment("t", make_batches(make_records(40, base_offset=first)))
        for first in (0, 40, 80)
    ]
    path = archive.object_path(entries[1].log_key)
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    said = refusals(spark, archive)
    assert entries[1].log_key in said
    assert says in said


def test_a_missing_object_is_named_with_the_remedy(spark: SparkSession, tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    archive.add_segment("t", make_batches(make_records(40)))
    # Not the first one, at whose format `load` looks itself.
    entry = archive.add_segment("t", make_batches(make_records(40, base_offset=40)))
    archive.object_path(entry.log_key).unlink()
    said = refusals(spark, archive)
    assert f"read {archive.url}/{entry.log_key}: it does not exist; if retention" in said
    assert "it has the offsets 40 to 79" in said
    rows = both(spark, archive, options={"endingOffsets": '{"t": {"0": 40}}'})
    assert len(rows) == 40


def test_a_folder_that_java_has_no_name_for_is_told_with_the_remedy(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As any with an umlaut is in a locale without; in UTF-8 this one is, which is Latin 1."""
    folder = tmp_path / os.fsdecode("Größe".encode("latin-1"))
    folder.mkdir()
    archive = ArchiveBuilder(folder)
    archive.add_topic("t")
    archive.add_segment("t", make_batches(make_records(40)))
    with pytest.raises(Py4JJavaError, match=r"LC_ALL=C\.UTF-8, or give option engine=python"):
        load(spark, folder, "t", options={"engine": "jvm"}).count()
    assert load(spark, folder, "t", options={"engine": "python"}).count() == 40


def test_what_the_manifest_says_is_held_against_what_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    first, last = make_batches(make_records(4), per_batch=2)
    gap = encode_batch([Record(offset=9, timestamp_ms=0, key=None, value=None)])
    entry = archive.add_segment("t", [first, last, gap])
    manifest = archive.manifest("t")
    archive.save(replace(manifest, segments=(replace(entry, record_count=6),)))
    assert "holds 5 records up to byte" in refusals(spark, archive)
    archive.save(manifest)
    path = archive.object_path(entry.log_key)
    content = bytearray(path.read_bytes())
    content[len(first) + 7] = 4  # an offset, which no CRC of a batch covers
    path.write_bytes(content)
    assert "checksum of the whole object" in refusals(spark, archive)


RECORD = encode_batch([Record(offset=0, timestamp_ms=0, key=b"key", value=b"value")])


@pytest.mark.parametrize(
    ("position", "content"),
    [
        (0, b"\x7e"),  # a record longer than its batch
        (0, b"\x10"),  # or shorter than what is in it
        (2, b"\xff"),
        (3, b"\x02"),  # an offset outside the batch
        (4, b"\x7e"),  # a key longer than the record
        (4, b"\x03"),  # a length of -2
        (8, b"\x7e"),
        (-1, b"\x02"),  # a header that is not there
        (8, b"\x08valu\x00"),  # a byte behind the headers
        (0, b"\xff" * 11),  # a varint of more than 64 bits
    ],
)
def test_records_that_do_not_parse_are_refused_alike(
    spark: SparkSession, tmp_path: Path, position: int, content: bytes
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    entry = archive.add_segment("t", [RECORD])
    bad = bytearray(RECORD)
    start = HEADER_BYTES + position if position >= 0 else len(bad) + position
    bad[start : start + len(content)] = content
    archive.archived_so("t", entry, bytes(with_crc(bad)))
    assert "record 0 of the batch at offset 0" in refusals(spark, archive)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD, 5])
def test_bytes_that_do_not_decompress_are_refused(
    spark: SparkSession, tmp_path: Path, codec: int
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    entry = archive.add_segment("t", [RECORD])
    bad = bytearray(RECORD)
    bad[22] |= codec
    archive.archived_so("t", entry, bytes(with_crc(bad)))
    with pytest.raises(StrandlineError):
        by_python(archive, options={})
    with pytest.raises(Py4JJavaError) as caught:
        by_jvm(spark, archive, options={})
    says = f"{Codec(codec).name.lower()} data do not" if codec < 5 else "codec 5 is unknown"
    assert says in str(caught.value)
    assert entry.log_key in str(caught.value)


def test_a_timestamp_that_spark_cannot_hold_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    records = [Record(offset=n, timestamp_ms=n and 10**18, key=None, value=None) for n in range(2)]
    archive.add_segment("t", [encode_batch(records)])
    assert "offset 1 lies beyond what Spark can hold" in refusals(spark, archive)
    assert len(both(spark, archive, options={}, columns=["offset"])) == 2


def test_a_damaged_or_unknown_meta_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    entry = archive.add_segment("t", make_batches(make_records(300, value_bytes=9000)))
    path = archive.object_path(entry.meta_key)
    content = path.read_bytes()
    # Cut by position, so that tasks ask the statistics and the planner does not.
    options = {"splitBytes": 1024 * 1024}
    assert len(both(spark, archive, options=options, columns=["offset"])) == 300
    path.write_bytes(content[:-10] + b"\x00\x09" + content[-8:])
    with pytest.raises(Py4JJavaError, match="segment meta version 9"):
        by_jvm(spark, archive, options=options)
    path.write_bytes(content.replace(b'"record_count":300', b'"record_count":301'))
    assert "section statistics has a wrong checksum" in refusals(spark, archive, **options)


@pytest.mark.parametrize("value_bytes", [9000, 20], ids=["fetched whole", "larger than a tail"])
def test_the_meta_of_another_segment_is_refused(
    spark: SparkSession, tmp_path: Path, value_bytes: int
) -> None:
    """As long, whole in itself, of the same offsets, and with as many records."""
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t", partitions=2)
    count = 300 if value_bytes > 20 else 40_000
    ours, other = (
        archive.add_segment(
            "t",
            make_batches(
                make_records(count, value_bytes=value_bytes, step_ms=1000 + partition),
                per_batch=300,
            ),
            partition=partition,
            chunk_bytes=1 if value_bytes > 20 else 1 << 20,
        )
        for partition in range(2)
    )
    options = {"splitBytes": 1024 * 1024, "assign": {"t": [0]}, "engine": "jvm"}
    assert load(spark, archive.url, options=options).count() == count
    manifest = archive.manifest("t")
    archive.save(
        replace(manifest, segments=(replace(ours, meta_size_bytes=other.meta_size_bytes),))
    )
    content = archive.object_path(other.meta_key).read_bytes()
    assert (len(content) > TAIL_BYTES) == (count > 300)
    archive.object_path(ours.meta_key).write_bytes(content)
    with pytest.raises(Py4JJavaError, match="checksum of the whole object differs") as caught:
        load(spark, archive.url, options=options).collect()
    assert ours.meta_key in str(caught.value)


# --- which engine ------------------------------------------------------------------------------


def test_segments_of_old_messages_are_left_to_python(spark: SparkSession, tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("t")
    path = tmp_path / "segment"
    path.write_bytes(b"".join(old_and_new(1, CODECS["gzip"])))
    archived = archive_as_the_copier_does(archive, path, AdaptiveWalk())
    # Behind them one of today, of a later start of the broker.
    archive.add_segment("t", [made(archived.end_offset, 7)], leader_epoch=1)
    query = make_query(archive.url, "t", options={"maxRecordsPerPartition": 2 * RECORDS})
    reader = query.open()
    inside, others = divided(query.plan(reader), reader)
    assert [one.slices[0].entry.leader_epochs[0].epoch for one in inside] == [1]
    assert {one.slices[0].entry for one in others} == {archived}
    expected = scan(archive.url, "t").read_all().to_pylist()
    rows = load(spark, archive.url, "t").orderBy("offset").collect()
    assert [(row.offset, row.key, row.value) for row in rows] == [
        (row["offset"], row["key"], row["value"]) for row in expected
    ]


def test_the_log_line_of_a_query_names_its_engine_and_why(
    spark: SparkSession, archive: ArchiveBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def told(**options: Any) -> dict[str, Any]:
        caplog.clear()
        load(spark, archive.url, "t", options=options)
        fields = [one.__dict__["fields"] for one in caplog.records if "planned" in one.message]
        return dict(fields[-1])

    assert told()["engine"] == "jvm"
    assert told(engine="python")["why"] == "engine=python was asked for"
    values = told(valueFormat="string")
    assert (values["engine"], values["why"]) == (
        "python",
        "values are decoded in Python (valueFormat)",
    )
    with pytest.raises(InvalidConfig, match="option engine is jvm, but values are decoded"):
        told(valueFormat="string", engine="jvm")
    with pytest.raises(InvalidConfig, match="auto or jvm or python"):
        told(engine="java")
    with pytest.raises(InvalidConfig, match="engin is unknown; the nearest is engine"):
        told(engin="jvm")


def is_columnar(frame: DataFrame) -> bool:
    """Whether the JVM reads it: what tasks in Python make are rows for Spark."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "BatchScan strandline" in plan
    return "ColumnarToRow" in plan


@pytest.mark.heavy
def test_the_source_and_views_have_the_rows_of_load_by_every_engine(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    order = ("partition", "offset")
    expected = load(spark, archive.url, "t", options=HEADERS).orderBy(*order).collect()
    for engine in ("auto", "jvm", "python"):
        register_views(spark, archive.url, ["t"], options={**HEADERS, "engine": engine})
        assert is_columnar(spark.table("t")) == (engine != "python")
        assert spark.table("t").orderBy(*order).collect() == expected


@pytest.mark.parametrize("engine", ["auto", "jvm"])
def test_keys_are_compared_whoever_reads(
    spark: SparkSession, archive: ArchiveBuilder, engine: str
) -> None:
    """The JVM's reader cannot: Spark has to be left the filter, or Python the query."""
    source = spark.read.format("strandline").option("subscribe", "t").option("engine", engine)
    frame = source.load(archive.url).where("key = cast('key-7' as binary) and partition = 0")
    assert is_columnar(frame) == (engine == "jvm")
    expected = by_python(
        archive, options={}, filters=[("key", "in", ["key-7"]), ("partition", "in", [0])]
    )
    assert expected
    assert sorted(row["offset"] for row in frame.collect()) == [row["offset"] for row in expected]


@pytest.mark.parametrize("engine", ["auto", "jvm"])
def test_a_view_follows_the_archive_by_every_engine(
    spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("grows")
    archive.add_segment("grows", make_batches(make_records(40)))
    register_views(spark, archive.url, options={"engine": engine})

    def rows() -> int:
        return int(spark.sql("select count(*) n from grows where offset >= 10").collect()[0]["n"])

    assert is_columnar(spark.table("grows"))
    assert rows() == 30
    archive.add_segment("grows", make_batches(make_records(40, base_offset=40)))
    assert rows() == 70


def test_pieces_of_the_open_segment_are_rows_of_a_frame_that_the_jvm_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One scan then has partitions of both readers: the rows of Python come in columns, too."""
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    records = make_records(300, headers=True)
    archive.add_segment("t", make_batches(records[:100]))
    source = spark.read.format("strandline").option("subscribe", "t").options(**HEADERS)
    frame = source.option("engine", "jvm").load(archive.url)
    archive.add_piece("t", make_batches(records[100:]))
    assert is_columnar(frame)
    rows = frame.orderBy("offset").collect()
    in_python = load(spark, archive.url, "t", options={**HEADERS, "engine": "python"})
    assert rows == in_python.orderBy("offset").collect()
    assert [row["offset"] for row in rows] == list(range(300))
    assert sum(row["headers"] is not None for row in rows[100:]) > 0
    assert frame.where("offset >= 100").selectExpr("sum(size(headers)) > 0").first() == (True,)


def test_the_source_refuses_the_jvm_for_what_only_python_reads(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    source = spark.read.format("strandline").option("subscribe", "t").option("engine", "jvm")
    with pytest.raises(PySparkException, match="engine is jvm, but values are decoded in Python"):
        source.option("valueFormat", "string").load(archive.url)
    with pytest.raises(InvalidConfig, match="engine is jvm, but values are decoded in Python"):
        register_views(spark, archive.url, options={"engine": "jvm", "valueFormat": "string"})
