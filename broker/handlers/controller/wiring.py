"""Maps what a controller serves to its handlers, for the composition root."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.handlers.admin.acls import AclHandlers
from strandline.broker.handlers.admin.alter_configs import AlterConfigsHandlers
from strandline.broker.handlers.admin.client_quotas import ClientQuotaHandlers
from strandline.broker.handlers.admin.configs import ConfigHandlers
from strandline.broker.handlers.admin.scram_users import ScramUserHandlers
from strandline.broker.handlers.admin.topics import TopicHandlers
from strandline.broker.handlers.auth.sasl import no_authenticate, no_handshake
from strandline.broker.handlers.controller.brokers import BrokerHandlers
from strandline.broker.handlers.controller.envelope import EnvelopeHandler
from strandline.broker.handlers.controller.followers import FollowerHandlers
from strandline.broker.handlers.controller.members import ClusterHandler, unregister_broker
from strandline.broker.handlers.controller.partitions import PartitionHandlers
from strandline.broker.handlers.controller.rights import Refused, for_brokers
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.dispatch.features import FeatureHandlers
from strandline.broker.handlers.metadata.quorum import QuorumHandler
from strandline.broker.handlers.services.services import NodeServices
from strandline.broker.protocol.messages.allocate_producer_ids import AllocateProducerIdsResponse
from strandline.broker.protocol.messages.alter_partition import AlterPartitionResponse
from strandline.broker.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsResponse,
)
from strandline.broker.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from strandline.broker.protocol.messages.broker_registration import BrokerRegistrationResponse
from strandline.broker.protocol.messages.envelope import EnvelopeResponse
from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.broker.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from strandline.broker.protocol.schema.api import ApiKey

if TYPE_CHECKING:
    from strandline.broker.audit.record import AuditRecord


def make_controller_handlers(
    services: NodeServices,
    *,
    brokers: BrokerHandlers,
    followers: FollowerHandlers,
    quorum: QuorumHandler,
    cluster: ClusterHandler,
    record: AuditRecord | None = None,
) -> Mapping[ApiKey, Handler]:
    """Makes the handlers of all that is served, ApiVersions excepted.

    With a `record` it has what clients change here; what comes in an envelope is in the record of
    the broker that sent it.
    """
    partitions = PartitionHandlers(services.controller)
    admin = _admin_handlers(services, quorum, partitions)
    envelope = EnvelopeHandler(_guarded(admin, services), services.authorizer)
    own: dict[ApiKey, tuple[Handler, Refused]] = {
        ApiKey.BROKER_REGISTRATION: (brokers.register, BrokerRegistrationResponse),
        ApiKey.BROKER_HEARTBEAT: (brokers.beat, BrokerHeartbeatResponse),
        ApiKey.ALLOCATE_PRODUCER_IDS: (
            brokers.allocate_producer_ids,
            AllocateProducerIdsResponse,
        ),
        ApiKey.ASSIGN_REPLICAS_TO_DIRS: (
            brokers.assign_replicas_to_dirs,
            AssignReplicasToDirsResponse,
        ),
        ApiKey.ALTER_PARTITION: (partitions.alter_partition, AlterPartitionResponse),
        ApiKey.FETCH: (followers.fetch, partial(FetchResponse, topics=())),
        ApiKey.FETCH_SNAPSHOT: (followers.fetch_snapshot, FetchSnapshotResponse),
        ApiKey.ENVELOPE: (envelope.handle, EnvelopeResponse),
    }
    read_only: dict[ApiKey, Handler] = {
        ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
        ApiKey.DESCRIBE_CONFIGS: ConfigHandlers(services).describe_configs,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
            ScramUserHandlers(services).describe_user_scram_credentials
        ),
    }
    direct = _guarded({**admin, **read_only}, services)
    if record is not None:
        from strandline.broker.handlers.audit.changes import recorded_handlers

        direct = recorded_handlers(direct, record)
    return {
        **direct,
        **{key: for_brokers(handler, refused) for key, (handler, refused) in own.items()},
        ApiKey.SASL_HANDSHAKE: no_handshake,
        ApiKey.SASL_AUTHENTICATE: no_authenticate,
    }


def _admin_handlers(
    services: NodeServices, quorum: QuorumHandler, partitions: PartitionHandlers
) -> Mapping[ApiKey, Handler]:
    """The requests of clients that are decided here, directly or in an envelope."""
    topics = TopicHandlers(services)
    configs = AlterConfigsHandlers(services, of_every_broker=True)
    acls = AclHandlers(services)
    return {
        ApiKey.CREATE_TOPICS: topics.create_topics,
        ApiKey.DELETE_TOPICS: topics.delete_topics,
        ApiKey.CREATE_PARTITIONS: topics.create_partitions,
        ApiKey.ELECT_LEADERS: partitions.elect_leaders,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: partitions.alter_partition_reassignments,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: partitions.list_partition_reassignments,
        ApiKey.ALTER_CONFIGS: configs.alter_configs,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
        ApiKey.ALTER_CLIENT_QUOTAS: ClientQuotaHandlers(services).alter_client_quotas,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
            ScramUserHandlers(services).alter_user_scram_credentials
        ),
        ApiKey.DESCRIBE_ACLS: acls.describe_acls,
        ApiKey.CREATE_ACLS: acls.create_acls,
        ApiKey.DELETE_ACLS: acls.delete_acls,
        ApiKey.UPDATE_FEATURES: FeatureHandlers(services).update_features,
        ApiKey.UNREGISTER_BROKER: partial(unregister_broker, services.controller),
        ApiKey.DESCRIBE_QUORUM: quorum.describe_quorum,
    }


def _guarded(
    handlers: Mapping[ApiKey, Handler], services: NodeServices
) -> Mapping[ApiKey, Handler]:
    """Returns them behind the checks of their requests, if there are rules."""
    if services.authorizer is None:
        return handlers
    from strandline.broker.handlers.authorization.steps import guarded_by
    from strandline.broker.handlers.authorization.table import steps_by_api

    steps = steps_by_api(services)
    return {key: guarded_by(handler, steps[key]) for key, handler in handlers.items()}
