"""The description of a topic in the archive."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from strandline.storage.errors import CorruptFile
from strandline.storage.remote.manifest import topic_info
from strandline.storage.remote.manifest.topic_info import (
    DamagedTopic,
    TopicInfo,
    change_topic_info,
    list_topics,
    load_topic_info,
    save_topic_info,
)
from tests.support.memory_store import MemoryStore

TOPIC_ID = uuid.UUID("00000000-0000-4000-8000-00000000002a")
ORDERS = TopicInfo(
    topic="orders", topic_id=TOPIC_ID, partition_count=3, properties={"retention.ms": "-1"}
)

# --- topic.json ------------------------------------------------------------------------------


def test_a_topic_is_saved_loaded_and_deleted() -> None:
    store = MemoryStore()
    assert load_topic_info(store, "orders", TOPIC_ID) is None
    save_topic_info(store, ORDERS)
    assert load_topic_info(store, "orders", TOPIC_ID) == ORDERS
    store.delete([ORDERS.key])
    assert load_topic_info(store, "orders", TOPIC_ID) is None


def test_a_tombstone_is_part_of_the_description() -> None:
    deleted = TopicInfo.decode(
        TopicInfo(topic="o", topic_id=TOPIC_ID, partition_count=1, deleted_ms=5).encode()
    )
    assert deleted.is_deleted
    assert deleted.deleted_ms == 5
    assert not TopicInfo.decode(ORDERS.encode()).is_deleted


def test_a_description_is_never_written_as_the_same_bytes_again() -> None:
    """Else a hash of it comes back, and with it whoever wanted to write over the one before."""
    assert ORDERS.encode() != ORDERS.encode()
    assert TopicInfo.decode(ORDERS.encode()) == ORDERS


def test_topics_are_found_by_one_listing_and_one_read_each() -> None:
    store = MemoryStore()
    topics = [
        TopicInfo(topic=name, topic_id=uuid.uuid4(), partition_count=1) for name in ("a-x", "b")
    ]
    for info in topics:
        save_topic_info(store, info)
        for number in range(20):
            store.put(f"topics/{info.topic}-{info.topic_id}/0/{number}.log", b"")
    store.put("topics/no-topic/x", b"")
    store.requests.clear()
    assert sorted(list_topics(store), key=lambda info: info.topic) == topics
    assert (store.count_requests("list"), store.count_requests("get")) == (1, 2)
    assert topic_info.FORMAT_VERSION in topic_info.FORMAT_VERSIONS


def test_a_folder_without_description_is_no_topic() -> None:
    store = MemoryStore()
    save_topic_info(store, ORDERS)
    store.put(f"topics/gone-{uuid.uuid4()}/0/manifest.json", b"")
    assert [info.topic for info in list_topics(store)] == ["orders"]


def test_a_description_of_another_topic_is_damage_and_is_put_right_by_who_has_the_topic() -> None:
    """Whole, and copied to the wrong place: its tombstone would be another's, too."""
    store = MemoryStore()
    other = TopicInfo(topic="other", topic_id=uuid.uuid4(), partition_count=7, deleted_ms=1)
    store.put(ORDERS.key, other.encode())
    damaged: list[DamagedTopic] = []
    assert list_topics(store, damaged=damaged) == ()
    assert "describes topic other" in damaged[0].reason
    assert change_topic_info(store, ORDERS, lambda known: ORDERS if known is None else None) is None
    assert list_topics(store) == (ORDERS,)


def test_a_topic_of_more_partitions_than_any_cluster_has_is_corrupt() -> None:
    for partition_count in (topic_info.PARTITION_COUNT_MAX + 1, -1):
        with pytest.raises(CorruptFile):
            TopicInfo.decode(replace(ORDERS, partition_count=partition_count).encode())
