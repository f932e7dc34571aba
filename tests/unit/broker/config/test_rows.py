"""DescribeConfigs tells each value, where it comes from, and what else could have set it."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.records import ALL_BROKERS, config_records
from strandline.broker.config.loading import load_config
from strandline.broker.config.rows import (
    ConfigRow,
    ConfigSynonym,
    ValueSource,
    describe_all,
    describe_broker,
    describe_topic,
)
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.storage.config.definition import ValueType
from strandline.storage.config.log_config import TOPIC_CONFIGS
from tests.unit.broker.config.loaded import altered, load


def broker_row(name: str, *overrides: str) -> ConfigRow:
    rows = describe_broker(RunningConfig(load_config(None, overrides)))
    return next(row for row in rows if row.name == name)


def topic_row(name: str, *overrides: str, **properties: str) -> ConfigRow:
    texts = {key.replace("_", "."): text for key, text in properties.items()}
    rows = describe_topic(RunningConfig(load_config(None, overrides)), texts)
    return next(row for row in rows if row.name == name)


def test_every_key_has_a_row_and_rows_are_sorted() -> None:
    config = RunningConfig(load_config())
    assert [row.name for row in describe_broker(config)] == sorted(BROKER_CONFIGS)
    assert [row.name for row in describe_topic(config, {})] == sorted(TOPIC_CONFIGS)


def test_a_key_that_was_not_set_shows_its_default() -> None:
    row = broker_row("num.partitions")
    assert (row.value, row.source, row.is_default) == ("1", ValueSource.DEFAULT, True)
    assert row.type is ValueType.INT


def test_a_key_that_was_set_shows_its_value_first_and_the_default_as_synonym() -> None:
    row = broker_row("num.partitions", "num.partitions=4")
    assert (row.value, row.source, row.is_default) == ("4", ValueSource.STATIC_BROKER, False)
    assert row.synonyms == (
        ConfigSynonym(name="num.partitions", value="4", source=ValueSource.STATIC_BROKER),
        ConfigSynonym(name="num.partitions", value="1", source=ValueSource.DEFAULT),
    )


def test_an_unset_key_without_default_is_null() -> None:
    row = broker_row("strandline.remote.url")
    assert (row.value, row.synonyms) == (None, ())


def test_worked_out_values_are_shown_where_tools_look_for_them() -> None:
    assert broker_row("advertised.listeners").value == "PLAINTEXT://127.0.0.1:9092"
    set_by_hand = broker_row("advertised.listeners", "advertised.listeners=PLAINTEXT://h:1")
    assert (set_by_hand.value, set_by_hand.source) == (
        "PLAINTEXT://h:1",
        ValueSource.STATIC_BROKER,
    )
    assert broker_row("broker.id", "node.id=3").value == "3"


def test_a_topics_own_property_wins_over_the_brokers_and_the_default() -> None:
    row = topic_row("retention.ms", "log.retention.hours=2", retention_ms="5")
    assert (row.value, row.source) == ("5", ValueSource.DYNAMIC_TOPIC)
    assert [(s.name, s.value, s.source) for s in row.synonyms] == [
        ("retention.ms", "5", ValueSource.DYNAMIC_TOPIC),
        ("log.retention.hours", "2", ValueSource.STATIC_BROKER),
        ("log.retention.hours", "168", ValueSource.DEFAULT),
    ]


def test_a_brokers_default_is_shown_in_the_topics_unit() -> None:
    row = topic_row("retention.ms", "log.retention.hours=2")
    assert (row.value, row.source) == ("7200000", ValueSource.STATIC_BROKER)


@pytest.mark.parametrize("name", ["remote.storage.enable", "segment.bytes"])
def test_a_property_that_nobody_set_shows_kafkas_default(name: str) -> None:
    row = topic_row(name)
    assert (row.value, row.source) == (TOPIC_CONFIGS[name].default, ValueSource.DEFAULT)


def test_only_what_can_be_altered_claims_that_it_can() -> None:
    config = RunningConfig(load_config())
    for row in describe_broker(config):
        assert row.read_only is not BROKER_CONFIGS[row.name].dynamic, row.name
    assert not any(row.read_only for row in describe_topic(config, {}))


# --- altered while it runs -----------------------------------------------------------------------


def test_what_was_altered_for_this_broker_wins_over_all_and_over_the_file() -> None:
    running = altered({"max.connections": "7"}, {"max.connections": "8"}, "max.connections=9")
    assert running.current.network.connections_max == 7
    row = next(row for row in describe_broker(running) if row.name == "max.connections")
    assert (row.value, row.source, row.read_only) == ("7", ValueSource.DYNAMIC_BROKER, False)
    assert [(s.value, s.source) for s in row.synonyms] == [
        ("7", ValueSource.DYNAMIC_BROKER),
        ("8", ValueSource.DYNAMIC_DEFAULT_BROKER),
        ("9", ValueSource.STATIC_BROKER),
        ("2147483647", ValueSource.DEFAULT),
    ]


def test_an_empty_name_shows_what_was_altered_for_all_and_nothing_else() -> None:
    running = altered({"max.connections": "7"}, {"log.retention.ms": "8"}, "max.connections=9")
    (row,) = describe_all(running)
    assert (row.name, row.value, row.source) == (
        "log.retention.ms",
        "8",
        ValueSource.DYNAMIC_DEFAULT_BROKER,
    )
    assert [s.source for s in row.synonyms] == [ValueSource.DYNAMIC_DEFAULT_BROKER]


def test_an_altered_default_is_what_topics_without_a_value_of_their_own_have() -> None:
    running = altered({}, {"log.retention.ms": "8"}, "log.retention.hours=2")
    assert running.current.topics.properties["retention.ms"] == "8"
    row = next(row for row in describe_topic(running, {}) if row.name == "retention.ms")
    assert (row.value, row.source) == ("8", ValueSource.DYNAMIC_DEFAULT_BROKER)
    assert [(s.name, s.value) for s in row.synonyms] == [
        ("log.retention.ms", "8"),
        ("log.retention.hours", "2"),
        ("log.retention.hours", "168"),
    ]


def test_topics_show_a_default_as_soon_as_it_is_altered_also_if_they_were_shown_before() -> None:
    running = RunningConfig(load("log.retention.hours=2"))
    assert value_of(running, "retention.ms") == str(2 * 3_600_000)
    before = MetadataImage()
    for text in ("8", "9"):
        image = before.apply_entry(
            config_records(ConfigResourceType.BROKER, ALL_BROKERS, {}, {"log.retention.ms": text})
        )
        running.follow(MetadataDelta(before, image), image)
        assert value_of(running, "retention.ms") == text
        before = image


def value_of(running: RunningConfig, name: str) -> str | None:
    return next(row.value for row in describe_topic(running, {}) if row.name == name)
