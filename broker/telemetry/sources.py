"""The parts of a broker that the metrics page reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from strandline.broker.authorization.authorizer import Authorizer
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.groups.group_coordinator import GroupCoordinator
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.network.server import Server
from strandline.broker.quotas.cold_pace import ColdPace
from strandline.broker.telemetry.requests import RequestTraffic
from strandline.storage.clock import Clock
from strandline.storage.concurrency.resizable_pool import Pool
from strandline.storage.local.cleaner.messages import CleanerFigures
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import Offset, TopicPartition

if TYPE_CHECKING:
    from strandline.storage.remote.manifest.verification import Verification
    from strandline.storage.remote.object_store.conditional_writes import Conditions
    from strandline.storage.remote.reader.cold_reader import ColdReader
    from strandline.storage.tiering.log.exposure import Exposure
    from strandline.storage.tiering.manager.manager import TieringManager
    from strandline.storage.tiering.policy.retry import RetryState


class SessionFigures(Protocol):
    """The cache of fetch sessions as an exporter sees it."""

    @property
    def session_count(self) -> int: ...

    @property
    def partition_count(self) -> int: ...

    @property
    def evictions_total(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSources:
    """The parts of a remote tier that the page reads; a read-only replica has the first five."""

    tiering: TieringManager
    cold_reader: ColdReader
    pools: Mapping[str, Pool]
    lacks: Callable[[], Iterable[str]]
    store_requests: Callable[[], tuple[Mapping[str, int], int] | None]
    # Seconds since a read-only replica had all that its origin archived.
    replica_lag_s: Callable[[], float] | None = None
    # The work for the archive that fails and is of no partition.
    failing: Callable[[], Iterable[RetryState]] = tuple
    mirror_lag: Callable[[], int] = lambda: 0
    # By topic, what only this machine has of the state of groups and transactions.
    state_exposures: Callable[[], Mapping[str, Iterable[Exposure | None]]] = dict
    # By depth, the last checks of the whole archive; None while they are not known.
    verifications: Callable[[], Mapping[str, Verification] | None] = lambda: None
    deleted_counts: Callable[[], Mapping[str, int]] = dict
    conditions: Callable[[], Conditions | None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSources:
    """Handshakes by listener, protocol and cipher, failed ones by listener and reason, and the days
    that certificates have left, by listener and kind.
    """

    done: Callable[[], Mapping[tuple[str, str, str], int]]
    failed: Callable[[], Mapping[tuple[str, str], int]]
    days_left: Callable[[], Mapping[tuple[str, str], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSources:
    """What every node has that the page reads."""

    clock: Clock
    requests: RequestTraffic
    server: Server
    failed_logins: Callable[[], Mapping[str, int]]
    metadata: MetadataView
    log_dirs: LogDirs
    # Without a listener that has TLS None.
    tls: TlsSources | None = None
    # Without an authorizer None.
    authorizer: Authorizer | None = None
    # Without a record None.
    lost_lines: Callable[[], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources(NodeSources):
    """The parts of a broker that the page reads."""

    replicas: ReplicaManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    late_transactions: Callable[[], int]
    # By partition and first offset, for how long a transaction has been open.
    open_transaction_s: Callable[[TopicPartition, Offset], float]
    sessions: SessionFigures
    parked_fetches: Callable[[], int]
    partitions_max: int
    cold_pace: ColdPace
    cleaner: CleanerFigures
    # Without an object store None.
    archive: ArchiveSources | None
    # The last record of the controllers' log that is in force here; None if this broker decides.
    followed: Callable[[], Offset] | None = None
    # Bytes a second of throttled replicas, by Kafka's name of the side; none without replication.
    throttled_rates: Mapping[str, Callable[[], float]]
