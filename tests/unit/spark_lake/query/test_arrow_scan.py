"""`scan`: the same rows without Spark, for whoever speaks Arrow."""

from __future__ import annotations

import datetime as dt
import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
from fsspec.implementations.local import LocalFileSystem

from strandline.spark_lake import count, scan
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.options.options import S3Options
from strandline.spark_lake.plan.splits import Split
from strandline.spark_lake.query.arrow_scan import QUEUE_BATCHES_MAX
from strandline.spark_lake.query.query import Query
from strandline.storage.errors import InvalidConfig, ObjectCorrupt, StrandlineError
from strandline.storage.records.batch.record import Record
from strandline.storage.records.columns.vectorised import INT64_MAX, INT64_MIN
from strandline.storage.records.compression import Codec
from tests.support.broker import eventually
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
)

MADE = make_records(600, headers=True)


@pytest.fixture
def archive(archive: ArchiveBuilder) -> ArchiveBuilder:
    """Topic `t`: a segment per codec in partition 0, another in partition 1."""
    archive.add_topic("t", partitions=2)
    for number, codec in enumerate(Codec):
        archive.add_segment("t", make_batches(MADE[number * 100 : number * 100 + 100], codec=codec))
    archive.add_segment("t", make_batches(MADE[:50]), partition=1)
    return archive


def test_all_records_come_in_order_of_partition_and_offset(archive: ArchiveBuilder) -> None:
    table = scan(archive.url, "t").read_all()
    assert table.column_names == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    made = MADE[: 100 * len(Codec)]
    assert table.column("offset").to_pylist() == [r.offset for r in [*made, *MADE[:50]]]
    assert table.column("value").to_pylist() == [r.value for r in [*made, *MADE[:50]]]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same_rows(archive: ArchiveBuilder, threads: int) -> None:
    for start in range(6):
        archive.add_topic(f"wide-{start}")
        archive.add_segment(f"wide-{start}", make_batches(MADE))
    reader = scan(
        archive.url,
        columns=["topic", "offset"],
        options={"subscribePattern": "wide-.*"},
        threads=threads,
    )
    table = reader.read_all()
    assert table.column("topic").to_pylist() == [f"wide-{n}" for n in range(6) for _ in MADE]
    assert table.column("offset").to_pylist() == [r.offset for r in MADE] * 6


def test_duckdb_asks_it_in_sql(archive: ArchiveBuilder) -> None:
    with duckdb.connect() as connection:
        connection.register("records", scan(archive.url, "t", columns=["key", "offset"]))
        (row,) = connection.sql(
            'select count(*), max("offset"), count(key) from records'
        ).fetchall()
    made = [*MADE[: 100 * len(Codec)], *MADE[:50]]
    assert row == (len(made), made[-51].offset, sum(r.key is not None for r in made))


def test_polars_takes_it_as_a_frame(archive: ArchiveBuilder) -> None:
    frame = pl.from_arrow(scan(archive.url, "t", options={"includeHeaders": True}))
    assert isinstance(frame, pl.DataFrame)
    by_partition = frame.group_by("partition").len().sort("partition")
    assert by_partition["len"].to_list() == [100 * len(Codec), 50]
    assert frame["headers"][0].to_list()[0]["key"] == "trace"


def test_what_has_no_rows_is_an_empty_frame_with_its_columns(archive: ArchiveBuilder) -> None:
    archive.add_topic("empty", partitions=2)
    nothing: Sequence[tuple[str, list[Any]]] = [
        ("empty", []),
        ("t", [("offset", ">=", 10**9)]),
        ("t", [("value", "==", b"none is this")]),
    ]
    for topic, filters in nothing:
        frame = pl.from_arrow(scan(archive.url, topic, columns=["key", "offset"], filters=filters))
        assert isinstance(frame, pl.DataFrame)
        assert (frame.shape, frame.columns) == ((0, 2), ["key", "offset"])
        assert scan(archive.url, topic, filters=filters).read_all().num_rows == 0
        with duckdb.connect() as connection:
            connection.register("records", scan(archive.url, topic, filters=filters))
            assert connection.sql("select count(*) from records").fetchall() == [(0,)]


