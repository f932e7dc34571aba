"""The configuration of a broker that is started without a file."""

from __future__ import annotations

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.loading import load_config


def load(*overrides: str) -> BrokerConfig:
    return load_config(None, overrides)
