"""Object names."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.model import TopicIdPartition
from strandline.storage.remote import keys
from strandline.storage.remote.keys import ObjectKind
from strandline.storage.remote.object_store.interface import check_key

TOPIC_ID = uuid.UUID("00000000-0000-4000-8000-00000000002a")
ORDERS_3 = TopicIdPartition("orders-eu", TOPIC_ID, 3)
FOLDER = "topics/orders-eu-00000000-0000-4000-8000-00000000002a"

topic_names = st.text(st.sampled_from("abcXYZ019._-"), min_size=1, max_size=249).filter(
    lambda name: name not in (".", "..")
)
partitions = st.builds(
    TopicIdPartition, topic_names, st.uuids(), st.integers(min_value=0, max_value=2**31 - 1)
)
offsets = st.integers(min_value=0, max_value=2**63 - 1)


def test_names_are_what_the_layout_says() -> None:
    names = keys.segment_keys(ORDERS_3, base_offset=42, leader_epoch=7, unique="ab12")
    assert keys.topic_key("orders-eu", TOPIC_ID) == f"{FOLDER}/topic.json"
    assert keys.manifest_key(ORDERS_3) == f"{FOLDER}/3/manifest.json"
    assert names.log_key == f"{FOLDER}/3/00000000000000000042-7-ab12.log"
    assert names.meta_key == f"{FOLDER}/3/00000000000000000042-7-ab12.meta"
    assert (
        keys.manifest_page_key(ORDERS_3, base_offset=0, end_offset=9, unique="ff")
        == f"{FOLDER}/3/manifest/00000000000000000000-00000000000000000009-ff.json"
    )
    assert keys.metadata_log_key(12) == "metadata/log/00000000000000000012.json"


@given(partitions, offsets, offsets, st.integers(min_value=0, max_value=2**31 - 1))
def test_each_name_can_be_taken_apart_again(
    partition: TopicIdPartition, base_offset: int, end_offset: int, epoch: int
) -> None:
    unique = keys.new_unique()
    names = keys.segment_keys(partition, base_offset=base_offset, leader_epoch=epoch, unique=unique)
    for key, kind in [(names.log_key, ObjectKind.LOG), (names.meta_key, ObjectKind.META)]:
        found = keys.parse_partition_object(check_key(key))
        assert found is not None
        assert (found.kind, found.partition, found.unique) == (kind, partition, unique)
        assert (found.base_offset, found.leader_epoch) == (base_offset, epoch)
    page = keys.manifest_page_key(
        partition, base_offset=base_offset, end_offset=end_offset, unique=unique
    )
    found = keys.parse_partition_object(check_key(page))
    assert found is not None
    assert (found.kind, found.end_offset) == (ObjectKind.MANIFEST_PAGE, end_offset)
    found = keys.parse_partition_object(keys.manifest_key(partition))
    assert found is not None
    assert (found.kind, found.partition) == (ObjectKind.MANIFEST, partition)


@given(topic_names, st.uuids())
def test_a_topic_folder_gives_topic_and_id_whatever_dashes_it_has(
    topic: str, topic_id: uuid.UUID
) -> None:
    folder = keys.topic_folder(topic, topic_id).removeprefix(keys.TOPICS_PREFIX)
    for name in (folder, folder.rstrip("/")):
        found = keys.parse_topic_folder(name)
        assert found is not None
        assert (found.topic, found.topic_id) == (topic, topic_id)


@pytest.mark.parametrize(
    "key",
    [
        "cluster.json",
        f"{FOLDER}/topic.json",
        f"{FOLDER}/03/manifest.json",
        f"{FOLDER}/3/other.json",
        f"{FOLDER}/3/00000000000000000042-7-ab12.txt",
        f"{FOLDER}/3/42-7-ab12.log",
        f"{FOLDER}/3/manifest/1-2-ff.json",
        "topics/orders/3/manifest.json",
        "topics//3/manifest.json",
        "elsewhere/orders/3/manifest.json",
    ],
)
def test_foreign_names_are_nothing_of_ours(key: str) -> None:
    assert keys.parse_partition_object(key) is None


@pytest.mark.parametrize("name", ["", "orders", "-00000000-0000-4000-8000-00000000002a", "a/b"])
def test_foreign_folders_are_no_topics(name: str) -> None:
    assert keys.parse_topic_folder(name) is None


def test_metadata_names_give_their_index_and_sort_by_it() -> None:
    names = [keys.metadata_log_key(index) for index in (0, 9, 10, 2**63)]
    assert names == sorted(names)
    assert [keys.parse_metadata_key(name) for name in names] == [0, 9, 10, 2**63]
    assert keys.parse_metadata_key(keys.metadata_snapshot_key(5)) == 5
    assert keys.parse_metadata_key("metadata/log/5.json") is None


def test_no_two_uploads_have_the_same_name() -> None:
    assert len({keys.new_unique() for _ in range(1000)}) == 1000
