"""What the transactions of this broker ask of other brokers, and these of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.broker.cluster.membership.brokers import OtherBrokers
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.peer_security import inter_broker_security
from strandline.broker.coordination.transactions.elsewhere.markers import ClusterMarkers
from strandline.broker.coordination.transactions.elsewhere.verification import (
    ClusterVerification,
)
from strandline.broker.coordination.transactions.markers import LocalMarkers, Markers
from strandline.broker.peers.peer import connect_by
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.coordinators import CoordinatorParts
from strandline.broker.server.parts.metadata import MetadataParts
from strandline.broker.server.parts.part import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class ElsewhereParts(Part):
    """Connections to other brokers, and what goes over them."""

    environment: Environment
    config: BrokerConfig
    metadata: MetadataParts
    brokers: OtherBrokers
    # The coordinators, once they are made.
    made: list[CoordinatorParts] = field(default_factory=list)
    asking: list[ClusterMarkers | ClusterVerification] = field(default_factory=list)

    @classmethod
    def make(
        cls, environment: Environment, config: BrokerConfig, metadata: MetadataParts
    ) -> ElsewhereParts:
        """Raises InvalidConfig."""
        security = inter_broker_security(config)
        clock = environment.clock
        brokers = OtherBrokers(
            metadata.metadata,
            connect_by(security, client_id=f"broker-{config.node_id}", clock=clock),
            clock,
            listener=security.listener,
            request_s_max=config.peers.request_ms_max / 1000,
        )
        return cls(environment=environment, config=config, metadata=metadata, brokers=brokers)

    def markers_by(self, local: LocalMarkers) -> Markers:
        """Returns what writes the markers of transactions that are coordinated here."""

        def wake() -> None:
            for coordinators in self.made:
                coordinators.transactions.wake()

        markers = ClusterMarkers(
            local,
            self.brokers,
            self.metadata.metadata,
            self.environment.clock,
            node_id=self.config.node_id,
            wake=wake,
        )
        self.asking.append(markers)
        return markers

    def verify_for(self, coordinators: CoordinatorParts) -> None:
        """Has partitions here confirmed by the coordinators of all brokers."""
        running, transactions = self.metadata.running, coordinators.transactions
        verification = ClusterVerification(
            transactions.confirm,
            self.brokers,
            self.metadata.metadata,
            self.environment.clock,
            node_id=self.config.node_id,
            verifies=lambda: running.current.transactions.verifies_partitions,
        )
        transactions.confirm = verification.confirm
        coordinators.markers.on_written = verification.ended
        self.asking.append(verification)
        self.made.append(coordinators)

    async def end(self) -> None:
        for one in self.asking:
            one.close()
        self.brokers.close()
