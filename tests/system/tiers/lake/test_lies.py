"""A store that says "not found" of what is there: the rows, or an error; never fewer rows.

The proxy answers 404 in the store's place: now and then, as a replica that lags behind does, or
always, as if the object was lost.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from strandline.spark_lake import count, scan
from strandline.spark_lake.archive.catalog import Catalog
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.options.options import S3Options
from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.spark_lake.spark.stream import StrandlineStreamReader
from strandline.storage.errors import InvalidConfig, ObjectNotFound
from strandline.storage.remote.keys import (
    CHANGES_KEY,
    GROUPS_PREFIX,
    METADATA_PREFIX,
    TRANSACTIONS_PREFIX,
)
from strandline.storage.remote.open_store import open_store
from tests.conftest import S3Bucket
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.system.tiers.lake.uploads import upload
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

pytestmark = [pytest.mark.slow, pytest.mark.s3]

LOST = r"the store says that it does not exist, and yet its folder holds.*put it back"


def lie(path: str, *, times: int = -1) -> Rule:
    return Rule(action=Action.STATUS, path=path, status=404, code="NoSuchKey", times=times)


@pytest.fixture
def archive(s3_bucket: S3Bucket, tmp_path: Path) -> ArchiveBuilder:
    """Topics `t`, with records in two of three partitions, and `u`; all of it in the bucket."""
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t", partitions=3)
    archive.add_topic("u")
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        archive.add_segment(topic, make_batches(make_records(100)), partition=partition)
    upload(archive, s3_bucket)
    return archive


@pytest.fixture
def options(fault_proxy: FaultProxy) -> dict[str, str]:
    return {"s3.endpoint.url": fault_proxy.endpoint_url}


def rows(bucket: S3Bucket, options: dict[str, str], **selection: str) -> int:
    found = scan(bucket.url, columns=["offset"], options={**options, **selection})
    return int(found.read_all().num_rows)


def test_a_manifest_that_is_denied_once_is_read_after_all(
    archive: ArchiveBuilder, s3_bucket: S3Bucket, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    assert rows(s3_bucket, options, subscribe="t") == 200
    rule = lie("/1/manifest.json", times=1)
    fault_proxy.add(rule)
    assert rows(s3_bucket, options, subscribe="t") == 200
    assert rule.hit_count == 1


def test_a_manifest_that_is_denied_is_not_taken_for_an_empty_partition(
    archive: ArchiveBuilder, s3_bucket: S3Bucket, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(lie("/1/manifest.json"))
    says = rf"{s3_bucket.url}/topics/t-.*/1/manifest\.json: {LOST}"
    with pytest.raises(ObjectNotFound, match=says):
        rows(s3_bucket, options, subscribe="t")
    with pytest.raises(ObjectNotFound, match=says):
        count(s3_bucket.url, "t", options=options)
    assert rows(s3_bucket, options, assign='{"t": [0, 2]}') == 100


def test_a_topic_that_is_denied_is_not_left_out_of_a_pattern(
    archive: ArchiveBuilder, s3_bucket: S3Bucket, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(lie(r"/t-[^/]*/topic.json", times=1))
    assert rows(s3_bucket, options, subscribePattern=".*") == 300
    fault_proxy.clear()
    fault_proxy.add(lie(r"/t-[^/]*/topic.json"))
    for selection in ({"subscribePattern": ".*"}, {"subscribe": "t"}):
        with pytest.raises(ObjectNotFound, match=rf"topics/t-.*/topic\.json: {LOST}"):
            rows(s3_bucket, options, **selection)
    reader = ObjectReader(s3_bucket.url, S3Options(endpoint_url=fault_proxy.endpoint_url))
    with pytest.raises(ObjectNotFound, match=LOST):
        Catalog(reader).topic_names()
    assert rows(s3_bucket, options, subscribe="u") == 100


def test_a_lost_topic_description_is_missed_and_what_a_purge_left_is_not(
    archive: ArchiveBuilder, s3_bucket: S3Bucket, options: dict[str, str]
) -> None:
    store = open_store(s3_bucket.url, endpoint_url=s3_bucket.endpoint_url, region="us-east-1")
    info = archive.topics["t"].info
    store.delete([info.key])
    with pytest.raises(ObjectNotFound, match=rf"{info.key}: {LOST}"):
        rows(s3_bucket, options, subscribePattern=".*")
    folder = info.key.removesuffix("topic.json")
    store.delete([f"{folder}{partition}/manifest.json" for partition in (0, 1)])
    assert rows(s3_bucket, options, subscribePattern=".*") == 100


def test_a_batch_of_a_stream_is_not_planned_without_a_manifest_it_had(
    archive: ArchiveBuilder, s3_bucket: S3Bucket, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    given = {"path": s3_bucket.url, "subscribe": "t", "startingOffsets": "earliest", **options}
    for more in ({}, {"failOnDataLoss": "false"}):
        source = StrandlineDataSource({**given, **more})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StrandlineStreamReader)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        fault_proxy.add(lie("/1/manifest.json"))
        with pytest.raises(ObjectNotFound, match=LOST):
            reader.latestOffset(start, reader.getDefaultReadLimit())
        with pytest.raises(ObjectNotFound, match=LOST):
            reader.partitions(start, end)
        fault_proxy.clear()
        found = [batch for one in reader.partitions(start, end) for batch in reader.read(one)]
        assert sum(batch.num_rows for batch in found) == 200


def test_what_is_asked_of_the_bucket_is_what_the_policy_allows(
    archive: ArchiveBuilder, s3_bucket: S3Bucket, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    """S3 takes the key of a missing object for the prefix when it asks whether to say 404."""
    objects, listing = policy("IAM policy for readers")
    prefix = s3_bucket.url.removeprefix(f"s3://{s3_bucket.name}/")
    keys = [
        one.removeprefix("arn:aws:s3:::my-bucket/").replace("my-prefix", prefix)
        for one in objects["Resource"]
    ]
    keys += [one.replace(prefix, "other") for one in keys]
    allowed = [
        pattern.replace("my-prefix", prefix)
        for pattern in listing["Condition"]["StringLike"]["s3:prefix"]
    ]
    assert rows(s3_bucket, options, subscribePattern=".*") == 300
    middle = {"startingTimestamp": "1700000050000", "assign": '{"t": [0, 1]}'}
    assert rows(s3_bucket, options, **middle) == 100
    with pytest.raises(InvalidConfig, match="has no topic v"):
        rows(s3_bucket, options, subscribe="v")
    with pytest.raises(ObjectNotFound, match="no strandline archive"):
        scan(f"s3://{s3_bucket.name}/other", "t", options=options)
    allowed += [pattern.replace(prefix, "other") for pattern in allowed]
    asked = {(one.method, *one.path.partition("?")[::2]) for one in fault_proxy.seen}
    assert len(asked) > 10
    for method, path, query in asked:
        assert method == "GET", path
        key = path.removeprefix(f"/{s3_bucket.name}").removeprefix("/")
        if key:
            assert any(fnmatch.fnmatchcase(key, one) for one in keys), key
            continue
        (listed,) = parse_qs(query)["prefix"]
        assert any(fnmatch.fnmatchcase(listed, one) for one in allowed), listed
    for private in (METADATA_PREFIX, GROUPS_PREFIX, TRANSACTIONS_PREFIX, CHANGES_KEY):
        assert not any(fnmatch.fnmatchcase(f"{prefix}/{private}", one) for one in keys + allowed)
    missing = [f"{prefix}/topics/t-x/2/manifest.json", "other/cluster.json"]
    assert all(any(fnmatch.fnmatchcase(one, pattern) for pattern in allowed) for one in missing)


def test_a_query_of_one_topic_asks_for_what_the_policy_for_one_topic_allows(
    archive: ArchiveBuilder, s3_bucket: S3Bucket, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    objects, listing = policy("IAM policy for readers of one topic")
    prefix = s3_bucket.url.removeprefix(f"s3://{s3_bucket.name}/")
    folder = f"t-{archive.topics['t'].info.topic_id}"

    def ours(patterns: list[str]) -> list[str]:
        return [one.replace("my-prefix", prefix).replace("orders-ID", folder) for one in patterns]

    keys = [one.removeprefix("arn:aws:s3:::my-bucket/") for one in ours(objects["Resource"])]
    prefixes = ours(listing["Condition"]["StringLike"]["s3:prefix"])
    assert rows(s3_bucket, options, subscribe="t") == 200
    assert rows(s3_bucket, options, assign='{"t": [0]}') == 100
    asked = {one.path.partition("?")[::2] for one in fault_proxy.seen}
    assert len(asked) > 5
    for path, query in asked:
        key = path.removeprefix(f"/{s3_bucket.name}").removeprefix("/")
        wanted, allowed = (key, keys) if key else (parse_qs(query)["prefix"][0], prefixes)
        assert any(fnmatch.fnmatchcase(wanted, one) for one in allowed), wanted
    other = f"{prefix}/topics/u-{archive.topics['u'].info.topic_id}/topic.json"
    assert not any(fnmatch.fnmatchcase(other, one) for one in keys)


def policy(heading: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The statements on objects and on listings in the policy of this section of bucket.md."""
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "bucket.md").read_text()
    section = page[page.index(f"## {heading}\n") :]
    block = re.findall(r"```json\n(.*?)```", section, re.DOTALL)[0]
    objects, listing = json.loads(block)["Statement"]
    assert (objects["Action"], listing["Action"]) == ("s3:GetObject", "s3:ListBucket")
    return objects, listing


def test_folders_without_objects_are_no_evidence(tmp_path: Path) -> None:
    """A disk keeps the folders of what was deleted, a bucket does not."""
    archive = ArchiveBuilder(tmp_path)
    for topic in ("t", "purged"):
        archive.add_topic(topic, partitions=2)
        archive.add_segment(topic, make_batches(make_records(10)))
    (archive.path / archive.topics["t"].info.key).with_name("1").joinpath("manifest").mkdir(
        parents=True
    )
    folder = (archive.path / archive.topics["purged"].info.key).parent
    shutil.rmtree(folder)
    folder.joinpath("0", "manifest").mkdir(parents=True)
    found = scan(archive.url, columns=["offset"], options={"subscribePattern": ".*"})
    assert found.read_all().num_rows == 10
