"""Storage class and tags of a topic's segments, and what a reader of a frozen one is told."""

from __future__ import annotations

import boto3.session
import pytest

from tests.support.broker import eventually
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import end_of, make_batches
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    REGION,
    SEGMENT_BYTES,
    TIERED,
    Archive,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "classy"
KAFKA_STORAGE_ERROR = 56
BATCHES = make_batches(size_bytes=3 * SEGMENT_BYTES // 2)
CLASS = "strandline.remote.storage.class"
TAGS = "strandline.remote.object.tags"


def test_segments_have_the_class_and_tags_of_their_topic_and_manifests_have_not(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker()
    broker.start()
    with broker.client(TOPIC) as client:
        client.create_topic(
            {**TIERED, **FREE_LOCALLY, CLASS: "STANDARD_IA", TAGS: "team=air, cost-centre=7"}
        )
        client.produce(BATCHES)
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        assert client.read(0, end_of(BATCHES)) == BATCHES
    s3 = boto3.session.Session().client(
        "s3", endpoint_url=archive.bucket.endpoint_url, region_name=REGION
    )
    (entry,) = archive.segments(TOPIC)
    name = archive.bucket.name
    found = s3.head_object(Bucket=name, Key=f"archive/{entry.log_key}")
    assert found.get("StorageClass") == "STANDARD_IA"
    tags = s3.get_object_tagging(Bucket=name, Key=f"archive/{entry.log_key}")["TagSet"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {"team": "air", "cost-centre": "7"}
    meta = s3.head_object(Bucket=name, Key=f"archive/{entry.meta_key}")
    assert meta.get("StorageClass", "STANDARD") == "STANDARD"
    s3.close()


def test_a_frozen_segment_is_neither_missing_nor_corrupt(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.start()
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY, CLASS: "GLACIER"})
        client.produce(BATCHES)
        broker.wait_until_archived(client)
        border = broker.wait_until_freed(client)
        # Retriable for every client: somebody may have it restored meanwhile. An answer whose time
        # ran out before the store's came has neither records nor an error.
        refused = eventually(lambda: client.fetch(0).error_code)
        assert refused == KAFKA_STORAGE_ERROR
        # The log says what can be done about it.
        lines = broker.warnings("InvalidObjectState")
        assert lines
        assert all("have S3 restore it (RestoreObject)" in line for line in lines)
        hot = [batch for batch in BATCHES if end_of([batch]) > border]
        assert client.read(border, end_of(BATCHES)) == hot
