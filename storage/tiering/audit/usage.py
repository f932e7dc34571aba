"""Storage usage of an archive: objects and bytes by topic, by kind and by storage class.

All objects under the prefix count, as in a bill. One pass over the listing, a request per 1000
objects (or versions); no object is read.

    kind       segments    .log
               open        .tail       pieces of open segments
               indexes     .meta
               manifests   manifest.json and pages, topic.json
               metadata    cluster.json, changes.json, verify.json, metadata/, groups/
               other       unknown names
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strandline.storage.remote.keys import (
    CHANGES_KEY,
    CHANGES_PREFIX,
    CLUSTER_KEY,
    GROUPS_PREFIX,
    METADATA_PREFIX,
    TOPIC_FILE,
    TOPICS_PREFIX,
    TRANSACTIONS_PREFIX,
    VERIFY_KEY,
    ObjectKind,
    parse_partition_object,
    parse_topic_folder,
)
from strandline.storage.remote.s3.usage import ObjectVersion

# The classes for infrequent access bill at least this size for each object.
SMALL_BYTES = 128 * 1024

_KINDS = {
    ObjectKind.LOG: "segments",
    ObjectKind.TAIL: "open",
    ObjectKind.META: "indexes",
    ObjectKind.MANIFEST: "manifests",
    ObjectKind.MANIFEST_PAGE: "manifests",
}
_METADATA_PREFIXES = (CHANGES_PREFIX, METADATA_PREFIX, GROUPS_PREFIX, TRANSACTIONS_PREFIX)


@dataclass(slots=True)
class Sum:
    """A count of objects, and their bytes."""

    object_count: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        self.object_count += 1
        self.size_bytes += size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The storage usage of an archive. `by_topic` has "" for objects of no topic. Older versions
    are only in `older`, by topic and summed, and in `by_class`: they are billed like the others.
    """

    by_topic: dict[str, Sum]
    by_kind: dict[str, Sum]
    by_class: dict[str, Sum]
    small: Sum
    older: Sum
    older_by_topic: dict[str, Sum]
    delete_marker_count: int

    @property
    def current(self) -> Sum:
        """All current objects."""
        parts = self.by_kind.values()
        return Sum(sum(p.object_count for p in parts), sum(p.size_bytes for p in parts))


def sum_up(versions: Iterable[ObjectVersion]) -> Usage:
    """Sums up `versions` in one pass. Raises what their iterator raises."""
    by_topic: dict[str, Sum] = {}
    by_kind: dict[str, Sum] = {}
    by_class: dict[str, Sum] = {}
    small, older = Sum(), Sum()
    older_by_topic: dict[str, Sum] = {}
    delete_marker_count = 0
    for version in versions:
        if version.is_delete_marker:
            delete_marker_count += 1
            continue
        by_class.setdefault(version.storage_class, Sum()).add(version.size_bytes)
        if not version.is_current:
            older.add(version.size_bytes)
            older_by_topic.setdefault(topic_of(version.key), Sum()).add(version.size_bytes)
            continue
        by_topic.setdefault(topic_of(version.key), Sum()).add(version.size_bytes)
        by_kind.setdefault(kind_of(version.key), Sum()).add(version.size_bytes)
        if version.size_bytes < SMALL_BYTES:
            small.add(version.size_bytes)
    return Usage(
        by_topic=by_topic,
        by_kind=by_kind,
        by_class=by_class,
        small=small,
        older=older,
        older_by_topic=older_by_topic,
        delete_marker_count=delete_marker_count,
    )


def topic_of(key: str) -> str:
    """Returns the topic whose folder holds the object; "" if none does."""
    if not key.startswith(TOPICS_PREFIX):
        return ""
    folder = parse_topic_folder(key[len(TOPICS_PREFIX) :].partition("/")[0])
    return "" if folder is None else folder.topic


def kind_of(key: str) -> str:
    """Returns the kind of the object: segments, open, indexes, manifests, metadata or other."""
    parsed = parse_partition_object(key)
    if parsed is not None:
        return _KINDS[parsed.kind]
    if key in (CLUSTER_KEY, CHANGES_KEY, VERIFY_KEY) or key.startswith(_METADATA_PREFIXES):
        return "metadata"
    is_topic = topic_of(key) != "" and key.count("/") == 2 and key.endswith("/" + TOPIC_FILE)
    return "manifests" if is_topic else "other"
