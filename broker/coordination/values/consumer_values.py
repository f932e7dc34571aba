"""What a KIP-848 group is asked, what it answers, and what it wants written: values only.

A group of the new protocol is what its records say. A decision is a list of records and an answer;
the records are written, then applied, and only then is the answer sent.

    EpochRecord          the group is in this epoch: its members or topics changed this often
    MemberRecord         what a member is and subscribes to
    TargetEpochRecord    the epoch of the group that the target assignment was made for
    TargetRecord         what a member is to have
    CurrentRecord        what a member has, what it gives back, and the epoch it was told last
    RegexRecord          the topics that a regular expression finds

Each of them with None says "forget it".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TypeAlias

from strandline.broker.coordination.values.group_values import MemberProtocol
from strandline.storage.config.definition import INT, INT_MAX, LIST, STRING, key
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import TopicId

# Partitions by topic. Topics without partitions are left out, so equal assignments are equal.
Partitions: TypeAlias = Mapping[TopicId, frozenset[int]]
NO_PARTITIONS: Partitions = MappingProxyType({})
# What a member has: its partitions, each with the member's epoch when it was given to it.
HeldPartitions: TypeAlias = Mapping[TopicId, Mapping[int, int]]
NOTHING_HELD: HeldPartitions = MappingProxyType({})

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
# A static member that goes and means to come back.
LEAVE_FOR_A_WHILE_EPOCH = -2
NO_TIMEOUT = -1


class MemberState(IntEnum):
    """How far a member is from its target, by the numbers in the records."""

    STABLE = 0
    # It was told to give partitions back and has not said that it did.
    UNREVOKED = 1
    # It is in the target's epoch, and waits for partitions that others have not given back.
    UNRELEASED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMembership:
    """A member that speaks the classic protocol in a group of the new one."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """What a member said of itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = NO_TIMEOUT
    server_assignor: str | None = None
    topic_names: tuple[str, ...] = ()
    # Empty is none, as null is; a member that takes its expression back sends the empty text.
    topic_regex: str = ""
    classic: ClassicMembership | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """Where a member is on its way to the target.

    `previous_epoch` is accepted in place of `epoch` from a member that missed its last answer.
    A commit may be older than both: see `assignment_epoch`.
    """

    epoch: int = JOIN_EPOCH
    previous_epoch: int = LEAVE_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: HeldPartitions = field(default_factory=lambda: NOTHING_HELD)
    revoking: HeldPartitions = field(default_factory=lambda: NOTHING_HELD)

    def assignment_epoch(self, topic_id: TopicId, partition: int) -> int | None:
        """Since when the member has had the partition without a break; None if it has not."""
        for held in (self.assigned, self.revoking):
            epoch = held.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


def held_since(partitions: Partitions, epoch: int) -> HeldPartitions:
    """These partitions, all of them given in this epoch."""
    return {topic_id: dict.fromkeys(found, epoch) for topic_id, found in partitions.items()}


def without_epochs(held: HeldPartitions) -> Partitions:
    """What a member is told that it has."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in held.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegex:
    """The topics that a regular expression found in metadata of this version."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


# --- records ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """`metadata_hash` sums up the topics that the group reads."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0

    @property
    def is_tombstone(self) -> bool:
        return self.epoch is None


