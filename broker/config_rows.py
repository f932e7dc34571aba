"""Configuration as DescribeConfigs and CreateTopics show it: value, source, synonyms.

A value comes from the first source that has it, and the synonyms tell the whole way there:

    topic property   set on the topic       > set on the broker, under a broker key > default
    broker key       set on the command line or in the file                         > default

Sources carry the numbers of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from strandline.broker.config import BrokerConfig
from strandline.broker.config_table import BROKER_CONFIGS, BrokerConfigDef
from strandline.storage.log_config import TOPIC_CONFIGS, ConfigDef, ConfigType


class ConfigSource(IntEnum):
    """Where a value comes from, as the protocol numbers it."""

    DYNAMIC_TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """One of the places that could have set a value; `value` None is null."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRow:
    """One line of a listing. `synonyms` are in order of precedence, the effective one first."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


def describe_broker(config: BrokerConfig) -> tuple[ConfigRow, ...]:
    """Every broker key, sorted by name."""
    return tuple(_broker_row(config, BROKER_CONFIGS[name]) for name in sorted(BROKER_CONFIGS))


def describe_topic(
    config: BrokerConfig, topic_properties: Mapping[str, str]
) -> tuple[ConfigRow, ...]:
    """Every topic property of a topic that has `topic_properties` set, sorted by name."""
    return tuple(
        _topic_row(config, TOPIC_CONFIGS[name], topic_properties) for name in sorted(TOPIC_CONFIGS)
    )


def _broker_row(config: BrokerConfig, definition: BrokerConfigDef) -> ConfigRow:
    synonyms = []
    if definition.name in config.given:
        synonyms.append(_static(definition, config.given[definition.name]))
    if definition.default or not definition.nullable:
        synonyms.append(_default(definition, definition.default))
    effective = synonyms[0] if synonyms else _default(definition, definition.default)
    return ConfigRow(
        name=definition.name,
        value=_effective_broker_text(config, definition) or effective.value,
        source=effective.source,
        # Kafka lets `definition.dynamic` keys be altered. Here all are read at the start, and
        # saying "not read-only" would invite a request that is then refused.
        read_only=True,
        sensitive=definition.type is ConfigType.PASSWORD,
        type=definition.type,
        documentation=definition.doc,
        synonyms=tuple(synonyms),
    )


def _effective_broker_text(config: BrokerConfig, definition: BrokerConfigDef) -> str | None:
    """Keys whose value is worked out from others: tools look here for where to connect."""
    if definition.name == "advertised.listeners":
        return ",".join(str(listener) for listener in config.advertised_listeners)
    if definition.name == "listeners":
        return ",".join(str(listener) for listener in config.listeners)
    if definition.name in ("node.id", "broker.id"):
        return str(config.node_id)
    return None


def _topic_row(
    config: BrokerConfig, definition: ConfigDef, topic_properties: Mapping[str, str]
) -> ConfigRow:
    synonyms = []
    if definition.name in topic_properties:
        synonyms.append(
            ConfigSynonym(
                name=definition.name,
                value=topic_properties[definition.name],
                source=ConfigSource.DYNAMIC_TOPIC,
            )
        )
    default_name = definition.name
    for name in definition.synonyms:
        if config.given.get(name, "").strip():
            synonyms.append(_static(BROKER_CONFIGS[name], config.given[name]))
        default_name = name
    # The default is shown in the topic property's unit, under the key that would change it.
    synonyms.append(
        ConfigSynonym(name=default_name, value=definition.default, source=ConfigSource.DEFAULT)
    )
    effective = synonyms[0]
    value = effective.value
    if effective.source is ConfigSource.STATIC_BROKER:
        # The broker key may count hours where the topic property counts milliseconds.
        value = config.topic_defaults()[definition.name]
    return ConfigRow(
        name=definition.name,
        value=value,
        source=effective.source,
        read_only=False,
        sensitive=False,
        type=definition.type,
        documentation=definition.doc,
        synonyms=tuple(synonyms),
    )


def _static(definition: BrokerConfigDef, text: str) -> ConfigSynonym:
    return ConfigSynonym(
        name=definition.name, value=text.strip() or None, source=ConfigSource.STATIC_BROKER
    )


def _default(definition: BrokerConfigDef, text: str) -> ConfigSynonym:
    value = None if definition.nullable and not text else text
    return ConfigSynonym(name=definition.name, value=value, source=ConfigSource.DEFAULT)
