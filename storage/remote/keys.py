"""Builds and parses all object names.

    cluster.json                                             the id of the cluster that owns it
    changes.json                                             the manifests that changed last
    changes/<broker id>.json                                 the same by each broker of a cluster
    verify.json                                              when the archive was last verified
    metadata/log/<20-digit index>.json                       an entry of the metadata log
    metadata/snapshot/<20-digit index>.json                  a snapshot of the metadata
    metadata/boundary                                        entries whose names pruning freed
    groups/<partition>.log                                   the latest offsets of groups
    transactions/<partition>.log                             the latest state of transactional ids
    probe/<unique>                                           temporary, to check the store
    topics/<topic>-<topic id>/topic.json                     name, partitions, configs, tombstone
    topics/<topic>-<topic id>/<partition>/
        manifest.json                                        the root: the only object that changes
        manifest/<20-digit base>-<20-digit end>-<unique>.json    a sealed page of older entries
        <20-digit base>-<epoch>-<unique>.log                 a segment, byte for byte
        <20-digit base>-<epoch>-<unique>.meta                its indexes and statistics
        <20-digit base>-<epoch>-<unique>.tail                a part of the open segment

The topic id, a UUID as text, gives a re-created topic another folder. It has a fixed length, so the
topic's name may contain dashes. `<unique>` is new for every upload: no name is used twice, so a
late or repeated upload can never replace a committed object.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from enum import Enum

from strandline.storage import entropy
from strandline.storage.model import Epoch, Offset, TopicId, TopicIdPartition

CLUSTER_KEY = "cluster.json"
CHANGES_KEY = "changes.json"
CHANGES_PREFIX = "changes/"
VERIFY_KEY = "verify.json"
TOPICS_PREFIX = "topics/"
METADATA_PREFIX = "metadata/"
METADATA_LOG_PREFIX = "metadata/log/"
METADATA_SNAPSHOT_PREFIX = "metadata/snapshot/"
METADATA_BOUNDARY_KEY = "metadata/boundary"
GROUPS_PREFIX = "groups/"
TRANSACTIONS_PREFIX = "transactions/"
PROBE_PREFIX = "probe/"
TOPIC_FILE = "topic.json"
MANIFEST_FILE = "manifest.json"
MANIFEST_PAGES_FOLDER = "manifest/"
LOG_SUFFIX = ".log"
META_SUFFIX = ".meta"
TAIL_SUFFIX = ".tail"
PAGE_SUFFIX = ".json"

_UUID_TEXT_LENGTH = 36


class ObjectKind(Enum):
    """The kinds of objects in a partition's folder; the values are suffixes of names."""

    MANIFEST = MANIFEST_FILE
    MANIFEST_PAGE = PAGE_SUFFIX
    LOG = LOG_SUFFIX
    META = META_SUFFIX
    TAIL = TAIL_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKeys:
    """The two objects of one upload of one segment."""

    log_key: str
    meta_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFolder:
    """A topic's name and id, from the name of its folder."""

    topic: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionObject:
    """A parsed object key of a partition's folder; -1 for fields that its kind does not have."""

    kind: ObjectKind
    partition: TopicIdPartition
    base_offset: Offset = -1
    end_offset: Offset = -1
    leader_epoch: Epoch = -1
    unique: str = ""


def new_unique() -> str:
    """Returns a unique part of an object name, or a unique id of a write."""
    return entropy.new_id().hex


def metadata_log_key(index: int) -> str:
    """Returns the key of one entry of the metadata log."""
    return f"{METADATA_LOG_PREFIX}{index:020d}.json"


def metadata_snapshot_key(index: int) -> str:
    """Returns the key of the metadata snapshot up to this entry."""
    return f"{METADATA_SNAPSHOT_PREFIX}{index:020d}.json"


def parse_metadata_key(key: str) -> int | None:
    """Returns the index in a metadata log or snapshot key; None if it is neither."""
    matched = _METADATA.fullmatch(key)
    return int(matched["index"]) if matched else None


def changes_key(node_id: int) -> str:
    """The list of changes of one broker of a cluster."""
    return f"{CHANGES_PREFIX}{node_id}.json"


def state_key(prefix: str, partition: int) -> str:
    """Returns the key of the state of one partition of a coordinator's topic."""
    return f"{prefix}{partition}.log"


