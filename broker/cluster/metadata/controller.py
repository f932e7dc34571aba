"""The controller: pure decisions about topics, producer ids and features, made on a metadata image.

    image + request  ->  Decision: records for the metadata log, one result per item of the request

Nothing here writes, waits or looks at a clock; the caller appends the records and answers after
they are durable. Every fault of a request is a result with Kafka's code and, where Kafka has one,
Kafka's text. The items of one request are independent: valid ones are carried out, invalid ones are
refused. Where Kafka's controller reports several faults of one topic, this one reports the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from strandline.broker.cluster.metadata.controller_messages import (
    USE_DEFAULT,
    Decision,
    DeleteResult,
    FeatureChange,
    Intent,
    NewLevel,
    NewPartitions,
    NewTopic,
    Outcome,
    Refusal,
    TopicDefaults,
    TopicReference,
    TopicResult,
)
from strandline.broker.cluster.metadata.features import FEATURES
from strandline.broker.cluster.metadata.image import MetadataImage, TopicImage
from strandline.broker.cluster.metadata.placement import (
    Pick,
    by_chance,
    check_assignments,
    place,
    usable_brokers,
)
from strandline.broker.cluster.metadata.records import (
    DELETE_ON_DISABLE,
    REMOTE_ENABLED,
    NodeId,
    Replicas,
    config_records,
    deletion_records,
    finished_purge_record,
    is_active,
    is_true,
    partition_records,
    topic_records,
)
from strandline.broker.cluster.metadata.topic_names import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    collision_key,
    topic_name_fault,
)
from strandline.broker.protocol.formats.metadata_records import (
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage import entropy
from strandline.storage.config.log_config import LONG_MAX, LogConfig, check_throttled_replicas
from strandline.storage.errors import InvalidConfig, StorageError
from strandline.storage.model import ZERO_TOPIC_ID, TopicId

Records: TypeAlias = list[MetadataRecord]

# Kafka's bound as well: more than this in one request is a mistake, and stalls all other requests.
PARTITIONS_PER_REQUEST_MAX = 10_000
# Producers of one broker share a block; at 1000 per entry the metadata log stays short.
PRODUCER_IDS_PER_BLOCK = 1000


# --- create ----------------------------------------------------------------------------------


def create_topics(
    image: MetadataImage,
    topics: Sequence[NewTopic],
    *,
    defaults: TopicDefaults,
    intent: Intent = Intent.APPLY,
    new_topic_id: Callable[[], TopicId] = entropy.new_id,
    pick: Pick = by_chance,
) -> Decision[TopicResult]:
    """Returns one result per name, in order; `pick` is the chance of their placement."""
    creator = _Creator(image, defaults, new_topic_id, pick)

    def create(topic: NewTopic) -> tuple[Records, TopicResult]:
        topic_id, replicas, properties = creator.create(topic)
        records = topic_records(topic.name, topic_id, replicas, properties, image.brokers)
        return records, TopicResult(
            name=topic.name,
            topic_id=topic_id if intent is Intent.APPLY else ZERO_TOPIC_ID,
            partition_count=len(replicas),
            replication_factor=len(replicas[0]),
            properties=properties,
        )

    return _decide_each(topics, create, intent)


class _Creator:
    """The checks of one CreateTopics request; they include the topics created earlier in it."""

    def __init__(
        self,
        image: MetadataImage,
        defaults: TopicDefaults,
        new_topic_id: Callable[[], TopicId],
        pick: Pick,
    ) -> None:
        self._image = image
        self._pick = pick
        self._defaults = defaults
        self._new_topic_id = new_topic_id
        # The names that this request creates, by their collision keys.
        self._created: dict[str, str] = {}
        self._partition_count = 0

    def create(self, topic: NewTopic) -> tuple[TopicId, tuple[Replicas, ...], Mapping[str, str]]:
        """Returns id, replicas and properties of the new topic."""
        self._check_name(topic.name)
        properties = self._check_properties(topic.properties)
        if topic.assignments:
            replicas = self._assigned(topic)
        else:
            replicas = self._placed(topic)
        self._partition_count += len(replicas)
        self._created[collision_key(topic.name)] = topic.name
        return self._unused_id(), replicas, properties

    def _check_name(self, name: str) -> None:
        if name == METADATA_TOPIC:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
            )
        if name in self._image.topics:
            raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        fault = topic_name_fault(name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        key = collision_key(name)
        other = self._image.names_by_collision.get(key) or self._created.get(key)
        if other is not None:
            raise Refusal(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {other}",
            )

    def _check_properties(self, properties: Mapping[str, str | None]) -> dict[str, str]:
        checked: dict[str, str] = {}
        for name, text in properties.items():
            if text is None:
                raise Refusal(
                    ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}"
                )
            checked[name] = text
        _check_topic_config(checked, self._defaults)
        return checked

    def _assigned(self, topic: NewTopic) -> tuple[Replicas, ...]:
        """The client's manual assignment: partitions 0 and up, each once, on known brokers."""
        for what, number in (
            ("replication factor", topic.replication_factor),
            ("numPartitions", topic.partition_count),
        ):
            if number != USE_DEFAULT:
                raise Refusal(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        replicas: dict[int, Replicas] = {}
        for assignment in topic.assignments:
            if assignment.partition in replicas:
                raise Refusal(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "Found multiple manual partition assignments for partition"
                    f" {assignment.partition}",
                )
            replicas[assignment.partition] = assignment.replicas
        check_assignments(list(replicas.values()), self._image.brokers)
        for number, nodes in replicas.items():
            _check_some_active(self._image, number, nodes)
        if sorted(replicas) != list(range(len(replicas))):
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        _check_partition_count(self._partition_count + len(replicas))
        return tuple(replicas[partition] for partition in range(len(replicas)))

    def _placed(self, topic: NewTopic) -> tuple[Replicas, ...]:
        """Returns the automatic assignment for a partition count and a replication factor."""
        count, factor = topic.partition_count, topic.replication_factor
        if count == 0 or count < USE_DEFAULT:
            raise Refusal(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        if factor == 0 or factor < USE_DEFAULT:
            raise Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor was set to an invalid non-positive value.",
            )
        count = self._defaults.partition_count if count == USE_DEFAULT else count
        factor = self._defaults.replication_factor if factor == USE_DEFAULT else factor
        _check_partition_count(self._partition_count + count)
        return place(count, factor, usable_brokers(self._image), pick=self._pick)

    def _unused_id(self) -> TopicId:
        topic_id = self._new_topic_id()
        # A zero id means "no id" on the wire; every other random id is as good as unique.
        assert topic_id != ZERO_TOPIC_ID
        assert topic_id not in self._image.topics_by_id, topic_id
        return topic_id


# --- delete ----------------------------------------------------------------------------------


def delete_topics(
    image: MetadataImage,
    references: Sequence[TopicReference],
    *,
    defaults: TopicDefaults,
    notes_purges: bool = True,
) -> Decision[DeleteResult]:
    """Returns one result per distinct reference, in order. A topic named twice is not deleted.

    `notes_purges`: whether the records say of which topics the bucket may still have something.

    If deletion is off, results are TOPIC_DELETION_DISABLED; clients before v3 of the request do
    not know that code, and the handler answers them with INVALID_REQUEST.
    """
    reference_counts = Counter(references)
    found = {reference: _find_topic(image, reference) for reference in reference_counts}
    topic_counts = Counter(topic.topic_id for topic in found.values() if topic is not None)
    records: Records = []
    results: list[DeleteResult] = []
    for reference, topic in found.items():
        try:
            if not defaults.deletion_enabled:
                raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED)
            _check_reference(reference, reference_counts[reference])
            if topic is None:
                raise Refusal(
                    ErrorCode.UNKNOWN_TOPIC_ID
                    if reference.name is None
                    else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
            if topic.name in INTERNAL_TOPICS:
                raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is internal.")
            if topic_counts[topic.topic_id] > 1:
                raise Refusal(
                    ErrorCode.INVALID_REQUEST,
                    "The provided topic name maps to an ID that was already supplied.",
                )
        except Refusal as refusal:
            results.append(
                DeleteResult(
                    name=reference.name,
                    topic_id=reference.topic_id,
                    error_code=refusal.error_code,
                    error_message=refusal.message,
                )
            )
            continue
        properties = topic.properties if notes_purges else {}
        records += deletion_records(topic.deleted(), properties)
        results.append(DeleteResult(name=topic.name, topic_id=topic.topic_id))
    return Decision(records=tuple(records), results=tuple(results))


def _check_reference(reference: TopicReference, count: int) -> None:
    has_id = reference.topic_id != ZERO_TOPIC_ID
    if reference.name is not None and has_id:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
        )
    if reference.name is None and not has_id:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if count > 1:
        what = "id" if has_id else "name"
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")


