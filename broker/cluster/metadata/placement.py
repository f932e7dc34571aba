"""Placement of replicas on brokers: automatic, or checked if the client assigns them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.records import NodeId, Replicas
from strandline.broker.protocol.schema.errors import ErrorCode


def place(
    first_partition: int, count: int, replication_factor: int, node_ids: Collection[NodeId]
) -> tuple[Replicas, ...]:
    """Places the replicas of `count` partitions, leaders round-robin over the brokers."""
    if replication_factor > len(node_ids):
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target"
            f" replication factor of {replication_factor} cannot be reached because only"
            f" {len(node_ids)} broker(s) are registered.",
        )
    nodes = sorted(node_ids)
    return tuple(
        tuple(nodes[(partition + distance) % len(nodes)] for distance in range(replication_factor))
        for partition in range(first_partition, first_partition + count)
    )


def check_assignments(
    assignments: Sequence[Replicas],
    node_ids: Collection[NodeId],
    *,
    replication_factor: int | None = None,
) -> None:
    """Raises Refusal unless all are non-empty, equally long, and name known brokers once each."""
    for replicas in assignments:
        if not replicas:
            fault = "The manual partition assignment includes an empty replica list."
        elif unknown := [node for node in replicas if node not in node_ids]:
            fault = (
                f"The manual partition assignment includes broker {unknown[0]}, but no such broker"
                " is registered."
            )
        elif repeated := [node for node, times in Counter(replicas).items() if times > 1]:
            fault = (
                f"The manual partition assignment includes the broker {repeated[0]} more than once."
            )
        elif replication_factor is not None and len(replicas) != replication_factor:
            fault = (
                f"The manual partition assignment includes a partition with {len(replicas)}"
                " replica(s), but this is not consistent with previous partitions, which have"
                f" {replication_factor} replica(s)."
            )
        else:
            replication_factor = len(replicas)
            continue
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