def test_duckdb_and_polars_have_the_types_of_the_records(archive: ArchiveBuilder) -> None:
    """Times with their zone, headers as a list of structs, null where there are none."""
    made = [one for one in MADE[:6] if one.headers]
    headers = [[(one.key, one.value) for one in record.headers] for record in made]
    how: dict[str, Any] = {
        "options": {"assign": {"t": [0]}, "includeHeaders": True},
        "filters": [("offset", "<", 6)],
    }
    with duckdb.connect() as connection:
        connection.register("records", scan(archive.url, **how))
        kinds = dict(row[:2] for row in connection.sql("describe records").fetchall())
        found = connection.sql(
            'select "offset", epoch_ms(timestamp), headers from records'
            " where headers is not null order by 1"
        ).fetchall()
    assert kinds["timestamp"] == "TIMESTAMP WITH TIME ZONE"
    assert kinds["headers"] == 'STRUCT("key" VARCHAR, "value" BLOB)[]'
    assert (kinds["key"], kinds["partition"], kinds["offset"]) == ("BLOB", "INTEGER", "BIGINT")
    assert [row[:2] for row in found] == [(one.offset, one.timestamp_ms) for one in made]
    assert [[(one["key"], one["value"]) for one in row[2]] for row in found] == headers
    frame = pl.from_arrow(scan(archive.url, **how))
    assert isinstance(frame, pl.DataFrame)
    assert frame.schema["timestamp"] == pl.Datetime("us", "UTC")
    assert frame.schema["headers"] == pl.List(pl.Struct({"key": pl.String, "value": pl.Binary}))
    some = frame.filter(pl.col("headers").is_not_null())
    assert some["timestamp"].dt.epoch("ms").to_list() == [one.timestamp_ms for one in made]
    told = [[(one["key"], one["value"]) for one in row] for row in some["headers"].to_list()]
    assert told == headers


def test_duckdb_and_polars_name_a_damaged_object(archive: ArchiveBuilder) -> None:
    entry = archive.manifest("t").segments[-1]
    path = archive.object_path(entry.log_key)
    path.write_bytes(path.read_bytes()[:-1])
    with duckdb.connect() as connection:
        connection.register("records", scan(archive.url, "t"))
        with pytest.raises(duckdb.Error, match=f"{entry.log_key}.*the object is shorter"):
            connection.sql("select count(*) from records").fetchall()
    with pytest.raises(ObjectCorrupt, match=f"{entry.log_key}.*the object is shorter"):
        pl.from_arrow(scan(archive.url, "t"))


def test_a_query_of_duckdb_that_has_enough_ends_the_readers_threads(
    archive: ArchiveBuilder,
) -> None:
    archive.add_topic("long")
    for start in range(0, 3000, 300):
        records = make_records(300, base_offset=start, value_bytes=9000)
        archive.add_segment("long", make_batches(records))
    with duckdb.connect() as connection:
        connection.register("records", scan(archive.url, "long", options={"splitBytes": 1 << 20}))
        rows = connection.sql('select "offset" from records limit 3').fetchall()
        assert rows == [(0,), (1,), (2,)]
    gc.collect()
    assert not [one for one in threading.enumerate() if one.name.startswith("lake-split")]