def _find_topic(image: MetadataImage, reference: TopicReference) -> TopicImage | None:
    if reference.name is not None:
        return image.topics.get(reference.name)
    return image.topics_by_id.get(reference.topic_id)


def deletion_cost(image: MetadataImage, reference: TopicReference) -> int:
    """Returns how many partitions a deletion would remove; 0 if the reference names no topic."""
    topic = _find_topic(image, reference)
    return 0 if topic is None else topic.partition_count


def finish_purges(image: MetadataImage, topic_ids: Iterable[TopicId]) -> Decision[None]:
    """Records that deleted topics are purged completely; skips those already recorded."""
    waiting = [topic_id for topic_id in topic_ids if topic_id in image.pending_purges]
    return Decision(records=tuple(map(finished_purge_record, waiting)), results=())


# --- partitions and properties ---------------------------------------------------------------


def create_partitions(
    image: MetadataImage,
    topics: Sequence[NewPartitions],
    *,
    intent: Intent = Intent.APPLY,
    pick: Pick = by_chance,
) -> Decision[TopicResult]:
    """Returns one result per name, in order; `partition_count` of a result is the new total."""
    added_count = 0

    def add(asked: NewPartitions) -> tuple[Records, TopicResult]:
        nonlocal added_count
        topic, replicas = _added_partitions(image, asked, added_count, pick)
        added_count += len(replicas)
        present = topic.partition_count
        records = partition_records(topic.topic_id, present, replicas, image.brokers)
        return records, TopicResult(
            name=topic.name, topic_id=topic.topic_id, partition_count=asked.partition_count
        )

    return _decide_each(topics, add, intent)


