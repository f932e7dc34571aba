"""Random histories of a metadata log, of entries that fit."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from hypothesis import strategies as st

from strandline.broker.cluster.metadata.features import FEATURES
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.records import (
    BrokerConfigsSet,
    BrokerStarted,
    ClientQuotasSet,
    ClusterCreated,
    FeatureLevelSet,
    GroupConfigsSet,
    LeaderEpochsRaised,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdsAllocated,
    QuotaEntity,
    ScramCredentialsSet,
    TopicConfigsSet,
    TopicCreated,
    TopicDeleted,
    TopicPurged,
)

Entry: TypeAlias = tuple[MetadataRecord, ...]
FEATURE, LEVELS = "transaction.version", FEATURES["transaction.version"]
TIERED = {"remote.storage.enable": "true"}
FIRST: Entry = (ClusterCreated(cluster_id="c-1"),)


def _properties(pick: int) -> dict[str, str]:
    return ({}, TIERED, {"retention.ms": "7"}, {**TIERED, "retention.ms": "8"})[pick % 4]


def _create(image: MetadataImage, pick: int) -> MetadataRecord | None:
    name = ("a", "b.c", "d_e", "f")[pick % 4]
    if name in image.topics:
        return None
    # No id comes twice.
    number = 100 * image.version + len(image.topics) + len(image.pending_purges) + pick
    topic_id = uuid.uuid5(uuid.NAMESPACE_OID, str(number))
    if topic_id in image.topics_by_id or topic_id in image.pending_purges:
        return None
    replicas = ((1,),) * (1 + pick % 2)
    return TopicCreated(
        topic=name, topic_id=topic_id, replicas=replicas, properties=_properties(pick // 4)
    )


def _of_topic(
    make: Callable[[MetadataImage, uuid.UUID, int], MetadataRecord],
) -> Callable[[MetadataImage, int], MetadataRecord | None]:
    def of_one(image: MetadataImage, pick: int) -> MetadataRecord | None:
        known = list(image.topics_by_id)
        return make(image, known[pick % len(known)], pick) if known else None

    return of_one


def _purge(image: MetadataImage, pick: int) -> MetadataRecord | None:
    waiting = list(image.pending_purges)
    return TopicPurged(topic_id=waiting[pick % len(waiting)]) if waiting else None


def _or_nothing(pick: int, **values: str) -> Mapping[str, str]:
    return values if pick % 3 else {}


# Each makes a record of its kind that fits the image, None if there is none.
KINDS: Mapping[type[MetadataRecord], Callable[[MetadataImage, int], MetadataRecord | None]] = {
    TopicCreated: _create,
    TopicDeleted: _of_topic(lambda _image, topic_id, _: TopicDeleted(topic_id=topic_id)),
    TopicPurged: _purge,
    TopicConfigsSet: _of_topic(
        lambda _image, topic_id, pick: TopicConfigsSet(
            topic_id=topic_id, properties=_properties(pick)
        )
    ),
    PartitionsAdded: _of_topic(
        lambda image, topic_id, _: PartitionsAdded(
            topic_id=topic_id,
            first_partition=image.topics_by_id[topic_id].partition_count,
            replicas=((1,),),
        )
    ),
    LeaderEpochsRaised: _of_topic(
        lambda _image, topic_id, pick: LeaderEpochsRaised(
            topic_id=topic_id, leader_epochs=((0, pick),)
        )
    ),
    BrokerStarted: lambda _image, pick: BrokerStarted(node_id=1 + pick % 2),
    ProducerIdsAllocated: lambda image, pick: ProducerIdsAllocated(
        next_producer_id=image.next_producer_id + pick
    ),
    BrokerConfigsSet: lambda _image, pick: BrokerConfigsSet(
        node_id=(None, 1, 2)[pick % 3],
        properties=_or_nothing(pick // 3, **{"max.connections": str(1 + pick)}),
    ),
    ClientQuotasSet: lambda _image, pick: ClientQuotasSet(
        entity=QuotaEntity.of({"user": "ab"[pick % 2]}),
        quotas={"producer_byte_rate": pick} if pick % 3 else {},
    ),
    GroupConfigsSet: lambda _image, pick: GroupConfigsSet(
        group_id="gh"[pick % 2], properties=_or_nothing(pick, x=str(pick))
    ),
    ScramCredentialsSet: lambda _image, pick: ScramCredentialsSet(
        user="uv"[pick % 2], credentials=_or_nothing(pick, **{"SCRAM-SHA-256": str(pick)})
    ),
    FeatureLevelSet: lambda _image, pick: FeatureLevelSet(
        feature=FEATURE, level=(LEVELS.lowest, LEVELS.highest)[pick % 2]
    ),
}

# Entries, each of some kinds of records and what is picked for them.
PICKS = st.lists(
    st.lists(st.tuples(st.sampled_from(list(KINDS)), st.integers(0, 23)), min_size=1, max_size=3),
    max_size=12,
)


def history(picks: Sequence[Sequence[tuple[type[MetadataRecord], int]]]) -> list[Entry]:
    """Returns the entries that fit one after the other, the cluster's first."""
    image, entries = MetadataImage().apply_entry(FIRST), [FIRST]
    for entry in picks:
        records: list[MetadataRecord] = []
        reached = image
        for kind, pick in entry:
            record = KINDS[kind](reached, pick)
            if record is not None:
                records.append(record)
                reached = reached.apply(record)
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
