"""Configurations of resources that have none are refused by their name."""

from __future__ import annotations

from strandline.broker.protocol.schema.config_resources import type_text


def test_a_resource_without_a_configuration_here_is_named_and_not_only_numbered() -> None:
    assert type_text(16) == "client metrics (resource type 16)"
    assert type_text(77) == "resource type 77"
