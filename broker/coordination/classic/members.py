"""The members of one classic group: identities, waiting requests, and common protocols.

A member is *pending* from the answer MEMBER_ID_REQUIRED until it joins with that id; it only counts
for whether all members have joined. Their number is bounded: the newest replaces the oldest, whose
client gets UNKNOWN_MEMBER_ID if it joins after all, and starts over.

A *static* member has an instance id that outlives its member id; exactly one member id is bound to
it, and any other that claims it is fenced.

The counts (waiting joins, members per protocol) are kept as members come and go, so that each join
of a storm costs the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from strandline.broker.coordination.model.classic_messages import (
    JoinRequest,
    MemberProtocol,
    PreviousMember,
    Ticket,
)
from strandline.broker.coordination.model.member_memory import (
    GroupBudget,
    MemberMemory,
    member_bytes,
)
from strandline.broker.protocol.formats.offsets_topic import GroupMember
from strandline.broker.protocol.schema.errors import ErrorCode


class Member:
    """One member. `deadline_ms` is when its session ends; None while no session runs."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "former_generation",
        "group_instance_id",
        "is_new",
        "join_ticket",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_ticket",
    )

    def __init__(
        self,
        member_id: str,
        *,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: tuple[MemberProtocol, ...],
        assignment: bytes = b"",
        is_new: bool = False,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = is_new
        self.join_ticket: Ticket | None = None
        self.sync_ticket: Ticket | None = None
        self.deadline_ms: int | None = None
        # The member's epoch in the KIP-848 group that this group was.
        self.former_generation: int | None = None

    @classmethod
    def joining(cls, member_id: str, request: JoinRequest) -> Member:
        return cls(
            member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            is_new=True,
        )

    @classmethod
    def restored(cls, snapshot: GroupMember, protocol_name: str | None) -> Member:
        timeout_ms = snapshot.rebalance_timeout_ms
        return cls(
            snapshot.member_id,
            group_instance_id=snapshot.group_instance_id,
            client_id=snapshot.client_id,
            client_host=snapshot.client_host,
            session_timeout_ms=snapshot.session_timeout_ms,
            rebalance_timeout_ms=snapshot.session_timeout_ms if timeout_ms < 0 else timeout_ms,
            protocols=(MemberProtocol(protocol_name or "", snapshot.metadata),),
            assignment=snapshot.assignment,
        )

    def __repr__(self) -> str:
        waits = "join" if self.join_ticket is not None else "sync" if self.sync_ticket else "-"
        return f"<Member {self.member_id} waits={waits} deadline={self.deadline_ms}>"

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_awaiting_join(self) -> bool:
        return self.join_ticket is not None

    @property
    def satisfies_session(self) -> bool:
        """Whether its session cannot expire now, because the member waits for us."""
        # A new member may disappear unnoticed while it waits; so it can expire.
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    @property
    def held_bytes(self) -> int:
        return member_bytes(self.protocols, self.client_id, self.group_instance_id)

    def metadata_for(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        """Returns the first protocol of this member that all members support."""
        return next(name for name, _ in self.protocols if name in candidates)

    def snapshot(self, protocol_name: str | None, assignment: bytes) -> GroupMember:
        return GroupMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            metadata=self.metadata_for(protocol_name),
            assignment=assignment,
        )


class Members:
    """The members in the order of their joins, and aggregates over them."""

    def __init__(self, room: MemberMemory) -> None:
        self.share = GroupBudget(room)
        self._by_id: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self._support: Counter[str] = Counter()
        self.awaiting_join_count = 0
        # Member ids that were returned and not used yet, and when they expire.
        self.pending: dict[str, int] = {}
        # Members of this generation that have not sent SyncGroup yet.
        self.pending_sync: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    @property
    def all_joined(self) -> bool:
        return len(self._by_id) == self.awaiting_join_count and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of all members, so that none is removed before the time that it requested."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def static_member_id(self, group_instance_id: str | None) -> str | None:
        return None if group_instance_id is None else self._static.get(group_instance_id)

    def identity_fault(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Returns NONE if this is a member under its own name; else the error for the client."""
        if group_instance_id is not None:
            bound = self._static.get(group_instance_id)
            if bound is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if bound != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._by_id else ErrorCode.UNKNOWN_MEMBER_ID

    # --- joining and leaving -----------------------------------------------------------------

    def add(self, member: Member) -> None:
        assert member.member_id not in self._by_id, member
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self._static, member
            self._static[member.group_instance_id] = member.member_id
        self._by_id[member.member_id] = member
        self.share.change(member.held_bytes)
        self._support.update(name for name, _ in member.protocols)
        self.pending.pop(member.member_id, None)

    def remove(self, member: Member) -> None:
        """Removes a member without waiting requests."""
        assert member.join_ticket is None, member
        assert member.sync_ticket is None, member
        del self._by_id[member.member_id]
        self.share.change(-member.held_bytes)
        self._drop_support(member)
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        self.pending_sync.discard(member.member_id)

    def rebind(self, member: Member, member_id: str) -> None:
        """Binds a static member to a new member id; the old one is fenced from now on."""
        assert member.group_instance_id is not None, member
        was_pending_sync = member.member_id in self.pending_sync
        self._by_id = {(member_id if known is member else known.member_id): known for known in self}
        if was_pending_sync:
            self.pending_sync.discard(member.member_id)
        member.member_id = member_id
        self._static[member.group_instance_id] = member_id

    def update(self, member: Member, terms: JoinRequest | PreviousMember) -> None:
        """Takes over protocols and timeouts."""
        self._drop_support(member)
        self.share.change(-member.held_bytes)
        member.protocols = terms.protocols
        self.share.change(member.held_bytes)
        self._support.update(name for name, _ in terms.protocols)
        member.session_timeout_ms = terms.session_timeout_ms
        member.rebalance_timeout_ms = terms.rebalance_timeout_ms

    def _drop_support(self, member: Member) -> None:
        for name, _ in member.protocols:
            self._support[name] -= 1
            if not self._support[name]:
                del self._support[name]

    def expect(self, member_id: str, deadline_ms: int, *, pending_max: int) -> None:
        """Adds a pending id; drops the oldest ones above `pending_max`."""
        while len(self.pending) >= pending_max:
            del self.pending[next(iter(self.pending))]
        self.pending[member_id] = deadline_ms

    # --- waiting -----------------------------------------------------------------------------

    def park_join(self, member: Member, ticket: Ticket) -> Ticket | None:
        """Parks the member's join; returns the ticket of a join that it replaces, if any."""
        displaced = self.take_join(member)
        member.join_ticket = ticket
        self.awaiting_join_count += 1
        return displaced

    def take_join(self, member: Member) -> Ticket | None:
        """Returns the ticket of a waiting join, which is no longer parked."""
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            self.awaiting_join_count -= 1
        return ticket

    # --- protocols ---------------------------------------------------------------------------

    def all_support(self, protocols: tuple[MemberProtocol, ...]) -> bool:
        """Returns whether every member supports at least one of these."""
        return any(self._support[name] == len(self._by_id) for name, _ in protocols)

    def select_protocol(self) -> str:
        """Returns the protocol that most members prefer, among those that all support."""
        candidates = {name for name, count in self._support.items() if count == len(self._by_id)}
        votes = Counter(member.vote(candidates) for member in self)
        return votes.most_common(1)[0][0]
