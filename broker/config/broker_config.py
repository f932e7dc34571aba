"""The configuration of one broker: a section for each part, whose fields are the keys.

Each part gets its section. A key's name, default, bounds and documentation are at its field, and
nowhere else; `loading.py` builds the configuration from files and overrides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from strandline.broker.audit.config import AuditConfig
from strandline.broker.authorization.config import AuthorizerConfig
from strandline.broker.cluster.membership.config import MembershipConfig
from strandline.broker.cluster.metadata.controller_messages import TopicDefaults
from strandline.broker.config.listeners import Listener
from strandline.broker.config.sections import (
    ArchiveConfig,
    FetchConfig,
    IdentityConfig,
    LogDirsConfig,
    MetricsConfig,
    PartitionConfig,
    RemoteWaitConfig,
    ReplicaConfig,
    ReplicationConfig,
    SaslConfig,
)
from strandline.broker.controller.config import ControllerConfig
from strandline.broker.coordination.model.group_config import GroupConfig
from strandline.broker.coordination.transactions.config import TransactionConfig
from strandline.broker.network.config import NetworkConfig
from strandline.broker.peers.config import PeerConfig
from strandline.broker.quotas.cold_pace import PaceConfig
from strandline.broker.quotas.quotas import ConnectionRates, QuotaWindows
from strandline.broker.replication.config import ReplicaFetchConfig
from strandline.broker.tls.config import TlsConfig
from strandline.storage.config.definition import section
from strandline.storage.local.cleaner.cleaner import CleanerConfig
from strandline.storage.remote.reader.config import ColdReaderConfig
from strandline.storage.tiering.partition.config import TieringConfig

# Headings of docs/reference/configuration.md.
_NETWORK = "Identity and listeners"
_TLS = "TLS"
_CLUSTER = "Controllers and other brokers"
_CONNECTIONS = "Connections and requests"
_TOPICS = "Topics"
_LOG = "Log folders and background work"
_TIER = "Remote tier"
_GROUPS = "Consumer groups"
_TRANSACTIONS = "Transactions"
_CONTROLLER = "Controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The configuration of one broker: sections as in docs/reference/configuration.md.

    `listeners` and `advertised_listeners` have the same names in the same order. `given` holds the
    texts of the keys that were set; `ignored` the keys without effect, with the reason.
    """

    identity: IdentityConfig = section(IdentityConfig, _NETWORK)
    sasl: SaslConfig = section(SaslConfig, _NETWORK)
    authorizer: AuthorizerConfig = section(AuthorizerConfig, _NETWORK)
    audit: AuditConfig = section(AuditConfig, _NETWORK)
    tls: TlsConfig = section(TlsConfig, _TLS)
    membership: MembershipConfig = section(MembershipConfig, _CLUSTER)
    peers: PeerConfig = section(PeerConfig, _CLUSTER)

    network: NetworkConfig = section(NetworkConfig, _CONNECTIONS)
    connection_rates: ConnectionRates = section(ConnectionRates, _CONNECTIONS)
    quota_windows: QuotaWindows = section(QuotaWindows, _CONNECTIONS)
    metrics: MetricsConfig = section(MetricsConfig, _CONNECTIONS)
    fetch: FetchConfig = section(FetchConfig, _CONNECTIONS)

    topics: TopicDefaults = section(TopicDefaults, _TOPICS)
    partitions: PartitionConfig = section(PartitionConfig, _TOPICS)

    groups: GroupConfig = section(GroupConfig, _GROUPS)
    transactions: TransactionConfig = section(TransactionConfig, _TRANSACTIONS)

    controller: ControllerConfig = section(ControllerConfig, _CONTROLLER)

    logs: LogDirsConfig = section(LogDirsConfig, _LOG)
    cleaner: CleanerConfig = section(CleanerConfig, _LOG)
    replication: ReplicationConfig = section(ReplicationConfig, _LOG)
    replica_fetch: ReplicaFetchConfig = section(ReplicaFetchConfig, _CLUSTER)

    archive: ArchiveConfig = section(ArchiveConfig, _TIER)
    tiering: TieringConfig = section(TieringConfig, _TIER)
    cold_reader: ColdReaderConfig = section(ColdReaderConfig, _TIER)
    remote_waits: RemoteWaitConfig = section(RemoteWaitConfig, _TIER)
    pace: PaceConfig = section(PaceConfig, _TIER)
    replica: ReplicaConfig = section(ReplicaConfig, _TIER)

    listeners: tuple[Listener, ...] = ()
    advertised_listeners: tuple[Listener, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)

    @property
    def node_id(self) -> int:
        return self.identity.node_id

    def with_bound_ports(self, ports: Mapping[str, int]) -> BrokerConfig:
        """Returns a copy with port 0 replaced by the bound port, by listener name."""

        def bind(listeners: tuple[Listener, ...]) -> tuple[Listener, ...]:
            return tuple(
                replace(listener, port=listener.port or ports[listener.name])
                for listener in listeners
            )

        return replace(
            self,
            listeners=bind(self.listeners),
            advertised_listeners=bind(self.advertised_listeners),
        )
