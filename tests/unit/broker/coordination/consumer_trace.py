"""Plays a scenario with one KIP-848 group and writes it down, one line per event.

    join a          a: epoch 1 has t:0-3
    join b          b: epoch 2 has -
    beat a          a: epoch 1 has t:0-1
    ack a           a: epoch 2
    beat b          b: epoch 2 has t:2-3

Left what happens, right what the member is told: `has` only if its assignment is in the answer. A
member acknowledges (`ack`) by saying that it has what it was last told, and nothing else.

After every event two things are checked that must always hold: no partition is read by two members
at once, as far as what they were told goes; and a log with all records so far, read by a new
coordinator, gives the same group.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import partition_records, topic_records
from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.consumer.classic_members import must_join_again, sync
from strandline.broker.coordination.consumer.consumer_group import ConsumerGroup
from strandline.broker.coordination.consumer.consumer_shard import ConsumerDecision
from strandline.broker.coordination.consumer.heartbeats import check_heartbeat
from strandline.broker.coordination.consumer.migration import partitions_by_id
from strandline.broker.coordination.groups.group_shard import GroupShard
from strandline.broker.coordination.model.classic_messages import (
    CoordinatorFault,
    GroupRules,
    GroupState,
    Instant,
    JoinRequest,
    LeavingMember,
    MemberProtocol,
    SyncRequest,
)
from strandline.broker.coordination.model.consumer_messages import (
    ConsumerHeartbeat,
    ConsumerRules,
    Partitions,
)
from strandline.broker.coordination.model.offset_messages import (
    CommitRequest,
    CoordinatorRecord,
    GroupRecord,
    OffsetToCommit,
)
from strandline.broker.coordination.model.topic_regex import find_topics
from strandline.broker.coordination.records.offset_records import decode_record
from strandline.broker.protocol.formats.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_assignment,
    encode_assignment,
)
from strandline.broker.protocol.formats.metadata_records import RemoveTopicRecord
from strandline.broker.protocol.formats.offsets_topic import GroupMember, GroupMetadataValue
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.subscriptions import encode_subscription
from tests.unit.broker.coordination.group_trace import logged
from tests.unit.broker.coordination.trace_lines import TraceLines

SESSION_MS = 45_000
REBALANCE_MS = 60_000
START_MS = 1_700_000_000_000


@dataclass
class Client:
    """What a member knows: `told` is its last assignment, `has` what it still reads."""

    epoch: int = 0
    told: Partitions = field(default_factory=dict)
    has: Partitions = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    instance: str | None = None
    is_classic: bool = False
    is_eager: bool = False

    def reads(self) -> set[tuple[uuid.UUID, int]]:
        return {
            (topic_id, partition)
            for held in (self.told, self.has)
            for topic_id, partitions in held.items()
            for partition in partitions
        }


class ConsumerTrace(TraceLines):
    """See the top of this file."""

    def __init__(
        self,
        topics: str = "t:4",
        rules: ConsumerRules | None = None,
        *,
        reads_log_every: int = 1,
    ) -> None:
        """`reads_log_every`: how many events pass between two looks at the log."""
        super().__init__()
        self._reads_log_every = reads_log_every
        self._elapsed_ms = 0
        self._ids = itertools.count(1)
        self.rules = rules or ConsumerRules()
        self.image = MetadataImage(cluster_id="c", version=1)
        for text in topics.split():
            name, _, count = text.partition(":")
            self.create(name, int(count))
        self.clients: dict[str, Client] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.kinds: list[str] = []
        self.shard = self._new_shard()

    def _new_shard(self) -> GroupShard:
        return GroupShard(
            rules=GroupRules(initial_rebalance_delay_ms=0),
            make_id=lambda: f"id-{next(self._ids)}",
            offset_metadata_length_max=100,
            retention_ms=1000,
            topics_at_start={},
            consumer_rules=self.rules,
        )

    @property
    def now(self) -> Instant:
        return Instant(START_MS + self._elapsed_ms, 5_000 + self._elapsed_ms)

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.consumers.get("g")
        assert group is not None
        return group

    @property
    def classic_group(self) -> Group:
        group = self.shard.group("g")
        assert group is not None
        return group

    # --- topics ------------------------------------------------------------------------------

    def create(self, name: str, partitions: int) -> None:
        topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"{name} {self.image.version}")
        records = topic_records(name, topic_id, ((1,),) * partitions, {})
        self.image = self.image.apply_entry(records)

    def grow(self, name: str, partitions: int) -> None:
        topic = self.image.topics[name]
        replicas = ((1,),) * (partitions - topic.partition_count)
        records = partition_records(topic.topic_id, topic.partition_count, replicas)
        self.image = self.image.apply_entry(records)

    def delete(self, name: str) -> None:
        removal = RemoveTopicRecord(topic_id=self.image.topics[name].topic_id)
        self.image = self.image.apply_entry([removal])

    # --- the new protocol --------------------------------------------------------------------

    def join(
        self,
        who: str,
        topics: str = "t",
        *,
        regex: str | None = None,
        instance: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        client = self.clients[who] = Client(topics=tuple(topics.split()), instance=instance)
        self._beat(
            f"join {who}",
            who,
            client,
            ConsumerHeartbeat(
                group_id="g",
                member_id=who,
                member_epoch=0,
                instance_id=instance,
                rebalance_timeout_ms=rebalance_ms,
                topic_names=client.topics,
                topic_regex=regex,
                server_assignor=assignor,
                owned={},
                client_id=who,
                client_host="/10.0.0.1",
            ),
        )

    def beat(self, who: str, *, epoch: int | None = None) -> None:
        """A sign of life that says nothing of what the member has."""
        self._beat(f"beat {who}", who, self.clients[who], self._request(who, epoch=epoch))

    def ack(self, who: str, *, epoch: int | None = None) -> None:
        """The member has what it was told, and gave the rest back."""
        client = self.clients[who]
        client.has = client.told
        self._beat(f"ack {who}", who, client, self._request(who, owned=client.has, epoch=epoch))

    def subscribe(self, who: str, topics: str | None = None, *, regex: str | None = None) -> None:
        client = self.clients[who]
        names = None if topics is None else tuple(topics.split())
        client.topics = client.topics if names is None else names
        self._beat(f"subscribe {who}", who, client, self._request(who, topics=names, regex=regex))

    def leave(self, who: str, *, for_a_while: bool = False) -> None:
        client = self.clients.pop(who)
        request = ConsumerHeartbeat(
            group_id="g",
            member_id=who,
            member_epoch=-2 if for_a_while else -1,
            instance_id=client.instance,
        )
        self._beat(f"leave {who}", who, Client(), request)

    def _request(
        self,
        who: str,
        *,
        owned: Partitions | None = None,
        topics: tuple[str, ...] | None = None,
        regex: str | None = None,
        epoch: int | None = None,
    ) -> ConsumerHeartbeat:
        client = self.clients[who]
        return ConsumerHeartbeat(
            group_id="g",
            member_id=who,
            member_epoch=client.epoch if epoch is None else epoch,
            instance_id=client.instance,
            topic_names=topics,
            topic_regex=regex,
            owned=owned,
            client_id=who,
            client_host="/10.0.0.1",
        )

    def _beat(self, event: str, who: str, client: Client, request: ConsumerHeartbeat) -> None:
        try:
            check_heartbeat(request, self.rules)
            decision = self.shard.consumers.heartbeat(
                request, self.shard.group("g"), self.image, self.now
            )
        except CoordinatorFault as fault:
            self._note(f"{event} {fault.error_code.name}")
            return
        answer = decision.heartbeat
        assert answer is not None
        assert answer.member_id == who
        self._carry_out(decision)
        if request.member_epoch >= 0:
            self.group.touch(who, self.now)
            self.group.note_image(self.image)
        client.epoch = answer.member_epoch
        told = ""
        if answer.assignment is not None:
            client.told = answer.assignment
            told = f" has {self._shown(answer.assignment)}"
        if request.member_epoch == 0:
            client.has = {}
        self._note(f"{event} {who}: epoch {answer.member_epoch}{told}")

    def settle(self) -> None:
        """Everybody gives back and takes over what there is to."""
        for _ in range(3):
            for who in self.clients:
                self.beat(who)
                self.ack(who)

    # --- the classic protocol ----------------------------------------------------------------

    def classic_group_of(self, members: dict[str, str], *, generation: int = 3) -> None:
        """A stable classic group; `{"a": "t:0,1"}`. Its members speak range and sticky."""
        snapshots = []
        for who, text in members.items():
            name, _, numbers = text.partition(":")
            partitions = [int(number) for number in numbers.split(",") if number]
            client = self.clients[who] = Client(
                epoch=generation, topics=(name,), is_classic=True, is_eager=True
            )
            if partitions:
                client.told = {self.image.topics[name].topic_id: frozenset(partitions)}
                client.has = client.told
            snapshots.append(
                GroupMember(
                    member_id=who,
                    group_instance_id=None,
                    client_id=who,
                    client_host="/10.0.0.1",
                    rebalance_timeout_ms=REBALANCE_MS,
                    session_timeout_ms=10_000,
                    metadata=self._metadata(client),
                    assignment=encode_assignment(
                        ConsumerProtocolAssignment(
                            assigned_partitions=[
                                ConsumerTopicPartitions(topic=name, partitions=partitions)
                            ]
                        )
                    ),
                )
            )
        snapshot = GroupMetadataValue(
            protocol_type="consumer",
            generation=generation,
            protocol_name="range",
            leader=next(iter(members)),
            state_since_ms=START_MS,
            members=tuple(snapshots),
        )
        self.write((GroupRecord("g", snapshot),))

    def classic_join(
        self,
        who: str,
        topics: str = "t",
        *,
        protocols: str = "range",
        instance: str | None = None,
        is_eager: bool = False,
        is_new: bool = False,
    ) -> None:
        """In a group of the new protocol; `is_new` comes without a member id."""
        client = self.clients.setdefault(who, Client())
        client.topics, client.instance = tuple(topics.split()), instance
        client.is_classic, client.is_eager = True, is_eager
        if is_eager:
            client.told = {}
        client.has = client.told
        request = JoinRequest(
            member_id="" if is_new else who,
            group_instance_id=instance,
            client_id=who,
            client_host="/10.0.0.1",
            protocol_type="consumer",
            protocols=tuple(
                MemberProtocol(name, self._metadata(client)) for name in protocols.split()
            ),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        try:
            decision = self.shard.consumers.classic_join(
                self.group, request, 1, self.image, self.now
            )
        except CoordinatorFault as fault:
            self._note(f"classic join {who} {fault.error_code.name}")
            return
        answer = decision.join
        assert answer is not None
        self._carry_out(decision)
        if answer.error_code is not ErrorCode.NONE:
            self._note(f"classic join {who} {answer.error_code.name} {answer.member_id}")
            return
        if "g" in self.shard.consumers:
            self.group.await_sync(answer.member_id, self.now)
            self.group.note_image(self.image)
        if answer.member_id != who:
            self.clients[answer.member_id] = self.clients.pop(who)
        client.epoch = answer.generation
        self._note(f"classic join {who} {answer.member_id}: generation {answer.generation}")

    def _metadata(self, client: Client) -> bytes:
        return encode_subscription(
            ConsumerProtocolSubscription(
                topics=list(client.topics),
                owned_partitions=[
                    ConsumerTopicPartitions(
                        topic=self.image.topics_by_id[topic_id].name, partitions=sorted(found)
                    )
                    for topic_id, found in client.has.items()
                ],
            )
        )

    def classic_sync(self, who: str) -> None:
        client = self.clients[who]
        request = SyncRequest(
            member_id=who, group_instance_id=client.instance, generation=client.epoch
        )
        try:
            raw = sync(self.group.roster, request, self.image)
        except CoordinatorFault as fault:
            self._note(f"classic sync {who} {fault.error_code.name}")
            return
        self.group.synced(who)
        named = decode_assignment(raw).assigned_partitions
        client.told = partitions_by_id(named, self.image)
        client.has = client.told
        self._note(f"classic sync {who} {who}: has {self._shown(client.told)}")

    def classic_beat(self, who: str) -> None:
        must = must_join_again(self.group.roster, who)
        if must:
            self.group.await_join(who, self.now)
        self.group.touch(who, self.now)
        self._note(f"classic beat {who} {'join again' if must else '-'}")

    def classic_leave(self, who: str) -> None:
        self.clients.pop(who, None)
        decision = self.shard.consumers.classic_leave(
            self.group, [LeavingMember(member_id=who)], self.image, self.now
        )
        self._carry_out(decision)
        self._note(f"classic leave {who} {decision.leave[0].error_code.name}")

    # --- all members -------------------------------------------------------------------------

    def check_that_all_is_read(self) -> None:
        """The group is at rest, and every partition that somebody subscribes to has its reader."""
        assert self.group.state is GroupState.STABLE
        read = {partition for client in self.clients.values() for partition in client.reads()}
        wanted = {
            (topic.topic_id, partition)
            for name in {name for client in self.clients.values() for name in client.topics}
            for topic in [self.image.topics[name]]
            for partition in range(topic.partition_count)
        }
        assert read == wanted, "\n".join(self.lines)

    # --- offsets -----------------------------------------------------------------------------

    def commit(self, who: str, wanted: str, *, epoch: int | None = None) -> None:
        """What became of a commit of all these, such as `t:0,1`; in the epoch it knows, or another.

        Also of a member that the coordinator does not know any more.
        """
        name, _, numbers = wanted.partition(":")
        topic = self.image.topics.get(name)
        offsets = tuple(
            OffsetToCommit(name, int(number), 5, topic_id=None if topic is None else topic.topic_id)
            for number in numbers.split(",")
        )
        known = self.clients[who].epoch if epoch is None else epoch
        request = CommitRequest(member_id=who, generation=known, offsets=offsets)
        decision = self.shard.commit("g", request, self.now)
        self.write(decision.records)
        shown = " ".join(code.name for code in dict.fromkeys(decision.error_codes))
        self._note(f"commit {who} {wanted} in {known} {shown}")

    # --- time --------------------------------------------------------------------------------

    def after(self, delay_ms: int) -> None:
        """Time passes; quiet if nobody's time is over."""
        end_ms = self._elapsed_ms + delay_ms
        while self._elapsed_ms < end_ms:
            group = self.shard.consumers.get("g")
            deadline_ms = None if group is None else group.next_deadline_ms
            step_ms = end_ms - self._elapsed_ms
            if deadline_ms is not None:
                step_ms = min(step_ms, max(deadline_ms - self.now.monotonic_ms, 1))
            self._elapsed_ms += step_ms
            over = [] if group is None else group.due(self.now)
            if group is not None and over:
                decision = self.shard.consumers.fence(group, over, self.image, self.now)
                self._carry_out(decision)
                for who in over:
                    self.clients.pop(who, None)
                self._note(f"at {self._elapsed_ms} fenced {' '.join(over)}")

    def search(self) -> None:
        """Looks for the topics of regular expressions, if it is time."""
        regexes = self.group.begin_search(self.image, self.now)
        if not regexes:
            self._note("search -")
            return
        found = find_topics(regexes, self.image.topics)
        self.group.end_search()
        self._carry_out(self.shard.consumers.found_topics(self.group, found, self.image, self.now))
        shown = "; ".join(f"{r} finds {' '.join(sorted(found[r])) or '-'}" for r in sorted(found))
        self._note(f"search {shown}")

    # --- a restart ---------------------------------------------------------------------------

    def restart(self) -> None:
        """A new coordinator reads the log."""
        self.shard = self._read_log()
        self.shard.loaded(self.now)

    def _read_log(self) -> GroupShard:
        shard = self._new_shard()
        for key, value in self.log:
            record = decode_record(key, value)
            assert record is not None
            shard.replay(record, self.now)
        return shard

    def compact(self) -> None:
        """Keeps the last record of each key, as the log cleaner does."""
        last = {key: position for position, (key, _) in enumerate(self.log)}
        self.log = [entry for position, entry in enumerate(self.log) if last[entry[0]] == position]

    # --- writing down ------------------------------------------------------------------------

    def _carry_out(self, decision: ConsumerDecision) -> None:
        self.write(decision.records)

    def write(self, records: tuple[CoordinatorRecord, ...]) -> None:
        self.kinds = [type(record).__name__.removesuffix("Record") for record in records]
        if not records:
            return
        self.log.extend(logged(records, self.now.wall_ms))
        for record in records:
            self.shard.replay(record, self.now)

    def _note(self, line: str) -> None:
        self.lines.append(" ".join(line.split()))
        self._check_that_nothing_is_read_twice()
        if len(self.lines) % self._reads_log_every == 0:
            self._check_that_the_log_says_the_same()

    def _check_that_nothing_is_read_twice(self) -> None:
        readers: dict[tuple[uuid.UUID, int], str] = {}
        for who, client in self.clients.items():
            for partition in client.reads():
                other = readers.setdefault(partition, who)
                assert other == who, f"{partition} is read by {other} and {who}\n" + "\n".join(
                    self.lines
                )

    def _check_that_the_log_says_the_same(self) -> None:
        live, read = self.shard.consumers.get("g"), self._read_log().consumers.get("g")
        if live is None or read is None:
            assert live is read
            return
        for name in ("epoch", "target_epoch", "metadata_hash", "subscriptions", "current"):
            assert getattr(live.roster, name) == getattr(read.roster, name), name
        assert live.roster.targets == read.roster.targets
        assert live.roster.regexes == read.roster.regexes

    def _shown(self, partitions: Partitions) -> str:
        named = {
            self.image.topics_by_id[topic_id].name
            if topic_id in self.image.topics_by_id
            else "?": (found)
            for topic_id, found in partitions.items()
        }
        return " ".join(f"{name}:{_runs(named[name])}" for name in sorted(named)) or "-"


def _runs(partitions: frozenset[int]) -> str:
    """`0-2,5` for 0, 1, 2 and 5."""
    shown: list[str] = []
    for _, run in itertools.groupby(enumerate(sorted(partitions)), lambda e: e[1] - e[0]):
        numbers = [number for _, number in run]
        shown.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ",".join(shown)
