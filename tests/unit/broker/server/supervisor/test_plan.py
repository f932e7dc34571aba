"""What the processes of several brokers are configured with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from strandline.broker.config.loading import load_config
from strandline.broker.server.supervisor.plan import USER, NodePlan, plan, secret_of
from strandline.storage.errors import InvalidConfig
from strandline.storage.files import private_files


def planned(*properties: str, brokers: int = 3) -> Sequence[NodePlan]:
    return plan(load_config(None, [f"strandline.brokers={brokers}", *properties]), "hidden")


def listeners(node: NodePlan) -> list[str]:
    return node.properties["listeners"].split(",")


def test_ids_ports_and_folders_count_upwards_and_no_two_are_the_same() -> None:
    controller, *brokers = planned(
        "node.id=4",
        "log.dirs=/a,/b",
        "listeners=PLAINTEXT://:9092,EXTRA://127.0.0.1:9093",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT",
        "strandline.metrics.listener=http://127.0.0.1:9404",
    )
    assert controller.address == "127.0.0.1:9091"
    assert [one.node_id for one in brokers] == [4, 5, 6]
    assert [one.properties["log.dirs"] for one in brokers] == [
        f"/a/broker-{number},/b/broker-{number}" for number in (4, 5, 6)
    ]
    ports = [one.rpartition(":")[2] for node in (controller, *brokers) for one in listeners(node)]
    assert sorted(ports) == [str(port) for port in range(9091, 9101)]
    assert [one.label for one in (controller, *brokers)] == ["controller", "4", "5", "6"]


def test_what_brokers_meet_by_is_closed_to_other_machines() -> None:
    for node in planned("listeners=PLAINTEXT://:9092", "log.dirs=/a"):
        for listener in listeners(node):
            name, _, address = listener.partition("://")
            if name == "PLAINTEXT":
                continue
            assert address.startswith("127.0.0.1:")
            assert f"{name}:SASL_PLAINTEXT" in node.properties["listener.security.protocol.map"]
            login = node.properties[f"listener.name.{name.lower()}.plain.sasl.jaas.config"]
            assert 'password="hidden"' in login


def test_every_process_has_a_configuration_that_starts() -> None:
    for node in planned("log.dirs=/a", "listeners=PLAINTEXT://127.0.0.1:9092", "log.roll.ms=77"):
        config = load_config(None, [f"{key}={text}" for key, text in node.properties.items()])
        assert config.membership.is_controller is node.is_controller
        assert config.membership.has_controllers is not node.is_controller
        assert config.membership.brokers == 1
        assert config.given["log.roll.ms"] == "77"


def test_advertised_listeners_are_those_of_the_brokers_alone() -> None:
    given = ("listeners=PLAINTEXT://:9092", "advertised.listeners=PLAINTEXT://example.org:19092")
    controller, *brokers = planned(*given, "log.dirs=/a")
    told = [one.properties["advertised.listeners"].split(",")[0] for one in brokers]
    assert told == [f"PLAINTEXT://example.org:{port}" for port in (19092, 19093, 19094)]
    # It has none of these listeners.
    assert "advertised.listeners" not in controller.properties


def test_with_rules_the_brokers_may_ask_each_other_and_users_keep_their_rights() -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    for node in planned("log.dirs=/a", f"authorizer.class.name={authorizer}", "super.users=User:a"):
        assert node.properties["super.users"] == f"User:a;User:{USER}"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("process.roles=broker", "have a controller of their own"),
        ("listeners=PLAINTEXT://127.0.0.1:0", "need a first port"),
        ("listeners=PLAINTEXT://127.0.0.1:1", "need a first port, 2 at least"),
        ("listeners=PLAINTEXT://127.0.0.1:65532", "no ports are left"),
    ],
)
def test_what_several_brokers_cannot_have_is_refused(given: str, fault: str) -> None:
    with pytest.raises(InvalidConfig, match=fault):
        planned("log.dirs=/a", given)


def test_the_secret_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with private_files():
        secret = secret_of(folder)
    assert len(secret) == 64
    assert secret_of(folder) == secret
    assert (folder / "cluster-secret").stat().st_mode & 0o777 == 0o600


def test_each_broker_has_the_rack_of_its_place_and_one_rack_may_have_several() -> None:
    nodes = planned("log.dirs=/a", "strandline.brokers.racks=a, b,a")
    racks = [
        load_config(None, [f"{key}={text}" for key, text in node.properties.items()]).identity.rack
        for node in nodes
    ]
    assert racks == [None, "a", "b", "a"]
    with pytest.raises(InvalidConfig, match="expected 3, one for each broker"):
        planned("log.dirs=/a", "strandline.brokers.racks=a,b")
