"""The table of APIs: supported versions, and the first flexible version of each.

This table is the single place where a version range is written down: the message classes, the
headers, ApiVersions and docs/reference/protocol.md take it from here.

    supported     what is encoded, decoded, served, advertised to clients, and documented
    flexible      compact lengths and tagged fields, and with them the newer header (KIP-482)

What brokers ask of controllers has a table of its own: listeners of brokers neither advertise nor
serve it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class ApiKey(IntEnum):
    """Every API of Kafka 4.4, by number. A listed API need not be served."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions `lowest` to `highest`, both included. Empty if `highest` is below `lowest`."""

    lowest: int
    highest: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest <= version <= self.highest

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.lowest, self.highest + 1))

    def __str__(self) -> str:
        return f"{self.lowest}-{self.highest}" if self.lowest != self.highest else f"{self.lowest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSpec:
    """One row of the table."""

    key: ApiKey
    supported: VersionRange
    flexible_from: int

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


def _row(key: ApiKey, lowest: int, highest: int, *, flexible_from: int) -> ApiSpec:
    return ApiSpec(key=key, supported=VersionRange(lowest, highest), flexible_from=flexible_from)


# The first flexible version of an API that never became flexible.
NEVER_FLEXIBLE: Final = 32767

SPECS: Mapping[int, ApiSpec] = MappingProxyType(
    {
        row.key: row
        for row in (
            # librdkafka up to 2.11.0 compresses only for a broker that offers Produce v0 to v2.
            # Kafka 4 advertises them and refuses them on use (KAFKA-18659); here they are served,
            # and with them every other version that Kafka 4 has dropped (KIP-896).
            _row(ApiKey.PRODUCE, 0, 13, flexible_from=9),
            _row(ApiKey.FETCH, 0, 18, flexible_from=12),
            _row(ApiKey.LIST_OFFSETS, 0, 11, flexible_from=6),
            _row(ApiKey.METADATA, 0, 13, flexible_from=9),
            _row(ApiKey.OFFSET_COMMIT, 0, 10, flexible_from=8),
            _row(ApiKey.OFFSET_FETCH, 0, 10, flexible_from=6),
            _row(ApiKey.FIND_COORDINATOR, 0, 6, flexible_from=3),
            _row(ApiKey.JOIN_GROUP, 0, 9, flexible_from=6),
            _row(ApiKey.HEARTBEAT, 0, 4, flexible_from=4),
            _row(ApiKey.LEAVE_GROUP, 0, 5, flexible_from=4),
            _row(ApiKey.SYNC_GROUP, 0, 5, flexible_from=4),
            _row(ApiKey.DESCRIBE_GROUPS, 0, 6, flexible_from=5),
            _row(ApiKey.LIST_GROUPS, 0, 5, flexible_from=3),
            _row(ApiKey.SASL_HANDSHAKE, 0, 1, flexible_from=NEVER_FLEXIBLE),
            _row(ApiKey.API_VERSIONS, 0, 5, flexible_from=3),
            _row(ApiKey.CREATE_TOPICS, 0, 7, flexible_from=5),
            _row(ApiKey.DELETE_TOPICS, 0, 6, flexible_from=4),
            _row(ApiKey.DELETE_RECORDS, 0, 2, flexible_from=2),
            # v6 (two-phase commit) is not stable in Kafka 4.4 and not advertised by it.
            _row(ApiKey.INIT_PRODUCER_ID, 0, 5, flexible_from=2),
            _row(ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4, flexible_from=4),
            _row(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, flexible_from=3),
            _row(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, flexible_from=3),
            _row(ApiKey.END_TXN, 0, 5, flexible_from=3),
            _row(ApiKey.WRITE_TXN_MARKERS, 0, 2, flexible_from=1),
            _row(ApiKey.TXN_OFFSET_COMMIT, 0, 6, flexible_from=3),
            _row(ApiKey.DESCRIBE_ACLS, 0, 3, flexible_from=2),
            _row(ApiKey.CREATE_ACLS, 0, 3, flexible_from=2),
            _row(ApiKey.DELETE_ACLS, 0, 3, flexible_from=2),
            _row(ApiKey.DESCRIBE_CONFIGS, 0, 4, flexible_from=4),
            _row(ApiKey.ALTER_CONFIGS, 0, 2, flexible_from=2),
            _row(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2, flexible_from=2),
            _row(ApiKey.DESCRIBE_LOG_DIRS, 0, 5, flexible_from=2),
            _row(ApiKey.SASL_AUTHENTICATE, 0, 2, flexible_from=2),
            _row(ApiKey.CREATE_PARTITIONS, 0, 3, flexible_from=2),
            _row(ApiKey.CREATE_DELEGATION_TOKEN, 0, 3, flexible_from=2),
            _row(ApiKey.RENEW_DELEGATION_TOKEN, 0, 2, flexible_from=2),
            _row(ApiKey.EXPIRE_DELEGATION_TOKEN, 0, 2, flexible_from=2),
            _row(ApiKey.DESCRIBE_DELEGATION_TOKEN, 0, 3, flexible_from=2),
            _row(ApiKey.DELETE_GROUPS, 0, 3, flexible_from=2),
            _row(ApiKey.ELECT_LEADERS, 0, 2, flexible_from=2),
            _row(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, flexible_from=1),
            _row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, flexible_from=0),
            _row(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, flexible_from=0),
            _row(ApiKey.OFFSET_DELETE, 0, 0, flexible_from=NEVER_FLEXIBLE),
            _row(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, flexible_from=1),
            _row(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, flexible_from=1),
            _row(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, flexible_from=0),
            _row(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, flexible_from=0),
            _row(ApiKey.DESCRIBE_QUORUM, 0, 2, flexible_from=0),
            _row(ApiKey.UPDATE_FEATURES, 0, 2, flexible_from=0),
            _row(ApiKey.DESCRIBE_CLUSTER, 0, 2, flexible_from=0),
            _row(ApiKey.DESCRIBE_PRODUCERS, 0, 0, flexible_from=0),
            _row(ApiKey.UNREGISTER_BROKER, 0, 0, flexible_from=0),
            _row(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, flexible_from=0),
            _row(ApiKey.LIST_TRANSACTIONS, 0, 2, flexible_from=0),
            _row(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, flexible_from=0),
            _row(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, flexible_from=0),
            _row(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, flexible_from=0),
            _row(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, flexible_from=0),
        )
    }
)