def _added_partitions(
    image: MetadataImage, asked: NewPartitions, added_count: int, pick: Pick
) -> tuple[TopicImage, tuple[Replicas, ...]]:
    topic = image.topics.get(asked.name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.name in INTERNAL_TOPICS:
        # The partition count decides a group's coordinator: with more, no group would find it.
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is internal.")
    present, wanted = topic.partition_count, asked.partition_count
    if wanted == present:
        raise Refusal(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if wanted < present:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {asked.name} currently has {present} partition(s); {wanted} would not be"
            " an increase.",
        )
    additional = wanted - present
    _check_partition_count(added_count + additional)
    if asked.assignments is None:
        brokers = usable_brokers(image)
        replicas = place(additional, topic.replication_factor, brokers, pick=pick)
    else:
        replicas = asked.assignments
        if len(replicas) != additional:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {additional} additional partition(s), but only"
                f" {len(replicas)} assignment(s) were specified.",
            )
        check_assignments(replicas, image.brokers, replication_factor=topic.replication_factor)
        for number, nodes in enumerate(replicas, present):
            _check_some_active(image, number, nodes)
    return topic, replicas


def _check_some_active(image: MetadataImage, number: int, nodes: Replicas) -> None:
    if not any(is_active(image.brokers.get(node)) for node in nodes):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "All brokers specified in the manual partition assignment for partition"
            f" {number} are fenced or in controlled shutdown.",
        )


def _check_partition_count(count: int) -> None:
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise Refusal(
            ErrorCode.POLICY_VIOLATION,
            "Excessively large number of partitions per request:"
            f" more than {PARTITIONS_PER_REQUEST_MAX}.",
        )


def topic_config_records(
    topic: TopicImage, properties: Mapping[str, str], defaults: TopicDefaults
) -> list[MetadataRecord]:
    """Returns the records that replace a topic's properties. Raises Refusal."""
    _check_topic_config(properties, defaults)
    _check_tiering_change(topic, properties)
    return config_records(ConfigResourceType.TOPIC, topic.name, topic.properties, properties)


def _check_topic_config(properties: Mapping[str, str], defaults: TopicDefaults) -> None:
    try:
        config = LogConfig.resolve_checked(properties, defaults.properties)
        check_throttled_replicas(properties)
        if config.remote_storage_enable:
            config.check_local_retention()
    except InvalidConfig as error:
        raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from None
    if config.remote_storage_enable and not defaults.tiering_enabled:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured"
            " with remote log storage.",
        )


def _check_tiering_change(topic: TopicImage, properties: Mapping[str, str]) -> None:
    was_tiered, is_tiered = (is_true(p, REMOTE_ENABLED) for p in (topic.properties, properties))
    deletes = is_true(properties, DELETE_ON_DISABLE)
    if was_tiered and not is_tiered and not deletes:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            "It is invalid to disable remote storage without deleting remote data. To keep it"
            " readable, set remote.storage.enable=true,remote.log.copy.disable=true. To delete it,"
            " set remote.storage.enable=false,remote.log.delete.on.disable=true.",
        )


