"""`strandline lake plan`: a user sees what is read, of how much, and why not the rest."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.broker.commands.lake_plan import parse_filter
from strandline.spark_lake.archive.objects import ObjectReader, ReadStatistics
from strandline.spark_lake.options.options import S3Options
from strandline.spark_lake.query import pruning
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.spark_lake.query.query_log import plan_fields
from strandline.storage.errors import InvalidConfig
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
)


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveBuilder:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t", partitions=2)
    for start in (0, 400, 800):
        records = make_records(400, base_offset=start, value_bytes=10 * 1024)
        archive.add_segment("t", make_batches(records))
    archive.add_segment("t", make_batches(make_records(10)), partition=1)
    return archive


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["lake", "plan", *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_table_says_what_is_read_and_why_not_the_rest(
    archive: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(
        capsys,
        *("--remote", archive.url, "--topic", "t"),
        *("--where", "timestamp >= 2023-11-14T22:21:40Z", "--where", "partition = 0"),
        *("--where", "timestamp < 2023-11-14T22:22:00Z", "--option", "startingOffsets=earliest"),
    )
    assert "0 1 of 3 1 of 12" in shown
    assert "1 0 of 1 0 of 1" in shown
    assert "a filter on topic or partition 1" in shown
    assert "a filter on timestamp 2" in shown
    assert "chunks without a wanted offset or timestamp 0" in shown
    assert "1 split of up to 64.0 MiB, unless Spark cuts for its cores; 1 of about 4" in shown


def test_splits_are_said_to_be_tasks_of_spark_where_they_are(
    archive: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    """What suits the tasks that run at once is known to Spark alone."""
    asked = ("--remote", archive.url, "--topic", "t")
    for given in ("minPartitions=5", "maxRecordsPerPartition=100", "splitBytes=1048576"):
        assert " splits, each a task of Spark; " in printed(capsys, *asked, "--option", given)
    assert "unless Spark cuts for its cores" in printed(capsys, *asked)


def test_what_is_planned_is_never_more_than_there_is(
    archive: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chunks are reckoned by size where nobody asked the statistics: segment by segment."""
    shown = printed(capsys, "--remote", archive.url, "--topic", "t")
    assert "0 3 of 3 12 of 12" in shown
    assert "all 4 of 4 13 of 13" in shown
    archive.seal_page("t", 2)
    shown = printed(capsys, "--remote", archive.url, "--topic", "t")
    assert "all 4 of 4 13 of 13" in shown


def test_more_requests_than_everything_would_take_are_said_to_be_smaller(
    archive: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where times go back and forth, the wanted chunks lie apart."""
    archive.add_topic("u")
    records = make_records(400, value_bytes=10 * 1024)
    late = [replace(one, timestamp_ms=START_MS + one.offset // 10 % 2) for one in records]
    archive.add_segment("u", make_batches(late), chunk_bytes=1)
    where = ("--where", f"timestamp = {START_MS}")
    shown = printed(capsys, "--remote", archive.url, "--topic", "u", *where)
    assert (
        "1 split of up to 64.0 MiB, unless Spark cuts for its cores; 20 requests, where 1" in shown
    )
    told = plan_fields(
        make_query(archive.url, "u", filters=[("timestamp", "==", START_MS)]).plan(
            ObjectReader(archive.url, S3Options())
        ),
        ReadStatistics(request_count=0, bytes_read=0),
    )
    assert (told["requests_planned"], told["requests_total"]) == (20, 20)


def test_everything_takes_as_many_requests_as_there_are(
    archive: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of segments that are cut, each a little larger than whole windows."""
    archive.add_topic("u")
    for start in (0, 1100):
        records = make_records(1100, base_offset=start, value_bytes=10 * 1024)
        archive.add_segment("u", make_batches(records, per_batch=50))
    for option, requests in (("splitBytes=67108864", 4), ("splitBytes=1048576", 36)):
        shown = printed(capsys, "--remote", archive.url, "--topic", "u", "--option", option)
        assert f"{requests} of about {requests} requests" in shown


def test_filters_that_spare_nothing_are_named(
    archive: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    filters = ("--where", "value = x", "--where", "offset != 7", "--where", "offset >= 400")
    shown = printed(capsys, "--remote", archive.url, "--topic", "t", *filters)
    assert "Rows are tested when they are read, which spares no bytes: value ==, offset !=" in shown
    assert "0 2 of 3" in shown


def test_segments_that_nobody_asks_for_their_keys_are_counted(
    archive: ArchiveBuilder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--remote", archive.url, "--topic", "t", "--where", "key = nobody")
    shown = printed(capsys, *asked)
    # Three are large enough to be asked, and do not have it.
    assert "0 0 of 3" in shown
    assert "1 segment of up to 1.0 MiB: not asked for the keys they have" in shown
    monkeypatch.setattr(pruning, "PLANNED_METAS_MAX", 2)
    assert "3 segments may be spared by the tasks: too many to be asked" in printed(capsys, *asked)
    assert "keys" not in printed(capsys, "--remote", archive.url, "--topic", "t")


def test_many_partitions_and_empty_ones_fit_into_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = ArchiveBuilder(tmp_path)
    topic = "flights"
    archive.add_topic(topic, partitions=80)
    for partition in range(75):
        archive.add_segment(topic, make_batches(make_records(10)), partition=partition)
    archive.add_piece(topic, make_batches(make_records(10, base_offset=10)), partition=0)
    arguments = ("lake", "plan", "--remote", archive.url, "--topic", topic)
    assert main([*arguments, "--where", "partition < 60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == topic
    assert max(map(len, lines[: lines.index("")])) <= 80
    told = [" ".join(line.split()) for line in lines]
    assert len([line for line in told if " of " in line and line.split()[0].isdecimal()]) >= 40
    assert any(line.startswith("20 more 20 of 20") for line in told)
    assert any(line.startswith("60 to 74 0 of 15") for line in told)
    assert "75 to 79 nothing archived yet" in told
    assert any(line.startswith("all 61 of 76") for line in told)
    assert any(line.startswith("1 piece of open segments among") for line in told)


def test_mistakes_end_with_one_line(
    archive: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["lake", "plan", "--remote", archive.url]
    assert main([*given, "--topic", "nothing"]) == 1
    assert main([*given, "--topic", "t", "--where", "offset"]) == 2
    assert main([*given, "--topic", "t", "--option", "splitBites=3"]) == 2
    assert main([*given, "--topic", "t", "--option", "splitBytes"]) == 2
    assert main([*given, "--topic", "t", "--where", "ofset > 3"]) == 2
    assert main([*given, "--topic", "t7"]) == 1
    assert main(given) == 2
    assert main([*given, "--topic", "t", "--where", "timestamp > yesterday"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 8
    assert "--topic is missing" in lines[6]
    assert "timestamp is compared with a time such as 2024-02-01T10:00Z" in lines[7]
    assert "the nearest is splitBytes" in lines[2]
    assert "the nearest column is offset" in lines[4]
    assert "the nearest is t" in lines[5]


def test_filters_are_read_as_they_are_written() -> None:
    moment = dt.datetime(2024, 2, 1, tzinfo=dt.UTC)
    assert parse_filter("timestamp>=2024-02-01") == ("timestamp", ">=", moment)
    assert parse_filter("timestamp < 17") == ("timestamp", "<", 17)
    assert parse_filter("key = 'a=b'") == ("key", "=", "a=b")
    assert parse_filter("partition != 3") == ("partition", "!=", 3)
    with pytest.raises(InvalidConfig, match="--where"):
        parse_filter("offset > many")
