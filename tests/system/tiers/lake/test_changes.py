"""What a bucket may lack or lose while it is read: the planned rows, or an error naming it."""

from __future__ import annotations

from pathlib import Path

import crc32c
import pytest

from strandline.spark_lake import scan
from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.spark_lake.query.query import Query
from strandline.storage.errors import (
    AccessDenied,
    ObjectCorrupt,
    ObjectNotFound,
    StrandlineError,
    UnsupportedFormat,
)
from strandline.storage.remote.keys import (
    CLUSTER_KEY,
    manifest_key,
    manifest_page_key,
    new_unique,
)
from strandline.storage.remote.manifest.json_document import encode_document
from strandline.storage.remote.manifest.page import page_ref
from tests.conftest import S3Bucket
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.lake.uploads import uploaded
from tests.system.tiers.log_client import end_of, make_batches
from tests.system.tiers.tiered_broker import SEGMENT_BYTES, TIERED, WAIT_S, Archive, TieredBroker
from tests.unit.spark_lake.archive_builder import read_offsets

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "changing"
# Four closed segments and half of a fifth.
BATCHES = make_batches(size_bytes=9 * SEGMENT_BYTES // 2)


def archived(broker: TieredBroker) -> int:
    """The topic, and where its archive ends."""
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, "segment.bytes": str(SEGMENT_BYTES)})
        client.produce(BATCHES)
        return broker.wait_until_archived(client)


def planned(bucket: S3Bucket) -> tuple[Query, ScanPlan]:
    options = {"s3.endpoint.url": bucket.endpoint_url}
    query = make_query(bucket.url, TOPIC, columns=["offset"], options=options)
    return query, query.plan(query.open())


def test_retention_while_reading_takes_no_row_within_the_grace_time(
    make_broker: MakeBroker, s3_bucket: S3Bucket, archive: Archive
) -> None:
    broker = make_broker(settings={"strandline.remote.delete.grace.ms": "600000"})
    broker.start()
    end = archived(broker)
    query, plan = planned(s3_bucket)
    with broker.client(TOPIC) as client:
        start = client.delete_records(end - 1)

    def has_moved() -> bool:
        manifest = archive.manifest(TOPIC)
        return manifest is not None and manifest.log_start_offset == start

    eventually(has_moved, timeout_s=WAIT_S)
    assert read_offsets(query, plan) == list(range(end))
    assert read_offsets(*planned(s3_bucket)) == list(range(start, end))


def test_retention_while_reading_is_an_error_when_the_objects_are_gone(
    broker: TieredBroker, s3_bucket: S3Bucket, archive: Archive
) -> None:
    end = archived(broker)
    query, plan = planned(s3_bucket)
    with broker.client(TOPIC) as client:
        client.delete_records(end - 1)
        broker.wait_until_deleted_below(client, archive)
    with pytest.raises(ObjectNotFound, match=r"\.log.*run the query again.*grace"):
        read_offsets(query, plan)


def test_a_topic_deleted_while_reading_is_an_error(
    broker: TieredBroker, s3_bucket: S3Bucket, archive: Archive
) -> None:
    assert archived(broker) < end_of(BATCHES)
    topic_id = archive.topic_id(TOPIC)
    query, plan = planned(s3_bucket)
    with broker.client(TOPIC) as client:
        client.delete_topic()
    eventually(lambda: archive.keys(TOPIC, topic_id) == [], timeout_s=WAIT_S)
    with pytest.raises(ObjectNotFound, match=r"\.log.*topic deletion removed it.*run the query"):
        read_offsets(query, plan)
    with pytest.raises(StrandlineError, match=f"has no topic {TOPIC}"):
        planned(s3_bucket)


