"""Plays a scenario with one group and writes it down, one line per event.

    join a          a: MEMBER_ID_REQUIRED a-1
    join a-1        -
    +3000           a-1: joined generation 1 as leader of a-1
    sync a-1        writes generation 1; a-1: synced 'all'

Left what happens, right what came of it: records written, then who was answered what. A member's
first visit is under its client's name; the group makes ids of that and a number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.model.classic_messages import (
    AssignmentWrite,
    Effects,
    GroupRules,
    Instant,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    MemberProtocol,
    SyncAnswer,
    SyncRequest,
)
from strandline.broker.coordination.model.member_memory import MemberMemory
from strandline.broker.coordination.model.offset_messages import CoordinatorRecord
from strandline.broker.coordination.records.offset_records import encode_records
from strandline.broker.protocol.formats.consumer_protocol import (
    ConsumerProtocolSubscription,
)
from strandline.broker.protocol.formats.offsets_topic import GroupMetadataValue
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import iter_records
from tests.support.subscriptions import encode_subscription
from tests.unit.broker.coordination.trace_lines import TraceLines

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
START_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    return encode_subscription(ConsumerProtocolSubscription(topics=list(topics)))


def short_subscription(*topics: str, version: int) -> bytes:
    """Ends after the user data, as @platformatic/kafka writes it under version 1."""
    whole = encode_subscription(ConsumerProtocolSubscription(topics=list(topics)), 0)
    return version.to_bytes(2, signed=True) + whole[2:]


def join_request(
    member_id: str = "", *, metadata: bytes | None = None, needs_member_id: bool = False
) -> JoinRequest:
    """Of a consumer of `t`, unless it brings something else."""
    brought = subscription("t") if metadata is None else metadata
    return JoinRequest(
        member_id=member_id,
        client_id="c",
        client_host="/h",
        protocol_type="consumer",
        protocols=(MemberProtocol("range", brought),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        needs_member_id=needs_member_id,
    )


def logged(
    records: Sequence[CoordinatorRecord], wall_ms: int
) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of these records as they lie in the log."""
    buffer = bytes(encode_records(records, wall_ms))
    for batch in walk(buffer):
        for record in iter_records(buffer, batch.header, batch.position):
            assert record.key is not None
            yield bytes(record.key), None if record.value is None else bytes(record.value)


