"""Addresses of connections."""

from __future__ import annotations

from strandline.broker.network.addresses import is_same_machine

ELSEWHERE = "192.0.2.7"


def test_a_connection_between_two_addresses_of_a_network_leaves_the_machine() -> None:
    assert not is_same_machine("192.0.2.1", ELSEWHERE)
    assert is_same_machine("2001:db8::1", "2001:db8::1")
    assert is_same_machine("0.0.0.0", "127.8.9.10")
