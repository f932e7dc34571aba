"""Requests, responses and records of a KIP-848 group (plain values).

The state of a KIP-848 group follows from its records. A decision is a list of records and an
answer; the records are written, then applied, and only then the answer is sent.

    EpochRecord          the epoch of the group: how often its members or topics changed
    MemberRecord         the identity and subscription of a member
    TargetEpochRecord    the group epoch that the target assignment was computed for
    TargetRecord         the target assignment of a member
    CurrentRecord        a member's assigned and revoked partitions, and its epoch
    RegexRecord          the topics that a regular expression matches

Each of them with None is a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TypeAlias

from strandline.broker.coordination.model.classic_messages import MemberProtocol
from strandline.storage.config.definition import INT, INT_MAX, LIST, STRING, key
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import TopicId

# Partitions by topic. Topics without partitions are left out, so equal assignments are equal.
Partitions: TypeAlias = Mapping[TopicId, frozenset[int]]
NO_PARTITIONS: Partitions = MappingProxyType({})
# A member's partitions, each with the member's epoch when it was assigned.
HeldPartitions: TypeAlias = Mapping[TopicId, Mapping[int, int]]
NOTHING_HELD: HeldPartitions = MappingProxyType({})

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
# Epoch of a static member that leaves temporarily.
LEAVE_FOR_A_WHILE_EPOCH = -2
NO_TIMEOUT = -1


class MemberState(IntEnum):
    """Progress of a member towards its target, numbered as in the records."""

    STABLE = 0
    # It was told to revoke partitions and has not confirmed it.
    UNREVOKED = 1
    # It is in the target's epoch, and waits for partitions that others have not revoked.
    UNRELEASED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMembership:
    """The classic-protocol metadata of a member in a KIP-848 group."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """The subscription and the identity that a member sent."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = NO_TIMEOUT
    server_assignor: str | None = None
    topic_names: tuple[str, ...] = ()
    # Empty means none, as null does; a member clears its expression with the empty text.
    topic_regex: str = ""
    classic: ClassicMembership | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """A member's current assignment, on the way to its target.

    `previous_epoch` is accepted in place of `epoch` from a member that missed its last answer.
    A commit may be older than both: see `assignment_epoch`.
    """

    epoch: int = JOIN_EPOCH
    previous_epoch: int = LEAVE_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: HeldPartitions = field(default_factory=lambda: NOTHING_HELD)
    revoking: HeldPartitions = field(default_factory=lambda: NOTHING_HELD)

    def assignment_epoch(self, topic_id: TopicId, partition: int) -> int | None:
        """Returns the epoch since which the member has owned the partition; None if it does not."""
        for held in (self.assigned, self.revoking):
            epoch = held.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


def with_assignment_epoch(partitions: Partitions, epoch: int) -> HeldPartitions:
    """Returns these partitions, all with `epoch` as assignment epoch."""
    return {topic_id: dict.fromkeys(found, epoch) for topic_id, found in partitions.items()}


def without_epochs(held: HeldPartitions) -> Partitions:
    """Returns the partitions without epochs, as members receive them."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in held.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegex:
    """The topics that a regular expression matches in metadata of this version."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


# --- records ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The epoch of a group. `metadata_hash` sums up the topics that the group reads."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class TopicMetadataRecord:
    """The topic metadata that Kafka up to 4.0 wrote; only its tombstone is written here."""

    group_id: str
    is_present: bool


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member's subscription; None: it left (Kafka's ConsumerGroupMemberMetadata)."""

    group_id: str
    member_id: str
    subscription: MemberSubscription | None


@dataclass(frozen=True, slots=True)
class TargetEpochRecord:
    """The epoch of the target assignment; None: the group is deleted."""

    group_id: str
    epoch: int | None


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """A member's target assignment; None: it has none any more."""

    group_id: str
    member_id: str
    partitions: Partitions | None


@dataclass(frozen=True, slots=True)
class CurrentRecord:
    """A member's current assignment and epoch; None: it left."""

    group_id: str
    member_id: str
    current: CurrentAssignment | None


@dataclass(frozen=True, slots=True)
class RegexRecord:
    """The topics that a regular expression matches; None: no member subscribes to it."""

    group_id: str
    regex: str
    resolved: ResolvedRegex | None


ConsumerRecord: TypeAlias = (
    EpochRecord
    | TopicMetadataRecord
    | MemberRecord
    | TargetEpochRecord
    | TargetRecord
    | CurrentRecord
    | RegexRecord
)


def is_tombstone(record: ConsumerRecord) -> bool:
    match record:
        case EpochRecord(epoch=value) | TargetEpochRecord(epoch=value):
            return value is None
        case MemberRecord(subscription=value) | TargetRecord(partitions=value):
            return value is None
        case CurrentRecord(current=value) | RegexRecord(resolved=value):
            return value is None
        case TopicMetadataRecord():
            return not record.is_present


