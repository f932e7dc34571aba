"""DescribeConfigs tells each value, where it comes from, and what else could have set it."""

from __future__ import annotations

import pytest

from strandline.broker.config import BrokerConfig
from strandline.broker.config_rows import (
    ConfigRow,
    ConfigSource,
    ConfigSynonym,
    describe_broker,
    describe_topic,
)
from strandline.broker.config_table import BROKER_CONFIGS
from strandline.storage.log_config import TOPIC_CONFIGS, ConfigType


def broker_row(name: str, *overrides: str) -> ConfigRow:
    rows = describe_broker(BrokerConfig.load(None, overrides))
    return next(row for row in rows if row.name == name)


def topic_row(name: str, *overrides: str, **properties: str) -> ConfigRow:
    texts = {key.replace("_", "."): text for key, text in properties.items()}
    rows = describe_topic(BrokerConfig.load(None, overrides), texts)
    return next(row for row in rows if row.name == name)


def test_every_key_has_a_row_and_rows_are_sorted() -> None:
    config = BrokerConfig.load()
    assert [row.name for row in describe_broker(config)] == sorted(BROKER_CONFIGS)
    assert [row.name for row in describe_topic(config, {})] == sorted(TOPIC_CONFIGS)


def test_a_key_that_was_not_set_shows_its_default() -> None:
    row = broker_row("num.partitions")
    assert (row.value, row.source, row.is_default) == ("1", ConfigSource.DEFAULT, True)
    assert row.type is ConfigType.INT


def test_a_key_that_was_set_shows_its_value_first_and_the_default_as_synonym() -> None:
    row = broker_row("num.partitions", "num.partitions=4")
    assert (row.value, row.source, row.is_default) == ("4", ConfigSource.STATIC_BROKER, False)
    assert row.synonyms == (
        ConfigSynonym(name="num.partitions", value="4", source=ConfigSource.STATIC_BROKER),
        ConfigSynonym(name="num.partitions", value="1", source=ConfigSource.DEFAULT),
    )


def test_an_unset_key_without_default_is_null() -> None:
    row = broker_row("strandline.remote.url")
    assert (row.value, row.synonyms) == (None, ())


def test_worked_out_values_are_shown_where_tools_look_for_them() -> None:
    assert broker_row("advertised.listeners").value == "PLAINTEXT://127.0.0.1:9092"
    set_by_hand = broker_row("advertised.listeners", "advertised.listeners=PLAINTEXT://h:1")
    assert (set_by_hand.value, set_by_hand.source) == (
        "PLAINTEXT://h:1",
        ConfigSource.STATIC_BROKER,
    )
    assert broker_row("broker.id", "node.id=3").value == "3"


def test_a_topics_own_property_wins_over_the_brokers_and_the_default() -> None:
    row = topic_row("retention.ms", "log.retention.hours=2", retention_ms="5")
    assert (row.value, row.source) == ("5", ConfigSource.DYNAMIC_TOPIC)
    assert [(s.name, s.value, s.source) for s in row.synonyms] == [
        ("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC),
        ("log.retention.hours", "2", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "604800000", ConfigSource.DEFAULT),
    ]


def test_a_brokers_default_is_shown_in_the_topics_unit() -> None:
    row = topic_row("retention.ms", "log.retention.hours=2")
    assert (row.value, row.source) == ("7200000", ConfigSource.STATIC_BROKER)


@pytest.mark.parametrize("name", ["remote.storage.enable", "segment.bytes"])
def test_a_property_that_nobody_set_shows_kafkas_default(name: str) -> None:
    row = topic_row(name)
    assert (row.value, row.source) == (TOPIC_CONFIGS[name].default, ConfigSource.DEFAULT)


def test_only_what_can_be_altered_claims_that_it_can() -> None:
    config = BrokerConfig.load()
    assert all(row.read_only for row in describe_broker(config))
    assert not any(row.read_only for row in describe_topic(config, {}))
