"""A restore puts the mirrored metadata right by what the archive says."""

from __future__ import annotations

import uuid

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import partition_records, topic_records
from strandline.broker.cluster.metadata.restore_plan import (
    PRODUCER_IDS_SKIPPED,
    correct_numbers,
    correct_topics,
    foreign_nodes,
    take_over_records,
)
from strandline.broker.protocol.formats.metadata_records import (
    FeatureLevelRecord,
    RemoveTopicRecord,
)
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.manifest.topic_info import TopicInfo
from tests.unit.broker.cluster.controlled import registered

A, B = uuid.UUID(int=0xA), uuid.UUID(int=0xB)
NODE = 1


def mirrored(*, node: int = NODE, partitions: int = 2) -> MetadataImage:
    """What the mirror has: one topic."""
    return MetadataImage().apply_entry(topic_records("a", A, ((node,),) * partitions, {}))


def info(
    topic: str = "a",
    topic_id: uuid.UUID = A,
    *,
    partitions: int = 2,
    deleted_ms: int | None = None,
) -> TopicInfo:
    return TopicInfo(
        topic=topic,
        topic_id=topic_id,
        partition_count=partitions,
        properties={"remote.storage.enable": "true"},
        deleted_ms=deleted_ms,
    )


def test_what_agrees_is_not_touched() -> None:
    found = correct_topics(mirrored(), [info()], node_id=NODE)
    assert (found.records, found.problems) == ((), ())


def test_topics_and_partitions_that_came_after_the_mirror_are_made_again() -> None:
    found = correct_topics(mirrored(), [info(partitions=5), info("b", B)], node_id=NODE)
    assert found.records == (
        *partition_records(A, 2, ((NODE,),) * 3),
        *topic_records("b", B, ((NODE,),) * 2, {"remote.storage.enable": "true"}),
    )
    image = mirrored().apply_entry(found.records)
    assert image.topics["a"].partition_count == 5


def test_a_topic_deleted_after_the_mirror_is_deleted_and_its_name_is_free() -> None:
    found = correct_topics(mirrored(), [info(deleted_ms=1), info("a", B)], node_id=NODE)
    image = mirrored().apply_entry(found.records)
    assert found.records[0] == RemoveTopicRecord(topic_id=A)
    assert image.topics["a"].topic_id == B


def test_two_living_topics_of_one_name_are_a_problem_and_the_mirrors_wins() -> None:
    found = correct_topics(mirrored(), [info(), info("a", B)], node_id=NODE)
    assert found.records == ()
    assert len(found.problems) == 1
    assert str(B) in found.problems[0]


def test_epochs_and_producer_ids_go_on_above_everything_that_was_used() -> None:
    partitions = {TopicIdPartition("a", A, number): epoch for number, epoch in ((0, 7), (1, 0))}
    records = correct_numbers(mirrored(), partitions, producer_id_max=41)
    image = mirrored().apply_entry(records)
    assert [p.leader_epoch for p in image.topics["a"].partitions] == [7, 0]
    assert image.next_producer_id == 42 + PRODUCER_IDS_SKIPPED


def test_partitions_of_other_nodes_are_noticed() -> None:
    assert foreign_nodes(mirrored(node=5), NODE) == {5}
    assert foreign_nodes(mirrored(), NODE) == set()


def test_the_archive_of_several_brokers_is_restored_to_one() -> None:
    image = MetadataImage().apply_entry(
        [
            *map(registered, (1, 2)),
            FeatureLevelRecord(name="metadata.version", feature_level=33),
            FeatureLevelRecord(name="kraft.version", feature_level=1),
            *topic_records("a", A, ((1,), (2, 1), (NODE + 6,)), {}),
        ]
    )
    after = image.apply_entry(take_over_records(image, 1))
    assert not foreign_nodes(after, 1)
    assert set(after.brokers) == {1}
    assert after.feature_levels == {"metadata.version": 25}
    for one, before in zip(after.topics["a"].partitions, image.topics["a"].partitions, strict=True):
        assert (one.leader, one.replicas, one.isr) == (1, (1,), (1,))
        assert one.leader_epoch == before.leader_epoch + (before.replicas != (1,))
