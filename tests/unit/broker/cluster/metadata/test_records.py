"""Records of the metadata log survive JSON, and others are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    decode_record,
    encode_record,
)
from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.remote.manifest.json_document import Fields
from tests.unit.broker.cluster.metadata_rig import created

_REPLICAS = st.lists(
    st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4
).map(tuple)
_IDS = st.uuids()
_PROPERTIES = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
_RECORDS: st.SearchStrategy[MetadataRecord] = st.one_of(
    st.builds(ClusterCreated, cluster_id=st.text()),
    st.builds(BrokerStarted, node_id=st.integers(0, 2**31 - 1)),
    st.builds(
        TopicCreated, topic=st.text(), topic_id=_IDS, replicas=_REPLICAS, properties=_PROPERTIES
    ),
    st.builds(
        PartitionsAdded, topic_id=_IDS, first_partition=st.integers(0, 9), replicas=_REPLICAS
    ),
    st.builds(TopicConfigsSet, topic_id=_IDS, properties=_PROPERTIES),
    st.builds(TopicDeleted, topic_id=_IDS),
    st.builds(TopicPurged, topic_id=_IDS),
    st.builds(ProducerIdsAllocated, next_producer_id=st.integers(0, 2**63 - 1)),
    st.builds(
        LeaderEpochsRaised,
        topic_id=_IDS,
        leader_epochs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**31 - 1))).map(tuple),
    ),
    st.builds(
        BrokerConfigsSet, node_id=st.none() | st.integers(0, 2**31 - 1), properties=_PROPERTIES
    ),
    st.builds(
        ClientQuotasSet,
        entity=_PROPERTIES.map(QuotaEntity.of),
        quotas=st.dictionaries(
            st.text(max_size=5), st.floats(min_value=0, allow_infinity=False), max_size=3
        ),
    ),
    st.builds(FeatureLevelSet, feature=st.text(max_size=9), level=st.integers(0, 9)),
    st.builds(GroupConfigsSet, group_id=st.text(max_size=9), properties=_PROPERTIES),
    st.builds(ScramCredentialsSet, user=st.text(max_size=9), credentials=_PROPERTIES),
)


@given(_RECORDS)
def test_a_record_comes_back_from_json_as_it_was(record: MetadataRecord) -> None:
    written = json.loads(json.dumps(encode_record(record)))
    assert decode_record(Fields(written, "test")) == record


def test_a_record_of_a_newer_release_is_refused_not_skipped() -> None:
    with pytest.raises(UnsupportedFormat, match="teleported"):
        decode_record(Fields({"type": "teleported"}, "test"))


@pytest.mark.parametrize(
    "damage",
    [
        {"topic_id": "no id"},
        {"topic_id": None},
        {"replicas": [[1, 1]]},
        {"replicas": [[0, 1], [2, 1]]},
        {"replicas": [[0, 1], [1, 1], [0, 2]]},
        {"replicas": [[0]]},
        {"properties": {"a": 1}},
        {"topic": 7},
    ],
)
def test_a_record_with_wrong_fields_is_corrupt(damage: dict[str, object]) -> None:
    with pytest.raises(CorruptFile):
        decode_record(Fields({**encode_record(created(0)), **damage}, "test"))  # type: ignore[dict-item]