def test_what_a_later_release_wrote_is_named_with_the_remedy(
    s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    """Topic, manifest, page of a manifest, and `.meta` of a segment; each is mended again."""
    options = {"s3.endpoint.url": s3_bucket.endpoint_url}
    made = uploaded(s3_bucket, tmp_path, records=8000)
    store = Archive.open(s3_bucket).store
    manifest = made.manifest("t")
    within: list[tuple[str, str, object]] = [("offset", "==", 5000)]

    def read() -> list[int]:
        table = scan(s3_bucket.url, "t", columns=["offset"], filters=within, options=options)
        return [int(offset) for offset in table.read_all().column("offset").to_pylist()]

    def refused(key: str, content: bytes) -> None:
        before = store.get(key)
        store.put(key, content)
        says = rf"{key}.*version 99.* later release .*{s3_bucket.url}.*update strandline"
        with pytest.raises(UnsupportedFormat, match=says):
            read()
        store.put(key, before)
        assert read() == [5000]

    root = manifest_key(manifest.topic_id_partition)
    refused(made.topics["t"].info.key, encode_document("strandline-topic", 99, {}))
    refused(root, encode_document("strandline-manifest", 99, {}))
    meta = bytearray(store.get(manifest.segments[-1].meta_key))
    meta[-10:-8] = (99).to_bytes(2, "big")  # in front of the magic
    refused(manifest.segments[-1].meta_key, bytes(meta))
    page = encode_document("strandline-manifest-page", 99, {})
    key = manifest_page_key(
        manifest.topic_id_partition, base_offset=0, end_offset=4000, unique=new_unique()
    )
    store.put(key, page)
    reference = page_ref(key, manifest.segments[:1], crc32c=crc32c.crc32c(page))
    store.put(root, manifest.with_sealed_page(reference).encode())
    within[:] = [("offset", "==", 5)]
    with pytest.raises(UnsupportedFormat, match=rf"{key}.*version 99.*update strandline"):
        read()


def test_a_batch_of_an_unknown_format_is_no_row(s3_bucket: S3Bucket, tmp_path: Path) -> None:
    options = {"s3.endpoint.url": s3_bucket.endpoint_url}
    made = uploaded(s3_bucket, tmp_path)
    key = made.manifest("t").segments[1].log_key
    store = Archive.open(s3_bucket).store
    content = bytearray(store.get(key))
    content[16] = 3
    store.put(key, bytes(content))
    with pytest.raises(ObjectCorrupt, match=rf"{key}.*magic.*startingOffsets"):
        scan(s3_bucket.url, "t", options=options).read_all()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (400, "ExpiredToken"),
        (400, "InvalidToken"),
    ],
)
def test_wrong_credentials_are_told_as_such(
    s3_bucket: S3Bucket, fault_proxy: FaultProxy, tmp_path: Path, status: int, code: str
) -> None:
    """From the first object, and from a segment in the middle: a token may end during a query."""
    uploaded(s3_bucket, tmp_path)
    options = {"s3.endpoint.url": fault_proxy.endpoint_url}
    for path in ("cluster", r"\.log"):
        fault_proxy.clear()
        fault_proxy.add(Rule(action=Action.STATUS, path=path, status=status, code=code, times=-1))
        with pytest.raises(
            AccessDenied, match=rf"{s3_bucket.url}/.*s3\.access\.key and s3\.secret"
        ):
            scan(s3_bucket.url, "t", options=options).read_all()


def test_what_a_bucket_lacks_is_named(s3_bucket: S3Bucket, tmp_path: Path) -> None:
    """No cluster; an object missing in the middle; a corrupt chunk; a format of tomorrow."""
    options = {"s3.endpoint.url": s3_bucket.endpoint_url}

    def refused(kind: type[StrandlineError], says: str) -> None:
        with pytest.raises(kind, match=says):
            scan(s3_bucket.url, "t", options=options).read_all()

    refused(ObjectNotFound, r"cluster\.json.*no strandline archive at.*remote\.url")
    store = Archive.open(s3_bucket).store
    made = uploaded(s3_bucket, tmp_path)
    assert scan(s3_bucket.url, "t", options=options).read_all().num_rows == 600
    middle = made.manifest("t").segments[1].log_key
    content = store.get(middle)
    store.delete([middle])
    refused(ObjectNotFound, rf"{middle}.*run the query again")
    store.put(middle, content[:700] + bytes([content[700] ^ 1]) + content[701:])
    refused(ObjectCorrupt, rf"{middle}.*startingOffsets")
    store.put(middle, content)
    store.put(CLUSTER_KEY, encode_document("strandline-cluster", 99, {"cluster_id": "a" * 22}))
    refused(UnsupportedFormat, r"cluster\.json.*version 99")
