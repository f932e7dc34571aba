"""The cluster's metadata at one moment: an immutable value, derived from the metadata log.

    image 0 (empty)  --entry 1-->  image 1  --entry 2-->  image 2 ...
                         delta 1                delta 2

Version n is the state after log entry n. The same entries always give the same image, on every
broker; nothing in an image comes from anywhere else. A reader keeps the image it began with. What
entries do not change, two images share (section.py): an entry costs what it changes.

Invariant: a topic is reachable by name and by id, and partitions are numbered from 0 without a gap.
A record that does not fit (a second topic of one name) means that the log is not what the
controller wrote: CorruptFile, never a guess. One that an image has no place for (a delegation
token) is that of a later release.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

from strandline.broker.cluster.metadata.features import check_levels
from strandline.broker.cluster.metadata.records import (
    ALL_BROKERS,
    SCRAM_MECHANISMS,
    DeletedTopic,
    NodeId,
    QuotaEntity,
    Replicas,
    acl_of,
    deleted_topic,
    purged_topic_id,
)
from strandline.broker.cluster.metadata.section import ImageSection, SectionDelta
from strandline.broker.cluster.metadata.topic_names import collision_key
from strandline.broker.protocol.formats.metadata_records import (
    UNASSIGNED_DIRECTORY,
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.security.acl import Acl
from strandline.broker.security.scram import ScramCredential
from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import Epoch, Offset, TopicId, TopicPartition

NO_LEADER: NodeId = -1
# In a PartitionChangeRecord.
SAME_LEADER: Final = -2
SAME_STATE: Final = -1
_LISTS: Final = (
    "isr",
    "replicas",
    "removing_replicas",
    "adding_replicas",
    "directories",
    "eligible_leader_replicas",
    "last_known_elr",
)


KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """The state of a partition (Kafka's PartitionRegistration).

    `replicas` begin with the preferred leader, and `directories` has the log folder of each; `isr`
    are in sync. The partition's epoch rises with every change, that of the leader with every
    election. Eligible leader replicas are those of KIP-966.
    """

    partition: int
    leader: NodeId
    leader_epoch: Epoch
    partition_epoch: int = 0
    replicas: Replicas
    isr: Replicas
    removing_replicas: Replicas = ()
    adding_replicas: Replicas = ()
    leader_recovery_state: int = 0
    directories: tuple[uuid.UUID, ...] = ()
    eligible_leader_replicas: Replicas = ()
    last_known_elr: Replicas = ()

    @classmethod
    def of(cls, record: PartitionRecord) -> PartitionImage:
        return cls(
            partition=record.partition_id,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            leader_recovery_state=record.leader_recovery_state,
            **{name: tuple(getattr(record, name) or ()) for name in _LISTS},
        )

    def is_led_by(self, node_id: NodeId) -> bool:
        return self.leader == node_id

    @property
    def is_recovering(self) -> bool:
        """Whether the leader was elected uncleanly, and has not changed the in-sync set since."""
        return self.leader_recovery_state != 0

    def changed_by(self, change: PartitionChangeRecord) -> PartitionImage:
        """Returns the state after a change (PartitionRegistration.merge)."""
        values: dict[str, Any] = {
            name: tuple(value) for name in _LISTS if (value := getattr(change, name)) is not None
        }
        if change.replicas is not None and not change.directories:
            known = dict(zip(self.replicas, self.directories, strict=False))
            folders = (known.get(node, UNASSIGNED_DIRECTORY) for node in change.replicas)
            values["directories"] = tuple(folders)
        if change.leader_recovery_state != SAME_STATE:
            values["leader_recovery_state"] = change.leader_recovery_state
        if change.leader != SAME_LEADER:
            values["leader"] = change.leader
            values["leader_epoch"] = self.leader_epoch + 1
        return replace(self, partition_epoch=self.partition_epoch + 1, **values)

    def with_leader_epoch(self, epoch: Epoch) -> PartitionImage:
        """Returns the state with a higher leader epoch, that was found elsewhere."""
        partition_epoch = max(epoch, self.partition_epoch + 1)
        return replace(self, leader_epoch=epoch, partition_epoch=partition_epoch)

    def taken_over_by(self, node_id: NodeId) -> PartitionImage:
        """Returns the state with that node as the only replica, which leads."""
        nodes = (node_id,)
        return PartitionImage(
            partition=self.partition,
            leader=node_id,
            leader_epoch=self.leader_epoch + 1,
            partition_epoch=self.partition_epoch + 1,
            replicas=nodes,
            isr=nodes,
            directories=(UNASSIGNED_DIRECTORY,),
        )

    def record(self, topic_id: TopicId) -> PartitionRecord:
        """Returns the record that makes this state."""
        return PartitionRecord(
            partition_id=self.partition,
            topic_id=topic_id,
            replicas=self.replicas,
            isr=self.isr,
            removing_replicas=self.removing_replicas,
            adding_replicas=self.adding_replicas,
            leader=self.leader,
            leader_recovery_state=self.leader_recovery_state,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=self.directories,
            eligible_leader_replicas=self.eligible_leader_replicas or None,
            last_known_elr=self.last_known_elr or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic; `partitions[p]` is partition p, `properties` are those set explicitly."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    properties: Mapping[str, str]

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas)

    def deleted(self) -> DeletedTopic:
        """Returns what is left of the topic when it is deleted."""
        return DeletedTopic(
            name=self.name, topic_id=self.topic_id, partition_count=self.partition_count
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """The metadata that all brokers of a cluster share; `cluster_id` is empty only in version 0.

    `next_offset` is the offset of the next record, counted as in Kafka's log, and `epoch` that of
    the controller that wrote the last one; a lone broker goes on with the one that it finds.

    Raises UnsupportedFormat for a level of a feature that only a later release knows.
    """

    version: int = 0
    next_offset: Offset = 0
    epoch: Epoch = 0
    cluster_id: str = ""
    # As they registered, with the changes since.
    brokers: ImageSection[NodeId, RegisterBrokerRecord] = field(default_factory=ImageSection)
    topics: ImageSection[str, TopicImage] = field(default_factory=ImageSection)
    topics_by_id: ImageSection[TopicId, TopicImage] = field(
        default_factory=ImageSection, compare=False
    )
    # The names of all topics by their collision keys.
    names_by_collision: ImageSection[str, str] = field(default_factory=ImageSection, compare=False)
    pending_purges: ImageSection[TopicId, DeletedTopic] = field(default_factory=ImageSection)
    next_producer_id: int = 0
    # Dynamic keys by node; None has the cluster-wide ones.
    broker_properties: ImageSection[NodeId | None, Mapping[str, str]] = field(
        default_factory=ImageSection
    )
    client_quotas: ImageSection[QuotaEntity, Mapping[str, float]] = field(
        default_factory=ImageSection
    )
    # Properties by group, SCRAM credentials by user.
    group_properties: ImageSection[str, Mapping[str, str]] = field(default_factory=ImageSection)
    scram_credentials: ImageSection[str, Mapping[str, ScramCredential]] = field(
        default_factory=ImageSection
    )
    # Access control rules by the id that their record gave them, and these ids by the rules.
    acls: ImageSection[uuid.UUID, Acl] = field(default_factory=ImageSection)
    acl_ids: ImageSection[Acl, uuid.UUID] = field(default_factory=ImageSection, compare=False)
    # Finalized levels above 0, by feature: see `features.py`.
    feature_levels: ImageSection[str, int] = field(default_factory=ImageSection)

    def finalized_level(self, feature: str) -> int:
        """Returns the finalized level of a feature (KIP-584), 0 if it is not finalized."""
        return self.feature_levels.get(feature, 0)

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """Returns the partition, or None if there is no such topic or number."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def apply_entry(self, records: Iterable[MetadataRecord]) -> MetadataImage:
        """Returns the image after one more entry. Raises CorruptFile if a record does not fit."""
        delta = MetadataDelta(self)
        delta.replay(records)
        return delta.image()

    def __repr__(self) -> str:
        return (
            f"<MetadataImage {self.version} of {self.cluster_id or 'no cluster'}:"
            f" {len(self.topics)} topics, {len(self.pending_purges)} to purge>"
        )


class MetadataDelta:
    """What entries of the log change in an image (Kafka's MetadataDelta), section by section.

    Several entries are one delta: a topic that they create and delete does not appear in it. Those
    who follow the metadata look at what changed, and at nothing else.
    """

    def __init__(self, before: MetadataImage, after: MetadataImage | None = None) -> None:
        """Begins with the differences of the images; without `after` with none."""
        after = after or before
        self.before = before
        self.version = after.version
        self.next_offset = after.next_offset
        self.epoch = after.epoch
        self.cluster_id = after.cluster_id
        self.brokers = SectionDelta(before.brokers, after.brokers)
        # The topic that records change now.
        self._open: _OpenTopic | None = None
        self.topics = SectionDelta(before.topics_by_id, after.topics_by_id)
        self._by_name = SectionDelta(before.topics, after.topics)
        self._collisions = SectionDelta(before.names_by_collision, after.names_by_collision)
        self.pending_purges = SectionDelta(before.pending_purges, after.pending_purges)
        self.next_producer_id = after.next_producer_id
        self.broker_properties = SectionDelta(before.broker_properties, after.broker_properties)
        self.client_quotas = SectionDelta(before.client_quotas, after.client_quotas)
        self.group_properties = SectionDelta(before.group_properties, after.group_properties)
        self.scram_credentials = SectionDelta(before.scram_credentials, after.scram_credentials)
        self.acls = SectionDelta(before.acls, after.acls)
        self.acl_ids = SectionDelta(before.acl_ids, after.acl_ids)
        self.feature_levels = SectionDelta(before.feature_levels, after.feature_levels)

    def image(self) -> MetadataImage:
        """Returns the image after the changes; ends the delta. Raises UnsupportedFormat."""
        if self.feature_levels:
            check_levels(self.feature_levels.after)
        return MetadataImage(
            version=self.version,
            next_offset=self.next_offset,
            epoch=self.epoch,
            cluster_id=self.cluster_id,
            brokers=self.brokers.finish(),
            topics=self._by_name.finish(),
            topics_by_id=self.topics.finish(),
            names_by_collision=self._collisions.finish(),
            pending_purges=self.pending_purges.finish(),
            next_producer_id=self.next_producer_id,
            broker_properties=self.broker_properties.finish(),
            client_quotas=self.client_quotas.finish(),
            group_properties=self.group_properties.finish(),
            scram_credentials=self.scram_credentials.finish(),
            acls=self.acls.finish(),
            acl_ids=self.acl_ids.finish(),
            feature_levels=self.feature_levels.finish(),
        )

    def set_topic(self, topic: TopicImage) -> None:
        """Creates the topic, or alters it."""
        if topic.topic_id not in self.topics.after:
            self._collisions.set(collision_key(topic.name), topic.name)
        self.topics.set(topic.topic_id, topic)
        self._by_name.set(topic.name, topic)

    def drop_topic(self, topic_id: TopicId) -> None:
        """Drops the topic, if there is one."""
        topic = self.topics.after.get(topic_id)
        if topic is not None:
            self.topics.set(topic_id, None)
            self._by_name.set(topic.name, None)
            self._collisions.set(collision_key(topic.name), None)

    def replay(self, records: Iterable[MetadataRecord]) -> None:
        """Applies one more entry. Raises CorruptFile if a record does not fit."""
        self.version += 1
        self.apply(records)

    def apply(self, records: Iterable[MetadataRecord]) -> None:
        """Applies records. Raises CorruptFile, or UnsupportedFormat for one of a later release."""
        for record in records:
            self._apply(record)
            self.next_offset += 1
        self._close_topic()

    def _apply(self, record: MetadataRecord) -> None:
        match record:
            case PartitionRecord() | PartitionChangeRecord():
                self._set_partition(record)
            case TopicRecord():
                self._create_topic(record)
            case ConfigRecord():
                self._set_config(record)
            case RemoveTopicRecord():
                self._close_topic()
                self.drop_topic(self._topic(record.topic_id, record).topic_id)
            case RegisterBrokerRecord():
                self.brokers.set(record.broker_id, record)
            case BrokerRegistrationChangeRecord():
                self._change_broker(record)
            case UnregisterBrokerRecord():
                self._broker(record.broker_id, record.broker_epoch, record)
                self.brokers.set(record.broker_id, None)
            case ProducerIdsRecord():
                if record.next_producer_id < self.next_producer_id:
                    raise self._misfit(record, f"ids below {self.next_producer_id} are taken")
                self.next_producer_id = record.next_producer_id
            case ClientQuotaRecord():
                names = {part.entity_type: part.entity_name or "" for part in record.entity}
                value = None if record.remove else record.value
                _set_one(self.client_quotas, QuotaEntity.of(names), record.key, value)
            case UserScramCredentialRecord() | RemoveUserScramCredentialRecord():
                self._set_credential(record)
            case AccessControlEntryRecord():
                self._add_acl(record)
            case RemoveAccessControlEntryRecord():
                acl = self.acls.after.get(record.id)
                if acl is None:
                    raise self._misfit(record, "there is no such ACL")
                self.acls.set(record.id, None)
                self.acl_ids.set(acl, None)
            case ClearElrRecord():
                self._clear_elr(record.topic_name)
            case FeatureLevelRecord():
                self.feature_levels.set(record.name, record.feature_level or None)
            case NoOpRecord():
                pass
            case _:
                raise UnsupportedFormat(
                    f"metadata log entry {self.version} has a {type(record).__name__}: a later"
                    " release wrote it, start that one or a newer one"
                )

    def _create_topic(self, record: TopicRecord) -> None:
        self._close_topic()
        if record.name in self._by_name.after:
            raise self._misfit(record, "the name is taken")
        if record.topic_id in self.topics.after or record.topic_id in self.pending_purges.after:
            raise self._misfit(record, "the id is taken")
        topic = TopicImage(
            name=record.name,
            topic_id=record.topic_id,
            partitions=(),
            properties=MappingProxyType({}),
        )
        self._open = _OpenTopic(topic)

    def _open_topic(self, topic: TopicImage | None, record: MetadataRecord) -> _OpenTopic:
        if topic is None:
            raise self._misfit(record, "there is no such topic")
        self._open = _OpenTopic(topic)
        return self._open

    def _close_topic(self) -> None:
        if self._open is not None:
            self.set_topic(self._open.topic())
            self._open = None

    def _set_partition(self, record: PartitionRecord | PartitionChangeRecord) -> None:
        topic = self._open
        if topic is None or topic.topic_id != record.topic_id:
            self._close_topic()
            topic = self._open_topic(self.topics.after.get(record.topic_id), record)
        partitions, number = topic.partitions, record.partition_id
        if isinstance(record, PartitionRecord) and number == len(partitions):
            partitions.append(PartitionImage.of(record))
        elif not 0 <= number < len(partitions):
            raise self._misfit(record, f"the topic has {len(partitions)} partitions")
        elif isinstance(record, PartitionRecord):
            partitions[number] = PartitionImage.of(record)
        else:
            partitions[number] = partitions[number].changed_by(record)
        if not partitions[number].replicas:
            raise self._misfit(record, "a partition has no replica")

    def _clear_elr(self, name: str) -> None:
        """Empties the eligible leader replicas of a topic, of all topics if the name is empty."""
        self._close_topic()
        topics = self._by_name.after
        for topic in [topics[name]] if name in topics else tuple(topics.values()):
            if (not name or topic.name == name) and any(map(_has_elr, topic.partitions)):
                partitions = (
                    replace(one, eligible_leader_replicas=(), last_known_elr=())
                    for one in topic.partitions
                )
                self.set_topic(replace(topic, partitions=tuple(partitions)))

    def _set_config(self, record: ConfigRecord) -> None:
        """Sets a property of a topic, a broker or a group, or the note of a purge."""
        name = record.resource_name
        try:
            kind = ConfigResourceType(record.resource_type)
            if (topic_id := purged_topic_id(record)) is not None:
                self._note_purge(topic_id, record)
                return
            node_id = (
                int(name) if kind is ConfigResourceType.BROKER and name != ALL_BROKERS else None
            )
        except ValueError as error:
            raise self._misfit(record, str(error)) from error
        if kind is ConfigResourceType.TOPIC:
            topic = self._open
            if topic is None or topic.name != name:
                self._close_topic()
                topic = self._open_topic(self._by_name.after.get(name), record)
            topic.properties = _with(topic.properties, record.name, record.value)
        elif kind is ConfigResourceType.BROKER:
            _set_one(self.broker_properties, node_id, record.name, record.value)
        elif kind is ConfigResourceType.GROUP:
            _set_one(self.group_properties, name, record.name, record.value)
        else:
            raise self._misfit(record, f"properties of a {kind.name} are not known")

    def _note_purge(self, topic_id: TopicId, record: ConfigRecord) -> None:
        if record.value is not None:
            self.pending_purges.set(topic_id, deleted_topic(topic_id, record.value))
        elif topic_id in self.pending_purges.after:
            self.pending_purges.set(topic_id, None)
        else:
            raise self._misfit(record, "no such topic waits for its purge")

    def _set_credential(
        self, record: UserScramCredentialRecord | RemoveUserScramCredentialRecord
    ) -> None:
        mechanism = SCRAM_MECHANISMS.get(record.mechanism)
        if mechanism is None:
            raise self._misfit(record, "the mechanism is not known")
        credential = None
        if isinstance(record, UserScramCredentialRecord):
            credential = ScramCredential(
                salt=record.salt,
                stored_key=record.stored_key,
                server_key=record.server_key,
                iterations=record.iterations,
            )
        _set_one(self.scram_credentials, record.name, mechanism, credential)

    def _add_acl(self, record: AccessControlEntryRecord) -> None:
        acl = acl_of(record)
        if record.id in self.acls.after:
            raise self._misfit(record, "the id is taken")
        if acl in self.acl_ids.after:
            raise self._misfit(record, "another id has the same ACL")
        self.acls.set(record.id, acl)
        self.acl_ids.set(acl, record.id)

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch, record)
        self.brokers.set(
            record.broker_id,
            broker.replaced(
                fenced=record.fenced > 0 if record.fenced else broker.fenced,
                in_controlled_shutdown=bool(record.in_controlled_shutdown)
                or broker.in_controlled_shutdown,
                log_dirs=record.log_dirs or broker.log_dirs,
            ),
        )

    def _broker(self, node_id: NodeId, epoch: int, record: MetadataRecord) -> RegisterBrokerRecord:
        broker = self.brokers.after.get(node_id)
        if broker is None or broker.broker_epoch != epoch:
            raise self._misfit(record, "no broker is registered under that epoch")
        return broker

    def _topic(self, topic_id: TopicId, record: MetadataRecord) -> TopicImage:
        topic = self.topics.after.get(topic_id)
        if topic is None:
            raise self._misfit(record, "there is no such topic")
        return topic

    def _misfit(self, record: MetadataRecord, why: str) -> CorruptFile:
        return CorruptFile(f"metadata log entry {self.version}: {why}: {record}")


def _has_elr(partition: PartitionImage) -> bool:
    return bool(partition.eligible_leader_replicas or partition.last_known_elr)


class _OpenTopic:
    """A topic while records change it: they are usually neighbours, and each would copy it."""

    __slots__ = ("_before", "name", "partitions", "properties", "topic_id")

    def __init__(self, before: TopicImage) -> None:
        self._before = before
        self.name, self.topic_id = before.name, before.topic_id
        self.partitions = list(before.partitions)
        self.properties = before.properties

    def topic(self) -> TopicImage:
        partitions = tuple(self.partitions)
        return replace(self._before, partitions=partitions, properties=self.properties)


def _with(
    values: Mapping[str, ValueT], name: str, value: ValueT | None
) -> MappingProxyType[str, ValueT]:
    """Returns the values with one set, or without it if it is None."""
    changed = dict(values)
    if value is None:
        changed.pop(name, None)
    else:
        changed[name] = value
    return MappingProxyType(changed)


def _set_one(
    section: SectionDelta[KeyT, Mapping[str, ValueT]], key: KeyT, name: str, value: ValueT | None
) -> None:
    """Sets one of the values of a key; a key without values is dropped."""
    section.set(key, _with(section.after.get(key, MappingProxyType({})), name, value) or None)
