"""`changes.json`: lists the latest manifest changes, so that a replica need not poll each manifest.

Each broker of a cluster writes a list of its own, `changes/<broker id>.json`: for the partitions
that it leads. All of them together, with the one that a lone broker left, are what changed.

    {"format": "strandline-changes", "version": 1, "incarnation": "9f...", "sequence": 7,
     "complete_after": 2, "metadata_version": 41, "changes": [...], "crc32c": "..."}

    changes   ... 2 | 3   4   5   6   7      each partition once, with its last change
                    | in the list, oldest first
         complete_after                 sequence

Every change of the incarnation has a number. All above `complete_after` are in the list, so a
replica that has processed everything up to `n >= complete_after` finds all later changes there. An
incarnation is one start of the owner: changes may go unlisted between two of them.

A change names a topic by its id and a manifest by its order, and no object: no request is ever
made for a key from this list. The list is a hint. Replicas verify it in the manifests; a wrong
list can delay a replica, and never mislead it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from strandline.storage.errors import (
    CorruptFile,
    ObjectCorrupt,
    ObjectNotFound,
    UnsupportedFormat,
)
from strandline.storage.model import Buffer, Epoch, TopicId
from strandline.storage.remote.keys import CHANGES_KEY, CHANGES_PREFIX
from strandline.storage.remote.manifest.json_document import (
    Fields,
    Json,
    decode_document,
    encode_document,
    fields_of,
)
from strandline.storage.remote.object_store.interface import ObjectStore

FORMAT_NAME = "strandline-changes"
FORMAT_VERSION = 1
FORMAT_VERSIONS = range(1, 2)

# More partitions than change between two polls of a replica; if more do, it polls all of them.
CHANGES_MAX = 512
# Brokers of a cluster, those of long ago too.
LISTS_MAX = 1000
# A change takes some 200 bytes.
LIST_BYTES_MAX = 512 * 1024
_NUMBER_MAX = 2**63 - 1
_PARTITION_MAX = 2**31 - 1
_TEXT_CHARS_MAX = 64

# The order of a partition's manifests: `Manifest.order`; the greater one is newer.
ManifestOrder: TypeAlias = tuple[Epoch, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestChange:
    """The last change of one partition's manifest; `order` is that of the manifest after it."""

    topic_id: TopicId
    partition: int
    sequence: int
    order: ManifestOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeList:
    """The latest change per partition; `metadata_version` is the last mirrored metadata entry."""

    incarnation: str
    sequence: int
    complete_after: int
    metadata_version: int
    changes: Sequence[ManifestChange] = ()

    def encode(self) -> bytes:
        changes = [_change_fields(change) for change in self.changes]
        fields = {**fields_of(self), "changes": changes}
        return encode_document(FORMAT_NAME, FORMAT_VERSION, fields)

    @classmethod
    def decode(cls, content: Buffer) -> ChangeList:
        """Raises CorruptFile, also for values that no broker writes, or UnsupportedFormat."""
        if len(content) > LIST_BYTES_MAX:
            raise CorruptFile(f"{CHANGES_KEY}: {len(content)} bytes are too many for a list")
        fields = decode_document(content, FORMAT_NAME, FORMAT_VERSIONS, CHANGES_KEY)
        sequence = _number(fields, "sequence")
        complete_after = _number(fields, "complete_after")
        changes = tuple(map(_change, fields.objects("changes")))
        numbers = [complete_after, *(change.sequence for change in changes)]
        is_in_order = all(left < right for left, right in pairwise(numbers))
        if len(changes) > CHANGES_MAX or not is_in_order or (changes and numbers[-1] > sequence):
            raise CorruptFile(f"{CHANGES_KEY}: its changes contradict what it says of them")
        return cls(
            incarnation=_text(fields, "incarnation"),
            sequence=sequence,
            complete_after=complete_after,
            metadata_version=_number(fields, "metadata_version"),
            changes=changes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChanges:
    """A change list as stored, with its etag."""

    changes: ChangeList
    etag: str


def list_keys(store: ObjectStore) -> list[str]:
    """Returns the names of the lists that brokers of a cluster wrote. Raises as the store does."""
    return [info.key for info in store.list(CHANGES_PREFIX, limit=LISTS_MAX)]


def load(
    store: ObjectStore, known: StoredChanges | None = None, *, key: str = CHANGES_KEY
) -> StoredChanges:
    """A stored list; returns `known` after one HEAD if it is unchanged, else it costs a GET too.

    An object that is too large for a list is not read. Raises ObjectNotFound (no broker wrote one),
    CorruptFile or UnsupportedFormat, and as the store does.
    """
    info = store.head(key)
    if known is not None and info.etag == known.etag:
        return known
    if info.size_bytes > LIST_BYTES_MAX:
        raise CorruptFile(f"{key}: {info.size_bytes} bytes are too many for a list")
    stored = store.get_object(key)
    return StoredChanges(changes=ChangeList.decode(stored.body), etag=stored.info.etag)


def load_all(store: ObjectStore) -> dict[str, ChangeList]:
    """Returns all lists that can be read, by their names. Raises as the store does."""
    found = {}
    for key in (CHANGES_KEY, *list_keys(store)):
        with contextlib.suppress(CorruptFile, ObjectCorrupt, ObjectNotFound, UnsupportedFormat):
            found[key] = load(store, key=key).changes
    return found


def newest_orders(store: ObjectStore) -> dict[tuple[TopicId, int], ManifestOrder]:
    """Returns the manifest order of each partition in the lists; the stored manifest may be newer.

    Empty if there is no readable list. Raises as the store does.
    """
    newest: dict[tuple[TopicId, int], ManifestOrder] = {}
    for found in load_all(store).values():
        for change in found.changes:
            key = change.topic_id, change.partition
            newest[key] = max(change.order, newest.get(key, change.order))
    return newest


def find_damage(store: ObjectStore) -> list[str]:
    """Faults of the lists, each with its remedy; a missing list or a later format is no fault."""
    faults = []
    for key in (CHANGES_KEY, *list_keys(store)):
        try:
            load(store, key=key)
        except (CorruptFile, ObjectCorrupt) as error:
            faults.append(
                f"{error}; read-only replicas ask for every manifest meanwhile. Its broker writes"
                " it again with its next change, or delete it"
            )
        except (ObjectNotFound, UnsupportedFormat):
            pass
    return faults


def _change_fields(change: ManifestChange) -> Json:
    epoch, generation, revision = change.order
    return {
        "topic_id": str(change.topic_id),
        "partition": change.partition,
        "sequence": change.sequence,
        "leader_epoch": epoch,
        "generation": generation,
        "revision": revision,
    }


def _change(fields: Fields) -> ManifestChange:
    return ManifestChange(
        topic_id=fields.uuid("topic_id"),
        partition=_number(fields, "partition", _PARTITION_MAX),
        sequence=_number(fields, "sequence"),
        order=(
            _number(fields, "leader_epoch", _PARTITION_MAX),
            _text(fields, "generation"),
            _number(fields, "revision"),
        ),
    )


def _number(fields: Fields, name: str, maximum: int = _NUMBER_MAX) -> int:
    found = fields.integer(name)
    if not 0 <= found <= maximum:
        raise CorruptFile(f"{CHANGES_KEY}: {name} is out of range")
    return found


def _text(fields: Fields, name: str) -> str:
    found = fields.text(name)
    if len(found) > _TEXT_CHARS_MAX:
        raise CorruptFile(f"{CHANGES_KEY}: {name} is too long")
    return found
