"""Options: Spark's names and meanings, and a remedy in every refusal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strandline.spark_lake.archive.objects import _s3_arguments
from strandline.spark_lake.options.bound_options import Edge
from strandline.spark_lake.options.options import S3Options
from strandline.spark_lake.options.selection_options import Subscribe
from strandline.spark_lake.query.arrow_scan import scan
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import Isolation
from tests.unit.spark_lake.options.parsed import REQUIRED, T0, parse, refused


def test_without_more_than_path_and_topic_everything_committed_is_read() -> None:
    options = parse()
    assert options.selection == Subscribe(("t",))
    assert options.start.of(T0) is Edge.EARLIEST
    assert options.end.of(T0) is Edge.LATEST
    assert options.isolation is Isolation.READ_COMMITTED
    assert "headers" not in options.columns
    assert options.fail_on_data_loss
    assert (options.split_bytes, options.splits_min) == (None, 1)
    assert options.s3 == S3Options()


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3a://bucket", "s3://bucket"),
        ("file:///some/folder/", "file:///some/folder"),
        ("/some/folder", "file:///some/folder"),
        # As the broker takes the same URL, see `open_store`.
        ("file:///my%20archive/100%25/", "file:///my archive/100%"),
        ("file://localhost/my archive", "file:///my archive"),
        ("s3://b.u.c/my%20archive/%C3%A9+/", "s3://b.u.c/my archive/\u00e9+"),
        # As the shell has it.
        ("/my%20archive#1?", "file:///my%20archive#1?"),
    ],
)
def test_archives_are_named_by_url(given: str, url: str) -> None:
    assert parse(path=given).url == url


@pytest.mark.parametrize(
    "given",
    ["gs://bucket", "folder", "s3://", "file://host/x", "file:///", "file:///a#1", "file:///a?1"],
)
def test_other_urls_are_refused_with_the_two_that_work(given: str) -> None:
    assert "s3://bucket/prefix or file:///" in refused({"path": given, "subscribe": "t"})


def test_a_missing_path_is_refused() -> None:
    assert "option path is missing" in refused({"subscribe": "t"})


def test_an_end_before_its_start_is_refused() -> None:
    for which in ("Offsets", "OffsetsByTimestamp"):
        given = {f"starting{which}": '{"t": {"0": 20}}', f"ending{which}": '{"t": {"0": 10}}'}
        message = refused({**REQUIRED, **given})
        assert f"starting{which}" in message
        assert "t partition 0" in message
    parse(startingOffsets='{"t": {"0": 20}}', endingOffsets='{"t": {"0": -1}}')
    parse(startingOffsets='{"t": {"0": 20}}', endingOffsets='{"t": {"0": 20}}')
    parse(startingOffsetsByTimestamp='{"t": {"0": 20}}', endingOffsets='{"t": {"0": 10}}')


@pytest.mark.parametrize(
    "text", ["9" * 19, "-" + "9" * 19, "1" + "0" * 40, "1_000", "\uff11", "1.0"]
)
def test_numbers_are_whole_ones_of_64_bits(text: str) -> None:
    assert "startingTimestamp" in refused({**REQUIRED, "startingTimestamp": text})
    assert "minPartitions" in refused({**REQUIRED, "minPartitions": text})
    for name in ("startingOffsets", "endingOffsetsByTimestamp"):
        assert name in refused({**REQUIRED, name: f'{{"t": {{"0": {text}}}}}'})


def test_too_much_is_not_told_to_be_too_little() -> None:
    assert "must be at most 1000000" in refused({**REQUIRED, "minPartitions": "1000001"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("endingOffsets", "earliest"),
        ("startingOffsets", '{"t": {"0": -1}}'),
        ("endingOffsets", '{"t": {"0": -2}}'),
        ("startingOffsets", '{"t": {"0": -7}}'),
        ("startingOffsets", '{"t": {"zero": 1}}'),
        ("startingOffsets", '{"t": {"0": "1"}}'),
        ("startingOffsets", '{"t": [0]}'),
        ("startingOffsets", "{}"),
        ("startingOffsets", "first"),
        ("startingTimestamp", "today"),
        ("endingOffsetsByTimestamp", '{"t": {"0": 1.5}}'),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("includeHeaders", "yes"),
        ("failOnDataLoss", "1"),
        ("isolationLevel", "serializable"),
        ("minPartitions", "0"),
        ("splitBytes", "10"),
        ("splitBytes", "64m"),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: str) -> None:
    assert f"option {name}" in refused({**REQUIRED, name: value})


def test_secrets_are_not_shown() -> None:
    options = parse(**{"s3.access.key": "K", "s3.secret": "hush", "s3.token": "shush"})
    assert "hush" not in repr(options)


@pytest.mark.slow
def test_importing_the_lake_is_cheap() -> None:
    program = (
        "import sys, strandline.spark_lake, strandline.spark_lake.plan.planner;"
        "sys.exit(' '.join({'numba', 'numpy', 'pyspark', 'pyarrow', 'fsspec', 'boto3'}"
        " & set(sys.modules)) or 0)"
    )
    path = [path for path in sys.path if path]
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {program}"],
        check=True,
        timeout=60,
    )


def test_columns_are_named_in_their_order_and_no_headers_come_beside_them() -> None:
    options = parse(columns="offset, key", includeHeaders="true")
    assert options.columns == ("offset", "key")


def test_s3_options_reach_s3fs() -> None:
    options = parse(
        **{"s3.profile": "history", "s3.requester.pays": "true", "s3.endpoint.url": "http://s3"}
    )
    arguments = _s3_arguments(options.s3)
    assert (arguments["profile"], arguments["requester_pays"]) == ("history", True)
    assert arguments["endpoint_url"] == "http://s3"


@pytest.mark.parametrize(
    "given",
    [
        {"path": "s3://user:pass-word@bucket/prefix"},
        {"s3.endpoint.url": "http://user:pass-word@minio:9000"},
        {"valueFormat": "avro", "schemaRegistry.url": "http://user:pass-word@registry:8081"},
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(given: dict[str, str]) -> None:
    said = refused({**REQUIRED, **given})
    assert "a user or a password is refused" in said
    assert "pass-word" not in said


@pytest.mark.parametrize("text", ["127.0.0.1:9000", "minio", "http://", "s3://minio"])
def test_an_endpoint_that_is_none_is_refused(text: str) -> None:
    said = refused({**REQUIRED, "s3.endpoint.url": text})
    assert said.startswith(f"option s3.endpoint.url is {text!r}, it must be http://host:port")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"s3.profile": "nobody"}, r"cluster\.json: The config profile \(nobody\) could not"),
        ({"s3.region": "mars 1"}, r"cluster\.json: Provided region_name 'mars 1' doesn't"),
        ({"path": "s3://a bucket/p"}, r"cluster\.json: .* Invalid bucket name \"a bucket\""),
    ],
)
def test_settings_of_s3_that_cannot_be_are_no_failure_of_the_store(
    options: dict[str, str], says: str
) -> None:
    """Nobody is told to try again."""
    keys = {} if "s3.profile" in options else {"s3.access.key": "k", "s3.secret": "s"}
    given = {"s3.endpoint.url": "http://127.0.0.1:9", **keys, **options}
    path = given.pop("path", "s3://bucket/p")
    with pytest.raises(InvalidConfig, match=f"{says}.*; see the options path and s3"):
        scan(path, "t", options=given)
