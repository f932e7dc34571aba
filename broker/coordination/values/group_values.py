"""What a classic group is asked, what it answers, and what it wants written: values only.

A request that must wait carries a *ticket*, a number that the caller made up. The answer that comes
of some later event names that ticket again; so the state machine knows nobody's socket or future.

    join(JoinRequest, ticket) ->  Effects(answers=(JoinAnswer(ticket) ...), write=None)
    sync(SyncRequest, ticket) ->  Effects(answers=(), write=AssignmentWrite(...))
                                  the caller writes it, then
    written(AssignmentWrite)  ->  Effects(answers=(SyncAnswer(ticket) ...), write=None)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from strandline.broker.coordination.values.member_room import Room
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.definition import INT, INT_MAX, key
from strandline.storage.errors import StrandlineError

Ticket: TypeAlias = int

NO_MEMBER_ID = ""
NO_GENERATION = -1


class CoordinatorFault(StrandlineError):
    """The group cannot be served now; the client is told `error_code`, and `message` if there is
    one and its protocol has a place for it."""

    def __init__(self, error_code: ErrorCode, message: str | None = None) -> None:
        super().__init__(error_code.name if message is None else message)
        self.error_code = error_code
        self.message = message


class Moment(NamedTuple):
    """Now, twice: wall time goes into records, monotonic time drives the timeouts."""

    wall_ms: int
    monotonic_ms: int


class GroupState(Enum):
    """The states by the names that clients are told; two are of KIP-848 groups alone."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberProtocol(NamedTuple):
    """One way of assigning that a member knows, and what it tells the leader for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """What classic groups go by."""

    initial_rebalance_delay_ms: int = key(
        "group.initial.rebalance.delay.ms",
        INT,
        3000,
        "How long the first rebalance of an empty group waits for further members, in ms.",
        minimum=0,
    )
    size_max: int = key(
        "group.max.size",
        INT,
        INT_MAX,
        "Members that a group may have; further ones are refused.",
        minimum=1,
    )
    # A member that joins for the first time cannot send heartbeats while it waits, and a client
    # that goes away meanwhile is not noticed. Kafka gives such a member five minutes, too.
    new_member_join_timeout_ms: int = 300_000
    # Ids that were given out and not used yet. Nobody starts so many consumers of one group within
    # a session timeout; who asks for ids and never comes back would fill the memory.
    pending_max: int = 10_000
    # Shared by all groups that go by these rules.
    room: Room = field(default_factory=Room, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """JoinGroup; the member id is empty on the first visit."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    # From JoinGroup v4 on a new dynamic member is given an id and told to come back with it.
    needs_member_id: bool = True
    # From v9 on a returning static leader can be told to keep the assignment it made.
    can_skip_assignment: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """SyncGroup; `assignments` by member id come from the leader alone."""

    member_id: str
    group_instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """One entry of LeaveGroup: an id, or an instance id alone (an administrator's way)."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResult:
    """What became of one leaving member."""

    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """What the leader is told of a member."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """Answer to the join of `ticket`; `members` only for the leader."""

    ticket: Ticket
    error_code: ErrorCode = ErrorCode.NONE
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """Answer to the sync of `ticket`."""

    ticket: Ticket
    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


Answer: TypeAlias = JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """A member as `__consumer_offsets` keeps it: with the metadata of the chosen protocol only."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group as `__consumer_offsets` keeps it. `state_since_ms` is -1 in records of old."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[MemberSnapshot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationWrite:
    """A group came to be. If it cannot be written, there is no group."""

    snapshot: GroupSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyWrite:
    """The last member is gone. Nobody waits for this write."""

    snapshot: GroupSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentWrite:
    """The leader's assignment; the members are told once it is written."""

    snapshot: GroupSnapshot
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementWrite:
    """A static member came back under a new id; it is told once that is written.

    `previous` is what the member was before, in case it cannot be written.
    """

    snapshot: GroupSnapshot
    member_id: str
    previous: PreviousMember
    answer: JoinAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousMember:
    """What a returning static member had before it returned."""

    member_id: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int


GroupWrite: TypeAlias = CreationWrite | EmptyWrite | AssignmentWrite | ReplacementWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What came of an event: answers to send now, and at most one record to write."""

    answers: tuple[Answer, ...] = ()
    write: GroupWrite | None = None


NO_EFFECTS = Effects()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member as DescribeGroups tells it; the metadata is empty unless the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as DescribeGroups and ListGroups tell it."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]