# --- requests and answers --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat. None (and a timeout of -1) means "as in my last heartbeat"."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    topic_names: Sequence[str] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    # Whether the client may describe a topic that its expression matches.
    shows_topic: Callable[[str], bool] = lambda _topic: True


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """The answer to a heartbeat; `assignment` None: unchanged for the member."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumer:
    """A member as ConsumerGroupDescribe returns it."""

    member_id: str
    epoch: int
    subscription: MemberSubscription
    assigned: Partitions
    target: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A group as ConsumerGroupDescribe returns it."""

    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]


class MigrationPolicy(Enum):
    """The directions in which a group may change its protocol online (KIP-848)."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTimes:
    """Heartbeat interval and session timeout of a group's members."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000


DEFAULT_TIMES = MemberTimes()

_ASSIGNOR_CLASSES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}


def _assignor_names(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_ASSIGNOR_CLASSES.get(name, name) for name in given))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRules:
    """Configuration of groups of the new protocol (KIP-848)."""

    session_timeout_ms: int = key(
        "group.consumer.session.timeout.ms",
        INT,
        45_000,
        "The broker removes a member of the new group protocol after this many ms without a"
        " heartbeat.",
        minimum=1,
    )
    session_timeout_ms_min: int = key(
        "group.consumer.min.session.timeout.ms",
        INT,
        45_000,
        "Shortest group.consumer.session.timeout.ms that the broker accepts.",
        minimum=1,
    )
    session_timeout_ms_max: int = key(
        "group.consumer.max.session.timeout.ms",
        INT,
        60_000,
        "Longest group.consumer.session.timeout.ms that the broker accepts.",
        minimum=1,
    )
    heartbeat_interval_ms: int = key(
        "group.consumer.heartbeat.interval.ms",
        INT,
        5000,
        "Ms between two heartbeats of a member of the new group protocol; a member learns of a"
        " rebalance from the answer.",
        minimum=1,
    )
    heartbeat_interval_ms_min: int = key(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        5000,
        "Shortest group.consumer.heartbeat.interval.ms that the broker accepts.",
        minimum=1,
    )
    heartbeat_interval_ms_max: int = key(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        15_000,
        "Longest group.consumer.heartbeat.interval.ms that the broker accepts.",
        minimum=1,
    )
    size_max: int = key(
        "group.consumer.max.size",
        INT,
        INT_MAX,
        "Members that a group of the new protocol may have; the broker refuses further ones.",
        minimum=1,
    )
    assignors: tuple[str, ...] = key(
        "group.consumer.assignors",
        LIST,
        "uniform,range",
        "Assignors of the new group protocol; the first one is for members that ask for none."
        " There are `uniform` and `range`; Kafka's class names mean the same.",
        convert=_assignor_names,
    )
    regex_refresh_interval_ms: int = key(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        600_000,
        "The broker matches the regular expressions of members against the topics again after this"
        " many ms, and ten seconds after a topic was created or deleted.",
        minimum=10_000,
    )
    migration: MigrationPolicy = key(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Whether the broker converts a group of classic consumers when a member that speaks the"
        " new protocol joins (`upgrade`), and back when the last such member leaves (`downgrade`).",
        choices=tuple(policy.value for policy in MigrationPolicy),
        convert=MigrationPolicy,
    )

    # By group id; may change between calls.
    times_of: Callable[[str], MemberTimes] = lambda _group_id: DEFAULT_TIMES
    # A group downgrades to a classic one only if its members fit this limit.
    classic_size_max: int = INT_MAX

    def check(self) -> None:
        """Raises InvalidConfig for contradictory values or an unknown assignor."""
        session = (
            self.session_timeout_ms_min,
            self.session_timeout_ms,
            self.session_timeout_ms_max,
        )
        heartbeat = (
            self.heartbeat_interval_ms_min,
            self.heartbeat_interval_ms,
            self.heartbeat_interval_ms_max,
        )
        _check_between("session.timeout.ms", *session)
        _check_between("heartbeat.interval.ms", *heartbeat)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidConfig(
                "group.consumer.heartbeat.interval.ms: expected less than"
                f" group.consumer.session.timeout.ms={self.session_timeout_ms}"
            )
        if not self.assignors or not set(self.assignors) <= set(_ASSIGNOR_CLASSES.values()):
            raise InvalidConfig(
                f"group.consumer.assignors={','.join(self.assignors)!r}: expected uniform, range"
                " or both"
            )


def _check_between(what: str, low: int, value: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidConfig(
            f"group.consumer.{what}={value}: expected {low} to {high}, the values of"
            f" group.consumer.min.{what} and group.consumer.max.{what}"
        )