def test_batches_that_nobody_has_taken_yet_are_few_however_much_there_is(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that asks slowly, or stops, does not have the archive put into its memory."""
    archive.add_topic("long")
    for start in range(0, 6000, 300):
        records = make_records(300, base_offset=start)
        archive.add_segment("long", make_batches(records, per_batch=1))
    given: list[int] = []
    read = Query.read

    def counted(self: Query, split: Split, reader: ObjectReader) -> Iterator[Any]:
        for batch in read(self, split, reader):
            for row in range(batch.num_rows):
                given.append(row)
                yield batch.slice(row, 1)

    monkeypatch.setattr(Query, "read", counted)
    options = {"maxRecordsPerPartition": 300}
    threads = 2
    # Of each split that is read: its queue, one that waits for room in it, one with the reader.
    most = (threads + 1) * (QUEUE_BATCHES_MAX + 1) + 1
    taken = 0
    for batch in scan(archive.url, "long", options=options, threads=threads):
        taken += batch.num_rows
        assert len(given) - taken <= most
    assert taken == 6000


def test_filters_choose_rows_whether_they_prune_or_not(archive: ArchiveBuilder) -> None:
    def offsets(*filters: tuple[str, str, object]) -> list[int]:
        found = scan(archive.url, "t", columns=["offset"], filters=filters)
        return list(found.read_all().column("offset").to_pylist())

    zero = ("partition", "=", 0)
    made = MADE[: 100 * len(Codec)]
    assert offsets(("offset", ">=", 20), ("offset", "<", 23), zero) == [20, 21, 22]
    moment = dt.datetime.fromtimestamp(START_MS / 1000, dt.UTC) + dt.timedelta(seconds=30)
    assert offsets(("timestamp", "<=", moment), zero) == list(range(31))
    assert offsets(("timestamp", "<", START_MS + 2000), zero) == [0, 1]
    assert offsets(("key", "==", "key-7")) == [7, 7]
    assert offsets(("key", "in", [b"key-7", b"key-333", b"no"]), zero) == [7, 333]
    assert offsets(("offset", "in", [3, 450])) == [3, 450, 3]
    assert offsets(("key", "!=", "key-1"), ("offset", "<", 4), zero) == [2, 3]  # key 0 is null
    assert offsets(("key", "not in", ["key-1"]), ("offset", "<", 4), zero) == [2, 3]
    assert offsets(("topic", "!=", "t")) == []
    # Numbers that no offset, and no type of a timestamp, can be.
    assert offsets(("offset", "in", [3, INT64_MIN]), zero) == [3]
    assert offsets(("offset", "!=", INT64_MAX), ("offset", "<", 2), zero) == [0, 1]
    assert offsets(("timestampType", "in", [0, 2**40]), ("offset", "<", 2), zero) == [0, 1]
    assert offsets(("timestampType", "==", 2**40)) == []
    values = [r.offset for r in made if r.value == b""]
    assert offsets(("value", "==", b""), zero) == values


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ([("offset", "~", 3)], "the operators are"),
        ([("size", "=", 3)], "the columns to filter by are key"),
        ([("offset", "=", "3")], "offset cannot be compared with '3', but with a whole number"),
        ([("timestamp", ">", "2024-01-01")], "but with a datetime with a zone, or milliseconds"),
        ([("offset", "=", np.True_)], "cannot be compared with"),
        (("offset", "=", 3), r"filters is .* must be a list of \(column, operator, value\)"),
        ("offset = 3", "filters is 'offset = 3', it must be a list"),
        ([("timestamp", ">", 10**18)], "milliseconds since 1970, in years 1 to 9999"),
        ([("timestamp", "<", 1706745600)], "looks like seconds"),
        ([("timestamp", "=", dt.datetime(2024, 1, 1))], "needs a zone"),
        ([("key", "in", b"k")], "in wants a list"),
        ([("offset", "in", [3, 2**63])], "9223372036854775808 is no number of 64 bits"),
        ([("offset", "!=", -(2**63) - 1)], "is no number of 64 bits"),
        ([("key", "in", {"k": 1})], "in wants a list"),
        ([("offset", "=")], r"must be \(column, operator, value\)"),
    ],
)
def test_a_wrong_filter_is_explained(
    archive: ArchiveBuilder, filters: list[tuple[str, str, object]], says: str
) -> None:
    with pytest.raises(InvalidConfig, match=says):
        scan(archive.url, "t", filters=filters)


def test_values_of_numpy_and_pandas_are_filters_as_pythons_are(archive: ArchiveBuilder) -> None:
    def offsets(*filters: tuple[str, str, object]) -> list[int]:
        given = [("partition", "==", np.int32(0)), *filters]
        table = scan(archive.url, "t", columns="offset,key", filters=given).read_all()
        return list(table.column("offset").to_pylist())

    assert offsets(("offset", "<", np.int64(3))) == [0, 1, 2]
    assert offsets(("offset", "in", np.array([1, 2]))) == [1, 2]
    assert offsets(("offset", "in", range(2)), ("offset", "not in", {1})) == [0]
    at = pd.Timestamp(START_MS + 1000, unit="ms", tz="Europe/Berlin")
    assert offsets(("timestamp", "<", at)) == offsets(("timestamp", "<", np.int64(START_MS + 1000)))
    keys = pd.Series(["key-1", "key-2"])
    assert offsets(("key", "in", keys)) == offsets(("key", "in", [b"key-1", "key-2"])) != []
    some = {"assign": {"t": [np.int64(0)]}, "endingOffsets": {"t": {"0": np.int64(2)}}}
    assert count(archive.url, options=some) == 2


def test_a_folder_may_be_a_path(archive: ArchiveBuilder) -> None:
    assert scan(archive.path, "t").read_all().num_rows == count(archive.path, "t") > 0


def test_partitions_beside_a_topics_name_are_not_passed_over(archive: ArchiveBuilder) -> None:
    with pytest.raises(InvalidConfig, match=r"topics is .* option assign names partitions too"):
        scan(archive.url, {"t": [0]})  # type: ignore[arg-type]  # what a user may write


def test_a_wrong_column_is_answered_with_the_nearest(archive: ArchiveBuilder) -> None:
    with pytest.raises(InvalidConfig, match="'ofset'; the nearest column is offset"):
        scan(archive.url, "t", columns=["ofset"])
    with pytest.raises(InvalidConfig, match="names a column twice"):
        scan(archive.url, "t", columns=["key", "key"])


def test_damage_in_the_middle_reaches_the_reader(archive: ArchiveBuilder) -> None:
    entry = archive.manifest("t").segments[2]
    path = archive.object_path(entry.log_key)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ObjectCorrupt, match=entry.log_key):
        scan(archive.url, "t", options={"splitBytes": 1 << 20}).read_all()


def test_a_reader_that_is_left_early_ends_its_threads(archive: ArchiveBuilder) -> None:
    archive.add_topic("long")
    for start in range(0, 3000, 300):
        records = make_records(300, base_offset=start, value_bytes=9000)
        archive.add_segment("long", make_batches(records))
    reader = scan(archive.url, "long", options={"splitBytes": 1 << 20}, threads=2)
    reader.read_next_batch()
    reader.close()
    del reader
    gc.collect()
    assert not [one for one in threading.enumerate() if one.name.startswith("lake-split")]


def test_a_query_logs_one_line_of_what_it_read_of_how_much(
    archive: ArchiveBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scan(archive.url, "t", filters=[("offset", "<", 100)]).read_all()
    count(archive.url, "t", filters=[("offset", "<", 100)])
    lines = [one for one in caplog.records if one.name == "strandline.spark_lake"]
    assert [one.message.split(":")[0] for one in lines] == ["scan read", "rows counted"]
    for line, requests in zip(lines, (2, 0), strict=True):
        fields = line.fields  # type: ignore[attr-defined]
        assert fields["rows"] == 150
        # The logging of a notebook shows the text alone.
        assert "rows=150; plan=2 of 6 segments, 2 of 6 chunks, " in line.message
        assert fields["plan"].startswith("2 of 6 segments, 2 of 6 chunks, ")
        planning = 5  # cluster.json, the topics, the description, two manifests
        assert fields["requests"] == planning + requests
        assert fields["requests_total"] == planning + 6


def test_what_reads_in_python_refuses_the_engine_jvm(archive: ArchiveBuilder) -> None:
    for ask in (scan, count):
        with pytest.raises(InvalidConfig, match=r"option engine is jvm, but .* reads in Python"):
            ask(archive.url, "t", options={"engine": "jvm"})
        assert ask(archive.url, "t", options={"engine": "auto"})


def test_neither_pyspark_nor_java_is_needed(archive: ArchiveBuilder) -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None;"
        "from strandline.spark_lake import scan;"
        f"print(scan({archive.url!r}, 't').read_all().num_rows)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str(100 * len(Codec) + 50)


def test_no_time_is_too_late_or_too_early_for_its_row(archive: ArchiveBuilder) -> None:
    archive.add_topic("u")
    times = [INT64_MIN, -1, 0, INT64_MAX - 1, INT64_MAX]
    records = [
        Record(offset=n, timestamp_ms=time, key=None, value=None) for n, time in enumerate(times)
    ]
    for one in records[:3]:
        archive.add_segment("u", make_batches([one]))
    archive.add_segment("u", make_batches(records[3:], per_batch=1))
    found = scan(archive.url, "u", columns=["offset"]).read_all()
    assert found.column("offset").to_pylist() == list(range(len(times)))
    assert count(archive.url, "u") == len(times)
    late = [("timestamp", ">=", dt.datetime(1970, 1, 1, tzinfo=dt.UTC))]
    assert count(archive.url, "u", filters=late) == 3
    assert scan(archive.url, "u", columns=["offset"], filters=late).read_all().num_rows == 3


def test_topics_of_any_length_are_found_in_a_folder(tmp_path: Path) -> None:
    """There the store cuts what is longer than a file's name may be."""
    archive = ArchiveBuilder(tmp_path)
    names = ["t", *(letter * 249 for letter in "ab"), "a" * 248 + "c", "a" * 163, "a" * 164]
    for name in names:
        archive.add_topic(name)
        archive.add_segment(name, make_batches(make_records(3)))
    archive.add_topic("a" * 200)
    for name in names:
        assert scan(archive.url, name).read_all().num_rows == 3
    every = scan(archive.url, columns=["topic"], options={"subscribePattern": ".*"}).read_all()
    assert set(every.column("topic").to_pylist()) == set(names)
    log_key = archive.manifest("b" * 249).segments[0].log_key
    (address,) = ObjectReader(archive.url, S3Options()).addresses([log_key], 60).values()
    assert Path(address).read_bytes() == archive.store.get(log_key)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [scan, count])
def test_a_store_that_does_not_answer_is_told_while_one_waits(
    ask: Callable[[str, str], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "cluster.json"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ask, f"file://{tmp_path}", "t")
        said = f"file://{tmp_path} has not answered for 2 s, still waiting"
        try:
            eventually(lambda: said in caplog.messages)
        finally:
            # An empty file, which is no cluster's.
            pipe.open("w").close()
        with pytest.raises(StrandlineError):
            waiting.result()
    assert caplog.messages.count(said) == 1


@pytest.mark.slow
def test_a_store_that_falls_silent_while_rows_are_read_is_told(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = scan(archive.url, "t", threads=1)
    read, goes_on = LocalFileSystem.cat_file, threading.Event()

    def hang(*given: Any, **named: Any) -> Any:
        assert goes_on.wait(60)
        return read(*given, **named)

    monkeypatch.setattr(LocalFileSystem, "cat_file", hang)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(reader.read_all)
        try:
            eventually(lambda: f"{archive.url} has not answered for 2 s" in caplog.text)
        finally:
            goes_on.set()
        assert reading.result().num_rows
