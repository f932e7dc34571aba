"""Every broker key with an effect: name, type, default, bounds, meaning.

The keys themselves stand in `config_keys/`, one module per area. The defaults of topics
(`log.segment.bytes` for `segment.bytes`) are not written down a second time: they are made from
`TOPIC_CONFIGS`. Loading, DescribeConfigs and docs/configuration.md all read this table;
`foreign_keys.py` has the keys of Kafka that are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strandline.broker.config.definition import (
    HOUR_MS,
    MINUTE_MS,
    TOPIC_DEFAULTS,
    BrokerConfigDef,
)
from strandline.broker.config.group_keys import group_keys
from strandline.broker.config.log_keys import log_keys
from strandline.broker.config.network_keys import network_keys
from strandline.broker.config.tier_keys import tier_keys
from strandline.broker.config.topic_keys import topic_keys
from strandline.storage.config.log_config import TOPIC_CONFIGS, ConfigDef, ConfigType


def _own_keys() -> Iterator[BrokerConfigDef]:
    yield from network_keys()
    yield from topic_keys()
    yield from group_keys()
    yield from log_keys()
    yield from tier_keys()


# Synonyms whose unit is not that of the topic property. Kafka's default then sits on the key with
# the coarsest unit (168 hours), and the finer ones are unset.
_SCALES = {".hours": HOUR_MS, ".minutes": MINUTE_MS}


def _doc(topic: ConfigDef, synonym: str, scale: int) -> str:
    first = topic.synonyms[0]
    if scale != 1:
        return f"{first} in another unit."
    return topic.doc if synonym == first else f"{first} where that is not set."


def _topic_default_keys() -> Iterator[BrokerConfigDef]:
    """One broker key per synonym of a topic property, in the order of precedence."""
    for topic in TOPIC_CONFIGS.values():
        for synonym in topic.synonyms:
            scale = next((s for suffix, s in _SCALES.items() if synonym.endswith(suffix)), 1)
            carries_default = synonym == topic.synonyms[-1]
            default = topic.default
            if carries_default and scale != 1:
                default = str(int(topic.default) // scale)
            yield BrokerConfigDef(
                section=TOPIC_DEFAULTS,
                name=synonym,
                type=topic.type if scale == 1 else ConfigType.INT,
                default=default if carries_default else "",
                doc=_doc(topic, synonym, scale),
                minimum=topic.minimum,
                maximum=topic.maximum,
                choices=topic.choices,
                nullable=not carries_default,
                # As in Kafka: milliseconds can be altered, hours are for files.
                dynamic=synonym == topic.synonyms[0],
                topic_property=topic.name,
                scale=scale,
            )


BROKER_CONFIGS: Mapping[str, BrokerConfigDef] = {
    definition.name: definition for definition in (*_own_keys(), *_topic_default_keys())
}
