"""What lies where: the archive as its manifests say, the local tier as its folders show."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.children import Child
from demo.screen import Bar, DemoError, in_mb
from demo.settings import (
    PARTITION_COUNT,
    REGION,
    STALL_SECONDS_MAX,
    TOPIC,
    Settings,
)
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.topic_info import TopicInfo, list_topics
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.open_store import open_store

LOOK_SECONDS = 0.3
# Twice the interval of the broker's retention check: within it, something more would have moved.
SETTLED_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTiers:
    """One partition: `[0, remote_end_offset)` is archived, from `local_start_offset` on it is on
    the local disk, and the last local file is the active segment."""

    partition: int
    end_offset: int
    remote_end_offset: int
    remote_segment_count: int
    remote_bytes: int
    local_start_offset: int
    local_segment_count: int
    local_bytes: int
    active_base_offset: int

    @property
    def is_settled(self) -> bool:
        """Every closed segment is archived, and the disk holds nothing but the active one."""
        is_archived = self.remote_end_offset == self.active_base_offset
        return is_archived and self.local_start_offset == self.active_base_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentFile:
    base_offset: int
    size_bytes: int


class TierWatcher:
    """Looks at both tiers from outside, as an operator could."""

    def __init__(self, settings: Settings, end_offsets: dict[int, int]) -> None:
        self._settings = settings
        self._end_offsets = end_offsets
        self._store = open_archive(settings)
        self._topic = find_topic(self._store)

    def look(self) -> list[PartitionTiers]:
        return [self._look_at(partition) for partition in range(PARTITION_COUNT)]

    def wait_until_settled(self, child: Child, archived: Bar, freed: Bar) -> list[PartitionTiers]:
        """Returns when all closed segments are archived, their local copies are gone, and it stays
        so: an active segment may outlive the local retention too, and is closed then."""
        moved_at, seen = time.monotonic(), self.look()
        while True:
            _show(seen, archived, freed)
            time.sleep(LOOK_SECONDS)
            now = self.look()
            if now != seen:
                moved_at, seen = time.monotonic(), now
            still_seconds = time.monotonic() - moved_at
            if still_seconds > SETTLED_SECONDS and all(tiers.is_settled for tiers in seen):
                return seen
            if still_seconds > STALL_SECONDS_MAX:
                raise child.failure("moves nothing to the archive any more")
            child.check()

    def archived_end_offsets(self) -> dict[int, int]:
        """Per partition the exclusive end of the archive."""
        return {tiers.partition: tiers.remote_end_offset for tiers in self.look()}

    def _look_at(self, partition: int) -> PartitionTiers:
        stored = manifest_store.load(
            self._store, TopicIdPartition(TOPIC, self._topic.topic_id, partition)
        )
        files = _segment_files(self._settings.partition_folder(partition))
        manifest = stored.manifest if stored else None
        return PartitionTiers(
            partition=partition,
            end_offset=self._end_offsets[partition],
            remote_end_offset=manifest.end_offset if manifest else 0,
            remote_segment_count=manifest.segment_count if manifest else 0,
            remote_bytes=manifest.size_bytes if manifest else 0,
            local_start_offset=files[0].base_offset,
            local_segment_count=len(files),
            local_bytes=sum(file.size_bytes for file in files),
            active_base_offset=files[-1].base_offset,
        )


def open_archive(settings: Settings) -> ObjectStore:
    return open_store(settings.remote_url, endpoint_url=settings.s3_url, region=REGION)


def find_topic(store: ObjectStore) -> TopicInfo:
    """The topic as the bucket describes it."""
    for topic in list_topics(store):
        if topic.topic == TOPIC and not topic.is_deleted:
            return topic
    raise DemoError(f"the bucket does not know a topic {TOPIC}")


def tier_rows(partitions: Sequence[PartitionTiers]) -> list[list[object]]:
    """Rows of the table, and their sum."""
    rows: list[list[object]] = [
        [
            str(tiers.partition),
            tiers.end_offset,
            tiers.remote_segment_count,
            tiers.remote_end_offset,
            in_mb(tiers.remote_bytes),
            tiers.local_segment_count,
            tiers.end_offset - tiers.local_start_offset,
            in_mb(tiers.local_bytes),
        ]
        for tiers in partitions
    ]
    rows.append(
        [
            "all",
            sum(tiers.end_offset for tiers in partitions),
            sum(tiers.remote_segment_count for tiers in partitions),
            sum(tiers.remote_end_offset for tiers in partitions),
            in_mb(sum(tiers.remote_bytes for tiers in partitions)),
            sum(tiers.local_segment_count for tiers in partitions),
            sum(tiers.end_offset - tiers.local_start_offset for tiers in partitions),
            in_mb(sum(tiers.local_bytes for tiers in partitions)),
        ]
    )
    return rows


TIER_COLUMNS = (
    "partition",
    "records",
    "segments\nin S3",
    "records\nin S3",
    "bytes\nin S3",
    "segments\non disk",
    "records\non disk",
    "bytes\non disk",
)


def _segment_files(folder: Path) -> list[_SegmentFile]:
    """The partition's segments on disk in order, without those already marked as deleted."""
    found = []
    for path in sorted(folder.glob("*.log")):
        try:
            size_bytes = path.stat().st_size
        except FileNotFoundError:
            continue  # Retention took it between the two calls.
        found.append(_SegmentFile(base_offset=int(path.stem), size_bytes=size_bytes))
    if not found:
        raise DemoError(f"no segment in {folder}")
    return found


def _show(partitions: Sequence[PartitionTiers], archived: Bar, freed: Bar) -> None:
    """Both bars count records of closed segments."""
    closed = sum(tiers.active_base_offset for tiers in partitions)
    archived.update(sum(tiers.remote_end_offset for tiers in partitions), total=closed)
    freed.update(sum(tiers.local_start_offset for tiers in partitions), total=closed)
