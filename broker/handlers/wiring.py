"""Maps every served API to its handler, for the composition root.

The dispatcher calls Produce, Fetch and ApiVersions directly; the others are a table by API key.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from strandline.broker.cluster.replicas.replica_moves import ReplicaMoves
from strandline.broker.config.listeners import Listener
from strandline.broker.coordination.groups.group_coordinator import GroupCoordinator
from strandline.broker.coordination.transactions.markers import LocalMarkers
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.handlers.admin.admin import make_admin_handlers
from strandline.broker.handlers.admin.topics import TopicHandlers
from strandline.broker.handlers.auth.sasl import no_authenticate, no_handshake
from strandline.broker.handlers.dispatch.dispatch import Dispatcher, Handler
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.groups.groups import make_group_handlers
from strandline.broker.handlers.metadata.metadata import MetadataHandlers
from strandline.broker.handlers.metadata.offsets import OffsetHandlers
from strandline.broker.handlers.metadata.quorum import KeptLog, QuorumHandler
from strandline.broker.handlers.produce.produce import ProduceHandler
from strandline.broker.handlers.services.services import Services
from strandline.broker.handlers.transactions.listings import TransactionListingHandlers
from strandline.broker.handlers.transactions.offset_commits import TransactionalCommitHandler
from strandline.broker.handlers.transactions.producers import TransactionHandlers
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.storage.local.formats.checkpoint import decode_id
from strandline.storage.local.log_dirs.log_dirs import LogDirs

if TYPE_CHECKING:
    from strandline.broker.audit.record import AuditRecord
    from strandline.broker.cluster.membership.envelope import Forwarder

# The dispatcher calls these directly.
_DISPATCHED = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.API_VERSIONS})


def make_dispatcher(
    services: Services,
    fetch: FetchHandler,
    *,
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    markers: LocalMarkers,
    log_dirs: LogDirs,
    moves: ReplicaMoves,
    advertised: Callable[[str], Listener],
    decoding: Executor,
    record: AuditRecord | None = None,
    forwarder: Forwarder | None = None,
    listener_of_brokers: str | None = None,
) -> Dispatcher:
    """Makes the dispatcher; `advertised` maps a listener to its address for clients.

    Large requests are decoded in `decoding`. With a `record` it has who changed what. With a
    `forwarder` another node decides on the metadata. Other brokers of a cluster come by
    `listener_of_brokers`.
    """
    if record is None:
        metadata = MetadataHandlers(services, advertised)
    else:
        from strandline.broker.handlers.audit.creations import RecordedMetadata

        metadata = RecordedMetadata(services, advertised, record)

    def kept_log() -> KeptLog:
        directory_id = decode_id(log_dirs.directories[0].directory_id)
        return KeptLog(0, services.metadata.image.version, directory_id)

    topics = TopicHandlers(services, services.replicas)
    offsets = OffsetHandlers(services)
    producers = TransactionHandlers(services, transactions, groups, markers)
    commits = TransactionalCommitHandler(services, transactions, groups)
    listings = TransactionListingHandlers(services, transactions)
    handlers: dict[ApiKey, Handler] = {
        ApiKey.METADATA: metadata.metadata,
        ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
        ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
        ApiKey.DESCRIBE_QUORUM: QuorumHandler(services, kept_log, advertised).describe_quorum,
        ApiKey.CREATE_TOPICS: topics.create_topics,
        ApiKey.DELETE_TOPICS: topics.delete_topics,
        ApiKey.CREATE_PARTITIONS: topics.create_partitions,
        ApiKey.LIST_OFFSETS: offsets.list_offsets,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
        ApiKey.DELETE_RECORDS: offsets.delete_records,
        ApiKey.INIT_PRODUCER_ID: producers.init_producer_id,
        ApiKey.ADD_PARTITIONS_TO_TXN: producers.add_partitions,
        ApiKey.ADD_OFFSETS_TO_TXN: producers.add_offsets,
        ApiKey.TXN_OFFSET_COMMIT: commits.commit,
        ApiKey.END_TXN: producers.end,
        ApiKey.WRITE_TXN_MARKERS: producers.write_markers,
        ApiKey.LIST_TRANSACTIONS: listings.list_transactions,
        ApiKey.DESCRIBE_TRANSACTIONS: listings.describe_transactions,
        ApiKey.SASL_HANDSHAKE: no_handshake,
        ApiKey.SASL_AUTHENTICATE: no_authenticate,
        **make_group_handlers(services, groups),
        **make_admin_handlers(services, log_dirs, moves),
    }
    served = {spec.key for spec in SPECS.values()}
    assert handlers.keys() == served - _DISPATCHED, handlers.keys() ^ served
    if forwarder is not None:
        from strandline.broker.handlers.forwarding.forwarding import forwarding_handlers

        handlers |= forwarding_handlers(forwarder, handlers)
    if services.authorizer is not None:
        from strandline.broker.handlers.authorization.table import guarded_handlers

        handlers = guarded_handlers(handlers, services)
    if record is not None:
        from strandline.broker.handlers.audit.changes import recorded_handlers
        from strandline.broker.handlers.audit.traffic import RecordedProduce

        handlers = recorded_handlers(handlers, record)
        produce: ProduceHandler = RecordedProduce(
            services, transactions, record, listener_of_brokers
        )
    else:
        produce = ProduceHandler(services, transactions)
    if forwarder is not None:
        from strandline.broker.handlers.forwarding.versions import shared_api_versions

        handlers[ApiKey.API_VERSIONS] = shared_api_versions(services, forwarder)
    return Dispatcher(services, produce, fetch, handlers, decoding=decoding)
