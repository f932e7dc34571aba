"""Every broker key with an effect, read from the fields of BrokerConfig's sections.

Topic defaults (`log.segment.bytes` for `segment.bytes`) have no fields: they are derived from
`TOPIC_CONFIGS`. Loading, DescribeConfigs and docs/reference/configuration.md all read this table;
`unsupported_keys.py` has the keys of Kafka that are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from strandline.broker.config.broker_config import BrokerConfig
from strandline.storage.config.definition import HOUR_MS, MINUTE_MS, ValueType, keys_by_heading
from strandline.storage.config.log_config import TOPIC_CONFIGS, ConfigDef


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaultKey(ConfigDef):
    """A broker key that sets the default of a topic property.

    `scale` converts the key's unit to the property's.
    """

    topic_property: str
    scale: int = 1


# Synonyms whose unit is not that of the topic property. Kafka's default then sits on the key with
# the coarsest unit (168 hours), and the finer ones are unset.
_SCALES = {".hours": HOUR_MS, ".minutes": MINUTE_MS}


def _doc(topic: ConfigDef, synonym: str, scale: int) -> str:
    first = topic.synonyms[0]
    if scale != 1:
        return f"{first} in another unit."
    return topic.doc if synonym == first else f"{first} where that is not set."


def _topic_default_keys() -> Iterator[TopicDefaultKey]:
    """Yields one broker key per synonym of a topic property, in order of precedence."""
    for topic in TOPIC_CONFIGS.values():
        for synonym in topic.synonyms:
            scale = next((s for suffix, s in _SCALES.items() if synonym.endswith(suffix)), 1)
            carries_default = synonym == topic.synonyms[-1]
            default = topic.default
            if carries_default and scale != 1:
                default = str(int(topic.default) // scale)
            yield TopicDefaultKey(
                name=synonym,
                type=topic.type if scale == 1 else ValueType.INT,
                default=default if carries_default else "",
                doc=_doc(topic, synonym, scale),
                minimum=topic.minimum,
                maximum=topic.maximum,
                choices=topic.choices,
                nullable=not carries_default,
                # As in Kafka: milliseconds can be altered, hours are for files only.
                dynamic=synonym == topic.synonyms[0],
                topic_property=topic.name,
                scale=scale,
            )


TOPIC_DEFAULTS: Sequence[TopicDefaultKey] = tuple(_topic_default_keys())

# By the headings of docs/reference/configuration.md, in its order.
BROKER_SECTIONS: Mapping[str, Sequence[ConfigDef]] = keys_by_heading(BrokerConfig)

BROKER_CONFIGS: Mapping[str, ConfigDef] = {
    definition.name: definition
    for keys in (*BROKER_SECTIONS.values(), TOPIC_DEFAULTS)
    for definition in keys
}