class GroupTrace(TraceLines):
    """See the top of this file."""

    def __init__(
        self,
        *,
        delay_ms: int = DELAY_MS,
        size_max: int = 100,
        pending_max: int = 100,
        room: MemberMemory | None = None,
        restored: GroupMetadataValue | None = None,
    ) -> None:
        super().__init__()
        self._elapsed_ms = 0
        self._tickets = itertools.count(1)
        self._ids = itertools.count(1)
        self._who: dict[int, str] = {}
        self._waiting: set[int] = set()
        # Set to make the next write fail, or (None again) wait for `write_arrives`.
        self.write_fails_with: ErrorCode | None = None
        self.writes_are_slow = False
        self.slow_write: AssignmentWrite | None = None
        self.written: list[GroupMetadataValue] = []
        rules = GroupRules(
            initial_rebalance_delay_ms=delay_ms,
            size_max=size_max,
            pending_max=pending_max,
            room=room or MemberMemory(),
        )
        if restored is None:
            self.group = Group("g", self.now, rules=rules, make_id=self._next_id)
        else:
            self.group = Group.restored("g", restored, self.now, rules=rules, make_id=self._next_id)
            self._note("loaded", self.group.loaded(self.now))

    @property
    def now(self) -> Instant:
        return Instant(START_MS + self._elapsed_ms, 5_000 + self._elapsed_ms)

    @property
    def waiting(self) -> list[str]:
        """Who has not been answered, in the order of asking."""
        return [self._who[ticket] for ticket in sorted(self._waiting)]

    # --- events ------------------------------------------------------------------------------

    def join(
        self,
        who: str,
        *,
        instance: str | None = None,
        protocols: str = "range",
        protocol_type: str = "consumer",
        topics: tuple[str, ...] = ("t",),
        metadata: bytes | None = None,
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        """`who` with a number is a member id, without one a first visit."""
        knows_id = "-" in who
        ticket = self._ask(who)
        request = JoinRequest(
            member_id=who if knows_id else "",
            group_instance_id=instance,
            client_id=who.split("-", maxsplit=1)[0],
            client_host="/10.0.0.1",
            protocol_type=protocol_type,
            protocols=tuple(
                MemberProtocol(name, subscription(*topics) if metadata is None else metadata)
                for name in protocols.split()
            ),
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            needs_member_id=version >= 4,
            can_skip_assignment=version >= 9,
        )
        self._note(f"join {who}", self.group.join(request, ticket, self.now))

    def sync(
        self,
        member_id: str,
        assignments: dict[str, str] | None = None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> None:
        ticket = self._ask(member_id)
        request = SyncRequest(
            member_id=member_id,
            group_instance_id=instance,
            generation=self.group.generation if generation is None else generation,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments={k: v.encode() for k, v in (assignments or {}).items()},
        )
        self._note(f"sync {member_id}", self.group.sync(request, ticket, self.now))

    def beat(
        self, member_id: str, *, generation: int | None = None, instance: str | None = None
    ) -> ErrorCode:
        code = self.group.heartbeat(
            member_id=member_id,
            group_instance_id=instance,
            generation=self.group.generation if generation is None else generation,
            now=self.now,
        )
        self.lines.append(f"beat {member_id} {code.name}")
        return code

    def leave(self, *leaving: str, instance: str | None = None) -> None:
        results, effects = self.group.leave(
            [LeavingMember(member_id=who, group_instance_id=instance) for who in leaving],
            self.now,
        )
        codes = " ".join(result.error_code.name for result in results)
        self._note(f"leave {' '.join(leaving)}".strip() + f" {codes}", effects)

    def after(self, delay_ms: int) -> None:
        """Time passes in small steps, as the runtime's loop sees it; quiet if nothing comes."""
        end_ms = self._elapsed_ms + delay_ms
        while self._elapsed_ms < end_ms:
            deadline_ms = self.group.next_deadline_ms
            step_ms = end_ms - self._elapsed_ms
            if deadline_ms is not None:
                step_ms = min(step_ms, max(deadline_ms - self.now.monotonic_ms, 1))
            self._elapsed_ms += step_ms
            effects = self.group.tick(self.now)
            if effects.answers or effects.write:
                self._note(f"at {self._elapsed_ms}", effects)

    def write_arrives(self) -> None:
        """The slow write is durable."""
        assert self.slow_write is not None
        write, self.slow_write = self.slow_write, None
        self._note("written", self.group.written(write, self.now))

    # --- whole acts --------------------------------------------------------------------------

    def stabilise(self, *names: str, **join: object) -> None:
        """Members join under ids `<name>-1`, `<name>-2`... and get assignments named after them."""
        ids = []
        for name in names:
            self.join(name, version=3, **join)  # type: ignore[arg-type]  # passed through
            ids.append(f"{name}-{len(ids) + 1}")
        while self.waiting:
            self.after(DELAY_MS)
        self.sync(ids[0], {member_id: f"of {member_id}" for member_id in ids})
        for member_id in ids[1:]:
            self.sync(member_id)
        assert self.group.state.value == "Stable", self.lines
        self.skip()

    # --- writing down ------------------------------------------------------------------------

    def _next_id(self) -> str:
        return str(next(self._ids))

    def _ask(self, who: str) -> int:
        ticket = next(self._tickets)
        self._who[ticket] = who
        self._waiting.add(ticket)
        return ticket

    def _note(self, event: str, effects: Effects) -> None:
        outcome: list[str] = []
        while True:
            answers, write = effects.answers, effects.write
            outcome += [self._tell(answer) for answer in answers]
            if write is None:
                break
            if self.writes_are_slow:
                assert isinstance(write, AssignmentWrite), write
                self.slow_write = write
                break
            if self.write_fails_with is not None:
                outcome.append(f"fails to write generation {write.snapshot.generation}")
                code, self.write_fails_with = self.write_fails_with, None
                effects = self.group.write_failed(write, code, self.now)
            else:
                self.written.append(write.snapshot)
                outcome.append(f"writes generation {write.snapshot.generation}")
                effects = self.group.written(write, self.now)
        self.lines.append(" ".join(f"{event} {'; '.join(outcome) or '-'}".split()))

    def _tell(self, answer: JoinAnswer | SyncAnswer) -> str:
        assert answer.ticket in self._waiting, f"ticket {answer.ticket} is answered twice"
        self._waiting.discard(answer.ticket)
        who = self._who[answer.ticket]
        if answer.error_code is not ErrorCode.NONE:
            told = answer.member_id if isinstance(answer, JoinAnswer) else ""
            return f"{who}: {answer.error_code.name} {told if told != who else ''}".strip()
        if isinstance(answer, SyncAnswer):
            return f"{who}: synced '{answer.assignment.decode()}'"
        called = "" if answer.member_id == who else f" {answer.member_id}"
        what = f"{who}: joined{called} generation {answer.generation}"
        if answer.skip_assignment:
            what += " keeping the assignment"
        if answer.leader == answer.member_id:
            members = " ".join(member.member_id for member in answer.members)
            return f"{what} as leader of {members}"
        return f"{what} led by {answer.leader}"
