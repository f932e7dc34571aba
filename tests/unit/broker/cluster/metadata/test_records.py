"""Facts of ours are the records of Kafka that make them, and nothing more."""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.cluster.metadata.records import (
    DeletedTopic,
    QuotaEntity,
    config_records,
    deletion_records,
    finished_purge_record,
    pending_purge_record,
    purged_topic_id,
    quota_records,
    scram_records,
    topic_records,
)
from strandline.broker.protocol.formats.metadata_records import (
    ClientQuotaRecord,
    ConfigRecord,
    PartitionRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.security.scram import ScramCredential

TOPIC_ID = uuid.UUID(int=7)
ENTITY = QuotaEntity.of({"user": "", "client-id": "c"})


def test_a_topic_is_named_before_its_properties_and_partitions() -> None:
    records = topic_records("t", TOPIC_ID, ((2, 1), (1, 2)), {"retention.ms": "5"})
    kinds = [type(record) for record in records]
    assert kinds == [TopicRecord, ConfigRecord, PartitionRecord, PartitionRecord]
    first = records[2]
    assert isinstance(first, PartitionRecord)
    assert (first.partition_id, first.leader, first.leader_epoch, first.isr) == (0, 2, 0, (2, 1))
    assert len(first.directories) == 2


def test_only_keys_that_differ_have_a_record() -> None:
    before, after = {"same": "1", "gone": "2", "other": "3"}, {"same": "1", "other": "4"}
    records = config_records(ConfigResourceType.GROUP, "g", before, after)
    assert records == [
        ConfigRecord(resource_type=32, resource_name="g", name="other", value="4"),
        ConfigRecord(resource_type=32, resource_name="g", name="gone", value=None),
    ]
    assert config_records(ConfigResourceType.GROUP, "g", after, after) == []


def test_the_default_of_a_type_of_quotas_has_no_name() -> None:
    set_one, removed = quota_records(ENTITY, {"b": 2.0}, {"a": 1.5})
    assert isinstance(set_one, ClientQuotaRecord)
    assert isinstance(removed, ClientQuotaRecord)
    names = [(part.entity_type, part.entity_name) for part in set_one.entity]
    assert names == [("client-id", "c"), ("user", None)]
    assert (set_one.key, set_one.value, set_one.remove) == ("a", 1.5, False)
    assert (removed.key, removed.remove) == ("b", True)


def test_credentials_have_their_mechanisms_number() -> None:
    one = ScramCredential(salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096)
    other = ScramCredential(salt=b"t", stored_key=b"k", server_key=b"v", iterations=4096)
    before = {"SCRAM-SHA-256": one, "SCRAM-SHA-512": one}
    stored, removed = scram_records("u", before, {"SCRAM-SHA-512": other})
    assert isinstance(stored, UserScramCredentialRecord)
    assert (stored.name, stored.mechanism, stored.salt) == ("u", 2, b"t")
    assert removed == RemoveUserScramCredentialRecord(name="u", mechanism=1)


@pytest.mark.parametrize(
    ("properties", "is_noted"),
    [
        ({}, False),
        ({"remote.storage.enable": "false"}, False),
        ({"remote.storage.enable": " TRUE "}, True),
        ({"remote.log.delete.on.disable": "true"}, True),
    ],
)
def test_a_deletion_notes_the_purge_of_what_may_be_archived(
    properties: dict[str, str], is_noted: bool
) -> None:
    topic = DeletedTopic(name="a topic", topic_id=TOPIC_ID, partition_count=3)
    removal, *notes = deletion_records(topic, properties)
    assert removal == RemoveTopicRecord(topic_id=TOPIC_ID)
    assert notes == ([pending_purge_record(topic)] if is_noted else [])


def test_a_note_of_a_purge_is_a_property_of_all_brokers_under_a_name_of_ours() -> None:
    note = finished_purge_record(TOPIC_ID)
    assert (note.resource_type, note.resource_name, note.value) == (4, "", None)
    assert purged_topic_id(note) == TOPIC_ID
    assert purged_topic_id(note.replaced(resource_name="1")) is None
    assert purged_topic_id(note.replaced(name="log.retention.ms")) is None
    with pytest.raises(ValueError, match="badly formed"):
        purged_topic_id(note.replaced(name="strandline.purge.x"))
