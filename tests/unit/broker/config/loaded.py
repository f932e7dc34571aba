"""Configurations of a broker that is started without a file, and altered while it runs."""

from __future__ import annotations

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.records import ALL_BROKERS, config_records
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.loading import load_config
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.protocol.schema.config_resources import ConfigResourceType


def load(*overrides: str) -> BrokerConfig:
    return load_config(None, overrides)


def altered(own: dict[str, str], cluster_wide: dict[str, str], *overrides: str) -> RunningConfig:
    """By what was set for broker 1, for all brokers, and for another one."""
    running = RunningConfig(load(*overrides))
    image = MetadataImage().apply_entry(
        [
            *config_records(ConfigResourceType.BROKER, "1", {}, own),
            *config_records(ConfigResourceType.BROKER, ALL_BROKERS, {}, cluster_wide),
            *config_records(ConfigResourceType.BROKER, "2", {}, {"max.connections": "2"}),
        ]
    )
    running.follow(MetadataDelta(MetadataImage(), image), image)
    return running
