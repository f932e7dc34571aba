"""Random histories of a metadata log, of entries that fit."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from hypothesis import strategies as st

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.features import first_levels
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage, TopicImage
from strandline.broker.cluster.metadata.records import (
    ALL_BROKERS,
    DELETE_ON_DISABLE,
    REMOTE_ENABLED,
    QuotaEntity,
    acl_record,
    config_records,
    deletion_records,
    finished_purge_record,
    partition_records,
    quota_records,
    scram_records,
    topic_records,
)
from strandline.broker.protocol.formats.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.security.acl import Acl
from strandline.broker.security.scram import ScramCredential
from tests.unit.broker.cluster.controlled import registered

Entry: TypeAlias = tuple[MetadataRecord, ...]
FEATURE = "transaction.version"
TIERED = {"remote.storage.enable": "true"}
FIRST: Entry = tuple(first_levels())


def _properties(pick: int) -> dict[str, str]:
    return dict(({}, TIERED, {"retention.ms": "7"}, {**TIERED, "retention.ms": "8"})[pick % 4])


def _create(image: MetadataImage, pick: int) -> Sequence[MetadataRecord]:
    name = ("a", "b.c", "d_e", "f")[pick % 4]
    if name in image.topics:
        return ()
    # No id comes twice.
    number = 100 * image.version + len(image.topics) + len(image.pending_purges) + pick
    topic_id = uuid.uuid5(uuid.NAMESPACE_OID, str(number))
    if topic_id in image.topics_by_id or topic_id in image.pending_purges:
        return ()
    return topic_records(name, topic_id, ((1,),) * (1 + pick % 2), _properties(pick // 4))


def _of_topic(
    make: Callable[[TopicImage, int], Sequence[MetadataRecord]],
) -> Callable[[MetadataImage, int], Sequence[MetadataRecord]]:
    def of_one(image: MetadataImage, pick: int) -> Sequence[MetadataRecord]:
        known = list(image.topics_by_id.values())
        return make(known[pick % len(known)], pick) if known else ()

    return of_one


def _purge(image: MetadataImage, pick: int) -> Sequence[MetadataRecord]:
    waiting = list(image.pending_purges)
    return [finished_purge_record(waiting[pick % len(waiting)])] if waiting else ()


def _start(image: MetadataImage, pick: int) -> Sequence[MetadataRecord]:
    return controller.register_broker(image, registered(1 + pick % 2)).records


def _fence(image: MetadataImage, pick: int) -> Sequence[MetadataRecord]:
    return [
        BrokerRegistrationChangeRecord(
            broker_id=node_id, broker_epoch=broker.broker_epoch, fenced=1 - 2 * (pick % 2)
        )
        for node_id, broker in image.brokers.items()
    ]


def _broker_configs(image: MetadataImage, pick: int) -> Sequence[MetadataRecord]:
    node_id = (None, 1, 2)[pick % 3]
    name = ALL_BROKERS if node_id is None else str(node_id)
    after = _or_nothing(pick // 3, **{"max.connections": str(1 + pick)})
    return config_records(
        ConfigResourceType.BROKER, name, image.broker_properties.get(node_id, {}), after
    )


def _quotas(image: MetadataImage, pick: int) -> Sequence[MetadataRecord]:
    entity = QuotaEntity.of({"user": "ab"[pick % 2]})
    after = {"producer_byte_rate": float(pick)} if pick % 3 else {}
    return quota_records(entity, image.client_quotas.get(entity, {}), after)


def _group_configs(image: MetadataImage, pick: int) -> Sequence[MetadataRecord]:
    group_id = "gh"[pick % 2]
    before = image.group_properties.get(group_id, {})
    return config_records(
        ConfigResourceType.GROUP, group_id, before, _or_nothing(pick, x=str(pick))
    )


def _credentials(image: MetadataImage, pick: int) -> Sequence[MetadataRecord]:
    user = "uv"[pick % 2]
    one = ScramCredential(salt=b"%d" % pick, stored_key=b"k", server_key=b"v", iterations=4096)
    after = {"SCRAM-SHA-256": one} if pick % 3 else {}
    return scram_records(user, image.scram_credentials.get(user, {}), after)


def _acls(image: MetadataImage, pick: int) -> Sequence[MetadataRecord]:
    acl = Acl(2, "tu"[pick % 2], 3, "User:a", "*", 3 + pick % 3, 3)
    known = image.acl_ids.get(acl)
    if known is not None:
        return [RemoveAccessControlEntryRecord(id=known)]
    # No id comes twice.
    return [acl_record(uuid.uuid5(uuid.NAMESPACE_OID, f"{image.version} {acl}"), acl)]


def _topic_configs(topic: TopicImage, pick: int) -> Sequence[MetadataRecord]:
    after = _properties(pick)
    was_archived = topic.properties.keys() & {REMOTE_ENABLED, DELETE_ON_DISABLE}
    if was_archived and REMOTE_ENABLED not in after:
        # The controller refuses to give up an archive without saying so.
        after |= {DELETE_ON_DISABLE: "true"}
    if DELETE_ON_DISABLE in topic.properties:
        # Whether its archive is purged by now, only the bucket knows.
        after = {key: value for key, value in after.items() if key != REMOTE_ENABLED}
        after[DELETE_ON_DISABLE] = "true"
    return config_records(ConfigResourceType.TOPIC, topic.name, topic.properties, after)


def _raised(topic: TopicImage, pick: int) -> Sequence[MetadataRecord]:
    return [topic.partitions[0].with_leader_epoch(pick).record(topic.topic_id)]


def _or_nothing(pick: int, **values: str) -> Mapping[str, str]:
    return values if pick % 3 else {}


# Each makes the records of a change that fits the image, none if there is no such change.
KINDS: Mapping[str, Callable[[MetadataImage, int], Sequence[MetadataRecord]]] = {
    "create": _create,
    "delete": _of_topic(lambda topic, _: deletion_records(topic.deleted(), topic.properties)),
    "purge": _purge,
    "topic configs": _of_topic(_topic_configs),
    "partitions": _of_topic(
        lambda topic, _: partition_records(topic.topic_id, topic.partition_count, ((1,),))
    ),
    "raise": _of_topic(_raised),
    "start": _start,
    "fence": _fence,
    "producer ids": lambda image, pick: [
        ProducerIdsRecord(broker_id=1, next_producer_id=image.next_producer_id + pick)
    ],
    "broker configs": _broker_configs,
    "quotas": _quotas,
    "group configs": _group_configs,
    "credentials": _credentials,
    "acls": _acls,
    "level": lambda _image, pick: [FeatureLevelRecord(name=FEATURE, feature_level=pick % 3)],
}

# Entries, each of some kinds of changes and what is picked for them.
PICKS = st.lists(
    st.lists(st.tuples(st.sampled_from(list(KINDS)), st.integers(0, 23)), min_size=1, max_size=3),
    max_size=12,
)


def history(picks: Sequence[Sequence[tuple[str, int]]]) -> list[Entry]:
    """Returns the entries that fit one after the other, a new cluster's first."""
    image, entries = MetadataImage().apply_entry(FIRST), [FIRST]
    for entry in picks:
        records: list[MetadataRecord] = []
        reached = image
        for kind, pick in entry:
            change = KINDS[kind](reached, pick)
            records += change
            reached = reached.apply_entry(change)
        if records:
            image = image.apply_entry(records)
            entries.append(tuple(records))
    return entries


def replayed(before: MetadataImage, *entries: Entry) -> MetadataDelta:
    """Returns what the entries change together."""
    delta = MetadataDelta(before)
    for records in entries:
        delta.replay(records)
    return delta
