"""Listeners, and what is advertised of them."""

from __future__ import annotations

import pytest

from strandline.broker.config.listeners import Listener
from strandline.storage.errors import InvalidConfig
from tests.unit.broker.config.loaded import load


def test_without_any_setting_only_this_machine_can_connect() -> None:
    assert load().listeners == (Listener(name="PLAINTEXT", host="127.0.0.1", port=9092),)
    assert load().advertised_listeners == load().listeners


def test_listeners_have_names_of_their_own_and_ipv6_addresses() -> None:
    config = load(
        "listeners=inside://[::1]:9092, OUTSIDE://0.0.0.0:9093",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners=OUTSIDE://kafka.example:19093",
    )
    assert config.listeners == (
        Listener(name="INSIDE", host="::1", port=9092),
        Listener(name="OUTSIDE", host="0.0.0.0", port=9093),
    )
    assert config.advertised_listeners == (
        Listener(name="INSIDE", host="::1", port=9092),
        Listener(name="OUTSIDE", host="kafka.example", port=19093),
    )
    assert str(config.listeners[0]) == "INSIDE://[::1]:9092"


def test_an_empty_host_is_advertised_as_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "shore")
    config = load("listeners=PLAINTEXT://:9092")
    assert config.listeners[0].host == ""
    assert config.advertised_listeners[0].host == "shore"


@pytest.mark.parametrize("key", ["listeners", "advertised.listeners"])
@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_host_that_no_resolver_takes_is_refused_with_its_property(key: str, host: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{key}=.*'{host}' is no host name"):
        load(f"{key}=PLAINTEXT://{host}:9092")


def test_a_host_of_the_metrics_that_no_resolver_takes_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"strandline\.metrics\.listener=.* is no host name"):
        load("strandline.metrics.listener=http://a..b:9404")
