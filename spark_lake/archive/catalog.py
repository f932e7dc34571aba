"""Catalog of an archive: its cluster, its topics, the manifests of their partitions.

    cluster.json -> LIST topics/ (folder names only) -> topic.json of the wanted topics
                 -> manifest.json of the wanted partitions -> sealed pages, as far as needed
                                                           -> pieces of the open segment

A partition without a manifest has no rows, a folder without `topic.json` is no topic. A 404 alone
proves neither: both objects are written before the objects they describe and deleted after them, so
a LIST of the topic's folder must show no object that needs them (docs/decisions, 23).

The catalog lists no data. `storage.remote.manifest` loads each object, as in the broker.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from strandline.spark_lake.archive.objects import ObjectReader, in_parallel, naming_later_formats
from strandline.spark_lake.archive.open_segment import with_open_segment
from strandline.spark_lake.options.selection_options import (
    Assign,
    Selection,
    Subscribe,
    SubscribePattern,
)
from strandline.spark_lake.plan.planner import OffsetRange
from strandline.storage.errors import (
    CorruptFile,
    InvalidConfig,
    ObjectCorrupt,
    ObjectNotFound,
    UnknownTopic,
    UnsupportedFormat,
)
from strandline.storage.model import Isolation, TopicIdPartition, TopicPartition
from strandline.storage.remote.keys import (
    CLUSTER_KEY,
    TOPIC_FILE,
    TopicFolder,
    manifest_key,
    topic_folder,
    topic_key,
)
from strandline.storage.remote.manifest.cluster_info import ClusterInfo, load_cluster_info
from strandline.storage.remote.manifest.entries import PageRef, SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import load_manifest, read_page
from strandline.storage.remote.manifest.topic_info import (
    TopicInfo,
    list_topic_folders,
    load_topic_info,
)

# Pieces of open segments are read as a whole where there are transactions, 16 MiB each.
PARALLEL_PIECES = 4
# Attempts to read a manifest whose pieces are deleted meanwhile.
LOOKS_MAX = 3
# How many topic names an error message shows.
NAMES_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePartition:
    """A selected partition; `manifest` is None until its first segment is archived."""

    partition: TopicIdPartition
    manifest: Manifest | None

    @property
    def topic_partition(self) -> TopicPartition:
        return self.partition.topic_partition


class Catalog:
    """Reader of an archive's cluster, topics and manifests."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader

    def load_cluster(self) -> ClusterInfo:
        """Raises ObjectNotFound if there is no archive, UnsupportedFormat if it is newer."""
        with self._naming_objects():
            found = load_cluster_info(self._reader)
        if found is None:
            raise ObjectNotFound(
                f"{self._reader.url}/{CLUSTER_KEY}",
                "read",
                f"there is no strandline archive at {self._reader.url}: option path must be the"
                " broker's strandline.remote.url",
            )
        return found

    def topic_names(self, selection: Selection | None = None) -> list[str]:
        """Returns the selected topics, or all that are not being deleted, in order of their names.

        Raises UnknownTopic for a topic that the archive does not have.
        """
        return [topic.topic for topic in self._load_topics(selection or SubscribePattern(".*"))]

    def load_partitions(
        self,
        selection: Selection,
        *,
        open_for: Isolation | None = None,
        topics_min: int = 1,
    ) -> tuple[LakePartition, ...]:
        """Returns the selected partitions in order of topic and number.

        `topics_min` 0 allows a pattern that matches no topic yet.

        With `open_for` the pieces of their open segments follow the segments, up to the last offset
        that this isolation may read. Raises InvalidConfig for a topic or partition that the
        archive does not have.
        """
        topics = self._load_topics(selection, topics_min)
        partitions = [
            TopicIdPartition(topic.topic, topic.topic_id, partition)
            for topic in topics
            for partition in _selected_partitions(topic, selection)
        ]
        manifests = in_parallel(self._load_manifest, partitions)
        loaded = dict(zip(partitions, manifests, strict=True))
        for topic in topics:
            missing = [one for one in partitions if one.topic_id == topic.topic_id]
            missing = [one for one in missing if loaded[one] is None]
            loaded |= self._proven(topic, missing) if missing else {}
        found = [
            LakePartition(partition=partition, manifest=manifest)
            for partition, manifest in loaded.items()
        ]
        if open_for is None:
            return tuple(found)
        load = partial(self._with_open_segment, isolation=open_for)
        return tuple(in_parallel(load, found, threads=PARALLEL_PIECES))

    def entries_for(
        self,
        partition: TopicIdPartition,
        offsets: OffsetRange,
        isolation: Isolation,
    ) -> tuple[SegmentEntry, ...]:
        """The entries that hold these offsets now, open-segment pieces included; () if incomplete.

        Raises what `load_partitions` raises.
        """
        archived = LakePartition(partition=partition, manifest=self._load_manifest(partition))
        manifest = self._with_open_segment(archived, isolation=isolation).manifest
        if manifest is None or manifest.log_start_offset > offsets.start_offset:
            return ()
        wanted = [page for page in manifest.pages if offsets.overlaps(page)]
        pages = self.load_pages(wanted)
        entries = [entry for page in wanted for entry in pages[page.key]]
        entries = [e for e in (*entries, *manifest.segments) if offsets.overlaps(e)]
        if not entries or entries[-1].end_offset < offsets.end_offset:
            return ()
        return tuple(entries) if entries[0].base_offset <= offsets.start_offset else ()

    def _with_open_segment(self, archived: LakePartition, *, isolation: Isolation) -> LakePartition:
        """Returns the manifest with its pieces; reloads it if a piece is deleted meanwhile.

        Raises what `with_open_segment` raises.
        """
        manifest = archived.manifest
        for looks_left in reversed(range(LOOKS_MAX)):
            if manifest is None:
                break
            try:
                manifest = with_open_segment(manifest, self._reader, isolation)
                break
            except ObjectNotFound:
                newer = self._load_manifest(archived.partition)
                is_newer = newer is not None and newer.order > manifest.order
                if not looks_left or not is_newer:
                    raise
                manifest = newer
        return LakePartition(partition=archived.partition, manifest=manifest)

    def _proven(
        self, topic: TopicInfo, missing: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, Manifest | None]:
        """Rechecks partitions without a manifest: the manifest, or None for an empty partition.

        Raises ObjectNotFound for a topic that is being deleted, and for a missing manifest.
        """
        filled = self._reader.filled_folders(topic_folder(topic.topic, topic.topic_id))
        doubted = [one for one in missing if str(one.partition) in filled]
        # The partition may have got its first manifest since, and then its first segment.
        again = dict(zip(doubted, in_parallel(self._load_manifest, doubted), strict=True))
        now = self._load_topic(TopicFolder(topic=topic.topic, topic_id=topic.topic_id))
        if now is None or now.is_deleted:
            raise ObjectNotFound(
                f"{self._reader.url}/{topic.key}",
                "read",
                f"topic {topic.topic} was deleted while the query was planned: run it again"
                " for what there is now",
            )
        lost = [manifest_key(one) for one, manifest in again.items() if manifest is None]
        if lost:
            raise self._doubted(lost[0], f"what {topic.topic} has in this partition")
        return {one: again.get(one) for one in missing}

    def _doubted(self, key: str, unknown: str) -> ObjectNotFound:
        return ObjectNotFound(
            f"{self._reader.url}/{key}",
            "read",
            "the store says that it does not exist, and yet its folder holds what is only written"
            f" behind it; without it {unknown} is unknown, and not taken for nothing. Run the query"
            " again; if it stays away it was lost: put it back (a bucket with versioning still has"
            " it), or leave the topic out",
        )

    def load_pages(self, pages: Sequence[PageRef]) -> dict[str, tuple[SegmentEntry, ...]]:
        """Returns the entries of sealed pages by page key. Raises CorruptFile if one is damaged."""
        loaded = in_parallel(self._load_page, pages)
        return {page.key: entries for page, entries in zip(pages, loaded, strict=True)}

    # --- topics ------------------------------------------------------------------------------

    def _load_topics(self, selection: Selection, topics_min: int = 1) -> list[TopicInfo]:
        folders = list_topic_folders(self._reader)
        wanted = _wants(selection)
        chosen = [folder for folder in folders if wanted(folder.topic)]
        loaded = in_parallel(self._load_topic, chosen)
        topics: dict[str, TopicInfo] = {}
        for folder, found in zip(chosen, loaded, strict=True):
            topic = found or self._unless_purged(folder)
            if topic is None or topic.is_deleted:
                continue
            if topic.topic in topics:
                raise CorruptFile(
                    f"{self._reader.url} has two live topics named {topic.topic}, with the ids"
                    f" {topics[topic.topic].topic_id} and {topic.topic_id}: delete one of them"
                    " through the broker"
                )
            topics[topic.topic] = topic
        gone = {folder.topic for folder in chosen} - topics.keys()
        others = {folder.topic for folder in folders} - gone
        if topics or topics_min or not isinstance(selection, SubscribePattern):
            self._check_found(selection, topics, gone, others)
        return [topics[name] for name in sorted(topics)]

    def _check_found(
        self,
        selection: Selection,
        topics: Collection[str],
        gone: Collection[str],
        others: Collection[str],
    ) -> None:
        """`gone` are the deleted topics, `others` the existing ones."""
        names = sorted(others)
        shown = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
        has = f"it has {shown}" if names else "it has no topics yet"
        match selection:
            case SubscribePattern():
                if not topics:
                    raise InvalidConfig(
                        f"option subscribePattern matches no topic of {self._reader.url}; {has}"
                    )
                return
            case Subscribe():
                option, wanted = "subscribe", list(selection.topics)
            case Assign():
                option, wanted = "assign", list(selection.partitions)
        for name in wanted:
            if name in gone:
                raise UnknownTopic(
                    f"option {option}: {self._reader.url} has no topic {name} any more: it was"
                    " deleted, and what it had is being removed"
                )
            if name not in topics:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"the nearest is {near[0]}" if near else has
                raise UnknownTopic(
                    f"option {option}: {self._reader.url} has no topic {name}; {hint}. A topic"
                    " comes into the archive with the first records that are archived of it"
                )

    def _load_topic(self, folder: TopicFolder) -> TopicInfo | None:
        with self._naming_objects():
            return load_topic_info(self._reader, folder.topic, folder.topic_id)

    def _unless_purged(self, folder: TopicFolder) -> TopicInfo | None:
        """Rechecks a folder without `topic.json`: the description, or None after a purge.

        Such a folder may hold late uploads, but no manifest. Raises ObjectNotFound for a missing
        description.
        """
        filled = self._reader.filled_folders(topic_folder(folder.topic, folder.topic_id))
        partitions = [
            TopicIdPartition(folder.topic, folder.topic_id, int(name))
            for name in filled
            if name.isdecimal()
        ]
        manifests = in_parallel(self._load_manifest, partitions)
        if TOPIC_FILE not in filled and not any(manifests):
            return None
        again = self._load_topic(folder)
        if again is None:
            key = topic_key(folder.topic, folder.topic_id)
            raise self._doubted(key, f"what topic {folder.topic} has")
        return again

    # --- manifests ---------------------------------------------------------------------------

    def _load_manifest(self, partition: TopicIdPartition) -> Manifest | None:
        with self._naming_objects():
            return load_manifest(self._reader, partition)

    def _load_page(self, page: PageRef) -> tuple[SegmentEntry, ...]:
        with self._naming_objects():
            try:
                return read_page(self._reader, page)
            except ObjectCorrupt as error:
                raise CorruptFile(f"{page.key}: {error.detail}") from error

    @contextmanager
    def _naming_objects(self) -> Iterator[None]:
        """Adds the archive's URL to errors about damaged objects and later formats."""
        with naming_later_formats(self._reader.url):
            try:
                yield
            except (CorruptFile, UnsupportedFormat) as error:
                raise type(error)(f"{self._reader.url}/{error}") from error


def _wants(selection: Selection) -> Callable[[str], bool]:
    match selection:
        case Subscribe():
            return set(selection.topics).__contains__
        case Assign():
            return selection.partitions.__contains__
        case SubscribePattern():
            pattern = re.compile(selection.pattern)
            # Anywhere in the name, as for Spark's Kafka source.
            return lambda topic: pattern.search(topic) is not None


def _selected_partitions(topic: TopicInfo, selection: Selection) -> list[int]:
    if not isinstance(selection, Assign):
        return list(range(topic.partition_count))
    partitions = sorted(selection.partitions[topic.topic])
    if partitions and partitions[-1] >= topic.partition_count:
        raise InvalidConfig(
            f"option assign: topic {topic.topic} has the partitions 0 to"
            f" {topic.partition_count - 1}, not {partitions[-1]}"
        )
    return partitions
