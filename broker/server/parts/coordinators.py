"""The coordinators of groups and transactions, and the watch over late transactions."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.config.group_configs import member_times
from strandline.broker.coordination.groups.group_coordinator import GroupCoordinator
from strandline.broker.coordination.model.consumer_messages import MemberTimes
from strandline.broker.coordination.transactions.markers import LocalMarkers
from strandline.broker.coordination.transactions.peers import TransactionPeers
from strandline.broker.coordination.transactions.power_loss.left_open import LeftOpen
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.metadata import MetadataParts
from strandline.broker.server.parts.part import Part
from strandline.broker.server.parts.storage import StorageParts
from strandline.broker.server.upkeep.late_transactions import LateTransactions


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorParts(Part):
    """The coordinators, which keep their state in logs of this broker."""

    groups: GroupCoordinator
    markers: LocalMarkers
    transactions: TransactionCoordinator
    late: LateTransactions

    @classmethod
    async def make(
        cls,
        environment: Environment,
        storage: StorageParts,
        metadata: MetadataParts,
        replicas: ReplicaManager,
        *,
        others: TransactionPeers | None = None,
    ) -> CoordinatorParts:
        """`others` are the brokers that lead partitions, too."""
        running, image_of = metadata.running, metadata.metadata
        config, clock = running.static, environment.clock
        lookups, believed_ms = environment.workers.lookups, storage.guard.now_ms

        def times_of(group_id: str) -> MemberTimes:
            properties = image_of.image.group_properties.get(group_id, {})
            return member_times(running.current, properties)

        groups = GroupCoordinator(
            config.groups,
            image_of,
            metadata.controller,
            replicas,
            node_id=config.node_id,
            clock=clock,
            reads=lookups,
            times_of=times_of,
            believed_ms=believed_ms,
        )
        spawn = None if others is None else others.spawn
        markers = LocalMarkers(replicas, groups.offsets, clock, spawn=spawn)
        transactions = TransactionCoordinator(
            lambda: running.current.transactions,
            image_of,
            metadata.controller,
            replicas,
            markers,
            LeftOpen(replicas),
            node_id=config.node_id,
            clock=clock,
            reads=lookups,
            believed_ms=believed_ms,
            others=others,
        )
        late = LateTransactions(
            replicas,
            timeout_ms_max=lambda: running.current.transactions.timeout_ms_max,
            coordinated=transactions.not_ended,
            clock=clock,
        )
        await metadata.metadata.publish_to(groups.follow, transactions.follow)
        return cls(
            groups=groups,
            markers=markers,
            transactions=transactions,
            late=late,
            loops={
                "groups": groups.run,
                "transactions": transactions.run,
                "late transactions": late.watch_forever,
            },
        )
