"""The connections of a broker to the other brokers of its cluster."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.broker.cluster.membership.brokers import OtherBrokers
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.peer_security import inter_broker_security
from strandline.broker.network.connection import Spawn
from strandline.broker.peers.peer import connect_by
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.metadata import MetadataParts
from strandline.broker.server.parts.part import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class ElsewhereParts(Part):
    """Connections to other brokers, made when they are needed."""

    brokers: OtherBrokers

    @classmethod
    def make(
        cls,
        environment: Environment,
        config: BrokerConfig,
        metadata: MetadataParts,
        *,
        spawn: Spawn,
    ) -> ElsewhereParts:
        """Raises InvalidConfig."""
        security = inter_broker_security(config)
        clock = environment.clock
        brokers = OtherBrokers(
            metadata.metadata,
            connect_by(security, client_id=f"broker-{config.node_id}", clock=clock),
            clock,
            node_id=config.node_id,
            listener=security.listener,
            request_s_max=config.peers.request_ms_max / 1000,
            spawn=spawn,
        )
        return cls(brokers=brokers)

    async def end(self) -> None:
        self.brokers.close()
