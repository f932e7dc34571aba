"""What `strandline cluster status` says of brokers that are not there."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from strandline.broker.cli import main
from strandline.broker.tools.client.cluster import ClusterMember, ClusterView
from strandline.broker.tools.commands import cluster

HERE = ClusterMember(node_id=1, address="a:9092", rack="r", leads=2, replicas=2, in_sync=2)
GONE = ClusterMember(node_id=7, address=None, rack=None, leads=0, replicas=12, in_sync=1)


def see(monkeypatch: pytest.MonkeyPatch, *members: ClusterMember, leaderless: int = 0) -> None:
    view = ClusterView(
        cluster_id="c",
        members=members,
        leaderless=tuple(("t", number) for number in range(leaderless)),
    )
    monkeypatch.setattr(cluster, "connect", lambda _: SimpleNamespace(view=lambda: view))


def test_a_cluster_whose_brokers_are_there_is_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    see(monkeypatch, HERE)
    assert main(["cluster", "status"]) == 0
    said = capsys.readouterr().out
    assert "cluster c: 1 broker" in said
    assert "a:9092" in said
    assert "not there" not in said


def test_a_broker_with_partitions_that_is_not_there_is_told_with_what_it_led(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    see(monkeypatch, HERE, GONE, leaderless=12)
    assert main(["cluster", "status"]) == cluster.PROBLEM
    said = capsys.readouterr().out
    assert "broker 7 has partitions and is not there" in said
    assert "12 partitions without a leader: t-0, " in said
    assert said.rstrip().endswith("t-9 and 2 more")


def test_as_json_it_is_the_same_and_so_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    see(monkeypatch, HERE, GONE)
    assert main(["cluster", "status", "--json"]) == cluster.PROBLEM
    found = json.loads(capsys.readouterr().out)
    assert [one["node_id"] for one in found["members"]] == [1, 7]
