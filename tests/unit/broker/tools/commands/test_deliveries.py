"""What `strandline produce` says of a wait: the worst trouble of the partitions."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.broker.tools.commands.deliveries import NO_LEADER, reason_of_wait


@dataclass
class Placed:
    id: int
    leader: int = 1
    replicas: list[int] = field(default_factory=lambda: [1, 2])
    isrs: list[int] = field(default_factory=lambda: [1, 2])


def test_a_partition_without_a_leader_is_named_before_one_that_lacks_replicas() -> None:
    partitions = [Placed(2, leader=NO_LEADER), Placed(0, isrs=[1]), Placed(1)]
    assert reason_of_wait("t", partitions) == "t-2 has no leader"
    assert "t-0 has 1 of its 2 replicas in sync" in reason_of_wait("t", partitions[1:])
    assert "min.insync.replicas" in reason_of_wait("t", partitions[1:])
    assert "the leader of a partition does not answer" in reason_of_wait("t", partitions[2:])
