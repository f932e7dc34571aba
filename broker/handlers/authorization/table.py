"""The checks of every API, as Apache Kafka 4.3 makes them (KafkaApis, ControllerApis).

Produce and Fetch check the rights of each topic themselves: they are the hot path. A need is asked
before anything is looked up, so an answer says nothing of what may not be described.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from strandline.broker.cluster.metadata.topic_names import topic_name_fault
from strandline.broker.handlers.authorization import changed, described, of_groups, refusals
from strandline.broker.handlers.authorization.steps import (
    CODES,
    Need,
    Step,
    after,
    each,
    guarded_by,
    needs,
    needs_cluster,
    or_of_cluster,
    whole,
)
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from strandline.broker.protocol.messages.alter_configs import AlterConfigsResourceResponse
from strandline.broker.protocol.messages.consumer_group_describe import DescribedConsumerGroup
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatResponse,
)
from strandline.broker.protocol.messages.create_partitions import CreatePartitionsTopicResult
from strandline.broker.protocol.messages.create_topics import CreatableTopicResult
from strandline.broker.protocol.messages.delete_groups import DeletableGroupResult
from strandline.broker.protocol.messages.describe_acls import DescribeAclsResponse
from strandline.broker.protocol.messages.describe_configs import DescribeConfigsResult
from strandline.broker.protocol.messages.describe_groups import DescribedGroup
from strandline.broker.protocol.messages.describe_log_dirs import DescribeLogDirsResponse
from strandline.broker.protocol.messages.describe_quorum import DescribeQuorumResponse
from strandline.broker.protocol.messages.describe_transactions import DescribedTransaction
from strandline.broker.protocol.messages.end_txn import EndTxnResponse
from strandline.broker.protocol.messages.heartbeat import HeartbeatResponse
from strandline.broker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsResult,
)
from strandline.broker.protocol.messages.init_producer_id import InitProducerIdResponse
from strandline.broker.protocol.messages.leave_group import LeaveGroupResponse
from strandline.broker.protocol.messages.list_config_resources import ListConfigResourcesResponse
from strandline.broker.protocol.messages.offset_delete import OffsetDeleteResponse
from strandline.broker.protocol.messages.sync_group import SyncGroupResponse
from strandline.broker.protocol.messages.unregister_broker import UnregisterBrokerResponse
from strandline.broker.protocol.messages.update_features import UpdateFeaturesResponse
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import CLUSTER_NAME, AclOperation, ResourceKind

FIRST_SYNC_THAT_NAMES_ITS_PROTOCOL: Final = 5
# APIs that anybody may call: a login comes before its rights, and delegation tokens are refused.
UNCHECKED: Final = frozenset(
    {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
)
_RESOURCES: Final[Mapping[int, ResourceKind]] = {
    ConfigResourceType.TOPIC: ResourceKind.TOPIC,
    ConfigResourceType.GROUP: ResourceKind.GROUP,
    ConfigResourceType.BROKER: ResourceKind.CLUSTER,
    ConfigResourceType.BROKER_LOGGER: ResourceKind.CLUSTER,
    ConfigResourceType.CLIENT_METRICS: ResourceKind.CLUSTER,
}
_READ, _WRITE, _DELETE, _ALTER, _DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
)


def guarded_handlers(
    handlers: Mapping[ApiKey, Handler], services: NodeServices
) -> dict[ApiKey, Handler]:
    """Returns the handlers behind their checks."""
    steps = steps_by_api(services)
    assert handlers.keys() - UNCHECKED == steps.keys(), handlers.keys() ^ steps.keys()
    return {key: guarded_by(handler, steps.get(key, ())) for key, handler in handlers.items()}


def steps_by_api(services: NodeServices) -> Mapping[ApiKey, Sequence[Step]]:
    """Returns the checks of each API, the first one outermost."""
    by_id = _name_by_id(services)
    return {
        **_of_topics(services),
        **_of_groups(services, by_id),
        **_of_transactions(services, by_id),
        **_of_configs(),
        **_of_the_cluster(),
    }


def _of_topics(services: NodeServices) -> Mapping[ApiKey, Sequence[Step]]:
    name = attrgetter("name")
    describe_epochs = or_of_cluster(
        AclOperation.CLUSTER_ACTION, _topic(_DESCRIBE, attrgetter("topic"))
    )
    return {
        ApiKey.METADATA: [described.metadata(services)],
        ApiKey.DESCRIBE_CLUSTER: [after(described.describe_cluster)],
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: [described.topic_partitions(services)],
        ApiKey.LIST_OFFSETS: [
            each("topics", _topic(_DESCRIBE), refusals.list_offsets_topic, "topics")
        ],
        ApiKey.OFFSET_FOR_LEADER_EPOCH: [
            each("topics", describe_epochs, refusals.epochs_topic, "topics")
        ],
        ApiKey.DELETE_RECORDS: [
            each("topics", _topic(_DELETE), refusals.delete_records_topic, "topics")
        ],
        ApiKey.DESCRIBE_PRODUCERS: [
            each("topics", _topic(_READ, _valid_name), refusals.producers_topic, "topics")
        ],
        ApiKey.CREATE_TOPICS: [
            each(
                "topics",
                changed.created_topic,
                refusals.named(CreatableTopicResult, "name"),
                "topics",
                once=name,
            ),
            after(changed.shown_configs),
        ],
        ApiKey.CREATE_PARTITIONS: [
            each(
                "topics",
                _topic(_ALTER),
                refusals.named(CreatePartitionsTopicResult, "name"),
                "results",
                once=name,
            )
        ],
        ApiKey.DELETE_TOPICS: [changed.delete_topics(services)],
    }


def _of_groups(
    services: NodeServices, by_id: Callable[[Any], str | None]
) -> Mapping[ApiKey, Sequence[Step]]:
    read, delete = (
        needs(operation, ResourceKind.GROUP, attrgetter("group_id"))
        for operation in (_READ, _DELETE)
    )
    describe_each, delete_each = (
        needs(operation, ResourceKind.GROUP, str) for operation in (_DESCRIBE, _DELETE)
    )
    return {
        ApiKey.FIND_COORDINATOR: [of_groups.find_coordinator],
        ApiKey.JOIN_GROUP: [whole(refusals.join, read)],
        ApiKey.HEARTBEAT: [whole(refusals.top_level(HeartbeatResponse), read)],
        ApiKey.LEAVE_GROUP: [whole(refusals.top_level(LeaveGroupResponse), read)],
        ApiKey.SYNC_GROUP: [whole(refusals.top_level(SyncGroupResponse), _unless_unclear(read))],
        ApiKey.LIST_GROUPS: [after(of_groups.listed_groups)],
        ApiKey.DESCRIBE_GROUPS: [
            each("groups", describe_each, refusals.named(DescribedGroup, "group_id"), "groups"),
            after(of_groups.described_groups),
        ],
        ApiKey.DELETE_GROUPS: [
            each(
                "groups_names",
                delete_each,
                refusals.named(DeletableGroupResult, "group_id"),
                "results",
            )
        ],
        ApiKey.CONSUMER_GROUP_HEARTBEAT: [
            whole(
                refusals.top_level(ConsumerGroupHeartbeatResponse),
                read,
                of_groups.subscribed_topics,
            )
        ],
        ApiKey.CONSUMER_GROUP_DESCRIBE: [
            each(
                "group_ids",
                describe_each,
                refusals.named(DescribedConsumerGroup, "group_id"),
                "groups",
            ),
            after(of_groups.described_consumer_groups),
        ],
        ApiKey.OFFSET_COMMIT: [
            whole(refusals.commit, read),
            each("topics", _topic(_READ, by_id), refusals.commit_topic, "topics"),
        ],
        ApiKey.OFFSET_FETCH: [of_groups.offset_fetch(services)],
        ApiKey.OFFSET_DELETE: [
            whole(refusals.top_level(OffsetDeleteResponse), delete),
            each("topics", _topic(_READ), refusals.offset_delete_topic, "topics"),
        ],
    }


def _of_transactions(
    services: NodeServices, by_id: Callable[[Any], str | None]
) -> Mapping[ApiKey, Sequence[Step]]:
    write = needs(_WRITE, ResourceKind.TRANSACTIONAL_ID, attrgetter("transactional_id"))
    read_group = needs(_READ, ResourceKind.GROUP, attrgetter("group_id"))
    write_markers = or_of_cluster(_ALTER, needs_cluster(AclOperation.CLUSTER_ACTION))
    describe_each = needs(_DESCRIBE, ResourceKind.TRANSACTIONAL_ID, str)
    return {
        ApiKey.INIT_PRODUCER_ID: [
            whole(refusals.top_level(InitProducerIdResponse), changed.producer_id)
        ],
        ApiKey.ADD_PARTITIONS_TO_TXN: [changed.add_partitions(services)],
        ApiKey.ADD_OFFSETS_TO_TXN: [
            whole(refusals.top_level(AddOffsetsToTxnResponse), write, read_group)
        ],
        ApiKey.TXN_OFFSET_COMMIT: [
            whole(refusals.txn_commit, write, read_group),
            each("topics", _topic(_READ, by_id), refusals.txn_commit_topic, "topics"),
        ],
        ApiKey.END_TXN: [whole(refusals.top_level(EndTxnResponse), write)],
        ApiKey.WRITE_TXN_MARKERS: [whole(refusals.markers, write_markers)],
        ApiKey.DESCRIBE_TRANSACTIONS: [
            each(
                "transactional_ids",
                describe_each,
                refusals.named(DescribedTransaction, "transactional_id"),
                "transaction_states",
            ),
            after(changed.described_transactions),
        ],
        ApiKey.LIST_TRANSACTIONS: [after(changed.listed_transactions)],
    }


def _of_configs() -> Mapping[ApiKey, Sequence[Step]]:
    resource = attrgetter("resource_type", "resource_name")
    alter = _config(AclOperation.ALTER_CONFIGS)
    return {
        ApiKey.DESCRIBE_CONFIGS: [
            each(
                "resources",
                _config(AclOperation.DESCRIBE_CONFIGS),
                refusals.config_row(DescribeConfigsResult),
                "results",
            )
        ],
        ApiKey.ALTER_CONFIGS: [
            each(
                "resources",
                alter,
                refusals.config_row(AlterConfigsResourceResponse),
                "responses",
                once=resource,
            )
        ],
        ApiKey.INCREMENTAL_ALTER_CONFIGS: [
            each(
                "resources",
                alter,
                refusals.config_row(IncrementalAlterConfigsResult),
                "responses",
                once=resource,
            )
        ],
    }


def _of_the_cluster() -> Mapping[ApiKey, Sequence[Step]]:
    describe, alter = needs_cluster(_DESCRIBE), needs_cluster(_ALTER)
    describe_configs = needs_cluster(AclOperation.DESCRIBE_CONFIGS)
    alter_configs = needs_cluster(AclOperation.ALTER_CONFIGS)
    top_level = refusals.top_level
    return {
        ApiKey.LIST_CONFIG_RESOURCES: [
            whole(top_level(ListConfigResourcesResponse), describe_configs)
        ],
        ApiKey.DESCRIBE_CLIENT_QUOTAS: [whole(refusals.described_quotas, describe_configs)],
        ApiKey.ALTER_CLIENT_QUOTAS: [whole(refusals.quotas, alter_configs)],
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: [whole(refusals.described_users, describe)],
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: [whole(refusals.altered_users, alter)],
        ApiKey.DESCRIBE_ACLS: [whole(top_level(DescribeAclsResponse), describe)],
        ApiKey.CREATE_ACLS: [whole(refusals.created_acls, alter)],
        ApiKey.DELETE_ACLS: [whole(refusals.deleted_acls, alter)],
        ApiKey.ALTER_REPLICA_LOG_DIRS: [whole(refusals.log_dir_moves, alter)],
        ApiKey.DESCRIBE_LOG_DIRS: [whole(top_level(DescribeLogDirsResponse, results=()), describe)],
        ApiKey.ELECT_LEADERS: [whole(refusals.elections, alter)],
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: [whole(refusals.reassignments, alter)],
        ApiKey.LIST_PARTITION_REASSIGNMENTS: [whole(refusals.ongoing_reassignments, describe)],
        ApiKey.UPDATE_FEATURES: [whole(top_level(UpdateFeaturesResponse), alter)],
        ApiKey.UNREGISTER_BROKER: [whole(top_level(UnregisterBrokerResponse), alter)],
        ApiKey.DESCRIBE_QUORUM: [whole(top_level(DescribeQuorumResponse), describe)],
    }


# --- needs -----------------------------------------------------------------------------------


def _topic(
    operation: AclOperation, name_of: Callable[[Any], str | None] = attrgetter("name")
) -> Need:
    return needs(operation, ResourceKind.TOPIC, name_of)


def _valid_name(topic: Any) -> str | None:
    """Returns the name; None if no topic can have it, which the handler says."""
    name: str = topic.name
    return None if topic_name_fault(name) is not None else name


def _name_by_id(services: NodeServices) -> Callable[[Any], str | None]:
    """Returns what names a topic of a request, which has a name or an id; None for an unknown id.

    No topic has the empty name, which requests by id have.
    """

    def name_of(topic: Any) -> str | None:
        return topic.name or services.metadata.topic_name(topic.topic_id)

    return name_of


def _config(operation: AclOperation) -> Need:
    """The operation on a resource with a configuration; the handler refuses other types."""

    def need(resource: Any, context: RequestContext) -> ErrorCode:
        kind = _RESOURCES.get(resource.resource_type)
        if kind is None:
            return ErrorCode.NONE
        name = CLUSTER_NAME if kind is ResourceKind.CLUSTER else resource.resource_name
        return ErrorCode.NONE if context.access.may(operation, kind, name) else CODES[kind]

    return need


def _unless_unclear(need: Need) -> Need:
    """As the need; a SyncGroup without its protocol is refused by the handler, before."""

    def asked(request: Any, context: RequestContext) -> ErrorCode:
        is_unclear = request.protocol_type is None or request.protocol_name is None
        if is_unclear and context.api_version >= FIRST_SYNC_THAT_NAMES_ITS_PROTOCOL:
            return ErrorCode.NONE
        return need(request, context)

    return asked
