"""Images are what the records say."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.records import (
    BrokerStarted,
    ClusterCreated,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdsAllocated,
    TopicConfigsSet,
    TopicCreated,
    TopicDeleted,
    TopicPurged,
)
from strandline.storage.errors import CorruptFile
from strandline.storage.model import TopicPartition

A = uuid.UUID(int=0xA)
B = uuid.UUID(int=0xB)


def created(
    topic: str = "a", topic_id: uuid.UUID = A, partitions: int = 2, **properties: str
) -> TopicCreated:
    return TopicCreated(
        topic=topic, topic_id=topic_id, replicas=((1,),) * partitions, properties=properties
    )


def image_after(*records: MetadataRecord) -> MetadataImage:
    delta = MetadataDelta(MetadataImage())
    for record in records:
        delta.replay([record])
    return delta.image()


def test_a_created_topic_is_found_by_name_and_by_id() -> None:
    image = image_after(created(partitions=3, retention_ms="5"))
    topic = image.topics["a"]
    assert image.topics_by_id[A] is topic
    assert (topic.partition_count, topic.replication_factor) == (3, 1)
    assert dict(topic.properties) == {"retention_ms": "5"}
    partition = image.partition(TopicPartition("a", 2))
    assert partition is not None
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 0, (1,))
    assert image.partition(TopicPartition("a", 3)) is None
    assert image.partition(TopicPartition("a", -1)) is None
    assert image.partition(TopicPartition("b", 0)) is None


def test_images_do_not_change_when_the_next_one_is_made() -> None:
    before = image_after(created())
    after = before.apply(BrokerStarted(node_id=1)).apply(TopicDeleted(topic_id=A))
    assert before.topics["a"].partitions[0].leader_epoch == 0
    assert not after.topics
    with pytest.raises(TypeError):
        before.topics["b"] = before.topics["a"]  # type: ignore[index]
    with pytest.raises(TypeError):
        before.topics["a"].properties["x"] = "y"  # type: ignore[index]


def test_each_entry_raises_the_version_however_many_records_it_has() -> None:
    image = MetadataImage().apply_entry([created(), created("b", B)])
    assert (image.version, len(image.topics)) == (1, 2)
    assert image.apply_entry([BrokerStarted(node_id=1)]).version == 2


def test_a_starting_broker_gets_new_epochs_for_what_it_leads_and_nothing_else() -> None:
    image = image_after(
        TopicCreated(topic="a", topic_id=A, replicas=((1, 2), (2, 1)), properties={}),
        BrokerStarted(node_id=1),
        BrokerStarted(node_id=1),
    )
    assert [p.leader_epoch for p in image.topics["a"].partitions] == [2, 0]


def test_added_partitions_follow_those_that_exist() -> None:
    image = image_after(
        created(partitions=1),
        BrokerStarted(node_id=1),
        PartitionsAdded(topic_id=A, first_partition=1, replicas=((1,), (1,))),
    )
    partitions = image.topics["a"].partitions
    assert [(p.partition, p.leader_epoch) for p in partitions] == [(0, 1), (1, 0), (2, 0)]


def test_set_properties_replace_those_before() -> None:
    image = image_after(created(x="1", y="2"), TopicConfigsSet(topic_id=A, properties={"y": "3"}))
    assert dict(image.topics["a"].properties) == {"y": "3"}


def test_a_deleted_topic_waits_for_its_purge_and_frees_its_name() -> None:
    image = image_after(created(partitions=4, x="1"), TopicDeleted(topic_id=A), created("a", B))
    assert image.topics["a"].topic_id == B
    assert A not in image.topics_by_id
    waiting = image.pending_purges[A]
    assert (waiting.name, waiting.partition_count, dict(waiting.properties)) == ("a", 4, {"x": "1"})
    assert not image.apply(TopicPurged(topic_id=A)).pending_purges


@pytest.mark.parametrize(
    "records",
    [
        (ClusterCreated(cluster_id="c"), ClusterCreated(cluster_id="c")),
        (ClusterCreated(cluster_id=""),),
        (created(), created("a", B)),
        (created(), created("b", A)),
        (created(), TopicDeleted(topic_id=A), created("b", A)),
        (created(partitions=0),),
        (TopicCreated(topic="a", topic_id=A, replicas=((),), properties={}),),
        (PartitionsAdded(topic_id=A, first_partition=0, replicas=((1,),)),),
        (created(), PartitionsAdded(topic_id=A, first_partition=3, replicas=((1,),))),
        (created(), PartitionsAdded(topic_id=A, first_partition=1, replicas=((1,),))),
        (TopicConfigsSet(topic_id=A, properties={}),),
        (TopicDeleted(topic_id=A),),
        (created(), TopicDeleted(topic_id=A), TopicDeleted(topic_id=A)),
        (created(), TopicPurged(topic_id=A)),
        (ProducerIdsAllocated(next_producer_id=5), ProducerIdsAllocated(next_producer_id=4)),
    ],
)
def test_a_record_that_does_not_fit_is_corrupt_and_named_by_its_entry(
    records: tuple[MetadataRecord, ...],
) -> None:
    with pytest.raises(CorruptFile, match=f"metadata log entry {len(records)}: "):
        image_after(*records)


@given(st.lists(st.integers(0, 5), max_size=12))
def test_replaying_at_once_and_one_by_one_give_the_same_image(choices: list[int]) -> None:
    records: list[MetadataRecord] = []
    image = MetadataImage()
    for number, choice in enumerate(choices):
        record: MetadataRecord
        known = list(image.topics_by_id)
        if choice <= 1 or not known:
            record = created(f"t{number}", uuid.UUID(int=number + 1))
        elif choice == 2:
            record = BrokerStarted(node_id=1)
        elif choice == 3:
            topic = image.topics_by_id[known[0]]
            record = PartitionsAdded(
                topic_id=topic.topic_id,
                first_partition=topic.partition_count,
                replicas=((1,),),
            )
        elif choice == 4:
            record = TopicDeleted(topic_id=known[-1])
        else:
            record = TopicConfigsSet(topic_id=known[0], properties={"n": str(number)})
        records.append(record)
        image = image.apply(record)
    assert image_after(*records) == image
    assert replace(image) == image