# --- brokers and producers -------------------------------------------------------------------


def register_broker(image: MetadataImage, process: RegisterBrokerRecord) -> Decision[None]:
    """Registers a broker process, in place of an earlier one.

    Its epoch is the offset of its record, as in Kafka. What it leads gets new leader epochs, so
    that clients notice the restart.
    """
    raised = raise_leader_epochs(image, process.broker_id).records
    record = process.replaced(broker_epoch=image.next_offset)
    return Decision(records=(record, *raised), results=())


def raise_leader_epochs(image: MetadataImage, node_id: NodeId) -> Decision[None]:
    """Raises the leader epoch of everything the broker leads: it is elected again."""
    raised = (
        PartitionChangeRecord(
            partition_id=partition.partition, topic_id=topic.topic_id, leader=node_id
        )
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader == node_id
    )
    return Decision(records=tuple(raised), results=())


def allocate_producer_ids(
    image: MetadataImage, node_id: NodeId, count: int = PRODUCER_IDS_PER_BLOCK
) -> Decision[range]:
    """Allocates one block of unused ids. Raises StorageError if all 2^63 ids are used up."""
    first = image.next_producer_id
    if first > LONG_MAX - count:
        raise StorageError(f"all producer ids up to {first} are given away")
    record = ProducerIdsRecord(
        broker_id=node_id,
        broker_epoch=image.brokers[node_id].broker_epoch,
        next_producer_id=first + count,
    )
    return Decision(records=(record,), results=(range(first, first + count),))


# --- features --------------------------------------------------------------------------------


def update_features(
    image: MetadataImage, updates: Collection[NewLevel], *, intent: Intent = Intent.APPLY
) -> Decision[Outcome]:
    """Sets all levels, or none, as Kafka's FeatureControlManager does; returns one result."""
    records: Records = []
    try:
        for update in updates:
            _check_level(image, update)
            if update.level != image.finalized_level(update.feature):
                records.append(FeatureLevelRecord(name=update.feature, feature_level=update.level))
    except Refusal as refusal:
        result = Outcome(error_code=refusal.error_code, error_message=refusal.message)
        return Decision(records=(), results=(result,))
    applied = tuple(records) if intent is Intent.APPLY else ()
    return Decision(records=applied, results=(Outcome(),))


def _check_level(image: MetadataImage, update: NewLevel) -> None:
    """Raises Refusal."""
    fault = _level_fault(image, update)
    if fault is not None:
        raise Refusal(
            ErrorCode.INVALID_UPDATE_VERSION,
            "The update failed for all features since the following feature had an error:"
            f" Invalid update version {update.level} for feature {update.feature}. {fault}",
        )


def _level_fault(image: MetadataImage, update: NewLevel) -> str | None:
    """Returns why a feature cannot get the wanted level; None if it can."""
    if update.change is FeatureChange.UNKNOWN:
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    feature = FEATURES.get(update.feature)
    if feature is None:
        return "This broker does not support this feature."
    if not feature.lowest <= update.level <= feature.highest:
        return f"This broker only supports versions {feature.lowest}-{feature.highest}."
    current = image.finalized_level(update.feature)
    if update.level < current and update.change is FeatureChange.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to"
            " either safe or unsafe downgrade."
        )
    if update.level > current and update.change is FeatureChange.DOWNGRADE:
        return "Can't downgrade to a newer version."
    if update.level not in feature.settable:
        return f"It has one level in this release of strandline, {feature.highest}."
    return None


ItemT = TypeVar("ItemT", NewTopic, NewPartitions)


def _decide_each(
    items: Sequence[ItemT],
    decide: Callable[[ItemT], tuple[Records, TopicResult]],
    intent: Intent,
) -> Decision[TopicResult]:
    """Decides on each item; a refusal is its result.

    Kafka, too, answers an item that a client names twice only once.
    """
    records: Records = []
    results: list[TopicResult] = []
    counts = Counter(item.name for item in items)
    for item in {item.name: item for item in items}.values():
        try:
            if counts[item.name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            made, result = decide(item)
        except Refusal as refusal:
            result = TopicResult(
                name=item.name, error_code=refusal.error_code, error_message=refusal.message
            )
        else:
            records += made
        results.append(result)
    return Decision(
        records=tuple(records) if intent is Intent.APPLY else (), results=tuple(results)
    )
