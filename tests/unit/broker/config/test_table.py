"""The table of broker keys."""

from __future__ import annotations

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.table import BROKER_CONFIGS, TOPIC_DEFAULTS
from strandline.broker.config.unsupported_keys import IGNORED, REFUSED
from strandline.storage.config.definition import keys_of


def test_no_two_fields_are_the_same_key() -> None:
    names = [definition.name for definition in (*keys_of(BrokerConfig), *TOPIC_DEFAULTS)]
    assert len(names) == len(set(names)) == len(BROKER_CONFIGS)


def test_every_default_is_accepted_by_its_own_definition() -> None:
    for definition in BROKER_CONFIGS.values():
        definition.parse(definition.default)


def test_no_key_is_both_used_and_foreign() -> None:
    names = {entry.pattern for entry in (*IGNORED, *REFUSED)}
    assert len(names) == len(IGNORED) + len(REFUSED)
    assert not names & set(BROKER_CONFIGS)
