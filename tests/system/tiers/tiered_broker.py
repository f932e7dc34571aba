"""A broker process with a remote tier, and the archive as somebody sees it who has only the bucket.

Everything happens as fast as it can: segments of 1 MiB (the smallest there are), tiering and
retention every fraction of a second, no delays and no grace before deleting.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.storage.crash_points import ENVIRONMENT_VARIABLE
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.keys import (
    ObjectKind,
    parse_partition_object,
    topic_folder,
)
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.topic_info import list_topics
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.open_store import open_store
from strandline.storage.tiering.audit.findings import Finding
from strandline.storage.tiering.audit.orphans import BucketComparison, Orphan, compare
from strandline.storage.tiering.audit.scrub import Depth, Scrub
from strandline.storage.tiering.rewrite.scratch import SCRATCH_FOLDER
from tests.conftest import S3Bucket
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.tiers.log_client import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LogClient,
)

T = TypeVar("T")

REGION = "us-east-1"
SEGMENT_BYTES = 1024 * 1024
# Seconds that anything may take that the broker does by itself; on a loaded machine a fair few.
WAIT_S = 60.0
# Later than any clock: with this every object is old enough to be called an orphan.
END_OF_TIME_MS = 2**62

BROKER_SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "0",
    "log.segment.bytes": str(SEGMENT_BYTES),
    "log.retention.ms": "-1",
    "strandline.remote.delete.grace.ms": "0",
    "strandline.remote.changes.interval.ms": "100",
    # A cold read in a test comes from the bucket, not from what an earlier one left on disk.
    "strandline.remote.cache.disk.bytes": "0",
}
TIERED = {"remote.storage.enable": "true"}
# Of a broker that follows another one's archive.
REPLICA = {
    "strandline.remote.replica.poll.ms": "100",
    "offsets.topic.num.partitions": "1",
    "node.id": "7",
}
# Local copies go as soon as they are archived, but for the active segment: it is not rolled.
FREE_LOCALLY = {"local.retention.bytes": "1"}
# The active segment is closed and archived too, once nothing else waits.
ARCHIVE_ALL = {"local.retention.ms": "1"}


@dataclass(frozen=True, slots=True)
class Archive:
    """The bucket of one test, read past every proxy and without a broker."""

    bucket: S3Bucket
    store: ObjectStore

    @classmethod
    def open(cls, bucket: S3Bucket) -> Archive:
        return cls(bucket, open_store(bucket.url, endpoint_url=bucket.endpoint_url, region=REGION))

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """The id of the live topic of that name; None while the bucket does not know it."""
        for info in list_topics(self.store):
            if info.topic == topic and not info.is_deleted:
                return info.topic_id
        return None

    def manifest(self, topic: str, partition: int = 0) -> Manifest | None:
        """The committed manifest; None if there is none."""
        topic_id = self.topic_id(topic)
        if topic_id is None:
            return None
        stored = manifest_store.load(self.store, TopicIdPartition(topic, topic_id, partition))
        return None if stored is None else stored.manifest

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """Exclusive end of what is committed; 0 if nothing is."""
        manifest = self.manifest(topic, partition)
        return 0 if manifest is None or manifest.is_empty else manifest.end_offset

    def tail_end_offset(self, topic: str) -> int:
        """The same with the pieces of the open segment."""
        manifest = self.manifest(topic)
        return 0 if manifest is None else manifest.tail_end_offset

    def segments(self, topic: str, partition: int = 0) -> tuple[SegmentEntry, ...]:
        """The committed segments, checked to follow each other without a gap."""
        manifest = self.manifest(topic, partition)
        if manifest is None:
            return ()
        assert not manifest.pages, manifest
        for before, after in zip(manifest.segments, manifest.segments[1:], strict=False):
            assert before.end_offset == after.base_offset, (before, after)
        return manifest.segments

    def keys(self, topic: str | None = None, topic_id: uuid.UUID | None = None) -> list[str]:
        """Every key in the bucket, or in the folder of one incarnation of a topic."""
        return self.below(
            "" if topic is None or topic_id is None else topic_folder(topic, topic_id)
        )

    def below(self, prefix: str) -> list[str]:
        """Every key that begins so."""
        return [info.key for info in self.store.list(prefix)]

    def contents(self) -> dict[str, bytes]:
        """The whole bucket."""
        return {info.key: self.store.get(info.key) for info in self.store.list("")}

    def uploads(self, kind: ObjectKind = ObjectKind.LOG, *, topic: str | None = None) -> list[str]:
        """Keys of all segment objects of that kind, committed or not; of one topic, or of all."""
        found = ((key, parse_partition_object(key)) for key in self.keys())
        return [
            key
            for key, parsed in found
            if parsed is not None
            and parsed.kind is kind
            and topic in (None, parsed.partition.topic)
        ]

    def at_one_moment(self, look: Callable[[], T]) -> T:
        """What `look` finds while nobody changes the bucket: it is done again until that is so.

        A merge between two listings, or a deletion without any grace time after the manifest was
        read, would look like an orphan, or like something missing.
        """
        given_up_s = time.monotonic() + WAIT_S
        before = self._etags()
        while True:
            found = look()
            after = self._etags()
            if before == after:
                return found
            assert time.monotonic() < given_up_s, "the bucket changes all the time"
            before = after

    def _etags(self) -> dict[str, str]:
        return {info.key: info.etag for info in self.store.list("")}

    def compare(self) -> BucketComparison:
        """The bucket against its manifests, with every object old enough to be an orphan."""
        return self.at_one_moment(lambda: compare(self.store, now_ms=END_OF_TIME_MS, grace_ms=0))

    def check_uploads(self, topic: str, partitions: int = 1) -> None:
        """What manifests name is there, and the orphans are just what no manifest names."""
        found = self.at_one_moment(lambda: self._uploads(topic, partitions))
        assert found.live <= found.uploaded
        assert found.orphans == found.uploaded - found.live - found.marked

    def _uploads(self, topic: str, partitions: int) -> _Uploads:
        live: set[str] = set()
        marked: set[str] = set()
        for partition in range(partitions):
            for entry in self.segments(topic, partition):
                live |= {entry.log_key, entry.meta_key}
            manifest = self.manifest(topic, partition)
            if manifest is not None:
                marked |= {key for mark in manifest.deleting for key in mark.keys}
        uploaded = {*self.uploads(ObjectKind.LOG), *self.uploads(ObjectKind.META)}
        orphans = {orphan.key for orphan in self.orphans()}
        return _Uploads(live=live, marked=marked, uploaded=uploaded, orphans=orphans)

    def wait_until_tidy(self) -> None:
        """Returns when there is no orphan: an upload that is under way looks like one."""
        eventually(lambda: not self.orphans(), timeout_s=WAIT_S)

    def orphans(self) -> tuple[Orphan, ...]:
        """Objects that nothing refers to; fails if something that is referred to is missing."""
        found = self.compare()
        assert found.missing_keys == (), found.missing_keys
        assert found.unreadable == (), found.unreadable
        return found.orphans

    def findings(self) -> list[Finding]:
        """What a scrub of every live partition complains about: every byte is read."""
        with ThreadPoolExecutor(4) as executor:
            scrub = Scrub(self.store, executor, depth=Depth.EVERYTHING)
            return [
                finding
                for info in list_topics(self.store)
                if not info.is_deleted
                for number in range(info.partition_count)
                for finding in scrub.check(
                    TopicIdPartition(info.topic, info.topic_id, number)
                ).findings
            ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uploads:
    """Keys of segment objects: which manifests name, which they let go, which lie there."""

    live: set[str]
    marked: set[str]
    uploaded: set[str]
    orphans: set[str]


class TieredBroker(BrokerProcess):
    """`strandline serve` with its remote tier in the bucket of a test."""

    def __init__(
        self,
        folder: Path,
        bucket: S3Bucket,
        *,
        endpoint_url: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`endpoint_url` is that of a proxy in front of the bucket's server, if there is one."""
        self.bucket = bucket
        super().__init__(
            folder,
            settings={
                **BROKER_SETTINGS,
                "strandline.remote.url": bucket.url,
                "strandline.remote.s3.endpoint.url": endpoint_url or bucket.endpoint_url,
                "strandline.remote.s3.region": REGION,
                **(settings or {}),
            },
        )

    def client(self, topic: str, partition: int = 0) -> LogClient:
        """A connection for one partition."""
        return LogClient(self.port, topic, partition)

    def start_to_crash_at(self, point: str) -> None:
        """Starts a broker that dies where `crash_points` says."""
        self.environment[ENVIRONMENT_VARIABLE] = point
        try:
            self.start()
        finally:
            del self.environment[ENVIRONMENT_VARIABLE]

    def alter_topic(self, topic: str, properties: Mapping[str, str | None]) -> int:
        """Changes properties of the topic, None: back to the default; the error code."""
        resource = IncrementalAlterConfigsResource(
            resource_type=ConfigResourceType.TOPIC,
            resource_name=topic,
            configs=[
                IncrementalConfig(
                    name=name,
                    config_operation=ConfigOperation.DELETE
                    if value is None
                    else ConfigOperation.SET,
                    value=value,
                )
                for name, value in properties.items()
            ],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        with WireClient(self.port) as client:
            (result,) = client.ask(request, IncrementalAlterConfigsResponse, 1).responses
        return result.error_code

    def segment_files(self, topic: str, partition: int = 0) -> list[Path]:
        """The partition's local segments, oldest first, without those that are being deleted."""
        return sorted((self.data / f"{topic}-{partition}").glob("*.log"))

    def scratch_files(self) -> list[Path]:
        """What lies on the disk on its way to the bucket: of merges and compactions there."""
        return [path for path in (self.data / SCRATCH_FOLDER).rglob("*") if path.is_file()]

    def warnings(self, text: str = "") -> list[str]:
        """Log lines at WARNING and above that contain `text`."""
        return [
            line
            for line in self.log_text().splitlines()
            if text in line and any(f" {level} " in line for level in ("WARNING", "ERROR"))
        ]

    # --- waiting -----------------------------------------------------------------------------

    def wait_until_archived(self, client: LogClient) -> int:
        """Returns when every closed segment is in the archive: where the others begin."""

        def archived() -> bool:
            files = self.segment_files(client.topic, client.partition)
            return client.offset_at(EARLIEST_PENDING_UPLOAD) == int(files[-1].stem)

        eventually(archived, timeout_s=WAIT_S)
        return client.offset_at(EARLIEST_PENDING_UPLOAD)

    def wait_until_freed(self, client: LogClient, *, files_kept: int = 1) -> int:
        """Returns when the disk has only so many segments (one is the active): the local start."""

        def freed() -> bool:
            files = self.segment_files(client.topic, client.partition)
            is_few = len(files) == files_kept
            return is_few and client.offset_at(EARLIEST_LOCAL) == int(files[0].stem)

        eventually(freed, timeout_s=WAIT_S)
        return client.offset_at(EARLIEST_LOCAL)

    def wait_until_all_cold(self, client: LogClient) -> int:
        """Returns when every record lies in the archive alone: where the log ends."""

        def all_cold() -> bool:
            return client.offset_at(EARLIEST_LOCAL) == client.offset_at(LATEST)

        eventually(all_cold, timeout_s=WAIT_S)
        return client.offset_at(LATEST)

    def wait_until_deleted_below(self, client: LogClient, archive: Archive) -> Manifest:
        """Returns when the bucket has nothing below the log start, and no deletion under way."""
        found: list[Manifest] = []

        def deleted() -> bool:
            start = client.offset_at(EARLIEST)
            manifest = archive.manifest(client.topic, client.partition)
            if manifest is None or manifest.deleting or manifest.log_start_offset != start:
                return False
            found.append(manifest)
            return all(entry.end_offset > start for entry in manifest.segments)

        eventually(deleted, timeout_s=WAIT_S)
        return found[-1]
