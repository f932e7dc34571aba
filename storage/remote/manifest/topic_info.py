"""`topic.json`: describes a topic in the bucket, for readers that have only the bucket.

Written when a topic is created or changed, and last of all when it is purged:

    absent -> written -> tombstone (`deleted_ms` set) -> everything else deleted -> absent

So a folder with objects but without a live `topic.json` is a purge that stopped, never a topic.

Every write has a unique number (`written`) that no reader uses: a store's etag may be a hash of the
content, and a delayed PUT that its caller gave up must not match an object that has the same
content again, as after the topic was purged and tiered once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

from strandline.storage.errors import CorruptFile, ObjectNotFound, UnsupportedFormat
from strandline.storage.model import Buffer, TimestampMs, TopicId
from strandline.storage.remote.keys import (
    TOPICS_PREFIX,
    TopicFolder,
    new_unique,
    parse_topic_folder,
    topic_key,
)
from strandline.storage.remote.manifest.json_document import Json, decode_document, encode_document
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectInfo,
    ObjectStore,
    PutCondition,
    ReadsArchive,
)

log = logging.getLogger(__name__)

FORMAT_NAME = "strandline-topic"
FORMAT_VERSION = 1
FORMAT_VERSIONS = range(1, 2)
# More than one topic of any cluster has: readers of the bucket ask for the manifest of each.
PARTITION_COUNT_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic as its archive knows it; `deleted_ms` is set once it is being purged."""

    topic: str
    topic_id: TopicId
    partition_count: int
    properties: Mapping[str, str] = field(default_factory=dict)
    deleted_ms: TimestampMs | None = None

    @property
    def key(self) -> str:
        return topic_key(self.topic, self.topic_id)

    @property
    def is_deleted(self) -> bool:
        return self.deleted_ms is not None

    def encode(self) -> bytes:
        """Other bytes each time."""
        fields: dict[str, Json] = {
            "topic": self.topic,
            "topic_id": str(self.topic_id),
            "partition_count": self.partition_count,
            "properties": dict(self.properties),
            "deleted_ms": self.deleted_ms,
            "written": new_unique(),
        }
        return encode_document(FORMAT_NAME, FORMAT_VERSION, fields)

    @classmethod
    def decode(cls, content: Buffer, *, source: str = "") -> TopicInfo:
        """`source` names the object in messages. Raises CorruptFile or UnsupportedFormat."""
        fields = decode_document(content, FORMAT_NAME, FORMAT_VERSIONS, source)
        partition_count = fields.count("partition_count")
        if partition_count > PARTITION_COUNT_MAX:
            what = source or FORMAT_NAME
            raise CorruptFile(f"{what}: {partition_count} partitions are impossible")
        return cls(
            topic=fields.text("topic"),
            topic_id=fields.uuid("topic_id"),
            partition_count=partition_count,
            properties=fields.texts_by_name("properties"),
            deleted_ms=fields.optional_integer("deleted_ms"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedTopic:
    """A `topic.json` that exists but cannot be read; `reason` says why."""

    folder: TopicFolder
    reason: str


def load_topic_info(store: ReadsArchive, topic: str, topic_id: TopicId) -> TopicInfo | None:
    """The topic's description; None if there is none. Raises as `ObjectStore.get` and `decode`."""
    key = topic_key(topic, topic_id)
    try:
        return _decode_of(topic, topic_id, store.get(key))
    except ObjectNotFound:
        return None


def _decode_of(topic: str, topic_id: TopicId, content: Buffer) -> TopicInfo:
    """Decodes the topic's `topic.json`. Raises CorruptFile also if it describes another topic."""
    key = topic_key(topic, topic_id)
    info = TopicInfo.decode(content, source=key)
    if info.key != key:
        raise CorruptFile(
            f"{key} describes topic {info.topic} ({info.topic_id}), not {topic} ({topic_id}): put"
            " the right one back, a bucket with versioning has it"
        )
    return info


def change_topic_info(
    store: ObjectStore, wanted: TopicInfo, change: Callable[[TopicInfo | None], TopicInfo | None]
) -> TopicInfo | None:
    """Writes `change(description)`; no write if it returns None. Returns the previous description.

    Conditional on the version that `change` saw: a delayed PUT would otherwise undo a deletion, or
    delete a topic that is wanted again. Raises PreconditionFailed if another writer was faster, and
    as `ObjectStore.get_object`. A damaged description counts as absent and is replaced: the writer
    owns the topic or removes it. Raises UnsupportedFormat for one of a later release.
    """
    known: TopicInfo | None = None
    condition: PutCondition = IfAbsent()
    try:
        stored = store.get_object(wanted.key)
    except ObjectNotFound:
        pass
    else:
        condition = IfMatches(stored.info.etag)
        try:
            known = _decode_of(wanted.topic, wanted.topic_id, stored.body)
        except CorruptFile as error:
            log.warning(
                "damaged topic.json is written again",
                extra={"fields": {"topic": wanted.topic, "reason": str(error)}},
            )
    changed = change(known)
    if changed is not None:
        save_topic_info(store, changed, condition=condition)
    return known


def save_topic_info(
    store: ObjectStore, info: TopicInfo, *, condition: PutCondition | None = None
) -> ObjectInfo:
    """Writes `topic.json`, over an older one unless `condition` says otherwise."""
    return store.put(info.key, info.encode(), condition=condition)


def list_topic_folders(store: ReadsArchive) -> list[TopicFolder]:
    """Lists folders with a topic folder's name; some may have no `topic.json`."""
    found = map(parse_topic_folder, store.list_folders(TOPICS_PREFIX))
    return [folder for folder in found if folder is not None]


def list_topics(
    store: ObjectStore,
    *,
    topic: str | None = None,
    executor: Executor | None = None,
    damaged: list[DamagedTopic] | None = None,
) -> tuple[TopicInfo, ...]:
    """Every topic of the archive (or those named `topic`), deleted ones included, in folder order.

    One LIST of the folder level and one GET per topic, in parallel on `executor` if there is one
    (which must not be the pool that runs this call). Folders of no topic, and those without
    `topic.json`, are left out; the latter are logged. Unreadable descriptions are added to
    `damaged`; without such a list, raises CorruptFile or UnsupportedFormat.
    """
    folders = [one for one in list_topic_folders(store) if topic in (None, one.topic)]

    def load(folder: TopicFolder) -> TopicInfo | DamagedTopic | None:
        try:
            return load_topic_info(store, folder.topic, folder.topic_id)
        except (CorruptFile, UnsupportedFormat) as error:
            if damaged is None:
                raise
            return DamagedTopic(folder=folder, reason=str(error))

    loaded = executor.map(load, folders) if executor else map(load, folders)
    topics: list[TopicInfo] = []
    for folder, info in zip(folders, loaded, strict=True):
        if isinstance(info, DamagedTopic):
            assert damaged is not None
            damaged.append(info)
        elif info is None:
            log.warning(
                "archive folder without topic.json",
                extra={"fields": {"topic": folder.topic, "topic_id": str(folder.topic_id)}},
            )
        else:
            topics.append(info)
    return tuple(topics)
