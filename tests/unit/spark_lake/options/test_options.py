"""Options: Spark's names and meanings, and a remedy in every refusal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strandline.spark_lake.archive.objects import _s3_arguments
from strandline.spark_lake.options.bound_options import AtOffset, AtTimestamp, Edge, narrowed
from strandline.spark_lake.options.given_options import OPTION_NAMES
from strandline.spark_lake.options.options import LakeOptions, Mode, S3Options
from strandline.spark_lake.options.selection_options import Assign, Subscribe, SubscribePattern
from strandline.spark_lake.query.arrow_scan import make_query, scan
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import Isolation, TopicPartition

REQUIRED = {"path": "s3://bucket/prefix", "subscribe": "t"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def parse(**options: str) -> LakeOptions:
    return LakeOptions.parse({**REQUIRED, **options})


def refused(options: dict[str, str]) -> str:
    with pytest.raises(InvalidConfig) as caught:
        LakeOptions.parse(options)
    return str(caught.value)


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


def test_names_are_taken_in_any_case() -> None:
    options = LakeOptions.parse(
        {"PATH": "s3://b", "Subscribe": "a, b", "includeheaders": "TRUE", "S3.Region": "eu-west-1"}
    )
    assert options.selection == Subscribe(("a", "b"))
    assert options.columns[-1] == "headers"
    assert options.s3.region == "eu-west-1"


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


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("subscibe", "subscribe"),
        ("startingOffset", "startingOffsets"),
        ("includeHeader", "includeHeaders"),
        ("s3.endpoint", "s3.endpoint.url"),
        ("s3.secret.key", "s3.secret"),
        ("minPartition", "minPartitions"),
        ("topic", "subscribe"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    message = refused({**REQUIRED, name: "1"})
    assert message == f"option {name} is unknown; the nearest is {nearest}"


def test_a_table_of_a_catalog_is_refused_with_what_to_do_instead() -> None:
    """What Spark adds for CREATE TABLE, before whatever else it adds is told as a wrong option."""
    of_a_table = {
        "location": "/x",
        "option.subscribe": "t",
        "owner": "me",
        "provider": "strandline",
    }
    message = refused({**of_a_table, **REQUIRED})
    assert "CREATE TEMPORARY VIEW takes the same" in message
    assert "owner is unknown" in refused({**REQUIRED, "owner": "me"})


def test_broker_options_are_refused_with_the_reason() -> None:
    message = refused({**REQUIRED, "kafka.bootstrap.servers": "a:1"})
    assert "no broker" in message
    assert "kafka.bootstrap.servers" in message


def test_an_end_before_its_start_is_refused() -> None:
    for which in ("Offsets", "OffsetsByTimestamp"):
        given = {f"starting{which}": '{"t": {"0": 20}}', f"ending{which}": '{"t": {"0": 10}}'}
        message = refused({**REQUIRED, **given})
        assert f"starting{which}" in message
        assert "t partition 0" in message
    parse(startingOffsets='{"t": {"0": 20}}', endingOffsets='{"t": {"0": -1}}')
    parse(startingOffsets='{"t": {"0": 20}}', endingOffsets='{"t": {"0": 20}}')
    parse(startingOffsetsByTimestamp='{"t": {"0": 20}}', endingOffsets='{"t": {"0": 10}}')


# What Spark 4's KafkaSourceProvider reads of a source's options, besides kafka.* (its consumer's).
TAKEN_BY_BOTH = {
    "assign": '{"t": [0]}',
    "subscribe": "t",
    "subscribePattern": "t",
    "startingOffsets": "earliest",
    "endingOffsets": "latest",
    "startingOffsetsByTimestamp": '{"t": {"0": 5}}',
    "endingOffsetsByTimestamp": '{"t": {"0": 5}}',
    "startingTimestamp": "5",
    "endingTimestamp": "5",
    "startingOffsetsByTimestampStrategy": "latest",
    "failOnDataLoss": "false",
    "minPartitions": "3",
    "maxRecordsPerPartition": "3",
    "maxOffsetsPerTrigger": "3",
    "minOffsetsPerTrigger": "3",
    "maxTriggerDelay": "15m",
    "includeHeaders": "true",
}
SELECTIONS = ("assign", "subscribe", "subscribePattern")
ABOUT_BROKERS = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "groupIdPrefix",
    "kafka.bootstrap.servers",
    "kafka.group.id",
    "kafka.isolation.level",
    "kafka.auto.offset.reset",
)


def test_every_option_of_sparks_kafka_source_is_taken_or_refused_with_a_reason() -> None:
    for name, text in TAKEN_BY_BOTH.items():
        selected = {} if name in SELECTIONS else {"subscribe": "t"}
        mode = Mode.STREAM if "Trigger" in name else Mode.BATCH
        LakeOptions.parse({"path": "s3://b", **selected, name: text}, mode)
    for name in ABOUT_BROKERS:
        assert "no meaning here" in refused({**REQUIRED, name: "3"}), name
    # `topic` says where Spark's sink writes to; its source does not read it.
    assert "nearest" in refused({**REQUIRED, "topic": "t"})
    assert "isolationLevel" in refused({**REQUIRED, "kafka.isolation.level": "read_committed"})


def test_exactly_one_selection_is_needed() -> None:
    assert "given: none" in refused({"path": "s3://b"})
    assert "given: subscribe, assign" in refused({**REQUIRED, "assign": '{"t": [0]}'})


def test_selections_are_parsed() -> None:
    pattern = LakeOptions.parse({"path": "s3://b", "subscribePattern": "a.*"})
    assert pattern.selection == SubscribePattern("a.*")
    assigned = LakeOptions.parse({"path": "s3://b", "assign": '{"a": [2, 0], "b": [1]}'})
    assert assigned.selection == Assign({"a": (2, 0), "b": (1,)})


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": ",,"},
        {"subscribePattern": "("},
        {"assign": "a"},
        {"assign": "[]"},
        {"assign": "{}"},
        {"assign": '{"a": 1}'},
        {"assign": '{"a": [-1]}'},
        {"assign": '{"a": [], "b": [0]}'},
        {"assign": '{"a": ["0"]}'},
    ],
)
def test_bad_selections_are_refused_by_name(options: dict[str, str]) -> None:
    (name,) = options
    assert f"option {name}" in refused({"path": "s3://b", **options})


# --- bounds ----------------------------------------------------------------------------------


def test_offsets_by_partition_know_the_edges() -> None:
    options = parse(
        startingOffsets='{"t": {"0": 23, "1": -2}}', endingOffsets='{"t": {"0": -1, "1": 50}}'
    )
    assert options.start.of(T0) == AtOffset(23)
    assert options.start.of(T1) is Edge.EARLIEST
    assert options.end.of(T0) is Edge.LATEST
    assert options.end.of(T1) == AtOffset(50)


def test_a_timestamp_goes_before_timestamps_go_before_offsets() -> None:
    by_partition = '{"t": {"0": 5}}'
    offsets = '{"t": {"0": 7}}'
    assert parse(
        startingTimestamp="9", startingOffsetsByTimestamp=by_partition, startingOffsets=offsets
    ).start.of(T0) == AtTimestamp(9)
    assert parse(endingOffsetsByTimestamp=by_partition, endingOffsets=offsets).end.of(
        T0
    ) == AtTimestamp(5)


def test_a_partition_that_is_not_named_is_refused() -> None:
    bounds = parse(startingOffsets='{"t": {"0": 1}}').start
    with pytest.raises(InvalidConfig, match="t partition 1 is missing"):
        bounds.of(T1)


def test_a_partition_that_is_named_and_not_read_is_refused() -> None:
    bounds = parse(startingOffsets='{"t": {"0": 1, "1": 2}}').start
    bounds.check_names([T0, T1])
    with pytest.raises(InvalidConfig, match="startingOffsets names t partition 1, which is not"):
        bounds.check_names([T0])
    # A pattern that does not find a topic would leave it out in silence.
    bounds = parse(startingOffsets='{"t": {"0": 1, "1": 2}, "u": {"0": 0}}').start
    with pytest.raises(InvalidConfig, match="startingOffsets names u partition 0, which is not"):
        bounds.check_names([T0, T1])


def test_of_options_for_several_topics_a_view_has_its_own() -> None:
    given = {
        "startingOFFSETS": '{"t": {"0": 1}, "u": {"0": 2}}',
        "endingOffsetsByTimestamp": '{"u": {"0": 3}}',
        "endingOffsets": "latest",
        "subscribe": "t,u",
    }
    assert narrowed(given, "u") == {
        **given,
        "startingOFFSETS": '{"u": {"0": 2}}',
    }
    # What is not named is left to be missed.
    assert narrowed(given, "t")["endingOffsetsByTimestamp"] == '{"u": {"0": 3}}'


@pytest.mark.parametrize(
    "text", ["9" * 19, "-" + "9" * 19, "1" + "0" * 40, "1_000", "\uff11", "1.0"]
)
def test_numbers_are_whole_ones_of_64_bits(text: str) -> None:
    assert "startingTimestamp" in refused({**REQUIRED, "startingTimestamp": text})
    assert "minPartitions" in refused({**REQUIRED, "minPartitions": text})
    for name in ("startingOffsets", "endingOffsetsByTimestamp"):
        assert name in refused({**REQUIRED, name: f'{{"t": {{"0": {text}}}}}'})


@pytest.mark.parametrize(
    "pattern", ["[a-z&&[^t]]", "[[:alpha:]]", "[a--b]", r"\p{Alpha}", "(", "*"]
)
def test_patterns_that_java_would_take_for_others_are_refused(pattern: str) -> None:
    said = refused({"path": REQUIRED["path"], "subscribePattern": pattern})
    assert "subscribePattern is no regular expression" in said


def test_empty_values_are_refused_but_where_an_environment_may_be_empty() -> None:
    for name in OPTION_NAMES:
        given = {**REQUIRED, name: " "}
        if name.startswith("s3.") or name == "schemaRegistry.auth":
            parse(**given)
        else:
            assert refused(given) == f"option {name} is empty: give it a value, or leave it out"


def test_empty_names_between_commas_are_passed_over_as_by_sparks_kafka_source() -> None:
    assert parse(subscribe=" t ,, u,").selection == Subscribe(("t", "u"))
    assert "option subscribe names no topic" in refused({**REQUIRED, "subscribe": " , "})


def test_an_option_that_is_given_twice_is_refused() -> None:
    assert refused({**REQUIRED, "Subscribe": "u"}) == (
        "option subscribe is given twice, with different values"
    )
    assert parse(Subscribe=REQUIRED["subscribe"]).selection == Subscribe((REQUIRED["subscribe"],))
    for options in ({"subscribe": "u"}, {"PATH": "/other"}, {"columns": "key"}):
        with pytest.raises(InvalidConfig, match="given twice: as an argument, and as an option"):
            make_query("/folder", "t", columns=["offset"], options=options)


def test_a_time_to_end_before_the_time_to_begin_is_refused() -> None:
    message = refused({**REQUIRED, "startingTimestamp": "20", "endingTimestamp": "10"})
    assert message == (
        "options startingTimestamp and endingTimestamp: the query would end before it begins"
    )


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
    options = parse(**{"s3.key": "K", "s3.secret": "hush", "s3.token": "shush"})
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


def test_an_option_that_is_none_was_not_given() -> None:
    """As Spark has it: what an environment does not have is no text `None`."""
    given = {"s3.key": "k", "s3.token": None, "s3.region": None, "minPartitions": None}
    options = make_query("s3://b", "t", options=given).options
    assert (options.s3, options.splits_min) == (S3Options(key="k"), 1)


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
    keys = {} if "s3.profile" in options else {"s3.key": "k", "s3.secret": "s"}
    given = {"s3.endpoint.url": "http://127.0.0.1:9", **keys, **options}
    path = given.pop("path", "s3://bucket/p")
    with pytest.raises(InvalidConfig, match=f"{says}.*; see the options path and s3"):
        scan(path, "t", options=given)


@pytest.mark.parametrize("name", ["groupIdPrefix", "fetchOffset.numRetries", "kafka.group.id"])
def test_options_about_brokers_are_refused_because_they_would_do_nothing(name: str) -> None:
    with pytest.raises(InvalidConfig, match="has no meaning here"):
        parse(**{name: "3"})
    # Spark hands names over in lower case.
    with pytest.raises(InvalidConfig, match=f"option {name} has no meaning here"):
        parse(**{name.lower(): "3"})