@dataclass(frozen=True, slots=True)
class TopicMetadataRecord:
    """What Kafka up to 4.0 wrote instead of a hash; only its tombstone is written."""

    group_id: str
    is_present: bool

    @property
    def is_tombstone(self) -> bool:
        return not self.is_present


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member and what it wants; None: it left (Kafka's ConsumerGroupMemberMetadata)."""

    group_id: str
    member_id: str
    subscription: MemberSubscription | None

    @property
    def is_tombstone(self) -> bool:
        return self.subscription is None


@dataclass(frozen=True, slots=True)
class TargetEpochRecord:
    """The epoch of the target assignment; None: the group is gone."""

    group_id: str
    epoch: int | None

    @property
    def is_tombstone(self) -> bool:
        return self.epoch is None


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """What a member is to have in the end; None: it has no target any more."""

    group_id: str
    member_id: str
    partitions: Partitions | None

    @property
    def is_tombstone(self) -> bool:
        return self.partitions is None


@dataclass(frozen=True, slots=True)
class CurrentRecord:
    """What a member has, and gives back, in which epoch; None: it left."""

    group_id: str
    member_id: str
    current: CurrentAssignment | None

    @property
    def is_tombstone(self) -> bool:
        return self.current is None


@dataclass(frozen=True, slots=True)
class RegexRecord:
    """The topics that a regular expression stands for; None: nobody subscribes to it."""

    group_id: str
    regex: str
    resolved: ResolvedRegex | None

    @property
    def is_tombstone(self) -> bool:
        return self.resolved is None


ConsumerRecord: TypeAlias = (
    EpochRecord
    | TopicMetadataRecord
    | MemberRecord
    | TargetEpochRecord
    | TargetRecord
    | CurrentRecord
    | RegexRecord
)
CONSUMER_RECORDS = (
    EpochRecord,
    TopicMetadataRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
    CurrentRecord,
    RegexRecord,
)


# --- asking and answering --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """`assignment` None: nothing has changed for the member."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumer:
    """A member as ConsumerGroupDescribe tells it."""

    member_id: str
    epoch: int
    subscription: MemberSubscription
    assigned: Partitions
    target: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A group as ConsumerGroupDescribe tells it."""

    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]


class MigrationPolicy(Enum):
    """`group.consumer.migration.policy`: which way a group may change its protocol online."""

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
    """How often a member is to send heartbeats, and after which silence it is out."""

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
    """What groups of the new protocol (KIP-848) go by."""

    session_timeout_ms: int = key(
        "group.consumer.session.timeout.ms",
        INT,
        45_000,
        "A member of the new group protocol is out of its group after this many ms of silence.",
        minimum=1,
    )
    session_timeout_ms_min: int = key(
        "group.consumer.min.session.timeout.ms",
        INT,
        45_000,
        "Shortest group.consumer.session.timeout.ms that is accepted.",
        minimum=1,
    )
    session_timeout_ms_max: int = key(
        "group.consumer.max.session.timeout.ms",
        INT,
        60_000,
        "Longest group.consumer.session.timeout.ms that is accepted.",
        minimum=1,
    )
    heartbeat_interval_ms: int = key(
        "group.consumer.heartbeat.interval.ms",
        INT,
        5000,
        "Members of the new group protocol are told to send a heartbeat every so many ms; they"
        " learn of a rebalance with it.",
        minimum=1,
    )
    heartbeat_interval_ms_min: int = key(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        5000,
        "Shortest group.consumer.heartbeat.interval.ms that is accepted.",
        minimum=1,
    )
    heartbeat_interval_ms_max: int = key(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        15_000,
        "Longest group.consumer.heartbeat.interval.ms that is accepted.",
        minimum=1,
    )
    size_max: int = key(
        "group.consumer.max.size",
        INT,
        INT_MAX,
        "Members that a group of the new protocol may have; further ones are refused.",
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
        "Regular expressions that members subscribe to are looked up again after this many ms;"
        " sooner, after ten seconds, if topics came or went.",
        minimum=10_000,
    )
    migration: MigrationPolicy = key(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Whether a group of classic consumers goes over to the new protocol when a member that"
        " speaks it joins (`upgrade`), and back when the last such member is gone (`downgrade`).",
        choices=tuple(policy.value for policy in MigrationPolicy),
        convert=MigrationPolicy,
    )

    # By group id; may change from one question to the next.
    times_of: Callable[[str], MemberTimes] = lambda _group_id: DEFAULT_TIMES
    # A group that shrinks to classic members becomes a classic group only if they fit in there.
    classic_size_max: int = INT_MAX

    def check(self) -> None:
        """Raises InvalidConfig for values that contradict each other, or an unknown assignor."""
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
