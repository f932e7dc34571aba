"""Options as they are given: names in any case, each once, and a reason for each refusal."""

from __future__ import annotations

import re

import pytest

from strandline.spark_lake.options.given_options import OPTION_NAMES
from strandline.spark_lake.options.options import LakeOptions, ReadMode, S3Options
from strandline.spark_lake.options.selection_options import Subscribe
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.storage.errors import InvalidConfig
from tests.unit.spark_lake.options.parsed import REQUIRED, parse, refused


def test_names_are_taken_in_any_case() -> None:
    options = LakeOptions.parse(
        {"PATH": "s3://b", "Subscribe": "a, b", "includeheaders": "TRUE", "S3.Region": "eu-west-1"}
    )
    assert options.selection == Subscribe(("a", "b"))
    assert options.columns[-1] == "headers"
    assert options.s3.region == "eu-west-1"


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
        mode = ReadMode.STREAM if "Trigger" in name else ReadMode.BATCH
        LakeOptions.parse({"path": "s3://b", **selected, name: text}, mode)
    for name in ABOUT_BROKERS:
        assert "no meaning here" in refused({**REQUIRED, name: "3"}), name
    # `topic` says where Spark's sink writes to; its source does not read it.
    assert "nearest" in refused({**REQUIRED, "topic": "t"})
    assert "isolationLevel" in refused({**REQUIRED, "kafka.isolation.level": "read_committed"})


def test_empty_values_are_refused_but_where_an_environment_may_be_empty() -> None:
    for name in OPTION_NAMES:
        given = {**REQUIRED, name: " "}
        if name.startswith("s3.") or name == "schemaRegistry.userPassword":
            parse(**given)
        else:
            assert refused(given) == f"option {name} is empty: give it a value, or leave it out"


def test_an_option_that_is_given_twice_is_refused() -> None:
    assert refused({**REQUIRED, "Subscribe": "u"}) == (
        "option subscribe is given twice, with different values"
    )
    assert parse(Subscribe=REQUIRED["subscribe"]).selection == Subscribe((REQUIRED["subscribe"],))
    for options in ({"subscribe": "u"}, {"PATH": "/other"}, {"columns": "key"}):
        with pytest.raises(InvalidConfig, match="given twice: as an argument, and as an option"):
            make_query("/folder", "t", columns=["offset"], options=options)


def test_an_option_that_is_none_was_not_given() -> None:
    """As Spark has it: what an environment does not have is no text `None`."""
    given = {"s3.access.key": "k", "s3.token": None, "s3.region": None, "minPartitions": None}
    options = make_query("s3://b", "t", options=given).options
    assert (options.s3, options.splits_min) == (S3Options(key="k"), 1)


@pytest.mark.parametrize("name", ["groupIdPrefix", "fetchOffset.numRetries", "kafka.group.id"])
def test_options_about_brokers_are_refused_because_they_would_do_nothing(name: str) -> None:
    with pytest.raises(InvalidConfig, match="has no meaning here"):
        parse(**{name: "3"})
    # Spark hands names over in lower case.
    with pytest.raises(InvalidConfig, match=f"option {name} has no meaning here"):
        parse(**{name.lower(): "3"})


# Spark's default, from 4.0 on.
SPARK_HIDES = "(?i)secret|password|token|access[.]?key"


def test_spark_hides_each_credential_in_its_event_log() -> None:
    """By `spark.redaction.regex`: the OPTIONS of a view stand there."""
    shown = set(OPTION_NAMES) - {one for one in OPTION_NAMES if re.search(SPARK_HIDES, one)}
    assert {one for one in shown if re.search("key|secret|auth|pass", one, re.I)} == set()
