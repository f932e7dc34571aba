"""Kafka's metadata records, made of the facts that controllers decide.

A record is a fact: the controller has checked it, and `image.py` applies it. Facts of ours that
take several records of Kafka (`broker/protocol/formats/metadata_records.py`) are written here once:

    a topic         TopicRecord, a ConfigRecord for each property, PartitionRecords
    a set of keys   a ConfigRecord for each key that changed, without a value where it was removed
    a deletion      RemoveTopicRecord, and the note of its purge if it may have an archive

The note is what Kafka has no word for. It is a dynamic property of all brokers (decision 26):

    strandline.purge.<topic id>  =  <number of partitions> <name>
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from strandline.broker.protocol.formats.metadata_records import (
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    QuotaEntityPart,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.security.acl import Acl
from strandline.broker.security.scram import ScramCredential
from strandline.storage.model import TopicId

NodeId: TypeAlias = int
Replicas: TypeAlias = tuple[NodeId, ...]
Brokers: TypeAlias = Mapping[NodeId, RegisterBrokerRecord]

REMOTE_ENABLED = "remote.storage.enable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
# The resource of the properties of all brokers.
ALL_BROKERS = ""
# In a ProducerIdsRecord that no broker asked for.
NO_BROKER: NodeId = -1
_PURGE_PREFIX = "strandline.purge."

# Numbers of mechanisms in requests and records (ScramMechanism).
SCRAM_MECHANISMS: Mapping[int, str] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_SCRAM_NUMBERS = {name: number for number, name in SCRAM_MECHANISMS.items()}


@dataclass(frozen=True, slots=True, order=True)
class QuotaEntity:
    """The entity of a quota: a name per type (`user`, `client-id`, `ip`), sorted by type.

    The empty name is the default of its type; no client can have it.
    """

    names: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, names: Mapping[str, str]) -> QuotaEntity:
        return cls(tuple(sorted(names.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """A topic that clients no longer see and whose archive still has to be purged."""

    name: str
    topic_id: TopicId
    partition_count: int


def is_true(properties: Mapping[str, str], name: str) -> bool:
    """Parses a boolean as the configuration does: blanks and case do not matter."""
    return properties.get(name, "").strip().lower() == "true"


def may_be_archived(properties: Mapping[str, str]) -> bool:
    """Whether the bucket may hold data of a topic: it is tiered, or had tiering disabled before."""
    return is_true(properties, REMOTE_ENABLED) or is_true(properties, DELETE_ON_DISABLE)


# --- topics ------------------------------------------------------------------------------------


def topic_records(
    name: str,
    topic_id: TopicId,
    replicas: tuple[Replicas, ...],
    properties: Mapping[str, str],
    brokers: Brokers | None = None,
) -> list[MetadataRecord]:
    """A new topic; `replicas[p]` are the nodes of partition p, its preferred leader first.

    `brokers` are as for `partition_records`.
    """
    return [
        TopicRecord(name=name, topic_id=topic_id),
        *config_records(ConfigResourceType.TOPIC, name, {}, properties),
        *partition_records(topic_id, 0, replicas, brokers),
    ]


def partition_records(
    topic_id: TopicId,
    first_partition: int,
    replicas: tuple[Replicas, ...],
    brokers: Brokers | None = None,
) -> list[MetadataRecord]:
    """New partitions `first_partition` and up; the topic has exactly the lower ones.

    `brokers` are those that are registered: replicas on active ones are in sync, and the first of
    them leads. Without `brokers` all count as active, and their log folders as unknown.
    """
    records: list[MetadataRecord] = []
    for partition, nodes in enumerate(replicas, first_partition):
        isr, directories = nodes, (UNASSIGNED_DIRECTORY,) * len(nodes)
        if brokers is not None:
            isr = tuple(node for node in nodes if is_active(brokers.get(node)))
            directories = tuple(default_directory(brokers.get(node)) for node in nodes)
        records.append(
            PartitionRecord(
                partition_id=partition,
                topic_id=topic_id,
                replicas=nodes,
                isr=isr,
                leader=isr[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=directories,
            )
        )
    return records


def is_active(broker: RegisterBrokerRecord | None) -> bool:
    """Whether a broker may lead partitions."""
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def default_directory(broker: RegisterBrokerRecord | None) -> uuid.UUID:
    """The log folder of a new replica: its broker decides, unless it has only one."""
    if broker is None or len(broker.log_dirs) > 1:
        return UNASSIGNED_DIRECTORY
    return broker.log_dirs[0] if broker.log_dirs else MIGRATING_DIRECTORY


def deletion_records(topic: DeletedTopic, properties: Mapping[str, str]) -> list[MetadataRecord]:
    """A topic is deleted: its name is free again, and its archive is to be purged."""
    removal = RemoveTopicRecord(topic_id=topic.topic_id)
    return [removal, pending_purge_record(topic)] if may_be_archived(properties) else [removal]


def pending_purge_record(topic: DeletedTopic) -> ConfigRecord:
    """The note that the archive of a topic is to be purged."""
    return _purge_record(topic.topic_id, f"{topic.partition_count} {topic.name}")


def finished_purge_record(topic_id: TopicId) -> ConfigRecord:
    """The archive is purged: removes the note."""
    return _purge_record(topic_id, None)


def _purge_record(topic_id: TopicId, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ConfigResourceType.BROKER,
        resource_name=ALL_BROKERS,
        name=f"{_PURGE_PREFIX}{topic_id}",
        value=value,
    )


def purged_topic_id(record: ConfigRecord) -> TopicId | None:
    """The topic of the note of a purge; None for any other property."""
    is_note = (record.resource_type, record.resource_name) == (
        ConfigResourceType.BROKER,
        ALL_BROKERS,
    )
    if not is_note or not record.name.startswith(_PURGE_PREFIX):
        return None
    return TopicId(record.name.removeprefix(_PURGE_PREFIX))


def deleted_topic(topic_id: TopicId, note: str) -> DeletedTopic:
    """Parses the note of a purge. Raises ValueError."""
    count, _, name = note.partition(" ")
    return DeletedTopic(name=name, topic_id=topic_id, partition_count=int(count))


# --- keys and values -----------------------------------------------------------------------------


def config_records(
    kind: ConfigResourceType, name: str, before: Mapping[str, str], after: Mapping[str, str]
) -> list[MetadataRecord]:
    """What changes the properties of a resource from `before` to `after`."""
    return [
        ConfigRecord(resource_type=kind, resource_name=name, name=key, value=after.get(key))
        for key in (*after, *(key for key in before if key not in after))
        if before.get(key) != after.get(key)
    ]


def quota_records(
    entity: QuotaEntity, before: Mapping[str, float], after: Mapping[str, float]
) -> list[MetadataRecord]:
    """What changes the quotas of an entity from `before` to `after`."""
    parts = [
        QuotaEntityPart(entity_type=kind, entity_name=name or None) for kind, name in entity.names
    ]
    return [
        ClientQuotaRecord(entity=parts, key=key, value=after.get(key, 0.0), remove=key not in after)
        for key in (*after, *(key for key in before if key not in after))
        if before.get(key) != after.get(key)
    ]


def scram_records(
    user: str, before: Mapping[str, ScramCredential], after: Mapping[str, ScramCredential]
) -> list[MetadataRecord]:
    """What changes the credentials of a user, by the name of their mechanism."""
    records: list[MetadataRecord] = [
        UserScramCredentialRecord(
            name=user,
            mechanism=_SCRAM_NUMBERS[mechanism],
            salt=credential.salt,
            stored_key=credential.stored_key,
            server_key=credential.server_key,
            iterations=credential.iterations,
        )
        for mechanism, credential in after.items()
        if before.get(mechanism) != credential
    ]
    records += [
        RemoveUserScramCredentialRecord(name=user, mechanism=_SCRAM_NUMBERS[mechanism])
        for mechanism in before
        if mechanism not in after
    ]
    return records


def acl_record(acl_id: uuid.UUID, acl: Acl) -> AccessControlEntryRecord:
    """A rule; the id is that by which it is removed."""
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=acl.kind,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def acl_of(record: AccessControlEntryRecord) -> Acl:
    """The rule of a record."""
    return Acl(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )
