"""Images are what the records say."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.log_format import image_records
from strandline.broker.cluster.metadata.records import (
    ALL_BROKERS,
    DeletedTopic,
    QuotaEntity,
    acl_record,
    config_records,
    deletion_records,
    finished_purge_record,
    partition_records,
    pending_purge_record,
    quota_records,
    scram_records,
    topic_records,
)
from strandline.broker.protocol.formats.metadata_records import (
    UNASSIGNED_DIRECTORY,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.security.acl import Acl
from strandline.broker.security.scram import ScramCredential
from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import TopicPartition
from tests.unit.broker.cluster.controlled import registered

A = uuid.UUID(int=0xA)
B = uuid.UUID(int=0xB)
FOLDER, OTHER = uuid.UUID(int=0xF0), uuid.UUID(int=0xF1)
TIERED = {"remote.storage.enable": "true"}
CREDENTIAL = ScramCredential(salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096)
Records = Sequence[MetadataRecord]


def created(
    topic: str = "a", topic_id: uuid.UUID = A, partitions: int = 2, **properties: str
) -> Records:
    return topic_records(topic, topic_id, ((1,),) * partitions, properties)


def elected(partition: int = 0, leader: int = 1, topic_id: uuid.UUID = A) -> Records:
    return [PartitionChangeRecord(partition_id=partition, topic_id=topic_id, leader=leader)]


def image_after(*entries: Records) -> MetadataImage:
    delta = MetadataDelta(MetadataImage())
    for records in entries:
        delta.replay(records)
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
    after = before.apply_entry(elected()).apply_entry([RemoveTopicRecord(topic_id=A)])
    assert before.topics["a"].partitions[0].leader_epoch == 0
    assert not after.topics
    with pytest.raises(TypeError):
        before.topics["b"] = before.topics["a"]  # type: ignore[index]
    with pytest.raises(TypeError):
        before.topics["a"].properties["x"] = "y"  # type: ignore[index]


def test_each_entry_raises_the_version_and_each_record_the_offset() -> None:
    records = [*created(), *created("b", B), NoOpRecord()]
    image = MetadataImage().apply_entry(records)
    assert (image.version, image.next_offset, len(image.topics)) == (1, 7, 2)
    image = image.apply_entry(elected())
    assert (image.version, image.next_offset) == (2, 8)


def test_a_named_leader_gets_a_new_epoch_also_if_it_led_before() -> None:
    image = image_after(created(), elected(), elected(), elected(leader=2))
    first, second = image.topics["a"].partitions
    assert (first.leader, first.leader_epoch, first.partition_epoch) == (2, 3, 3)
    assert (second.leader, second.leader_epoch, second.partition_epoch) == (1, 0, 0)


def test_a_change_raises_the_epoch_of_the_partition_and_keeps_what_it_does_not_name() -> None:
    partition = PartitionRecord(
        partition_id=0,
        topic_id=A,
        replicas=(1, 2, 3),
        isr=(1, 2),
        leader=1,
        leader_epoch=4,
        partition_epoch=9,
        directories=(FOLDER, OTHER, UNASSIGNED_DIRECTORY),
        eligible_leader_replicas=(3,),
    )
    topic = TopicRecord(name="a", topic_id=A)
    image = image_after([topic, partition])
    before = image.topics["a"].partitions[0]
    assert before.record(A) == partition
    change = PartitionChangeRecord(
        partition_id=0, topic_id=A, isr=(1, 2, 3), eligible_leader_replicas=()
    )
    after = image.apply_entry([change]).topics["a"].partitions[0]
    assert after == replace(before, isr=(1, 2, 3), eligible_leader_replicas=(), partition_epoch=10)
    # Folders of replicas that stay are known; that of a new one is not.
    moved = PartitionChangeRecord(partition_id=0, topic_id=A, replicas=(2, 4, 1))
    found = image.apply_entry([moved]).topics["a"].partitions[0]
    assert (found.replicas, found.directories) == ((2, 4, 1), (OTHER, UNASSIGNED_DIRECTORY, FOLDER))
    unclean = PartitionChangeRecord(
        partition_id=0, topic_id=A, leader=3, isr=(3,), leader_recovery_state=1
    )
    found = image.apply_entry([unclean]).topics["a"].partitions[0]
    assert (found.leader, found.leader_epoch, found.leader_recovery_state) == (3, 5, 1)


def test_added_partitions_follow_those_that_exist() -> None:
    image = image_after(created(partitions=1), elected(), partition_records(A, 1, ((1,), (1,))))
    partitions = image.topics["a"].partitions
    assert [(p.partition, p.leader_epoch) for p in partitions] == [(0, 1), (1, 0), (2, 0)]


def test_a_partition_record_replaces_the_state_of_a_partition_that_exists() -> None:
    image = image_after(created())
    raised = image.topics["a"].partitions[1].with_leader_epoch(7)
    after = image.apply_entry([raised.record(A)])
    assert [p.leader_epoch for p in after.topics["a"].partitions] == [0, 7]


def test_properties_are_set_and_unset_one_by_one() -> None:
    changes = config_records(
        ConfigResourceType.TOPIC, "a", {"x": "1", "y": "2"}, {"y": "3", "z": "4"}
    )
    assert len(changes) == 3
    image = image_after(created(x="1", y="2"), changes)
    assert dict(image.topics["a"].properties) == {"y": "3", "z": "4"}
    own = config_records(ConfigResourceType.BROKER, "7", {}, {"k": "v"})
    all_of_them = config_records(ConfigResourceType.BROKER, ALL_BROKERS, {}, {"k": "w"})
    group = config_records(ConfigResourceType.GROUP, "g", {}, {"k": "x"})
    image = image_after([*own, *all_of_them, *group])
    assert dict(image.broker_properties) == {7: {"k": "v"}, None: {"k": "w"}}
    assert dict(image.group_properties) == {"g": {"k": "x"}}
    gone = config_records(ConfigResourceType.BROKER, "7", {"k": "v"}, {})
    assert dict(image.apply_entry(gone).broker_properties) == {None: {"k": "w"}}


def test_a_deleted_topic_with_an_archive_waits_for_its_purge_and_frees_its_name() -> None:
    before = image_after(topic_records("a", A, ((1,),) * 4, TIERED))
    topic = before.topics["a"]
    image = before.apply_entry(deletion_records(topic.deleted(), topic.properties))
    image = image.apply_entry(created("a", B))
    assert image.topics["a"].topic_id == B
    assert A not in image.topics_by_id
    assert image.pending_purges[A] == DeletedTopic(name="a", topic_id=A, partition_count=4)
    # No property of a broker.
    assert not image.broker_properties
    assert not image.apply_entry([finished_purge_record(A)]).pending_purges


def test_quotas_and_credentials_come_and_go() -> None:
    entity = QuotaEntity.of({"user": "", "client-id": "c"})
    records = [
        *quota_records(entity, {}, {"producer_byte_rate": 5.5, "request_percentage": 1.0}),
        *scram_records("u", {}, {"SCRAM-SHA-512": CREDENTIAL}),
    ]
    image = image_after(records)
    assert image.client_quotas[entity] == {"producer_byte_rate": 5.5, "request_percentage": 1.0}
    assert image.scram_credentials["u"] == {"SCRAM-SHA-512": CREDENTIAL}
    gone = [
        *quota_records(entity, image.client_quotas[entity], {}),
        *scram_records("u", image.scram_credentials["u"], {}),
    ]
    image = image.apply_entry(gone)
    assert not image.client_quotas
    assert not image.scram_credentials


def test_a_broker_registers_changes_and_leaves() -> None:
    image = image_after([registered(3, fenced=True), registered(1)])
    assert [image.brokers[node].fenced for node in (1, 3)] == [False, True]
    unfenced = BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=0, fenced=-1)
    image = image.apply_entry([unfenced])
    assert not image.brokers[3].fenced
    leaving = BrokerRegistrationChangeRecord(
        broker_id=3, broker_epoch=0, in_controlled_shutdown=1, log_dirs=[FOLDER]
    )
    broker = image.apply_entry([leaving]).brokers[3]
    assert (broker.fenced, broker.in_controlled_shutdown, broker.log_dirs) == (
        False,
        True,
        [FOLDER],
    )
    image = image.apply_entry([UnregisterBrokerRecord(broker_id=3, broker_epoch=0)])
    assert set(image.brokers) == {1}


@pytest.mark.parametrize(
    "entries",
    [
        (created(), created("a", B)),
        (created(), created("b", A)),
        ([pending_purge_record(DeletedTopic(name="a", topic_id=A, partition_count=1))], created()),
        (partition_records(A, 0, ((1,),)),),
        (created(), partition_records(A, 3, ((1,),))),
        (created(), elected(2)),
        (elected(),),
        (config_records(ConfigResourceType.TOPIC, "a", {}, {"x": "y"}),),
        (config_records(ConfigResourceType.BROKER, "x", {}, {"x": "y"}),),
        ([ConfigRecord(resource_type=99, resource_name="", name="x", value="y")],),
        ([RemoveTopicRecord(topic_id=A)],),
        (created(), [RemoveTopicRecord(topic_id=A)], [RemoveTopicRecord(topic_id=A)]),
        (created(), [finished_purge_record(A)]),
        (
            [ProducerIdsRecord(broker_id=1, next_producer_id=5)],
            [ProducerIdsRecord(broker_id=1, next_producer_id=4)],
        ),
        ([RemoveUserScramCredentialRecord(name="u", mechanism=9)],),
        ([registered()], [UnregisterBrokerRecord(broker_id=1, broker_epoch=5)]),
        ([BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=0, fenced=1)],),
    ],
)
def test_a_record_that_does_not_fit_is_corrupt_and_named_by_its_entry(
    entries: tuple[Records, ...],
) -> None:
    with pytest.raises(CorruptFile, match=f"metadata log entry {len(entries)}: "):
        image_after(*entries)


def test_a_record_that_an_image_has_no_place_for_is_one_of_a_later_release() -> None:
    token = RemoveDelegationTokenRecord(token_id="t")
    with pytest.raises(UnsupportedFormat, match="RemoveDelegationTokenRecord: a later release"):
        MetadataImage().apply_entry([token])


def test_an_acl_is_known_by_its_id_until_it_is_removed() -> None:
    acl = Acl(2, "a", 3, "User:u", "*", 3, 3)
    image = MetadataImage().apply_entry([acl_record(A, acl)])
    assert (dict(image.acls), dict(image.acl_ids)) == ({A: acl}, {acl: A})
    for misfit in (
        acl_record(A, acl._replace(name="b")),
        acl_record(B, acl),
        RemoveAccessControlEntryRecord(id=B),
    ):
        with pytest.raises(CorruptFile):
            image.apply_entry([misfit])
    image = image.apply_entry([RemoveAccessControlEntryRecord(id=A)])
    assert not image.acls
    assert not image.acl_ids


@given(st.lists(st.integers(0, 6), max_size=12))
def test_replaying_at_once_one_by_one_and_from_a_snapshot_give_the_same_image(
    choices: list[int],
) -> None:
    entries: list[Records] = []
    image = MetadataImage()
    for number, choice in enumerate(choices):
        records: Records
        known = list(image.topics_by_id.values())
        if choice <= 1 or not known:
            records = topic_records(f"t{number}", uuid.UUID(int=number + 1), ((1, 2),), TIERED)
        elif choice == 2:
            records = elected(topic_id=known[0].topic_id)
        elif choice == 3:
            records = partition_records(known[0].topic_id, known[0].partition_count, ((1,),))
        elif choice == 4:
            records = deletion_records(known[-1].deleted(), known[-1].properties)
        elif choice == 5:
            level = FeatureLevelRecord(name="transaction.version", feature_level=number % 3)
            records = [level, registered(number)]
        else:
            name = known[0].name
            records = config_records(ConfigResourceType.TOPIC, name, {}, {"n": str(number)})
        entries.append(records)
        image = image.apply_entry(records)
    assert image_after(*entries) == image
    assert replace(image) == image
    again = MetadataDelta(MetadataImage(version=image.version))
    again.apply(image_records(image))
    again.next_offset = image.next_offset
    assert again.image() == image


def test_only_the_level_that_a_feature_has_in_the_end_must_be_known() -> None:
    """A later release may have raised it, and lowered it before this one was started again."""
    raised, lowered = (
        FeatureLevelRecord(name="transaction.version", feature_level=level) for level in (99, 2)
    )
    delta = MetadataDelta(MetadataImage())
    delta.replay([raised])
    delta.replay([lowered])
    image = delta.image()
    assert image.finalized_level("transaction.version") == 2
    with pytest.raises(UnsupportedFormat, match="a later release set it"):
        image.apply_entry([raised])