# Between brokers and controllers alone (KIP-500): on listeners of controllers.
CONTROLLER_SPECS: Mapping[int, ApiSpec] = MappingProxyType(
    {
        row.key: row
        for row in (
            _row(ApiKey.ALTER_PARTITION, 2, 3, flexible_from=0),
            _row(ApiKey.ENVELOPE, 0, 0, flexible_from=0),
            _row(ApiKey.FETCH_SNAPSHOT, 0, 1, flexible_from=0),
            _row(ApiKey.BROKER_REGISTRATION, 0, 4, flexible_from=0),
            _row(ApiKey.BROKER_HEARTBEAT, 0, 2, flexible_from=0),
            _row(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, flexible_from=0),
            _row(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0, flexible_from=0),
        )
    }
)

# What listeners of controllers serve, as those of Apache Kafka: all that changes the metadata, and
# what tools ask with --bootstrap-controller.
ON_CONTROLLERS: frozenset[ApiKey] = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.API_VERSIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ALTER_PARTITION,
        ApiKey.UPDATE_FEATURES,
        ApiKey.ENVELOPE,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    }
)

# Every message that is encoded and decoded, wherever it is served.
EVERY_SPEC: Mapping[int, ApiSpec] = MappingProxyType({**SPECS, **CONTROLLER_SPECS})


def api_name(key: ApiKey) -> str:
    """Returns `ListOffsets` for `ApiKey.LIST_OFFSETS`, as in Kafka's documents."""
    return "".join(word.capitalize() for word in key.name.split("_"))
