"""`changes.json` is a hint that anybody with the bucket may have written: bounded, and refused."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from strandline.storage.errors import CorruptFile, ObjectNotFound, UnsupportedFormat
from strandline.storage.remote.keys import CHANGES_KEY
from strandline.storage.remote.manifest import change_list
from strandline.storage.remote.manifest.change_list import (
    CHANGES_MAX,
    LIST_BYTES_MAX,
    ChangeList,
    ManifestChange,
)
from strandline.storage.remote.manifest.json_document import Json, encode_document
from tests.support.memory_store import MemoryStore

CHANGE = ManifestChange(
    topic_id=uuid.UUID(int=7), partition=3, sequence=5, order=(2, "0001700000000000-abcdef01", 41)
)
LIST = ChangeList(
    incarnation="a" * 32,
    sequence=6,
    complete_after=4,
    metadata_version=12,
    changes=(CHANGE, replace(CHANGE, partition=4, sequence=6)),
)
CHANGE_FIELDS: dict[str, Json] = {
    "topic_id": str(uuid.UUID(int=7)),
    "partition": 3,
    "sequence": 5,
    "leader_epoch": 2,
    "generation": "",
    "revision": 41,
}
FIELDS: dict[str, Json] = {
    "incarnation": "a",
    "sequence": 6,
    "complete_after": 4,
    "metadata_version": 12,
    "changes": [CHANGE_FIELDS],
}


def encoded(**changes: Any) -> bytes:
    return encode_document("strandline-changes", 1, {**FIELDS, **changes})


def with_change(**changes: Any) -> bytes:
    return encoded(changes=[{**CHANGE_FIELDS, **changes}])


def test_a_list_is_read_as_it_was_written() -> None:
    assert ChangeList.decode(LIST.encode()) == LIST
    assert ChangeList.decode(encoded()).changes == (replace(CHANGE, order=(2, "", 41)),)


def test_the_longest_list_that_is_written_is_read() -> None:
    changes = tuple(
        ManifestChange(
            topic_id=uuid.UUID(int=2**128 - 1),
            partition=2**31 - 1,
            sequence=2**63 - 1 - CHANGES_MAX + number,
            order=(2**31 - 1, "0" * 25, 2**63 - 1),
        )
        for number in range(1, CHANGES_MAX + 1)
    )
    longest = replace(LIST, sequence=2**63 - 1, changes=changes)
    assert ChangeList.decode(longest.encode()) == longest


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff",
        b"[" * 100_000,
        b"[]",
        b"{" + b'"sequence":' + b"9" * 5000 + b"}",
        LIST.encode()[:-20],
        LIST.encode().replace(b'"revision":41', b'"revision":42'),
        b" " * (LIST_BYTES_MAX + 1),
        encode_document("strandline-manifest", 1, FIELDS),
        encoded(sequence=-1),
        encoded(sequence=2**63),
        encoded(sequence="6"),
        encoded(sequence=True),
        encoded(sequence=4.0),
        # Its changes are not those that it says it has.
        encoded(sequence=4),
        encoded(complete_after=5),
        encoded(changes=[CHANGE_FIELDS, CHANGE_FIELDS]),
        encoded(changes=[{**CHANGE_FIELDS, "sequence": 6}, CHANGE_FIELDS]),
        encoded(
            sequence=CHANGES_MAX + 9,
            changes=[{**CHANGE_FIELDS, "sequence": 5 + n} for n in range(CHANGES_MAX + 1)],
        ),
        encoded(incarnation="a" * 65),
        encoded(incarnation=None),
        encoded(changes={}),
        encoded(changes=["../../etc/passwd"]),
        with_change(topic_id="../../cluster.json"),
        with_change(partition=-1),
        with_change(partition=2**31),
        with_change(partition="../0"),
        with_change(leader_epoch=2**31),
        with_change(generation="a" * 65),
        with_change(revision=2**63),
        with_change(revision=None),
    ],
    ids=range(31),
)
def test_what_no_broker_writes_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptFile):
        ChangeList.decode(content)


def test_a_later_release_s_list_is_not_read() -> None:
    with pytest.raises(UnsupportedFormat):
        ChangeList.decode(encode_document("strandline-changes", 2, FIELDS))


def test_a_list_that_is_known_costs_a_head_and_one_that_is_too_large_is_not_read() -> None:
    store = MemoryStore()
    with pytest.raises(ObjectNotFound):
        change_list.load(store)
    store.put(CHANGES_KEY, LIST.encode())
    known = change_list.load(store)
    assert known.changes == LIST
    assert store.count_requests("get") == 1
    assert change_list.load(store, known) is known
    store.put(CHANGES_KEY, b" " * (LIST_BYTES_MAX + 1))
    with pytest.raises(CorruptFile, match="too many"):
        change_list.load(store, known)
    assert store.count_requests("get") == 1


def test_only_a_damaged_list_is_damage() -> None:
    store = MemoryStore()
    assert change_list.find_damage(store) == []
    store.put(CHANGES_KEY, LIST.encode())
    assert change_list.find_damage(store) == []
    store.put(CHANGES_KEY, encode_document("strandline-changes", 2, FIELDS))
    assert change_list.find_damage(store) == []
    store.put(CHANGES_KEY, LIST.encode().replace(b"41", b"42"))
    [told] = change_list.find_damage(store)
    assert CHANGES_KEY in told
