"""Uploads the two objects of a segment and verifies them in the bucket.

    3 put .log   under a key unique to this attempt
    4 put .meta
    5 verify     size and checksum of both, as stored

The caller (a copy, a merge or a compaction) does the steps before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.storage.crash_points import crash_point
from strandline.storage.errors import ObjectCorrupt
from strandline.storage.remote.keys import SegmentKeys
from strandline.storage.remote.object_store.interface import FileBody, ObjectStore, checksum
from strandline.storage.system import crc32c as crc32c_module

# Where a store keeps no checksum, an object is read back in pieces of this size.
READ_BACK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadPoints:
    """The crash points of steps 3 and 4."""

    after_log: str
    after_meta: str


def upload_segment(
    store: ObjectStore,
    keys: SegmentKeys,
    body: FileBody,
    meta: bytes,
    *,
    points: UploadPoints,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Steps 3 to 5; blocks. `check` is called between requests, and may raise.

    Raises ObjectCorrupt unless the store then holds exactly these bytes, and the store's errors.
    """
    store.put(keys.log_key, body)  # 3
    crash_point(points.after_log)
    check()
    store.put(keys.meta_key, meta)  # 4
    crash_point(points.after_meta)
    check()
    _verify(store, keys.log_key, body.size_bytes, body.crc32c, check)  # 5
    _verify(store, keys.meta_key, len(meta), checksum(meta), check)


def _verify(
    store: ObjectStore, key: str, size_bytes: int, crc32c: int, check: Callable[[], None]
) -> None:
    stored = store.head(key)
    if stored.size_bytes != size_bytes:
        raise ObjectCorrupt(
            key, "verify", f"has {stored.size_bytes} bytes, {size_bytes} were written"
        )
    # The writer computed the stated checksum from the bytes it sent.
    found_crc32c = stored.stated_crc32c
    if found_crc32c is None:
        found_crc32c = 0
        for start in range(0, size_bytes, READ_BACK_BYTES):
            check()
            piece = store.get(key, start=start, end=min(start + READ_BACK_BYTES, size_bytes))
            found_crc32c = crc32c_module.crc32c(piece, found_crc32c)
    if found_crc32c != crc32c:
        raise ObjectCorrupt(key, "verify", f"crc32c {found_crc32c:08x}, {crc32c:08x} was written")