def parse_state_key(prefix: str, key: str) -> int | None:
    """Returns the partition in a state key of this prefix; None for other keys."""
    number = key.removeprefix(prefix).removesuffix(LOG_SUFFIX)
    is_one = number.isascii() and number.isdecimal()
    return int(number) if is_one and key == state_key(prefix, int(number)) else None


def topic_folder(topic: str, topic_id: TopicId) -> str:
    """`topics/<topic>-<topic id>/`: the prefix of all objects of the topic."""
    return f"{TOPICS_PREFIX}{topic}-{topic_id}/"


def topic_key(topic: str, topic_id: TopicId) -> str:
    """Returns the key of the topic's `topic.json`."""
    return topic_folder(topic, topic_id) + TOPIC_FILE


def partition_folder(partition: TopicIdPartition) -> str:
    """`topics/<topic>-<topic id>/<partition>/`."""
    return f"{topic_folder(partition.topic, partition.topic_id)}{partition.partition}/"


def manifest_key(partition: TopicIdPartition) -> str:
    """Returns the key of the partition's root manifest."""
    return partition_folder(partition) + MANIFEST_FILE


def manifest_page_key(
    partition: TopicIdPartition, *, base_offset: Offset, end_offset: Offset, unique: str
) -> str:
    """Returns the key of a sealed manifest page of the offsets [base_offset, end_offset)."""
    folder = partition_folder(partition) + MANIFEST_PAGES_FOLDER
    return f"{folder}{base_offset:020d}-{end_offset:020d}-{unique}{PAGE_SUFFIX}"


def segment_keys(
    partition: TopicIdPartition, *, base_offset: Offset, leader_epoch: Epoch, unique: str
) -> SegmentKeys:
    """Returns the names of one attempt to upload a segment; `unique` comes from `new_unique()`."""
    stem = f"{partition_folder(partition)}{base_offset:020d}-{max(leader_epoch, 0)}-{unique}"
    return SegmentKeys(log_key=stem + LOG_SUFFIX, meta_key=stem + META_SUFFIX)


def tail_key(
    partition: TopicIdPartition, *, base_offset: Offset, leader_epoch: Epoch, unique: str
) -> str:
    """Returns the key of a part of the open segment."""
    stem = f"{partition_folder(partition)}{base_offset:020d}-{max(leader_epoch, 0)}-{unique}"
    return stem + TAIL_SUFFIX


def parse_topic_folder(name: str) -> TopicFolder | None:
    """Parses `orders-<uuid>`, with or without the final `/`; None for other names."""
    name = name.rstrip("/")
    topic, id_text = name[: -_UUID_TEXT_LENGTH - 1], name[-_UUID_TEXT_LENGTH:]
    if not topic or "/" in name or name[len(topic)] != "-" or not _UUID.fullmatch(id_text):
        return None
    return TopicFolder(topic=topic, topic_id=uuid.UUID(id_text))


def parse_partition_object(key: str) -> PartitionObject | None:
    """Parses a key under `topics/`; None for `topic.json` and names that are not ours."""
    if not key.startswith(TOPICS_PREFIX):
        return None
    folder_name, _, rest = key[len(TOPICS_PREFIX) :].partition("/")
    partition_text, _, name = rest.partition("/")
    folder = parse_topic_folder(folder_name)
    if folder is None or not _PARTITION.fullmatch(partition_text):
        return None
    partition = TopicIdPartition(folder.topic, folder.topic_id, int(partition_text))
    if name == MANIFEST_FILE:
        return PartitionObject(kind=ObjectKind.MANIFEST, partition=partition)
    matched = _PAGE.fullmatch(name) or _SEGMENT.fullmatch(name)
    if matched is None:
        return None
    found = matched.groupdict()
    return PartitionObject(
        kind=ObjectKind(found["suffix"]),
        partition=partition,
        base_offset=int(found["base"]),
        end_offset=int(found.get("end", -1)),
        leader_epoch=int(found.get("epoch", -1)),
        unique=found["unique"],
    )


_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_PAGE = re.compile(
    r"manifest/(?P<base>[0-9]{20})-(?P<end>[0-9]{20})-(?P<unique>[0-9a-f]{1,64})(?P<suffix>\.json)"
)
_SEGMENT = re.compile(
    r"(?P<base>[0-9]{20})-(?P<epoch>[0-9]{1,10})-(?P<unique>[0-9a-f]{1,64})(?P<suffix>\.(log|meta|tail))"
)
_METADATA = re.compile(r"metadata/(log|snapshot)/(?P<index>[0-9]{20})\.json")
