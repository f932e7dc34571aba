"""What `strandline cluster status` says of brokers that are not there."""

from __future__ import annotations

import json

import pytest

from strandline.broker.cli import main
from strandline.broker.tools.commands import cluster
from strandline.broker.tools.nodes import view
from strandline.broker.tools.nodes.view import (
    FENCED,
    GONE,
    ONLINE,
    ClusterMember,
    ClusterView,
    LeadingController,
)


def member(node_id: int, state: str = ONLINE, *, replicas: int = 2) -> ClusterMember:
    is_there = state != GONE
    return ClusterMember(
        node_id=node_id,
        address="a:9092" if is_there else None,
        rack="r",
        state=state,
        since_ms=0,
        leads=replicas,
        replicas=replicas,
        in_sync=replicas,
        metadata_lag=0 if is_there else None,
    )


CONTROLLER = LeadingController(node_id=3000, address="a:9091", epoch=4, metadata_end_offset=1234)


def see(
    monkeypatch: pytest.MonkeyPatch,
    *members: ClusterMember,
    leaderless: int = 0,
    controller: LeadingController | None = CONTROLLER,
    unasked: str = "",
    under_replicated: int = 0,
    under_minimum: int = 0,
    at_minimum: int = 0,
) -> None:
    found = ClusterView(
        cluster_id="c",
        controller=controller,
        members=members,
        leaderless=tuple(("t", number) for number in range(leaderless)),
        unasked=unasked,
        under_replicated=tuple(("r", number) for number in range(under_replicated)),
        under_minimum=tuple(("m", number) for number in range(under_minimum)),
        at_minimum=tuple(("n", number) for number in range(at_minimum)),
    )
    monkeypatch.setattr(cluster, "connect", lambda _: None)
    monkeypatch.setattr(view, "view_cluster", lambda *_: found)


def test_a_cluster_whose_brokers_are_there_is_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    see(monkeypatch, member(1))
    assert main(["cluster", "status"]) == 0
    said = capsys.readouterr().out
    assert "cluster c: 1 broker" in said
    assert "a:9092" in said
    assert "controller 3000 at a:9091, epoch 4; metadata: 1,234 records" in said


def test_a_broker_that_is_not_there_is_told_with_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    see(monkeypatch, member(1), member(5, FENCED, replicas=0), member(7, GONE), leaderless=12)
    assert main(["cluster", "status"]) == cluster.PROBLEM
    said = capsys.readouterr().out
    assert "cluster c: 2 brokers" in said
    assert "broker 5 is fenced\n" in said
    assert "broker 7 is gone, with 2 replicas\n" in said
    assert "12 partitions without a leader: t-0, " in said
    assert "t-9 and 2 more\n" in said
    assert f"strandline docs {cluster.RUNBOOK}" in said


def test_partitions_that_lack_replicas_are_told_with_what_it_means(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    see(monkeypatch, member(1), under_replicated=2, at_minimum=1)
    assert main(["cluster", "status"]) == cluster.PROBLEM
    said = capsys.readouterr().out
    assert "2 partitions under-replicated: r-0, r-1\n" in said
    assert "1 partition at min.insync.replicas" in said
    assert said.endswith(f"strandline docs {cluster.BEHIND}\n")
    see(monkeypatch, member(1), under_replicated=2, under_minimum=1)
    assert main(["cluster", "status"]) == cluster.PROBLEM
    assert capsys.readouterr().out.endswith(f"strandline docs {cluster.TOO_FEW}\n")


def test_what_was_not_answered_is_told_beside_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    see(monkeypatch, member(1), controller=None, unasked="no answer in 10 s")
    assert main(["cluster", "status"]) == 0
    said = capsys.readouterr()
    assert "a:9092" in said.out
    assert "no answer in 10 s" in said.err


def test_as_json_it_is_the_same_and_so_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    see(monkeypatch, member(1), member(7, GONE))
    assert main(["cluster", "status", "--json"]) == cluster.PROBLEM
    found = json.loads(capsys.readouterr().out)
    assert [(one["node_id"], one["state"]) for one in found["members"]] == [
        (1, "online"),
        (7, "gone"),
    ]
    assert found["controller"]["metadata_end_offset"] == 1234
