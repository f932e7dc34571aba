"""Entries and snapshots that are damaged, or of another release, are refused as such."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.log_format import (
    NO_ENTRY_CHECKSUM,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    entry_checksum,
)
from strandline.broker.protocol.formats.metadata_records import FeatureLevelRecord
from strandline.storage.errors import (
    CorruptFile,
    UnsupportedFormat,
)
from strandline.storage.remote.keys import metadata_log_key, metadata_snapshot_key
from strandline.storage.remote.object_store.interface import IfAbsent
from tests.support.memory_store import MemoryStore
from tests.unit.broker.cluster.metadata_rig import CLUSTER, fill, opened

# --- damage ------------------------------------------------------------------------------------


def test_any_flipped_bit_in_an_entry_is_noticed() -> None:
    store = MemoryStore()
    fill(opened(store, snapshot_interval=100), 3)
    key = metadata_log_key(3)
    content = store.get(key)
    for position in range(0, len(content) - 1, 7):
        damaged = bytearray(content)
        damaged[position] ^= 1
        store.damage(key, lambda _old, new=bytes(damaged): new)  # type: ignore[misc]
        with pytest.raises((CorruptFile, UnsupportedFormat), match=key):
            opened(store, snapshot_interval=100)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 300, b"[]", b'"x"', b"{}", b'{"format":', b"[" * 100_000, b"\xff\xfe"],
)
def test_garbage_in_place_of_an_entry_is_refused_by_name(content: bytes) -> None:
    store = MemoryStore()
    fill(opened(store), 1)
    store.damage(metadata_log_key(2), lambda _old: content)
    with pytest.raises(CorruptFile, match=metadata_log_key(2)):
        opened(store)


def test_an_entry_under_another_number_is_refused() -> None:
    store = MemoryStore()
    fill(opened(store), 1)
    store.put(metadata_log_key(3), store.get(metadata_log_key(2)), condition=IfAbsent())
    with pytest.raises(CorruptFile, match="holds number 2; it was renamed or copied"):
        opened(store)


def test_an_entry_of_a_newer_release_is_refused_as_such() -> None:
    store = MemoryStore()
    opened(store)
    newer = store.get(metadata_log_key(1)).replace(b'"version":2', b'"version":4')
    store.put(metadata_log_key(2), newer, condition=IfAbsent())
    with pytest.raises(UnsupportedFormat, match="version 4"):
        opened(store)


@pytest.mark.parametrize(
    ("version", "writer"), [(2, "a state before the first release"), (6, "a later release")]
)
def test_a_snapshot_of_another_version_is_refused_as_such(version: int, writer: str) -> None:
    content = encode_snapshot(MetadataImage(), head_checksum=NO_ENTRY_CHECKSUM)
    other = content.replace(b'"version":5', b'"version":%d' % version)
    with pytest.raises(UnsupportedFormat, match=f"version {version}, .*: {writer} wrote it"):
        decode_snapshot(other, key=metadata_snapshot_key(0), index=0)


@pytest.mark.parametrize("levels", [{"transaction.version": 3}, {"no.such": 1}])
def test_a_level_that_only_a_later_release_knows_is_refused(levels: dict[str, int]) -> None:
    records = [FeatureLevelRecord(name=n, feature_level=level) for n, level in levels.items()]
    with pytest.raises(UnsupportedFormat, match="a later release set it"):
        MetadataImage().apply_entry(records)


def test_an_entry_without_records_is_refused() -> None:
    store = MemoryStore()
    opened(store)
    empty = encode_entry(
        [],
        before=MetadataImage(version=1),
        epoch=0,
        cluster_id=CLUSTER,
        previous=entry_checksum(store.get(metadata_log_key(1))),
        writer="w",
    )
    store.put(metadata_log_key(2), empty, condition=IfAbsent())
    with pytest.raises(CorruptFile, match="without records"):
        opened(store)
