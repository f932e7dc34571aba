"""What `strandline status` and `topic create` say of replicas."""

from __future__ import annotations

import pytest

from strandline.broker.tools.client.health import Page
from strandline.broker.tools.nodes.replication import (
    BEHIND,
    TOO_FEW,
    behind_of,
    check_replication,
    loss_of_one,
)


def page(*, behind: int = 0, refused: int = 0, spareless: int = 0) -> Page:
    prefix = "kafka_server_replicamanager_"
    followers = (
        'strandline_follower_behind_partitions{follower="3"} 8\n'
        'strandline_follower_behind_seconds{follower="3"} 70.5\n'
    )
    return Page(
        "kafka_server_broker_metadata_metrics_last_applied_record_offset 7\n"
        f"{prefix}underreplicatedpartitions {behind}\n"
        f"{prefix}underminisrpartitioncount {refused}\n"
        f"strandline_partitions_without_spare {spareless}\n" + (followers if behind else "")
    )


def test_a_lone_broker_has_no_replicas_to_check() -> None:
    assert list(check_replication(Page("process_open_fds 3\n"))) == []


def test_replicas_in_sync_are_no_trouble() -> None:
    (check,) = check_replication(page())
    assert (check.figure, check.trouble) == ("in sync", "")


def test_who_is_behind_and_for_how_long_is_told() -> None:
    (check,) = check_replication(page(behind=8))
    assert check.figure == "8 partitions under-replicated"
    assert "broker 3 is not in sync with 8 partitions, for 1 min" in check.trouble
    assert check.runbook == BEHIND
    assert behind_of(page(behind=8)) == {3: 70.5}


def test_partitions_without_a_spare_are_told_and_worse_is_told_instead() -> None:
    _, spareless = check_replication(page(behind=8, spareless=2))
    assert (spareless.figure, spareless.runbook) == ("no spare replica", TOO_FEW)
    _, refused = check_replication(page(behind=8, refused=1, spareless=3))
    assert (refused.figure, refused.runbook) == ("refused", TOO_FEW)
    assert refused.trouble.startswith("1 partition with fewer")


@pytest.mark.parametrize(
    ("replicas", "minimum", "said"),
    [
        (1, 1, "machine costs all of it, and nobody writes meanwhile"),
        (3, 1, "machine may cost records that were acknowledged"),
        (3, 2, "machine costs nothing acknowledged by acks=all, which goes on"),
        (2, 2, "machine costs nothing acknowledged by acks=all, and refuses it"),
    ],
)
def test_what_a_lost_machine_costs_is_told(replicas: int, minimum: int, said: str) -> None:
    line = loss_of_one(replicas=replicas, minimum=minimum, is_archived=False, hosts=3)
    assert said in line
    assert "all brokers are on one machine" not in line


def test_brokers_of_one_machine_do_not_survive_it() -> None:
    line = loss_of_one(replicas=3, minimum=2, is_archived=True, hosts=1)
    assert "broker's disk costs nothing" in line
    assert line.endswith("on one machine, whose loss costs what is not in the archive")
