"""Storage usage counts every billed object once."""

from __future__ import annotations

import uuid

import pytest

from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.keys import (
    GROUPS_PREFIX,
    METADATA_BOUNDARY_KEY,
    manifest_key,
    manifest_page_key,
    metadata_log_key,
    segment_keys,
    state_key,
    tail_key,
    topic_key,
)
from strandline.storage.remote.s3.usage import ObjectVersion
from strandline.storage.tiering.audit.usage import SMALL_BYTES, Sum, kind_of, sum_up, topic_of

TOPIC_ID = uuid.UUID(int=0x5EED << 64 | 7)
PARTITION = TopicIdPartition("orders", TOPIC_ID, 3)
KEYS = segment_keys(PARTITION, base_offset=0, leader_epoch=0, unique="ab")


def version(
    key: str, size_bytes: int, storage_class: str = "STANDARD", *, is_current: bool = True
) -> ObjectVersion:
    return ObjectVersion(
        key=key, size_bytes=size_bytes, storage_class=storage_class, is_current=is_current
    )


@pytest.mark.parametrize(
    ("key", "kind", "topic"),
    [
        (KEYS.log_key, "segments", "orders"),
        (KEYS.meta_key, "indexes", "orders"),
        (tail_key(PARTITION, base_offset=0, leader_epoch=0, unique="a"), "open", "orders"),
        (manifest_key(PARTITION), "manifests", "orders"),
        (
            manifest_page_key(PARTITION, base_offset=0, end_offset=9, unique="a"),
            "manifests",
            "orders",
        ),
        (topic_key("orders", TOPIC_ID), "manifests", "orders"),
        (f"topics/orders-{TOPIC_ID}/0/strange", "other", "orders"),
        ("topics/strange/topic.json", "other", ""),
        ("cluster.json", "metadata", ""),
        ("changes.json", "metadata", ""),
        (metadata_log_key(4), "metadata", ""),
        (METADATA_BOUNDARY_KEY, "metadata", ""),
        (state_key(GROUPS_PREFIX, 7), "metadata", ""),
        ("somebody/elses", "other", ""),
    ],
)
def test_every_object_has_a_kind_and_a_topic_or_none(key: str, kind: str, topic: str) -> None:
    assert (kind_of(key), topic_of(key)) == (kind, topic)


def told(found: Sum) -> tuple[int, int]:
    return found.object_count, found.size_bytes


def test_older_versions_are_billed_and_belong_to_nothing_else() -> None:
    usage = sum_up(
        [
            version(KEYS.log_key, SMALL_BYTES, "GLACIER_IR"),
            version(KEYS.meta_key, SMALL_BYTES - 1),
            version(manifest_key(PARTITION), 10),
            version(manifest_key(PARTITION), 7, is_current=False),
            ObjectVersion(
                key=KEYS.log_key,
                size_bytes=0,
                storage_class="",
                is_current=False,
                is_delete_marker=True,
            ),
        ]
    )
    assert told(usage.current) == (3, 2 * SMALL_BYTES + 9)
    assert {name: told(found) for name, found in usage.by_topic.items()} == {
        "orders": (3, 2 * SMALL_BYTES + 9)
    }
    assert {name: told(found) for name, found in usage.by_class.items()} == {
        "GLACIER_IR": (1, SMALL_BYTES),
        "STANDARD": (3, SMALL_BYTES + 16),
    }
    assert told(usage.small) == (2, SMALL_BYTES + 9)
    assert told(usage.older) == (1, 7)
    assert usage.delete_marker_count == 1
