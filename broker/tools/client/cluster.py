"""Admin requests of the tools, with plain values; the only module that uses the admin client.

Every call waits for its answer, at most REQUEST_SECONDS_MAX, and raises ToolFailure with the failed
action and a remedy. Questions about many partitions are sent in one request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ListOffsetsResultInfo,
    MemberAssignment,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from strandline.broker.tools.client.connection import (
    REQUEST_SECONDS_MAX,
    ClusterConnection,
    failure_of,
    quiet_logger,
    settings_checked,
)
from strandline.broker.tools.client.failures import ToolFailure, WrongUse
from strandline.broker.tools.client.resets import Move, PartitionState
from strandline.storage.model import TimestampMs
from strandline.storage.plurals import counted

T = TypeVar("T")
Key = tuple[str, int]

# The broker's timeout comes first; ours is a little longer.
_GRACE_SECONDS = 2.0
# A broker answers so many in a fraction of their timeout.
GROUPS_ASKED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """A broker and its advertised address."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBroker:
    """A broker that the cluster knows, whether it may lead or not."""

    node_id: int
    address: str
    rack: str | None
    is_fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncCount:
    """A partition with replicas that are not in sync, and how many are."""

    topic: str
    partition: int
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Who has how many partitions, by broker id, and those that nobody leads or that lack replicas.

    `brokers` are those that clients are told of; they serve.
    """

    cluster_id: str
    brokers: tuple[RegisteredBroker, ...]
    leads: Counter[int]
    replicas: Counter[int]
    in_sync: Counter[int]
    leaderless: tuple[Key, ...]
    under_replicated: tuple[InSyncCount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplicas:
    """One partition with its leader and replicas, by broker id."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopic:
    """A topic as `topic describe` shows it."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionReplicas, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A configuration value; `source` as in Kafka's tools (DYNAMIC_TOPIC_CONFIG)."""

    name: str
    value: str | None
    source: str
    is_set: bool
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """A group in a list; `kind` is classic or consumer."""

    group: str
    state: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member and its assigned partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group as `group describe` shows it; `assignor` is empty while there is none."""

    group: str
    state: str
    kind: str
    assignor: str
    coordinator: str
    members: tuple[MemberView, ...]


class Cluster:
    """A connected admin client."""

    def __init__(self, connection: ClusterConnection) -> None:
        """Raises ToolFailure when no broker answers."""
        connection.check_reachable()
        with settings_checked():
            self._admin = AdminClient(connection.client_settings(), logger=quiet_logger())

    # --- brokers -----------------------------------------------------------------------------

    def brokers(self) -> list[BrokerAddress]:
        """Returns all brokers, by id."""
        found = self._listing().brokers.values()
        return [
            BrokerAddress(node_id=one.id, host=str(one.host), port=int(one.port))
            for one in sorted(found, key=lambda one: one.id)
        ]

    def share(self) -> Share:
        """Returns who has which share of the partitions."""
        future = self._admin.describe_cluster(request_timeout=REQUEST_SECONDS_MAX)
        described = result_of(future, "cannot describe the cluster")
        there = {node.id: node for node in described.nodes}
        leads: Counter[int] = Counter()
        replicas: Counter[int] = Counter()
        in_sync: Counter[int] = Counter()
        leaderless, under_replicated = [], []
        for name, topic in self._listing().topics.items():
            for number, place in topic.partitions.items():
                replicas.update(place.replicas)
                in_sync.update(place.isrs)
                if place.leader in there:
                    leads[place.leader] += 1
                else:
                    leaderless.append((name, number))
                if len(place.isrs) < len(place.replicas):
                    under_replicated.append(
                        InSyncCount(
                            topic=name,
                            partition=number,
                            replicas=len(place.replicas),
                            in_sync=len(place.isrs),
                        )
                    )
        return Share(
            cluster_id=str(described.cluster_id),
            brokers=tuple(
                RegisteredBroker(
                    node_id=node_id,
                    address=f"{node.host}:{node.port}",
                    rack=node.rack or None,
                    is_fenced=False,
                )
                for node_id, node in sorted(there.items())
            ),
            leads=leads,
            replicas=replicas,
            in_sync=in_sync,
            leaderless=tuple(sorted(leaderless)),
            under_replicated=tuple(
                sorted(under_replicated, key=lambda one: (one.topic, one.partition))
            ),
        )

    def broker_config(
        self, node_id: int, name: str, *, within_s: float = REQUEST_SECONDS_MAX
    ) -> str | None:
        """Returns one property; None if it is unset or unknown to the broker."""
        entries = self._config(
            ResourceType.BROKER, str(node_id), f"broker {node_id}", within_s=within_s
        )
        return entries[name].value if name in entries else None

    def _config(
        self, kind: ResourceType, name: str, what: str, *, within_s: float = REQUEST_SECONDS_MAX
    ) -> dict[str, ConfigEntry]:
        resource = ConfigResource(kind, name)
        futures = self._admin.describe_configs([resource], request_timeout=within_s)
        return result_of(futures[resource], f"cannot read the configuration of {what}")

    # --- topics ------------------------------------------------------------------------------

    def topic_names(self) -> list[str]:
        """Returns all names, sorted."""
        return sorted(self._listing().topics)

    def topics(self, names: Sequence[str]) -> list[ClusterTopic]:
        """Returns the topics in the order of `names`. Raises ToolFailure if one is unknown."""
        if not names:
            return []
        futures = self._admin.describe_topics(
            TopicCollection(list(names)), request_timeout=REQUEST_SECONDS_MAX
        )
        return [
            _cluster_topic(result_of(futures[name], f"cannot find topic {name!r}"))
            for name in names
        ]

    def partitions(self, wanted: Mapping[str, Collection[int]]) -> list[Key]:
        """Returns the `wanted` partitions by topic, all of a topic without any.

        Raises ToolFailure, and WrongUse for a partition that does not exist.
        """
        keys = []
        for topic in self.topics(list(wanted)):
            there = {place.partition for place in topic.partitions}
            absent = sorted(set(wanted[topic.name]) - there)
            if absent:
                raise WrongUse(f"topic {topic.name!r} has no partition {absent[0]}")
            keys += [(topic.name, number) for number in sorted(set(wanted[topic.name]) or there)]
        return keys

    def create_topic(
        self,
        name: str,
        *,
        partition_count: int,
        replication_factor: int,
        config: Mapping[str, str],
        validate_only: bool,
    ) -> None:
        """Creates a topic; counts of -1 are the broker's defaults."""
        topic = NewTopic(
            name,
            num_partitions=partition_count,
            replication_factor=replication_factor,
            config=dict(config),
        )
        futures = self._admin.create_topics(
            [topic], request_timeout=REQUEST_SECONDS_MAX, validate_only=validate_only
        )
        result_of(futures[name], f"cannot create topic {name!r}")

    def delete_topics(self, names: Sequence[str]) -> None:
        futures = self._admin.delete_topics(list(names), request_timeout=REQUEST_SECONDS_MAX)
        for name in names:
            result_of(futures[name], f"cannot delete topic {name!r}")

    def add_partitions(self, name: str, partition_count: int) -> None:
        """Raises the number of partitions to `partition_count`."""
        futures = self._admin.create_partitions(
            [NewPartitions(name, partition_count)], request_timeout=REQUEST_SECONDS_MAX
        )
        result_of(
            futures[name], f"cannot give topic {name!r} {counted(partition_count, 'partition')}"
        )

    def topic_config(self, name: str) -> list[ConfigValue]:
        """Returns every property, sorted by name."""
        entries = self._config(ResourceType.TOPIC, name, f"topic {name!r}")
        return [
            ConfigValue(
                name=entry.name,
                value=entry.value,
                source=ConfigSource(entry.source).name,
                is_set=ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG,
                is_read_only=bool(entry.is_read_only),
            )
            for _, entry in sorted(entries.items())
        ]

    def topic_property(self, names: Sequence[str], key: str) -> dict[str, str | None]:
        """Returns one property of each topic that can be read, in one request."""
        if not names:
            return {}
        asked = {ConfigResource(ResourceType.TOPIC, name): name for name in names}
        futures = self._admin.describe_configs(list(asked), request_timeout=REQUEST_SECONDS_MAX)
        found: dict[str, str | None] = {}
        for resource, future in futures.items():
            name = asked[resource]
            try:
                entries = result_of(future, f"cannot read the configuration of topic {name!r}")
            except ToolFailure:
                continue
            found[name] = entries[key].value if key in entries else None
        return found

    def alter_topic_config(
        self, name: str, *, changed: Mapping[str, str], removed: Iterable[str]
    ) -> None:
        """Sets and removes properties of a topic; others stay. Raises ToolFailure."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in changed.items()
        ] + [
            ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)
            for key in removed
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        futures = self._admin.incremental_alter_configs(
            [resource], request_timeout=REQUEST_SECONDS_MAX
        )
        result_of(futures[resource], f"cannot change the configuration of topic {name!r}")

    # --- offsets -----------------------------------------------------------------------------

    def start_offsets(self, partitions: Sequence[Key]) -> dict[Key, int]:
        return self._offsets(partitions, OffsetSpec.earliest())

    def end_offsets(
        self, partitions: Sequence[Key], *, committed_only: bool = False
    ) -> dict[Key, int]:
        """Returns the ends; with `committed_only`, the offsets of the oldest open transactions."""
        return self._offsets(partitions, OffsetSpec.latest(), committed_only=committed_only)

    def offsets_at(
        self, partitions: Sequence[Key], timestamp_ms: TimestampMs
    ) -> dict[Key, int | None]:
        """Returns offsets of the first records not older than it; None if all are older."""
        found = self._offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))
        return {key: None if offset < 0 else offset for key, offset in found.items()}

    def known_ends(self, partitions: Collection[Key]) -> dict[Key, int | ToolFailure]:
        """Returns the end of each partition that exists, or why it is not known."""
        (ends,) = self._known(partitions, OffsetSpec.latest())
        return ends

    def known_bounds(
        self, partitions: Collection[Key]
    ) -> tuple[dict[Key, int | ToolFailure], dict[Key, int | ToolFailure]]:
        """Returns start and end of each partition that exists, or why it is not known."""
        starts, ends = self._known(partitions, OffsetSpec.earliest(), OffsetSpec.latest())
        return starts, ends

    def _known(
        self, partitions: Collection[Key], *specs: OffsetSpec
    ) -> list[dict[Key, int | ToolFailure]]:
        there = self._listing().topics
        leaders = {
            key: there[key[0]].partitions[key[1]].leader
            for key in sorted(partitions)
            if key[0] in there and key[1] in there[key[0]].partitions
        }
        # Asked for the offsets of one without a leader, librdkafka waits for its election.
        led = [key for key, leader in leaders.items() if leader >= 0]
        answers = []
        for spec in specs:
            known: dict[Key, int | ToolFailure] = {
                key: ToolFailure(f"{key[0]}-{key[1]} has no leader") for key in leaders
            }
            for key, future in self._offset_futures(led, spec).items():
                try:
                    known[key] = _offset(key, future)
                except ToolFailure as failure:
                    known[key] = failure
            answers.append(known)
        return answers

    def _offsets(
        self, partitions: Sequence[Key], spec: OffsetSpec, *, committed_only: bool = False
    ) -> dict[Key, int]:
        futures = self._offset_futures(partitions, spec, committed_only=committed_only)
        return {key: _offset(key, future) for key, future in futures.items()}

    def _offset_futures(
        self, partitions: Sequence[Key], spec: OffsetSpec, *, committed_only: bool = False
    ) -> dict[Key, Future[ListOffsetsResultInfo]]:
        if not partitions:
            return {}
        futures = self._admin.list_offsets(
            {TopicPartition(topic, partition): spec for topic, partition in partitions},
            request_timeout=REQUEST_SECONDS_MAX,
            isolation_level=(
                IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
            ),
        )
        return {(place.topic, place.partition): future for place, future in futures.items()}

    # --- groups ------------------------------------------------------------------------------

    def group_lines(self) -> list[GroupLine]:
        """Returns all groups, sorted. Raises ToolFailure if a broker failed to list them."""
        listing = result_of(
            self._admin.list_consumer_groups(request_timeout=REQUEST_SECONDS_MAX),
            "cannot list the groups",
        )
        if listing.errors:
            raise _failure(listing.errors[0], "cannot list the groups")
        lines = [
            GroupLine(group=line.group_id, state=_word(line.state), kind=_word(line.type))
            for line in listing.valid
        ]
        return sorted(lines, key=lambda line: line.group)

    def group(self, name: str) -> GroupView:
        """Returns a group; a missing one has the state DEAD, as everywhere in Kafka."""
        futures = self._admin.describe_consumer_groups([name], request_timeout=REQUEST_SECONDS_MAX)
        description = result_of(futures[name], f"cannot describe group {name!r}")
        coordinator = description.coordinator
        return GroupView(
            group=name,
            state=_word(description.state),
            kind=_word(description.type),
            assignor=description.partition_assignor or "",
            coordinator=f"{coordinator.host}:{coordinator.port}" if coordinator else "",
            members=tuple(
                MemberView(
                    member_id=member.member_id,
                    instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    host=member.host,
                    partitions=tuple(
                        sorted((p.topic, p.partition) for p in _assigned(member.assignment))
                    ),
                )
                for member in description.members
            ),
        )

    def committed(self, group: str) -> dict[Key, int]:
        """Returns all committed offsets of the group."""
        committed = self.committed_of([group])[group]
        if isinstance(committed, ToolFailure):
            raise committed
        return committed

    def committed_of(self, groups: Sequence[str]) -> dict[str, dict[Key, int] | ToolFailure]:
        """Returns all committed offsets of each group, or why they are not known."""
        known: dict[str, dict[Key, int] | ToolFailure] = {}
        for first in range(0, len(groups), GROUPS_ASKED_AT_ONCE):
            # The library takes one group for a call; the calls do not wait for each other.
            futures: dict[str, Future[ConsumerGroupTopicPartitions]] = {}
            for group in groups[first : first + GROUPS_ASKED_AT_ONCE]:
                futures |= self._admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group)], request_timeout=REQUEST_SECONDS_MAX
                )
            for group, future in futures.items():
                try:
                    known[group] = _committed(group, future)
                except ToolFailure as failure:
                    known[group] = failure
        return known

    def group_state(
        self, group: str, partitions: Sequence[Key], moment_ms: TimestampMs | None = None
    ) -> list[PartitionState]:
        """Returns start, end and committed offset of each partition, in the order given."""
        starts, ends = self.start_offsets(partitions), self.end_offsets(partitions)
        committed = self.committed(group)
        moments = {} if moment_ms is None else self.offsets_at(partitions, moment_ms)
        return [
            PartitionState(
                topic=key[0],
                partition=key[1],
                start_offset=starts[key],
                end_offset=ends[key],
                committed=committed.get(key),
                moment_offset=moments.get(key),
            )
            for key in partitions
        ]

    def set_offsets(self, group: str, moves: Sequence[Move]) -> None:
        """Sets offsets. Raises ToolFailure if one partition failed; others may have succeeded."""
        places = [TopicPartition(m.topic, m.partition, m.new_offset) for m in moves]
        futures = self._admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=REQUEST_SECONDS_MAX
        )
        answer = result_of(futures[group], f"cannot set the offsets of group {group!r}")
        for place in answer.topic_partitions:
            if place.error is not None:
                where = f"{place.topic}-{place.partition}"
                raise _failure(place.error, f"cannot set the offset of group {group!r} in {where}")

    def delete_groups(self, names: Sequence[str]) -> None:
        futures = self._admin.delete_consumer_groups(
            list(names), request_timeout=REQUEST_SECONDS_MAX
        )
        for name in names:
            result_of(futures[name], f"cannot delete group {name!r}")

    def _listing(self) -> ClusterMetadata:
        try:
            return self._admin.list_topics(timeout=REQUEST_SECONDS_MAX)
        except KafkaException as error:
            raise _failure(error, "cannot list the topics") from None


def _cluster_topic(found: TopicDescription) -> ClusterTopic:
    return ClusterTopic(
        name=found.name,
        topic_id=str(found.topic_id),
        is_internal=bool(found.is_internal),
        partitions=tuple(
            PartitionReplicas(
                partition=place.id,
                leader=place.leader.id if place.leader is not None else -1,
                replicas=tuple(node.id for node in place.replicas),
                isr=tuple(node.id for node in place.isr),
            )
            for place in found.partitions
        ),
    )


def _offset(key: Key, future: Future[ListOffsetsResultInfo]) -> int:
    return int(result_of(future, f"cannot read the offsets of {key[0]}-{key[1]}").offset)


def _committed(group: str, future: Future[ConsumerGroupTopicPartitions]) -> dict[Key, int]:
    what = f"cannot read the offsets of group {group!r}"
    places = result_of(future, what).topic_partitions or ()
    for place in places:
        if place.error is not None:
            raise _failure(place.error, what)
    return {(place.topic, place.partition): place.offset for place in places if place.offset >= 0}


def _assigned(assignment: MemberAssignment | None) -> list[TopicPartition]:
    return [] if assignment is None else list(assignment.topic_partitions or ())


def _word(value: Enum | None) -> str:
    """Returns the name of an enumeration value, such as `PREPARING_REBALANCE`."""
    return "UNKNOWN" if value is None else str(value.name)


def result_of(future: Future[T], what: str) -> T:
    """Waits for the answer. Raises ToolFailure, which says `what` failed."""
    try:
        return future.result(REQUEST_SECONDS_MAX + _GRACE_SECONDS)
    except KafkaException as error:
        raise _failure(error, what) from None
    except FutureTimeout:
        raise ToolFailure(f"{what}: no answer within {REQUEST_SECONDS_MAX:.0f} s") from None


def _failure(error: KafkaError | KafkaException, what: str) -> ToolFailure:
    """Converts a KafkaException, or the KafkaError inside."""
    inside = error.args[0] if isinstance(error, KafkaException) else error
    if isinstance(inside, KafkaError):
        return failure_of(inside, what)
    return ToolFailure(f"{what}: {inside}")
