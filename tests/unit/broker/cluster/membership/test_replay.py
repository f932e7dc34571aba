"""From fetched batches to images: only what is committed, once, in order; the rest is refused."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from strandline.broker.cluster.membership.foreign_features import UnsupportedFeature
from strandline.broker.cluster.membership.replay import Applied, MetadataReplay
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.protocol.formats.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    ZkMigrationStateRecord,
    encode_record,
)
from strandline.broker.protocol.schema.primitives import uvarint
from strandline.storage.errors import CorruptFile, CorruptRecords, UnsupportedFormat
from strandline.storage.records.batch.record import Record, encode_batch

CLUSTER = "x4AJGXQSRnephtTZzujw4w"
CLIENT_METRICS = 16


def batch(
    base_offset: int,
    *records: MetadataRecord | bytes,
    epoch: int = 1,
    control: bool = False,
) -> bytes:
    encoded = [one if isinstance(one, bytes) else encode_record(one) for one in records]
    return encode_batch(
        [
            Record(offset=base_offset + number, timestamp_ms=1, key=None, value=value)
            for number, value in enumerate(encoded)
        ],
        leader_epoch=epoch,
        control=control,
    )


def topic(name: str, number: int) -> list[MetadataRecord]:
    return topic_records(name, uuid.UUID(int=number), ((9,),), {})


def names(applied: Applied | None) -> list[str]:
    assert applied is not None
    return sorted(applied.image.topics)


def test_what_is_below_the_high_watermark_is_applied_and_the_rest_waits() -> None:
    replay = MetadataReplay(CLUSTER)
    first, second = batch(0, *topic("a", 1)), batch(2, *topic("b", 2))
    assert names(replay.take(first + second, 2)) == ["a"]
    assert (replay.applied_offset, replay.next_offset) == (1, 4)
    applied = replay.take(b"", 4)
    assert names(applied) == ["a", "b"]
    assert applied is not None
    assert [one.name for one in applied.delta.topics.changed()] == ["b"]
    assert (applied.image.cluster_id, applied.image.next_offset) == (CLUSTER, 4)


def test_a_batch_that_was_fetched_before_is_not_applied_again() -> None:
    replay = MetadataReplay(CLUSTER)
    replay.take(batch(0, *topic("a", 1)), 2)
    assert replay.take(batch(0, *topic("a", 1)), 2) is None
    assert names(replay.take(batch(2, *topic("b", 2)), 4)) == ["a", "b"]


def test_what_the_next_leader_does_not_have_is_cut() -> None:
    replay = MetadataReplay(CLUSTER)
    replay.take(batch(0, *topic("a", 1)) + batch(2, *topic("b", 2)), 2)
    replay.cut(2, 1)
    assert (replay.next_offset, replay.last_epoch) == (2, 1)
    assert names(replay.take(batch(2, *topic("c", 3), epoch=2), 4)) == ["a", "c"]
    assert replay.last_epoch == 2


def test_a_later_epoch_is_cut_whatever_its_offset() -> None:
    replay = MetadataReplay(CLUSTER)
    replay.take(batch(0, *topic("a", 1)), 2)
    replay.take(batch(2, *topic("b", 2), epoch=3), 2)
    replay.cut(9, 2)
    assert (replay.next_offset, replay.last_epoch) == (2, 1)


def test_controllers_that_lost_what_they_committed_are_not_followed() -> None:
    replay = MetadataReplay(CLUSTER)
    replay.take(batch(0, *topic("a", 1)), 2)
    with pytest.raises(CorruptFile, match="other metadata than they had"):
        replay.cut(1, 1)


def test_control_batches_and_records_without_effect_count_and_change_nothing() -> None:
    replay = MetadataReplay(CLUSTER)
    control = batch(0, b"\x00\x00\x00\x00", control=True)
    nothing = batch(1, NoOpRecord(), ZkMigrationStateRecord(zk_migration_state=0))
    of_clients = ConfigRecord(
        resource_type=CLIENT_METRICS, resource_name="x", name="interval.ms", value="1"
    )
    assert replay.take(control + nothing + batch(3, of_clients), 4) is None
    assert replay.applied_offset == 3


def test_a_metadata_transaction_counts_when_it_ends() -> None:
    replay = MetadataReplay(CLUSTER)
    begin = batch(0, BeginTransactionRecord(name="x"), *topic("a", 1))
    assert replay.take(begin, 3) is None
    assert replay.applied_offset == -1
    assert names(replay.take(batch(3, *topic("b", 2), EndTransactionRecord()), 6)) == ["a", "b"]
    assert replay.applied_offset == 5


def test_an_aborted_metadata_transaction_never_was() -> None:
    replay = MetadataReplay(CLUSTER)
    records = [BeginTransactionRecord(name="x"), *topic("a", 1), AbortTransactionRecord()]
    assert replay.take(batch(0, *records), 4) is None
    assert names(replay.take(batch(4, *topic("a", 2)), 6)) == ["a"]


def test_an_unknown_record_is_refused_by_its_type_each_time() -> None:
    replay = MetadataReplay(CLUSTER)
    later = uvarint(1) + uvarint(99) + uvarint(0)
    fetched = batch(0, *topic("a", 1)) + batch(2, later)
    for offered in (fetched, b""):
        with pytest.raises(UnsupportedFormat, match=r"offset 2 .*unknown type 99"):
            replay.take(offered, 3)
    assert replay.applied_offset == -1


def test_an_unknown_record_within_a_transaction_leaves_it_open() -> None:
    replay = MetadataReplay(CLUSTER)
    replay.take(batch(0, BeginTransactionRecord(name="x"), *topic("a", 1)), 3)
    later = uvarint(1) + uvarint(99) + uvarint(0)
    with pytest.raises(UnsupportedFormat):
        replay.take(batch(3, *topic("b", 2), later), 6)
    replay.cut(3, 1)
    assert names(replay.take(batch(3, EndTransactionRecord()), 4)) == ["a"]


@pytest.mark.parametrize("name", ["share.version", "streams.version"])
def test_a_feature_of_other_groups_is_refused_with_how_to_lower_it(name: str) -> None:
    level = FeatureLevelRecord(name=name, feature_level=1)
    with pytest.raises(UnsupportedFeature) as refused:
        MetadataReplay(CLUSTER).take(batch(0, level), 1)
    text = str(refused.value)
    assert name in text
    assert f"downgrade --feature {name}=0" in text
    assert "if no" in text


def test_a_feature_that_was_lowered_is_none() -> None:
    replay = MetadataReplay(CLUSTER)
    levels = [FeatureLevelRecord(name="share.version", feature_level=level) for level in (1, 0)]
    assert replay.take(batch(0, *levels), 2) is not None


def test_a_level_of_a_later_kafka_is_refused_with_the_known_range() -> None:
    level = FeatureLevelRecord(name="metadata.version", feature_level=999)
    with pytest.raises(UnsupportedFeature, match=r"metadata.version is at level 999, .*7 to \d+"):
        MetadataReplay(CLUSTER).take(batch(0, level), 1)


def test_a_snapshot_replaces_all_and_the_log_goes_on_behind_it() -> None:
    replay = MetadataReplay(CLUSTER)
    replay.take(batch(0, *topic("a", 1)) + batch(2, *topic("lost", 2)), 2)
    snapshot = batch(0, b"", control=True) + batch(1, *topic("b", 3))
    applied = replay.restart(snapshot, 70, 4)
    assert names(applied) == ["b"]
    assert [one.name for one in applied.delta.topics.gone()] == ["a"]
    assert (replay.next_offset, replay.last_epoch, replay.applied_offset) == (70, 4, 69)
    assert names(replay.take(batch(70, *topic("c", 4), epoch=4), 72)) == ["b", "c"]


def test_fencing_of_old_clusters_is_understood() -> None:
    replay = MetadataReplay(CLUSTER)
    broker = RegisterBrokerRecord(
        broker_id=3,
        incarnation_id=uuid.UUID(int=1),
        broker_epoch=0,
        end_points=[],
        features=[],
        fenced=False,
    )
    applied = replay.take(batch(0, broker) + batch(1, FenceBrokerRecord(id=3, epoch=0)), 2)
    assert applied is not None
    assert applied.image.brokers[3].fenced


@pytest.mark.parametrize(("name", "left"), [("a", {"b"}), ("", set())])
def test_eligible_leader_replicas_are_cleared_for_one_topic_or_all(
    name: str, left: set[str]
) -> None:
    records: list[MetadataRecord] = []
    for number, topic_name in enumerate(("a", "b"), 1):
        topic_id = uuid.UUID(int=number)
        records.append(TopicRecord(name=topic_name, topic_id=topic_id))
        records.append(
            PartitionRecord(
                partition_id=0,
                topic_id=topic_id,
                replicas=(1, 2),
                isr=(1,),
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                eligible_leader_replicas=(2,),
            )
        )
    applied = MetadataReplay(CLUSTER).take(
        batch(0, *records) + batch(4, ClearElrRecord(topic_name=name)), 5
    )
    assert applied is not None
    assert {
        one.name
        for one in applied.image.topics.values()
        if one.partitions[0].eligible_leader_replicas
    } == left


def test_a_topic_that_goes_is_told_as_gone() -> None:
    replay = MetadataReplay(CLUSTER)
    replay.take(batch(0, *topic("a", 1)), 2)
    applied = replay.take(batch(2, RemoveTopicRecord(topic_id=uuid.UUID(int=1))), 3)
    assert applied is not None
    assert [one.name for one in applied.delta.topics.gone()] == ["a"]


def test_damaged_batches_are_refused() -> None:
    damaged = bytearray(batch(0, *topic("a", 1)))
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecords):
        MetadataReplay(CLUSTER).take(bytes(damaged), 2)


def offsets(replays: Sequence[MetadataReplay]) -> set[tuple[int, str]]:
    return {(one.applied_offset, repr(one.image)) for one in replays}


def test_pieces_of_any_size_lead_to_the_same_image() -> None:
    batches = [batch(2 * number, *topic(f"t{number}", number + 1)) for number in range(6)]
    whole, pieces, late = (MetadataReplay(CLUSTER) for _ in range(3))
    whole.take(b"".join(batches), 12)
    for number, one in enumerate(batches):
        pieces.take(one, 2 * number + 2)
        late.take(one, 0)
    late.take(b"", 12)
    assert len(offsets((whole, pieces, late))) == 1
