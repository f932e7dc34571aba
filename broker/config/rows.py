"""Configuration as DescribeConfigs and CreateTopics show it: value, source, synonyms.

A value comes from the first source that has it, and the synonyms list all sources:

    topic property   set on the topic  > set on the broker, under a broker key, in one of these ways
    group property   set on the group  > set on the broker, under group.<its name>
    broker key       altered for this broker > altered for all > command line or file > default

Sources have the numbers of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.group_configs import GROUP_CONFIGS
from strandline.broker.config.listener_keys import broker_config
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.storage.config.definition import HOUR_MS, ValueType
from strandline.storage.config.log_config import TOPIC_CONFIGS, ConfigDef


class ValueSource(IntEnum):
    """The source of a value, as the protocol numbers it."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One of the sources that could set a value; `value` None is null."""

    name: str
    value: str | None
    source: ValueSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRow:
    """One configuration entry. `synonyms` are in order of precedence, the effective one first."""

    name: str
    value: str | None
    source: ValueSource
    read_only: bool
    sensitive: bool
    type: ValueType
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source is ValueSource.DEFAULT


def describe_broker(running: RunningConfig) -> tuple[ConfigRow, ...]:
    """Returns every broker key, sorted by name."""
    given = running.current.given
    definitions = (broker_config(name) for name in sorted({*BROKER_CONFIGS, *given}))
    return tuple(_broker_row(running, found) for found in definitions if found is not None)


def describe_all(running: RunningConfig) -> tuple[ConfigRow, ...]:
    """Returns the cluster-wide dynamic keys only, sorted by name."""
    rows = []
    for name in sorted(running.cluster_wide):
        definition = broker_config(name)
        assert definition is not None, name
        text = running.cluster_wide[name]
        synonym = _altered(definition, text, ValueSource.DYNAMIC_DEFAULT_BROKER)
        rows.append(_row(definition, synonym.value, [synonym], read_only=not definition.dynamic))
    return tuple(rows)


def describe_topic(
    running: RunningConfig, topic_properties: Mapping[str, str]
) -> tuple[ConfigRow, ...]:
    """Returns every topic property of a topic with these explicit properties, sorted by name."""
    return tuple(
        [
            _set_on_topic(row, topic_properties[row.name]) if row.name in topic_properties else row
            for row in running.once(_default_rows)
        ]
    )


def describe_group(
    running: RunningConfig, group_properties: Mapping[str, str]
) -> tuple[ConfigRow, ...]:
    """Returns every property of a group with these explicit properties, sorted by name."""
    rows = []
    for name in sorted(GROUP_CONFIGS):
        definition = GROUP_CONFIGS[name]
        own = group_properties.get(name)
        synonyms = [] if own is None else [ConfigSynonym(name, own, ValueSource.GROUP)]
        synonyms += _set_on_broker(running, definition.synonyms)
        synonyms.append(
            ConfigSynonym(definition.synonyms[0], definition.default, ValueSource.DEFAULT)
        )
        rows.append(_row(definition, synonyms[0].value, synonyms, read_only=False))
    return tuple(rows)


def _broker_row(running: RunningConfig, definition: ConfigDef) -> ConfigRow:
    synonyms = _set_on_broker(running, (definition.name,))
    if definition.default or not definition.nullable:
        synonyms.append(_default(definition, definition.default))
    effective = synonyms[0] if synonyms else _default(definition, definition.default)
    value = _effective_broker_text(running.current, definition) or effective.value
    return _row(definition, value, synonyms, read_only=not definition.dynamic)


def _row(
    definition: ConfigDef,
    value: str | None,
    synonyms: Sequence[ConfigSynonym],
    *,
    read_only: bool,
) -> ConfigRow:
    return ConfigRow(
        name=definition.name,
        value=value,
        # A key without a default has no synonym while it is unset.
        source=synonyms[0].source if synonyms else ValueSource.DEFAULT,
        read_only=read_only,
        sensitive=definition.type is ValueType.PASSWORD,
        type=definition.type,
        documentation=definition.doc,
        synonyms=tuple(synonyms),
    )


def _set_on_broker(running: RunningConfig, names: Sequence[str]) -> list[ConfigSynonym]:
    """Returns the settings of keys with one meaning: by source, and within each in their order."""
    synonyms = []
    for properties, source in (
        (running.own, ValueSource.DYNAMIC_BROKER),
        (running.cluster_wide, ValueSource.DYNAMIC_DEFAULT_BROKER),
        (running.static.given, ValueSource.STATIC_BROKER),
    ):
        synonyms += [
            _altered(definition, properties[name], source)
            for name in names
            if name in properties and (definition := broker_config(name)) is not None
        ]
    return synonyms


def _effective_broker_text(config: BrokerConfig, definition: ConfigDef) -> str | None:
    """Returns the derived value of some keys: tools read the address to connect to here."""
    if definition.name == "advertised.listeners":
        return ",".join(str(listener) for listener in config.advertised_listeners)
    if definition.name == "listeners":
        return ",".join(str(listener) for listener in config.listeners)
    if definition.name in ("node.id", "broker.id"):
        return str(config.node_id)
    return None


def _default_rows(running: RunningConfig) -> Sequence[ConfigRow]:
    """Returns the rows of a topic without properties of its own, sorted by name."""
    return [_default_row(running, TOPIC_CONFIGS[name]) for name in sorted(TOPIC_CONFIGS)]


def _default_row(running: RunningConfig, definition: ConfigDef) -> ConfigRow:
    # An empty broker key is an unset one.
    synonyms = [s for s in _set_on_broker(running, definition.synonyms) if s.value is not None]
    # The broker key may be in hours where the topic property is in milliseconds.
    value = running.current.topics.properties[definition.name] if synonyms else definition.default
    default_name = definition.synonyms[-1] if definition.synonyms else definition.name
    # The default is shown under the key that would change it, and so in that key's unit.
    default = definition.default
    if default_name.endswith(".hours"):
        default = str(int(default) // HOUR_MS)
    synonyms.append(ConfigSynonym(default_name, default, ValueSource.DEFAULT))
    return _row(definition, value, synonyms, read_only=False)


def _set_on_topic(row: ConfigRow, text: str) -> ConfigRow:
    own = ConfigSynonym(row.name, text, ValueSource.DYNAMIC_TOPIC)
    return replace(row, value=text, source=own.source, synonyms=(own, *row.synonyms))


def _altered(definition: ConfigDef, text: str, source: ValueSource) -> ConfigSynonym:
    return ConfigSynonym(definition.name, text.strip() or None, source)


def _default(definition: ConfigDef, text: str) -> ConfigSynonym:
    value = None if definition.nullable and not text else text
    return ConfigSynonym(definition.name, value, ValueSource.DEFAULT)
