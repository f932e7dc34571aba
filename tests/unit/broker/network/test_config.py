"""How many connections there may be."""

from __future__ import annotations

from tests.unit.broker.config.loaded import load


def test_no_connection_at_all_is_a_limit_only_where_addresses_are_exempt() -> None:
    """KafkaConfigTest.testMaxConnectionsPerIpProp; a file may close all listeners, as there."""
    exempt = load("max.connections.per.ip=0", "max.connections.per.ip.overrides=127.0.0.1:100")
    assert exempt.network.connections_per_address_max == 0
    assert load("max.connections=0").network.connections_max == 0
