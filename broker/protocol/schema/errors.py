"""Kafka's error codes, and the exceptions for unreadable requests.

A response carries an error as an int16; clients know the numbers, so they never change. The texts
are ours: `error_message` has them if a handler has no more precise text.

`MalformedRequest` and `UnsupportedVersion` have no answer in general: client and broker share no
layout for it. The connection is closed (ApiVersions is the one exception).
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """Every error code that Kafka 4.4 knows, by its protocol name."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135
    CONTROLLER_ID_NOT_REGISTERED = 136

    @classmethod
    def known(cls, code: int) -> ErrorCode:
        """Returns the code of an answer; UNKNOWN_SERVER_ERROR for one of a later Kafka."""
        try:
            return cls(code)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR

    @property
    def message(self) -> str:
        """Returns the meaning of the code in one sentence, for `error_message` and logs."""
        return _MESSAGES.get(self) or f"{self.name.replace('_', ' ').capitalize()}."


# Texts for codes whose name does not explain them. The others use their name.
_MESSAGES: dict[int, str] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "The broker met an unexpected error; its log has the details.",
    ErrorCode.NONE: "No error.",
    ErrorCode.OFFSET_OUT_OF_RANGE: "The offset lies outside of what the partition holds.",
    ErrorCode.CORRUPT_MESSAGE: "The records are damaged: bad checksum, size or structure.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This broker does not host the topic or partition.",
    ErrorCode.LEADER_NOT_AVAILABLE: "The partition has no leader at the moment.",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "This broker is not the leader of the partition.",
    ErrorCode.MESSAGE_TOO_LARGE: "The record batch is larger than max.message.bytes.",
    ErrorCode.STALE_CONTROLLER_EPOCH: "The controller has moved to another broker.",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "The metadata string of the offset commit is too long.",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "The coordinator is still loading its state.",
    ErrorCode.NOT_COORDINATOR: "This broker is not the coordinator.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "The topic name is not allowed, or the topic is internal.",
    ErrorCode.RECORD_LIST_TOO_LARGE: "The record batch is larger than a whole segment may be.",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Fewer replicas are in sync than min.insync.replicas asks for.",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "The records were written, but to fewer in-sync replicas than required."
    ),
    ErrorCode.INVALID_REQUIRED_ACKS: "The acks of a produce request must be -1, 0 or 1.",
    ErrorCode.ILLEGAL_GENERATION: "The group has moved on to another generation.",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "The member shares no protocol type or protocol with the rest of the group."
    ),
    ErrorCode.UNKNOWN_MEMBER_ID: "The group does not know this member.",
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "The session timeout is outside of group.min/max.session.timeout.ms."
    ),
    ErrorCode.REBALANCE_IN_PROGRESS: "The group is rebalancing: rejoin it.",
    ErrorCode.INVALID_TIMESTAMP: "A record timestamp is outside of the range the topic accepts.",
    ErrorCode.ILLEGAL_SASL_STATE: "The request is not valid in this state of the SASL exchange.",
    ErrorCode.UNSUPPORTED_VERSION: "This version of the API is not supported.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "A topic of this name exists already.",
    ErrorCode.INVALID_PARTITIONS: "The number of partitions is not valid.",
    ErrorCode.INVALID_REPLICATION_FACTOR: (
        "The replication factor is below 1 or above the number of brokers."
    ),
    ErrorCode.INVALID_CONFIG: "The configuration is not valid.",
    ErrorCode.NOT_CONTROLLER: "This broker is not the controller.",
    ErrorCode.INVALID_REQUEST: "The request was readable but makes no sense.",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "The producer skipped a sequence number.",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "The producer repeated a sequence number.",
    ErrorCode.INVALID_PRODUCER_EPOCH: "A producer with a newer epoch has taken over.",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: (
        "The producer id is not the one assigned to this transactional id."
    ),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "The transaction timeout is larger than transaction.max.timeout.ms."
    ),
    ErrorCode.CONCURRENT_TRANSACTIONS: "The producer's previous transaction is still completing.",
    ErrorCode.SECURITY_DISABLED: "Security features are not enabled on this broker.",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "Not tried, because another part of the request failed.",
    ErrorCode.KAFKA_STORAGE_ERROR: "The broker could not read or write its storage.",
    ErrorCode.UNKNOWN_PRODUCER_ID: "The partition has no state for this producer id.",
    ErrorCode.NON_EMPTY_GROUP: "The group still has members.",
    ErrorCode.GROUP_ID_NOT_FOUND: "There is no such group.",
    ErrorCode.TOPIC_DELETION_DISABLED: "Topics cannot be deleted: delete.topic.enable is false.",
    ErrorCode.FENCED_LEADER_EPOCH: "The leader epoch of the request is older than the broker's.",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "The leader epoch of the request is newer than the broker's.",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: (
        "The compression codec is unknown, or too new for this version of the request."
    ),
    ErrorCode.OFFSET_NOT_AVAILABLE: "The leader does not yet know its high watermark.",
    ErrorCode.MEMBER_ID_REQUIRED: "Join again with the member id of this answer.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "The group is subscribed to the topic.",
    ErrorCode.INVALID_RECORD: "The record batch breaks a rule of the log.",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "A pending transaction may still change these offsets.",
    ErrorCode.PRODUCER_FENCED: "A newer producer uses this transactional id.",
    ErrorCode.UNKNOWN_TOPIC_ID: "This broker does not know the topic id.",
    ErrorCode.INCONSISTENT_TOPIC_ID: "The topic id belongs to another incarnation of the topic.",
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: (
        "A fetch session uses either topic names or topic ids, not both."
    ),
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: "The offset lies in the remote tier only.",
    ErrorCode.REBOOTSTRAP_REQUIRED: "Start again from the bootstrap servers.",
}


class ProtocolError(Exception):
    """The client sent bytes that are no valid request; its connection is closed."""

    kafka_code: ClassVar[int] = ErrorCode.INVALID_REQUEST


class MalformedRequest(ProtocolError):
    """The bytes do not follow the layout of the message they claim to be."""


class UnsupportedVersion(ProtocolError):
    """An API, or a version of it, that is not served.

    `correlation_id` is for the only possible answer: ApiVersions v0 with error 35 (KIP-511).
    """

    kafka_code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, *, api_key: int, api_version: int, correlation_id: int) -> None:
        super().__init__(f"API key {api_key} version {api_version} is not served")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
