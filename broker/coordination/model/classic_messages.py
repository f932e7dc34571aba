"""Requests, responses and effects of a classic group (plain values).

A request that may wait carries a *ticket*, a number chosen by the caller. The answer, from some
later event, names that ticket again; so the state machine knows no sockets or futures.

    join(JoinRequest, ticket) ->  Effects(answers=(JoinAnswer(ticket) ...), write=None)
    sync(SyncRequest, ticket) ->  Effects(answers=(), write=AssignmentWrite(...))
                                  the caller writes it, then
    written(AssignmentWrite)  ->  Effects(answers=(SyncAnswer(ticket) ...), write=None)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from strandline.broker.coordination.model.member_memory import MemberMemory
from strandline.broker.protocol.formats.offsets_topic import GroupMetadataValue
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.definition import INT, INT_MAX, key
from strandline.storage.errors import StrandlineError

Ticket: TypeAlias = int

NO_MEMBER_ID = ""
NO_GENERATION = -1


class CoordinatorFault(StrandlineError):
    """The group cannot be served now; the client gets `error_code`, and `message` if its protocol
    has a field for it.
    """

    def __init__(self, error_code: ErrorCode, message: str | None = None) -> None:
        super().__init__(error_code.name if message is None else message)
        self.error_code = error_code
        self.message = message


class Instant(NamedTuple):
    """The current time, twice: wall time goes into records, monotonic time drives the timeouts."""

    wall_ms: int
    monotonic_ms: int


class GroupState(Enum):
    """The states of a group, by their names on the wire; two are of KIP-848 groups only."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberProtocol(NamedTuple):
    """An assignment protocol that a member supports, and its metadata for the leader."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """Configuration of classic groups."""

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
        "Members that a group may have; the broker refuses further ones.",
        minimum=1,
    )
    # A member that joins for the first time cannot send heartbeats while it waits, so a client that
    # disappears meanwhile is not noticed. Kafka gives such a member five minutes, too.
    new_member_join_timeout_ms: int = 300_000
    # Ids that were returned and not used yet. No application starts so many consumers of one group
    # within a session timeout; a client that requests ids and never joins would fill the memory.
    pending_max: int = 10_000
    # Shared by all groups with these rules.
    room: MemberMemory = field(default_factory=MemberMemory, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """JoinGroup; the member id is empty in the first request."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    # From JoinGroup v4 on a new dynamic member gets an id and must join again with it.
    needs_member_id: bool = True
    # From v9 on a returning static leader can be told to keep the current assignment.
    can_skip_assignment: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """SyncGroup; only the leader sends `assignments` by member id."""

    member_id: str
    group_instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """One entry of LeaveGroup: a member id, or (from administrators) an instance id alone."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResult:
    """The result for one leaving member."""

    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader sees it in its JoinGroup answer."""

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
class CreationWrite:
    """A group was created. If it cannot be written, there is no group."""

    snapshot: GroupMetadataValue


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyWrite:
    """The last member left. No answer waits for this write."""

    snapshot: GroupMetadataValue


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentWrite:
    """The leader's assignment; members are answered once it is written."""

    snapshot: GroupMetadataValue
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementWrite:
    """A static member returned under a new id; it is answered once that is written.

    `previous` is the member's former state, in case the write fails.
    """

    snapshot: GroupMetadataValue
    member_id: str
    previous: PreviousMember
    answer: JoinAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousMember:
    """The state of a returning static member before it returned."""

    member_id: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int


GroupWrite: TypeAlias = CreationWrite | EmptyWrite | AssignmentWrite | ReplacementWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effects of an event: answers to send now, and at most one record to write."""

    answers: tuple[Answer, ...] = ()
    write: GroupWrite | None = None


NO_EFFECTS = Effects()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member as DescribeGroups returns it; without metadata unless the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as DescribeGroups and ListGroups return it."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]
